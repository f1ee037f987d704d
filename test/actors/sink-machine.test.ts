/** The sink's machine without I/O: subscription and partitions are scripted. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActor, SimulatedClock } from 'xstate'
import { sinkMachine, type SinkWork } from '../../actors/sink-machine.ts'
import type { Owned, PartitionWork } from '../../actors/sink-partition.ts'

const idle = (signal: AbortSignal) => new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))

class Script implements SinkWork {
  readonly said: string[] = []
  listener: Parameters<SinkWork['subscribe']>[0] | undefined
  subscribed = Promise.withResolvers<void>()
  drains = new Map<number, PromiseWithResolvers<void>>()

  async subscribe(listener: Parameters<SinkWork['subscribe']>[0]): Promise<AsyncDisposable> {
    this.listener = listener
    listener.assigned(0) // as the embedded log does: before it settles
    listener.assigned(1)
    await this.subscribed.promise
    return {
      [Symbol.asyncDispose]: async () => void this.said.push('unsubscribed'),
    }
  }
  partition(partition: number): PartitionWork {
    const drained = Promise.withResolvers<void>()
    this.drains.set(partition, drained)
    const owned: Owned = {
      read: idle,
      commit: idle,
      tend: idle,
      trim: idle,
      drain: () => drained.promise,
      close: () => void this.said.push(`close ${partition}`),
      ended: async () => undefined,
    }
    return {
      takeOver: async () => owned,
      live: () => void this.said.push(`live ${partition}`),
      gone: () => void this.said.push(`gone ${partition}`),
      failed: () => undefined,
    }
  }
  status(status: string): void {
    this.said.push(status)
  }
}

const settle = async () => {
  for (let i = 0; i < 20; i++) await Promise.resolve()
}
async function start() {
  const work = new Script()
  const clock = new SimulatedClock()
  const actor = createActor(sinkMachine, { input: { work, status: 'active' }, clock })
  actor.start()
  await settle()
  return { work, clock, actor, said: work.said }
}

test('partitions assigned before the subscription has settled run, and each only once', async () => {
  const { work, actor, said } = await start()
  assert.deepEqual(said, ['live 0', 'live 1'])
  assert.equal(actor.getSnapshot().value, 'subscribing')
  work.subscribed.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'serving')
  work.listener?.assigned(1)
  await settle()
  assert.equal(said.length, 2)
})

test('a revoked partition is void when the listener returns, and may be assigned again', async () => {
  const { work, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  work.listener?.revoked(1)
  assert.deepEqual(said.slice(2), ['gone 1', 'close 1'])
  assert.deepEqual([...actor.getSnapshot().context.partitions.keys()], [0])
  work.listener?.assigned(1)
  await settle()
  assert.equal(said.at(-1), 'live 1')
})

test('an edit of the status reaches the sink and restarts nothing', async () => {
  const { actor, said } = await start()
  actor.send({ type: 'status', status: 'paused' })
  actor.send({ type: 'status', status: 'active' })
  assert.deepEqual(said, ['live 0', 'live 1', 'paused', 'active'])
})

test('a stop drains every partition before it unsubscribes', async () => {
  const { work, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  actor.send({ type: 'stop' })
  work.drains.get(0)?.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'stopping')
  assert.ok(!said.includes('unsubscribed'))
  work.drains.get(1)?.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'stopped')
  assert.equal(said.at(-1), 'unsubscribed')
})

test('a partition that cannot be drained is given up in the end', async () => {
  const { work, clock, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  actor.send({ type: 'stop' })
  work.drains.get(0)?.resolve()
  clock.increment(10_000)
  await settle()
  assert.deepEqual(said.slice(-2), ['close 1', 'unsubscribed'])
  assert.equal(actor.getSnapshot().value, 'stopped')
})

test('a subscription that fails ends the sink with its error, and its partitions', async () => {
  const { work, actor, said } = await start()
  work.subscribed.reject(new Error('no topic'))
  await settle()
  assert.equal(actor.getSnapshot().value, 'failed')
  assert.equal((actor.getSnapshot().context.lastError?.error as Error).message, 'no topic')
  assert.deepEqual(said.slice(2).sort(), ['close 0', 'close 1', 'gone 0', 'gone 1'])
})
