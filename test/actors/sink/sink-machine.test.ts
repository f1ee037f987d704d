/** The sink's machine without I/O: subscription and partitions are scripted. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActor, SimulatedClock } from 'xstate'
import { sinkMachine, type Served, type SinkWork } from '../../../actors/sink/sink-machine.ts'
import type { GenerationState } from '../../../engine/dispatch/generations.ts'
import type { Owned, PartitionWork } from '../../../actors/partition/sink-partition.ts'

const idle = (signal: AbortSignal) => new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))

type Listener = Parameters<SinkWork['subscribe']>[1]

class Script implements SinkWork {
  readonly said: string[] = []
  listener: Listener | undefined
  generation = 1
  /** what is asked of the state database, by the machine: answered by the test */
  choices: PromiseWithResolvers<void>[] = []
  state: GenerationState = 'open'
  asked = 0
  assigned = [0, 1]
  subscribed = Promise.withResolvers<void>()
  drains = new Map<number, PromiseWithResolvers<void>>()

  async choose(): Promise<Served> {
    await this.choices.shift()?.promise
    this.state = 'open' // of the one that is chosen
    return { generation: this.generation++, topic: 'stream' }
  }
  async stateOf(): Promise<GenerationState> {
    this.asked++
    return this.state
  }
  async subscribe(_served: unknown, listener: Listener): Promise<AsyncDisposable> {
    this.listener = listener
    for (const partition of this.assigned) listener.assigned(partition) // as the embedded log does: before it settles
    await this.subscribed.promise
    return {
      [Symbol.asyncDispose]: async () => void this.said.push('unsubscribed'),
    }
  }
  partition(_served: unknown, partition: number): PartitionWork {
    const drained = Promise.withResolvers<void>()
    this.drains.set(partition, drained)
    const owned: Owned = {
      read: idle,
      commit: idle,
      deliver: idle,
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
async function start(work = new Script()) {
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
  assert.ok(actor.getSnapshot().matches('serving'))
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

test('before partitions are spread anew all stop cleanly, and those that come back run again', async () => {
  const { work, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  let handedOver = false
  const over = work.listener?.handOver().then(() => (handedOver = true))
  work.drains.get(0)?.resolve()
  await settle()
  assert.deepEqual(said.slice(2), ['gone 0', 'gone 1'], 'nothing is handed out any more')
  assert.ok(!handedOver, 'partition 1 is not written down')
  work.drains.get(1)?.resolve()
  await over
  work.listener?.revoked(0)
  work.listener?.revoked(1)
  work.listener?.assigned(1)
  await settle()
  assert.deepEqual([...actor.getSnapshot().context.partitions.keys()], [1])
  assert.deepEqual(said.slice(4), ['live 1'], 'none was cut')
  assert.ok(actor.getSnapshot().matches('serving'))
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

test('the next generation is chosen when every partition here and elsewhere is drained, and all of them have stopped', async () => {
  const { work, clock, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  const drained = (partition: number, generation = 1) => actor.send({ type: 'drained', generation, partition })
  drained(0)
  drained(1, 7)
  await settle()
  assert.deepEqual(actor.getSnapshot().value, { serving: 'delivering' }, 'one of another generation says nothing')
  work.state = 'closed'
  drained(1)
  await settle()
  assert.deepEqual(actor.getSnapshot().value, { serving: 'watching' }, 'other processes still deliver')
  assert.equal(said.length, 2, 'and the partitions here go on')
  work.state = 'drained'
  clock.increment(1_000)
  await settle()
  assert.equal(actor.getSnapshot().value, 'leaving')
  const [first, second] = [...work.drains.values()]
  first?.resolve()
  await settle()
  assert.equal(work.generation, 2, 'nothing is chosen while a partition is left')
  second?.resolve()
  await settle()
  assert.deepEqual(said.slice(2), ['gone 0', 'gone 1', 'unsubscribed', 'live 0', 'live 1'])
  assert.equal(actor.getSnapshot().context.served?.generation, 2)
  assert.equal(actor.getSnapshot().context.drained.size, 0)
})

test('the next generation does not wait for the clock when the last partition is drained after an edit has been looked at', async () => {
  const { work, actor } = await start()
  work.subscribed.resolve()
  await settle()
  work.state = 'closed'
  actor.send({ type: 'look' })
  await settle()
  for (const partition of [0, 1]) {
    assert.deepEqual(actor.getSnapshot().value, { serving: 'watching' })
    if (partition === 1) work.state = 'drained'
    actor.send({ type: 'drained', generation: 1, partition })
    await settle()
  }
  assert.equal(actor.getSnapshot().value, 'leaving')
})

test('who serves no partition goes on to the next generation with the others: told so, or after a while', async () => {
  const work = Object.assign(new Script(), { assigned: [] })
  const { clock, actor } = await start(work)
  work.subscribed.resolve()
  await settle()
  for (const tell of [() => actor.send({ type: 'look' }), () => clock.increment(15_000)]) {
    const before = work.generation
    tell()
    await settle()
    assert.deepEqual(actor.getSnapshot().value, { serving: 'delivering' }, 'no other one follows')
    work.state = 'closed'
    tell()
    await settle()
    assert.deepEqual(actor.getSnapshot().value, { serving: 'watching' }, 'others still deliver it')
    work.state = 'drained'
    clock.increment(1_000)
    await settle()
    assert.equal(work.generation, before + 1)
  }
})

test('who serves a partition asks nothing by the clock; when the last one has gone to others it does', async () => {
  const { work, clock, actor } = await start(Object.assign(new Script(), { assigned: [0] }))
  work.subscribed.resolve()
  await settle()
  let transitions = 0
  actor.subscribe(() => transitions++)
  const { asked } = work
  clock.increment(3_600_000)
  await settle()
  assert.deepEqual([transitions, work.asked - asked], [0, 0])
  work.state = 'drained'
  work.listener?.revoked(0)
  await settle()
  clock.increment(15_000)
  await settle()
  assert.deepEqual([work.asked - asked, actor.getSnapshot().context.served?.generation], [2, 2])
})

test('who was given a partition that others have left for the next generation follows them', async () => {
  const { work, clock, actor, said } = await start(Object.assign(new Script(), { assigned: [0] }))
  work.subscribed.resolve()
  await settle()
  work.state = 'closed'
  actor.send({ type: 'look' }) // it can't be taken over
  await settle()
  assert.deepEqual(actor.getSnapshot().value, { serving: 'watching' }, 'others may still deliver it')
  work.state = 'drained'
  clock.increment(1_000)
  actor.send({ type: 'look' })
  await settle()
  assert.equal(actor.getSnapshot().value, 'leaving')
  work.drains.get(0)?.resolve()
  await settle()
  assert.deepEqual([said.includes('unsubscribed'), actor.getSnapshot().context.served?.generation], [true, 2])
})

test('held for a replay, all partitions stop and stay assigned; then those that are assigned by that time begin again', async () => {
  const { work, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  actor.send({ type: 'hold' })
  await settle()
  assert.equal(actor.getSnapshot().value, 'holding')
  for (const drained of work.drains.values()) drained.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'held')
  work.listener?.revoked(0)
  work.listener?.assigned(2)
  await settle()
  assert.deepEqual(said.splice(0), ['live 0', 'live 1', 'gone 0', 'gone 1'], 'nothing begins meanwhile')
  work.generation = 1 // the same one is to be delivered
  actor.send({ type: 'resume' })
  await settle()
  assert.deepEqual(said.splice(0), ['live 1', 'live 2'])
  assert.deepEqual(actor.getSnapshot().value, { serving: 'delivering' })
})

test('a replay that goes back to another generation lets go of the one that was served', async () => {
  const { work, actor, said } = await start()
  work.subscribed.resolve()
  await settle()
  actor.send({ type: 'hold' })
  for (const drained of work.drains.values()) drained.resolve()
  await settle()
  said.splice(0)
  work.generation = 7
  actor.send({ type: 'resume' })
  await settle()
  assert.deepEqual(said, ['unsubscribed', 'live 0', 'live 1'])
  assert.equal(actor.getSnapshot().context.served?.generation, 8, 'it was asked for once more when the former one was left')
})

test('a sink that nobody releases goes on by itself, as does one whose partitions do not stop', async () => {
  const { work, clock, actor } = await start()
  work.subscribed.resolve()
  await settle()
  actor.send({ type: 'hold' })
  await settle()
  work.generation = 1
  clock.increment(10_000)
  await settle()
  assert.deepEqual(actor.getSnapshot().value, { serving: 'delivering' })
  actor.send({ type: 'hold' })
  for (const drained of work.drains.values()) drained.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'held')
  work.generation = 1
  clock.increment(10_000)
  await settle()
  assert.deepEqual(actor.getSnapshot().value, { serving: 'delivering' })
  actor.send({ type: 'hold' })
  for (const drained of work.drains.values()) drained.resolve()
  await settle()
  actor.send({ type: 'stop' })
  await settle()
  assert.equal(actor.getSnapshot().value, 'stopped')
})

test('a choice that fails is made again after a while; a stop meanwhile ends the sink', async () => {
  const work = new Script()
  const failing = () => {
    const choice = Promise.withResolvers<void>()
    choice.reject(new Error('the state database is away'))
    choice.promise.catch(() => undefined)
    return choice
  }
  work.choices = [failing(), failing(), Promise.withResolvers()]
  const { clock, actor } = await start(work)
  assert.equal(actor.getSnapshot().value, 'waiting')
  clock.increment(100)
  await settle()
  assert.equal(actor.getSnapshot().value, 'waiting')
  clock.increment(100)
  await settle()
  assert.equal(actor.getSnapshot().value, 'waiting', 'longer than the first time')
  clock.increment(100)
  await settle()
  assert.equal(actor.getSnapshot().value, 'choosing')
  actor.send({ type: 'stop' })
  assert.equal(actor.getSnapshot().value, 'stopped')
})
