/** The partition's machine without I/O: its work is scripted. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActor, SimulatedClock } from 'xstate'
import { sinkPartitionMachine, type Owned, type PartitionWork } from '../../../actors/partition/sink-partition.ts'

class Script implements PartitionWork {
  readonly said: string[] = []
  readonly owned: ScriptedOwned[] = []
  takes: (() => Promise<void>)[] = []
  /** of the last take-over */
  signal: AbortSignal | undefined
  async takeOver(signal: AbortSignal): Promise<Owned> {
    this.said.push('take over')
    this.signal = signal
    await this.takes.shift()?.()
    const owned = new ScriptedOwned(this.said, this.owned.length + 1)
    this.owned.push(owned)
    return owned
  }
  live(owned: Owned): void {
    this.said.push(`live ${(owned as ScriptedOwned).name}`)
  }
  gone(owned: Owned): void {
    this.said.push(`gone ${(owned as ScriptedOwned).name}`)
  }
  failed(error: unknown): void {
    this.said.push(`failed: ${(error as Error).message}`)
  }
}

class ScriptedOwned implements Owned {
  readonly name: number
  readonly #said: string[]
  readonly signals: AbortSignal[] = []
  readonly fail = Promise.withResolvers<never>()
  readonly drained = Promise.withResolvers<void>()
  readonly over = Promise.withResolvers<void>()
  constructor(said: string[], name: number) {
    this.#said = said
    this.name = name
    this.fail.promise.catch(() => undefined)
  }
  #run(signal: AbortSignal): Promise<void> {
    this.signals.push(signal)
    return new Promise((resolve) => signal.addEventListener('abort', () => resolve()))
  }
  read(signal: AbortSignal): Promise<void> {
    return Promise.race([this.#run(signal), this.fail.promise])
  }
  commit(signal: AbortSignal): Promise<void> {
    return this.#run(signal)
  }
  deliver(signal: AbortSignal): Promise<void> {
    return this.#run(signal)
  }
  tend(signal: AbortSignal): Promise<void> {
    return this.#run(signal)
  }
  trim(signal: AbortSignal): Promise<void> {
    return this.#run(signal)
  }
  drain(): Promise<void> {
    this.#said.push(`drain ${this.name}`)
    return this.drained.promise
  }
  close(): void {
    this.#said.push(`close ${this.name}`)
  }
  ended(): Promise<void> {
    return this.over.promise
  }
}

function start() {
  const work = new Script()
  const clock = new SimulatedClock()
  const actor = createActor(sinkPartitionMachine, { input: { work }, clock })
  actor.start()
  return { work, clock, actor, said: work.said }
}
/** Lets settled promises take effect. */
const settle = async () => {
  for (let i = 0; i < 10; i++) await Promise.resolve()
}

test('it takes over, runs its five loops, and a stop drains it after they were told to end', async () => {
  const { work, actor, said } = start()
  await settle()
  assert.equal(actor.getSnapshot().value, 'running')
  const [owned] = work.owned
  assert.deepEqual(
    owned?.signals.map((s) => s.aborted),
    [false, false, false, false, false],
  )
  actor.send({ type: 'stop' })
  assert.deepEqual(
    owned?.signals.map((s) => s.aborted),
    [true, true, true, true, true],
  )
  assert.equal(actor.getSnapshot().value, 'draining')
  owned?.drained.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'stopped')
  assert.deepEqual(said, ['take over', 'live 1', 'gone 1', 'drain 1'])
})

test('a loop that fails closes the partition, and the next take-over waits for the back-off and for every loop to end', async () => {
  const { work, clock, actor, said } = start()
  await settle()
  work.owned[0]?.fail.reject(new Error('disk'))
  await settle()
  assert.equal(actor.getSnapshot().value, 'waiting')
  assert.deepEqual(said, ['take over', 'live 1', 'gone 1', 'close 1', 'failed: disk'])
  assert.equal(actor.getSnapshot().context.lastError?.error instanceof Error, true)
  clock.increment(99)
  assert.equal(actor.getSnapshot().value, 'waiting')
  clock.increment(1)
  await settle()
  assert.equal(said.filter((s) => s === 'take over').length, 1, 'a commit of the former owner may still be on its way')
  work.owned[0]?.over.resolve()
  await settle()
  assert.equal(actor.getSnapshot().value, 'running')
  assert.deepEqual(said.slice(-2), ['take over', 'live 2'])
})

test('it backs off longer each time, until it has run for a while', async () => {
  const { work, clock, actor } = start()
  const failIn = async (): Promise<number> => {
    await settle()
    const owned = work.owned.at(-1)
    owned?.fail.reject(new Error('again'))
    owned?.over.resolve()
    await settle()
    for (let ms = 1; ; ms++) {
      clock.increment(1)
      if (actor.getSnapshot().value !== 'waiting') return ms
    }
  }
  assert.deepEqual([await failIn(), await failIn(), await failIn()], [100, 200, 400])
  await settle()
  clock.increment(60_000)
  assert.equal(await failIn(), 100)
})

test('a take-over that fails is tried again, and a stop meanwhile is kept', async () => {
  const { work, clock, actor, said } = start()
  await settle()
  work.takes = [async () => Promise.reject(new Error('no database'))]
  work.owned[0]?.over.resolve()
  work.owned[0]?.fail.reject(new Error('disk'))
  await settle()
  clock.increment(100)
  await settle()
  assert.deepEqual(said.slice(-2), ['close 1', 'failed: no database'])
  assert.equal(actor.getSnapshot().value, 'waiting')
  actor.send({ type: 'stop' })
  assert.equal(actor.getSnapshot().status, 'done')
})

test('a revoked partition is void when the event was sent, in whatever state', async () => {
  const running = start()
  await settle()
  running.actor.send({ type: 'revoked' })
  assert.deepEqual(running.said.slice(-2), ['gone 1', 'close 1'])
  assert.deepEqual(
    running.work.owned[0]?.signals.map((s) => s.aborted),
    [true, true, true, true, true],
  )

  const taking = start()
  const gate = Promise.withResolvers<void>()
  taking.work.takes = [() => gate.promise]
  taking.actor.send({ type: 'revoked' })
  gate.resolve()
  await settle()
  assert.equal(taking.actor.getSnapshot().status, 'done')
  assert.ok(!taking.said.includes('live 1'))
})

test('an owner made by a take-over that nobody waits for any more is closed', async () => {
  const work = new Script()
  const gate = Promise.withResolvers<void>()
  work.takes = [() => gate.promise]
  const actor = createActor(sinkPartitionMachine, { input: { work } })
  actor.start()
  await settle()
  actor.send({ type: 'stop' })
  assert.ok(work.signal?.aborted, 'it is told at once')
  gate.resolve()
  await settle()
  assert.deepEqual(work.said, ['take over', 'close 1'])
})
