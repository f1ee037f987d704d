import assert from 'node:assert/strict'
import { test } from 'node:test'
import { DestinationState } from '../../../actors/push/destination-state.ts'
import type { Blame, Failure } from '../../../sinks/push.ts'

function bench(max = 4) {
  const time = { now: 1_000 }
  const state = new DestinationState(max, { clock: () => time.now, random: () => 0.5, changed: () => undefined })
  const failure = (blame: Blame, retryAfterMs?: number): Failure => ({
    blame,
    answer: { code: 'DESTINATION_UNAVAILABLE', message: 'no', status: 503 },
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  })
  let group = 0
  const fail = (blame: Blame, messages = 1, retryAfterMs?: number) => {
    const lane = state.lanes()[0] ?? 'fresh'
    return state.failed({
      ticket: state.started(lane),
      failure: failure(blame, retryAfterMs),
      messages,
      group: `g${group++}`,
      groups: 1,
      doubtedSince: undefined,
      throttles: 0,
      isRetry: false,
    })
  }
  const succeed = () => state.succeeded(state.started(state.lanes()[0] ?? 'fresh'))
  return { time, state, fail, succeed }
}

test('one failure makes nobody down, three groups in a row do, and a refused connection does at once', () => {
  const a = bench()
  assert.deepEqual([a.fail('unavailable'), a.fail('unavailable'), a.state.phase], ['suspect', 'suspect', 'up'])
  a.succeed()
  assert.deepEqual([a.fail('unavailable'), a.fail('unavailable'), a.fail('unavailable')], ['suspect', 'suspect', 'suspect'])
  assert.equal(a.state.phase, 'down')
  const b = bench()
  assert.deepEqual([b.fail('unreachable', 10), b.state.phase], ['release', 'down'])
})

test('a destination that rejects what 64 groups bring, one after the other, is down; later rounds of probes are shorter', () => {
  const { state, time, fail } = bench()
  const untilDown = () => {
    let failures = 0
    while (state.phase !== 'down') {
      fail('rejected')
      failures++
    }
    return failures
  }
  assert.equal(untilDown(), 64)
  time.now += 10_000
  state.lanes() // its pause is over
  assert.equal(untilDown(), 16)
})

test('a pause that ends while nobody looks is due when the next one asks', () => {
  const { state, time, fail } = bench()
  const lookedAt = time.now
  fail('unreachable')
  assert.deepEqual(state.lanes(), [])
  const due = state.nextAt(lookedAt)
  assert.ok(due > lookedAt && due < lookedAt + 400)
  time.now = due + 5
  assert.equal(state.nextAt(lookedAt), due)
  assert.deepEqual(state.lanes(), ['probe'])
})

test('pauses grow to a few seconds, a longer one that is asked for is kept, and after an outage one request goes first', () => {
  const { state, time, fail, succeed } = bench()
  const pauses: number[] = []
  for (let i = 0; i < 7; i++) {
    fail('unreachable')
    pauses.push(state.nextAt(time.now) - time.now)
    time.now = state.nextAt(time.now)
  }
  assert.deepEqual(pauses, [250, 500, 1_000, 2_000, 3_000, 3_000, 3_000])
  fail('unreachable', 1, 20_000)
  assert.equal(state.nextAt(time.now) - time.now, 20_000)
  time.now += 20_000
  succeed()
  assert.deepEqual([state.phase, state.limit], ['up', 1])
  succeed()
  assert.equal(state.limit, 2)
  succeed()
  assert.equal(state.limit, 4)
})

test('a throttled destination gets half as many requests, after a pause, and nothing of it counts', () => {
  const { state, time, fail } = bench(8)
  assert.deepEqual([fail('throttled', 5, 700), state.limit, state.phase], ['again', 4, 'up'])
  assert.deepEqual(state.lanes(), [])
  assert.equal(state.nextAt(time.now) - time.now, 700)
})

test('after it was throttled a destination gets one request more at once for every round that it takes', () => {
  const { state, time, fail, succeed } = bench(8)
  fail('throttled', 5)
  time.now += 10_000
  const limits = Array.from({ length: 4 + 5 + 6 + 7 + 8 }, () => {
    succeed()
    return state.limit
  })
  assert.deepEqual([...new Set(limits)], [4, 5, 6, 7, 8])
  assert.deepEqual([5, 6, 7, 8].map((limit) => limits.indexOf(limit) + 1), [4, 4 + 5, 4 + 5 + 6, 4 + 5 + 6 + 7]) // prettier-ignore
})

test('a destination that refuses every message for its own sake works, and clears nothing that others failed at', () => {
  const { state, fail } = bench()
  fail('unavailable')
  const before = state.lastSuccessAt
  state.judged(state.started('fresh'))
  assert.deepEqual([state.phase, state.lastSuccessAt], ['up', before])
  fail('unavailable')
  fail('unavailable')
  assert.equal(state.phase, 'down') // the first is still evidence
  const probing = bench()
  for (let i = 0; i < 9; i++) probing.fail('rejected', 5)
  assert.equal(probing.state.phase, 'probing')
  probing.state.judged(probing.state.started('probe'))
  assert.equal(probing.state.phase, 'up')
})
