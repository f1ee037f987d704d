/** A sink of which this process serves some partitions, and other processes the rest. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ackIdPrefix, sinkTag } from '../../engine/dispatch/ack-id.ts'
import type { Log } from '../../engine/log/log.ts'
import { acksOf, Fixture, SINK } from './sink-fixture.ts'

/** The log as a process sees it that is assigned these partitions. */
const assigned = (log: Log, partitions: readonly number[]): Log =>
  new Proxy(log, {
    get: (target, name) => {
      if (name === 'subscribe')
        return async (_topic: string, listener: { assigned: (partition: number) => void }) => {
          for (const partition of partitions) listener.assigned(partition)
          return { [Symbol.asyncDispose]: async () => undefined }
        }
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })

async function serving(partitions: readonly number[], settings: Partial<typeof SINK>): Promise<Fixture> {
  const fixture = await Fixture.open(settings, { start: false })
  await fixture.start({ log: assigned(fixture.log, partitions) })
  return fixture
}
const foreign = `${ackIdPrefix(sinkTag(SINK.id), 1, 3)}0.0`

test('of max_ack_pending a process has the part of the partitions it serves', async () => {
  await using f = await serving([0], { partitions: 4, max_ack_pending: 10 })
  await f.append(Array.from({ length: 20 }, (_, id) => ({ id })))
  const out = await f.gather(3)
  assert.equal((await f.receive(10)).length, 0, 'a quarter of ten, rounded up, is out')
  await f.sink.ack(acksOf(out).slice(0, 1))
  assert.equal((await f.receive(10, 1_000)).length, 1)
})

test('an ack or nack for a partition that another process serves says to retry, and does the rest', async () => {
  await using f = await serving([0], { partitions: 4 })
  await f.append([{ id: 1 }, { id: 2 }])
  const [first, second] = acksOf(await f.gather(2))
  await assert.rejects(f.sink.ack([first ?? '', foreign]), { code: 'STOPPING' })
  await assert.rejects(f.sink.nack([foreign, second ?? '']), { code: 'STOPPING' })
  assert.deepEqual(acksOf(await f.receive(10)), [second], 'the first is acked, the second came back')
})

test('a wait whose client is counted elsewhere takes no place of max_waiting', async () => {
  await using f = await serving([0], { max_waiting: 1 })
  const client = new AbortController()
  const request = { batchSize: 1, waitMs: 30_000, shape: 'flat', signal: client.signal } as const
  const waits = [f.sink.receive({ ...request, isCounted: true }), f.sink.receive({ ...request, isCounted: true }), f.sink.receive(request)]
  await assert.rejects(f.sink.receive(request), { code: 'TOO_MANY_WAITING' })
  client.abort()
  assert.deepEqual(
    (await Promise.all(waits)).map(({ count }) => count),
    [0, 0, 0],
  )
  await f.receive(1, 5) // their places are free again
})
