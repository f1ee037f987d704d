/** Random schedules of everything that can happen to a partition, each step checked against the naive model. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ACK_WAIT_MS, World } from './dispatcher-model.ts'
import fc from '../../services/fast-check.ts'

const group = fc.integer({ min: 1, max: 6 })
const picks = fc.array(fc.nat(), { maxLength: 6 })
const append = fc.record({
  kind: fc.constant('append' as const),
  messages: fc.array(fc.record({ group, tombstone: fc.boolean().map((b) => b) }), { minLength: 1, maxLength: 8 }),
})
const common = [
  append,
  append,
  fc.record({ kind: fc.constant('repeat' as const), back: fc.integer({ min: 1, max: 12 }), size: fc.integer({ min: 1, max: 5 }) }),
  fc.record({ kind: fc.constant('read' as const), packs: fc.integer({ min: 1, max: 3 }) }),
  fc.record({ kind: fc.constant('read' as const), packs: fc.integer({ min: 1, max: 3 }) }),
  fc.record({ kind: fc.constant('take' as const), max: fc.integer({ min: 1, max: 5 }) }),
  fc.record({ kind: fc.constant('take' as const), max: fc.integer({ min: 1, max: 5 }) }),
  fc.record({ kind: fc.constant('ack' as const), picks }),
  fc.record({ kind: fc.constant('ack' as const), picks }),
  fc.record({ kind: fc.constant('nack' as const), picks }),
  fc.record({ kind: fc.constant('pass' as const), ms: fc.integer({ min: 1, max: ACK_WAIT_MS }) }),
  fc.record({ kind: fc.constant('commit' as const) }),
]
const endings = [
  fc.record({ kind: fc.constant('crash' as const) }),
  fc.record({ kind: fc.constant('stop' as const) }),
  fc.record({ kind: fc.constant('park' as const), works: fc.boolean(), picks }),
  fc.record({ kind: fc.constant('park' as const), works: fc.constant(true), picks: fc.constant([]) }),
  fc.record({ kind: fc.constant('filter' as const), group: fc.integer({ min: 1, max: 2 }) }),
]
/** of an owner that sends */
const failures = [
  fc.record({ kind: fc.constant('fail' as const), picks }),
  fc.record({ kind: fc.constant('fail' as const), picks }),
  fc.record({ kind: fc.constant('retry' as const), max: fc.integer({ min: 1, max: 5 }) }),
]
const anyStep = fc.oneof(...common, ...endings)
const anySenderStep = fc.oneof(...common, ...endings, ...failures)
type Step = typeof anySenderStep extends fc.Arbitrary<infer T> ? T : never

function play(world: World, steps: readonly Step[]): void {
  const chosen = (list: readonly number[]) => {
    const { handedOut } = world
    return handedOut.length === 0
      ? []
      : [...new Set(list.map((n) => handedOut[handedOut.length - 1 - (n % Math.min(handedOut.length, 12))] as (typeof handedOut)[number]))]
  }
  for (const step of steps) {
    if (step.kind === 'append')
      world.append(
        step.messages.map((m) => m.group),
        step.messages.map((m) => m.tombstone && m.group === 1),
      )
    else if (step.kind === 'repeat') world.repeat(step.back, step.size)
    else if (step.kind === 'read') world.read(step.packs)
    else if (step.kind === 'take') world.take(step.max)
    else if (step.kind === 'ack') world.ack(chosen(step.picks))
    else if (step.kind === 'nack') world.nack(chosen(step.picks))
    else if (step.kind === 'pass') world.pass(step.ms)
    else if (step.kind === 'commit') world.commit()
    else if (step.kind === 'crash') world.crash()
    else if (step.kind === 'stop') world.stop()
    else if (step.kind === 'filter') world.filter(step.group)
    else if (step.kind === 'fail') world.fail(chosen(step.picks))
    else if (step.kind === 'retry') world.take(step.max, 'failed')
    else world.park(step.works, chosen(step.picks))
  }
  world.finish()
}

const RUNS = 600
for (const grouping of [true, false]) {
  const kind = grouping ? 'message groups' : 'no groups'

  test(`${kind}: what is handed out, and what is committed, is what the model says, within max_ack_pending`, () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(...common), { maxLength: 80, size: 'max' }), fc.integer({ min: 1, max: 6 }), (steps, maxPending) => {
        play(new World({ grouping, windowBytes: 1 << 20, maxPending }), steps)
      }),
      { numRuns: RUNS },
    )
  })

  test(`${kind}: crashes, stops and parking lose nothing, break no order and bring back exactly what was open`, () => {
    let parks = 0
    fc.assert(
      fc.property(fc.array(anyStep, { maxLength: 120, size: 'max' }), fc.integer({ min: 400, max: 6_000 }), (steps, windowBytes) => {
        const world = new World({ grouping, windowBytes, maxPending: 1_000_000 })
        play(world, steps)
        parks += world.parks
      }),
      { numRuns: RUNS },
    )
    assert.ok(parks > 100, `only ${parks} messages were parked: the window is too large to try it`)
  })

  test(`${kind}: the same of an owner that sends, to which failures are told, of one message of a group at a time or several`, () => {
    let failures = 0
    const sizes = fc.record({ windowBytes: fc.integer({ min: 400, max: 6_000 }), perGroup: fc.integer({ min: 1, max: 3 }) })
    fc.assert(
      fc.property(fc.array(anySenderStep, { maxLength: 120, size: 'max' }), sizes, (steps, size) => {
        const world = new World({ grouping, ...size, maxPending: 1_000_000, sends: true })
        play(world, steps)
        failures += world.failures
      }),
      { numRuns: RUNS },
    )
    assert.ok(failures > 100, `only ${failures} messages failed`)
  })
}
