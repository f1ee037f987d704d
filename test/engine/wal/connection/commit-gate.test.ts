import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CommitGate, snapshotOf } from '../../../../engine/wal/connection/commit-gate.ts'

test('whether a transaction is visible is told across the wrap-around of its number', () => {
  const at = snapshotOf('4294967290:4294967300:4294967295,4294967297', 6) // the second epoch begins at 4294967296; the next is its 9th
  assert.deepEqual(
    [4294967289, 4294967290, 4294967295, 0, 1, 3, 4, 8].map((xid) => at(xid)),
    [true, true, false, true, false, true, false, false],
  )
})

test('a number that the server has not given out is not waited for, and none for longer than the patience', () => {
  let now = 0
  const gate = new CommitGate(() => now)
  const row = { snapshot: '100:110:105', age: '117' } // the next is 120
  const hidden = () => gate.hidden(row, [0, 99, 105, 115, 119, 120, 5_000])
  assert.deepEqual(hidden(), [105, 115, 119])
  now = 600_000
  assert.deepEqual(hidden(), [105, 115, 119])
  now = 600_001
  assert.deepEqual(hidden(), [])
})
