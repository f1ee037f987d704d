import assert from 'node:assert/strict'
import { test } from 'node:test'
import { messageBackOff } from '../../engine/back-off.ts'

test('a message is tried again after 1 s, then twice as long each time up to 3 min, give or take 15 %', () => {
  const seconds = (random: number) => [1, 2, 3, 8, 9, 10, 1_000].map((attempts) => messageBackOff(attempts, random) / 1_000)
  assert.deepEqual(seconds(0.5), [1, 2, 4, 128, 180, 180, 180])
  assert.deepEqual(seconds(0), [0.85, 1.7, 3.4, 108.8, 153, 153, 153])
  assert.deepEqual(seconds(1), [1.15, 2.3, 4.6, 147.2, 207, 207, 207])
})
