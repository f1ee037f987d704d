import assert from 'node:assert/strict'
import { test } from 'node:test'
import { DeliveryPace } from '../../../engine/backfill/delivery-pace.ts'

/** A sink that gets rows after some time, and delivers so many of them a ms. */
function deliver({
  perMs,
  pathMs,
  forMs,
  pace = new DeliveryPace(10),
}: {
  perMs: number
  pathMs: number
  forMs: number
  pace?: DeliveryPace
}) {
  const coming: { at: number; rows: number }[] = []
  let [queued, waiting, delivered, longest] = [0, 0, 0, 0]
  for (let now = 0; now < forMs; now++) {
    while (coming[0] && coming[0].at <= now) queued += coming.shift()?.rows ?? 0
    const gone = Math.min(queued, perMs)
    queued -= gone
    waiting -= gone
    if (now > forMs / 2) {
      delivered += gone
      longest = Math.max(longest, queued)
    }
    pace.look(waiting, now)
    const part = pace.grant(waiting)
    if (part === 0) pace.felt()
    else {
      waiting += part
      coming.push({ at: now + pathMs, rows: part })
      pace.added(part, now)
    }
  }
  return { share: delivered / (perMs * (forMs / 2)), queueMs: longest / perMs, limit: pace.limit }
}

for (const { perMs, pathMs } of [
  { perMs: 20, pathMs: 10 },
  { perMs: 60, pathMs: 10 },
  { perMs: 200, pathMs: 10 },
  { perMs: 60, pathMs: 40 },
  { perMs: 5, pathMs: 500 },
]) {
  test(`a sink that delivers ${perMs} rows a ms, ${pathMs} ms away, always has some, and few of them before it`, () => {
    const { share, queueMs } = deliver({ perMs, pathMs, forMs: 30_000 })
    assert.ok(share > 0.9, `it was at work ${Math.round(share * 100)} % of the time`)
    assert.ok(queueMs <= Math.max(1_000 / perMs, pathMs * 1.3) + 15, `${queueMs} ms of rows stood before it`)
  })
}

test('a sink that becomes slow has fewer rows before it soon', () => {
  const pace = new DeliveryPace(10)
  const fast = deliver({ perMs: 200, pathMs: 10, forMs: 10_000, pace })
  assert.ok(fast.limit > 2_000, `${fast.limit} rows before a fast one`)
  assert.equal(deliver({ perMs: 1, pathMs: 10, forMs: 10_000, pace: new DeliveryPace(10) }).limit, 1_000)
})

test('where rows may take longer more of them wait, and fewer at once when they may no longer', () => {
  const short = deliver({ perMs: 200, pathMs: 10, forMs: 10_000 })
  const pace = new DeliveryPace(50)
  const long = deliver({ perMs: 200, pathMs: 10, forMs: 10_000, pace })
  assert.ok(long.limit > short.limit * 1.5, `${long.limit} rows, and ${short.limit}`)
  pace.queueMs = 10
  assert.ok(pace.limit <= long.limit / 4, `${pace.limit} rows`)
  pace.queueMs = 50
  pace.queueMs = 0
  assert.equal(pace.limit, 1_000)
})

test('rows that wait are not counted twice as delivered, and nothing grows while nobody waits for room', () => {
  const pace = new DeliveryPace(10)
  for (let now = 0; now < 1_000; now += 10) {
    pace.added(100, now)
    pace.look(0, now + 1)
  }
  assert.equal(pace.limit, 1_000)
  pace.added(300, 2_000)
  assert.equal(pace.look(300, 2_001), false)
  assert.equal(pace.look(200, 2_002), true)
  assert.equal(pace.look(250, 2_003), false, 'what has got through does not come back')
})
