/** What counts of the time on a busy machine, by which promises in seconds are measured. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { msBetween, shareOfCore } from './calm-clock.ts'

test('of time without a core to spare counts what each gets of a core, a third at the most and a tenth at the least', () => {
  assert.deepEqual(
    [1, 2, 6, 12, 20, 200].map((wanting) => shareOfCore(wanting, 2)),
    [1 / 3, 1 / 3, 1 / 3, 1 / 6, 1 / 10, 1 / 10],
  )
  const at = { wallMs: 0, spareMs: 0, shareMs: 0 }
  assert.equal(msBetween(at, { wallMs: 10_000, spareMs: 0, shareMs: 1_000 }), 1_000)
  assert.equal(msBetween(at, { wallMs: 10_000, spareMs: 7_000, shareMs: 3_333 }), 7_000)
})
