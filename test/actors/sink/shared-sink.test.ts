/** A sink of which this process serves some partitions, and other processes the rest. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ackIdPrefix, sinkTag } from '../../../engine/dispatch/ack-id.ts'
import type { Log } from '../../../engine/log/log.ts'
import { acksOf, Fixture, SINK } from '../sink-fixture.ts'

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

/** How many messages a process that serves these of four partitions has out when it is asked for more than there may be. */
async function outAtMost(partitions: readonly number[]): Promise<number> {
  await using f = await serving(partitions, { partitions: 4, max_ack_pending: 10 })
  for (const partition of partitions) {
    const rows = Array.from({ length: 20 }, (_, n) => ({ id: partition * 100 + n }))
    await f.append(rows, partition)
  }
  const out: string[] = []
  for (let some = acksOf(await f.receive(100, 1_000)); some.length > 0; some = acksOf(await f.receive(100, 100))) out.push(...some)
  await f.pulled.ack(out.slice(0, 1))
  assert.equal((await f.receive(100, 1_000)).length, 1, 'one for one')
  return out.length
}

test('three processes have as many messages out as max_ack_pending says and no more, and one alone can have all of them', async () => {
  const shares = [await outAtMost([0]), await outAtMost([1]), await outAtMost([2, 3])]
  assert.equal(
    shares.reduce((sum, share) => sum + share, 0),
    10,
  )
  assert.equal(await outAtMost([0, 1, 2, 3]), 10)
})

test('an ack or nack for a partition that another process serves says to retry, and does the rest', async () => {
  await using f = await serving([0], { partitions: 4 })
  await f.append([{ id: 1 }, { id: 2 }])
  const [first, second] = acksOf(await f.gather(2))
  await assert.rejects(f.pulled.ack([first ?? '', foreign]), { code: 'STOPPING' })
  await assert.rejects(f.pulled.nack([foreign, second ?? '']), { code: 'STOPPING' })
  assert.deepEqual(acksOf(await f.receive(10)), [second], 'the first is acked, the second came back')
})

test('a wait whose client is counted elsewhere takes no place of max_waiting', async () => {
  await using f = await serving([0], { max_waiting: 1 })
  const client = new AbortController()
  const request = { batchSize: 1, waitMs: 30_000, shape: 'flat', signal: client.signal } as const
  const waits = [
    f.pulled.receive({ ...request, isCounted: true }),
    f.pulled.receive({ ...request, isCounted: true }),
    f.pulled.receive(request),
  ]
  await assert.rejects(f.pulled.receive(request), { code: 'TOO_MANY_WAITING' })
  client.abort()
  assert.deepEqual(
    (await Promise.all(waits)).map(({ count }) => count),
    [0, 0, 0],
  )
  await f.receive(1, 5) // their places are free again
})
