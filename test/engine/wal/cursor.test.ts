import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PART, type Position } from '../../../engine/position.ts'
import { Cursor } from '../../../engine/wal/cursor.ts'

const ID = 'system'
const incarnations = [
  { history: 0, systemIdentifier: ID, timeline: 1, beginsAt: 0n },
  { history: 1, systemIdentifier: ID, timeline: 2, beginsAt: 500n },
]
const at = (history: number, lsn: bigint, idx: number): Position => ({ history, lsn, idx, part: PART.row })

/** Which of a transaction's first messages the log has. */
function durable(cursor: Cursor, lsn: bigint, count: number): boolean[] {
  cursor.begin(lsn, 1, 0)
  const answers = Array.from({ length: count }, () => {
    const isDurable = cursor.isDurable
    cursor.complete()
    return isDurable
  })
  cursor.commit()
  return answers
}

test('what the log has is recognised to the message: transactions before, the part of one, none after', () => {
  const cursor = new Cursor(incarnations, { position: at(0, 100n, 1) })
  assert.deepEqual(durable(cursor, 90n, 3), [true, true, true])
  assert.deepEqual(durable(cursor, 100n, 3), [true, true, false])
  assert.deepEqual(durable(cursor, 110n, 2), [false, false])
})

test('what comes below a switch keeps its history; the same LSN under the next one is new', () => {
  const cursor = new Cursor(incarnations, { position: at(0, 600n, 5) })
  assert.deepEqual(durable(cursor, 450n, 1), [true])
  assert.deepEqual(durable(cursor, 500n, 1), [false])
  assert.equal(cursor.history, 1)
  assert.deepEqual(durable(new Cursor(incarnations, { position: at(1, 700n, 0) }), 480n, 2), [true, true]) // an older history is durable as a whole
})

test('an append claims what was handled whole, never the message being handled, and never goes back', () => {
  const cursor = new Cursor(incarnations, { position: at(0, 100n, 1) })
  cursor.begin(90n, 1, 0)
  cursor.complete()
  assert.deepEqual(cursor.settle().position, at(0, 100n, 1))
  cursor.commit()
  cursor.begin(110n, 1, 0)
  assert.deepEqual(cursor.settle().position, at(0, 100n, 1))
  cursor.complete()
  assert.deepEqual(cursor.position, at(0, 110n, 1))
  assert.deepEqual(cursor.settle().position, at(0, 110n, 0))
  cursor.commit()
  assert.deepEqual(cursor.settle().position, at(0, 110n, 0))
})

test('a change outside of a transaction, or a transaction within another, is malformed', () => {
  const cursor = new Cursor(incarnations, undefined)
  assert.throws(() => cursor.transaction, { code: 'MESSAGE_MALFORMED' })
  assert.throws(() => cursor.commit(), { code: 'MESSAGE_MALFORMED' })
  cursor.begin(1n, 1, 0)
  assert.throws(() => cursor.begin(2n, 1, 0), { code: 'MESSAGE_MALFORMED' })
})
