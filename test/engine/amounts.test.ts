import assert from 'node:assert/strict'
import { test } from 'node:test'
import { durationText, sizeText } from '../../engine/amounts.ts'

test('sizes are written in the unit that fits, as settings and Postgres count it, with three figures', () => {
  const sizes = [0, 1_023, 1_024, 1.55 * 2 ** 20, 96 * 2 ** 20, 100.4 * 2 ** 30, 5_000 * 2 ** 40]
  assert.deepEqual(sizes.map(sizeText), ['0 B', '1023 B', '1 KB', '1.6 MB', '96 MB', '100 GB', '5000 TB'])
})

test('durations are written in seconds, minutes or hours', () =>
  assert.deepEqual([0, 119.4, 900, 7_200, 9_000].map(durationText), ['0 s', '119 s', '15 min', '2 h', '2.5 h']))
