import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ReplayWindow, type WindowBounds } from '../../../../engine/dispatch/replay/replay-window.ts'
import { ORIGIN } from '../../../../engine/position.ts'

const HOUR: WindowBounds = { windowMs: 3_600_000, maxBytes: 1_000_000 }
const at = (offset: number) => ({ next: { offset, index: 0 }, accepted: { ...ORIGIN, lsn: BigInt(offset) } })

/** A window over records of 1,000 bytes and two messages each, with a clock of its own: whatever is due is stored at once. */
class Run {
  now = 0
  readonly window = new ReplayWindow([], at(0), 0, 0)
  readonly bounds: WindowBounds
  begin = 0
  #offset = 0

  constructor(bounds: WindowBounds) {
    this.bounds = bounds
    this.tick()
  }

  /** So many records are read and finished. */
  finish(records: number, { short = false } = {}): void {
    for (let i = 0; i < records; i++) this.window.read({ offset: this.#offset++, messages: 2, bytes: 1_000, latestUs: this.now * 1_000 })
    this.window.finished(at(this.#offset))
    this.tick(short)
  }

  tick(short = false): void {
    const point = this.window.due(this.now, this.bounds, short)
    if (point) this.window.stored({ ...point, neededFrom: point.offset })
    const begin = this.window.nextBegin(this.now, this.bounds, (this.#offset - this.begin) * 1_000, short)
    if (!begin) return
    this.window.begins(begin)
    this.begin = begin.offset
  }
}

test('what was finished stays for the time of the window, and little longer', () => {
  const run = new Run(HOUR)
  for (let minute = 0; minute < 180; minute++) {
    run.now = minute * 60_000
    run.finish(5)
    const finishedAnHourAgo = Math.max(0, minute - 59) * 5
    assert.ok(run.begin <= finishedAnHourAgo, `at minute ${minute} it begins at ${run.begin}`)
    assert.ok(run.begin >= finishedAnHourAgo - 10, `at minute ${minute} it begins at ${run.begin}`)
  }
  assert.equal(run.window.messages, (900 - run.begin) * 2)
})

test('when nothing comes any more the last of it goes in its time too', () => {
  const run = new Run(HOUR)
  run.finish(7)
  for (let minute = 1; minute <= 62; minute++) {
    run.now = minute * 60_000
    run.tick()
  }
  assert.equal(run.begin, 7)
})

test('what is kept never outgrows its bound by much, however fast it comes', () => {
  const run = new Run({ windowMs: 3_600_000, maxBytes: 100_000 })
  for (let i = 0; i < 200; i++) {
    run.now += 250
    run.finish(3)
    const kept = (i + 1) * 3 - run.begin
    assert.ok(kept <= 100, `${kept} kB are kept`)
    if (i > 40) assert.ok(kept > 90, `only ${kept} kB are kept`)
  }
})

test('where space is short nothing is kept', () => {
  const run = new Run(HOUR)
  run.finish(50)
  run.finish(1, { short: true })
  assert.equal(run.begin, 51)
  assert.equal(run.window.messages, 0)
  run.finish(10)
  assert.equal(run.window.messages, 20, 'from then on again')
})

test('a point is stored for a stretch of time or of bytes, not for each commit', () => {
  const run = new Run(HOUR)
  let points = 0
  for (let i = 0; i < 1_000; i++) {
    run.now += 100
    run.window.read({ offset: i, messages: 1, bytes: 100, latestUs: 0 })
    run.window.finished(at(i + 1))
    const point = run.window.due(run.now, HOUR)
    if (!point) continue
    points++
    run.window.stored({ ...point, neededFrom: point.offset })
  }
  assert.ok(points >= 4 && points <= 6, `${points} points in 100 s of an hour`)
})

test('after a restart it goes on from the points that are stored; those above the commit are forgotten', () => {
  const point = (offset: number) => ({
    offset,
    neededFrom: offset,
    position: at(offset).accepted,
    latestUs: offset,
    messages: offset * 2,
    bytes: offset * 10,
    reachedMs: offset * 1_000,
  })
  const known = [10, 20, 30].map(point)
  const window = new ReplayWindow(known, at(20), 5_000, 77)
  assert.equal(window.begin?.offset, 10)
  assert.equal(window.messages, 20)
  const bounds = { windowMs: 15_000, maxBytes: 1e9 }
  assert.equal(window.nextBegin(19_999, bounds, 0, false), undefined, 'its time goes on with the new owner')
  assert.equal(window.nextBegin(20_000, bounds, 0, false)?.offset, 20, 'it has been there for 15 s of an owner')
  window.read({ offset: 20, messages: 3, bytes: 5, latestUs: 50 })
  window.finished(at(21))
  assert.deepEqual(window.due(60_000, HOUR), {
    offset: 21,
    position: at(21).accepted,
    latestUs: 50,
    messages: 43,
    bytes: 205,
    reachedMs: 75_000,
  })
})
