import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createActor, SimulatedClock, waitFor } from 'xstate'
import { DRAIN_MS, sourceMachine, type HeldLock, type SourceWork } from '../../../actors/source/source.ts'
import { EngineError } from '../../../engine/errors.ts'

type Stream = { drain: AbortSignal; signal: AbortSignal; progressed: () => void; done: PromiseWithResolvers<void> }

/** A source whose work is settled by the test, on a clock of the test's own. */
function setUp() {
  const events: string[] = []
  const streams: Stream[] = []
  let inspection: () => Promise<unknown> = async () => 'plan'
  const work: SourceWork = {
    acquireLock: () => (events.push('lock'), Promise.resolve({ release: async () => void events.push('release') })),
    inspect: () => (events.push('inspect'), inspection()),
    stream: ({ drain, progressed, plan }, signal) => {
      events.push(`stream ${plan}`)
      const done = Promise.withResolvers<void>()
      streams.push({ drain, signal, progressed, done })
      return done.promise
    },
  }
  const clock = new SimulatedClock()
  const actor = createActor(sourceMachine, { input: { work }, clock })
  actor.start()
  const reach = (state: 'streaming' | 'waiting' | 'failed' | 'stopped' | 'stopping' | 'locking') => waitFor(actor, (s) => s.matches(state))
  return {
    actor,
    clock,
    events,
    streams,
    reach,
    inspects: (result: typeof inspection) => (inspection = result),
  }
}
const unreachable = () => new EngineError('SOURCE_UNREACHABLE', 'gone')

test('it locks, inspects, streams, and a stop drains the stream before the lock is let go', async () => {
  const { actor, events, streams, reach } = setUp()
  await reach('streaming')
  actor.send({ type: 'stop' })
  assert.ok(streams[0]?.drain.aborted)
  assert.ok(!streams[0]?.signal.aborted)
  assert.ok(!events.includes('release'))
  streams[0]?.done.resolve()
  await reach('stopped')
  assert.deepEqual(events, ['lock', 'inspect', 'stream plan', 'release'])
})

test('a stream that does not drain in time is cut', async () => {
  const { actor, clock, streams, reach } = setUp()
  await reach('streaming')
  actor.send({ type: 'stop' })
  clock.increment(DRAIN_MS)
  await reach('stopped')
  assert.ok(streams[0]?.signal.aborted)
})

test('an error that can pass is tried again with growing delay, the lock let go meanwhile; only progress resets it', async () => {
  const { actor, clock, events, streams, reach } = setUp()
  for (let n = 1; n <= 3; n++) {
    await reach('streaming')
    streams.at(-1)?.done.reject(unreachable())
    const waiting = await reach('waiting')
    assert.equal(waiting.context.attempt, n)
    assert.equal(waiting.context.lastError?.code, 'SOURCE_UNREACHABLE')
    assert.equal(events.at(-1), 'release')
    clock.increment(200 * 2 ** (n - 1) - 1)
    assert.ok(actor.getSnapshot().matches('waiting'))
    clock.increment(1)
    assert.ok(actor.getSnapshot().matches('locking'))
  }
  await reach('streaming')
  streams.at(-1)?.progressed()
  assert.equal(actor.getSnapshot().context.attempt, 0)
  actor.stop()
})

test('an error that trying again cannot mend stays, with code and remedy, until a user asks', async () => {
  const { actor, clock, events, inspects, reach } = setUp()
  inspects(() => Promise.reject(new EngineError('SLOT_LOST', 'slot "s" was invalidated')))
  const failed = await reach('failed')
  assert.equal(failed.context.lastError?.code, 'SLOT_LOST')
  assert.match(failed.context.lastError?.remedy ?? '', /SQL/)
  assert.deepEqual(events, ['lock', 'inspect', 'release'])
  clock.increment(3_600_000)
  assert.ok(actor.getSnapshot().matches('failed'))
  inspects(async () => 'plan')
  actor.send({ type: 'retry' })
  await reach('streaming')
  actor.stop()
})

test('an error that is not known is tried again for ever, after minutes at last', async () => {
  const { actor, clock, streams, reach } = setUp()
  for (let n = 1; n <= 15; n++) {
    await reach('streaming')
    assert.equal(streams.length, n)
    streams.at(-1)?.done.reject(new TypeError('x is undefined'))
    const waiting = await reach('waiting')
    assert.equal(waiting.context.lastError?.code, 'INTERNAL')
    clock.increment(180_000 - (n < 12 ? 0 : 1))
    assert.equal(actor.getSnapshot().matches('waiting'), n >= 12)
    clock.increment(1)
  }
  actor.stop()
})

test('a stop while the lock is still being waited for lets go of it should it come', async () => {
  const lock = Promise.withResolvers<HeldLock>()
  const released = Promise.withResolvers<void>()
  const work: SourceWork = { acquireLock: () => lock.promise, inspect: async () => undefined, stream: async () => undefined }
  const actor = createActor(sourceMachine, { input: { work } })
  actor.start()
  actor.send({ type: 'stop' })
  await waitFor(actor, (s) => s.matches('stopped'))
  lock.resolve({ release: async () => released.resolve() })
  await released.promise
})

test('a stop is honoured while waiting and after failing', async () => {
  for (const [error, state] of [
    [unreachable(), 'waiting'],
    [new EngineError('SLOT_MISSING', 'no slot'), 'failed'],
  ] as const) {
    const { actor, streams, reach } = setUp()
    await reach('streaming')
    streams[0]?.done.reject(error)
    await reach(state)
    actor.send({ type: 'stop' })
    await reach('stopped')
  }
})
