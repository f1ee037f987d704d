import assert from 'node:assert/strict'
import { test } from 'node:test'
import { judgedBy } from '../../../actors/push/judged-messages.ts'
import type { Piece } from '../../../actors/push/pieces.ts'
import type { Blame, Failure } from '../../../sinks/push.ts'
import { loadOf } from '../../sinks/load.ts'

const failed = (blame: Blame): Failure => ({ blame, answer: { code: 'DESTINATION_REJECTED', message: 'no' } })
/** Rows 1 and 2, one group each, in this order. */
const pieceOf = (...rows: readonly (1 | 2)[]): Piece => {
  const { views, places } = loadOf(rows.map((row) => ({ key: [String(row)], group: row })))
  const none = { origin: undefined, doubtedSince: undefined, throttles: 0, isStaged: false }
  return { views, places, offsets: rows.map(() => 0), indexes: [...rows.keys()], ...none }
}
const no = failed('message')

test('of a group the first that was refused is at fault, and what is behind it comes again', () => {
  const judged = judgedBy(pieceOf(1, 2, 1, 2), [no, undefined, undefined, no], { grouping: true, keyed: false })
  assert.deepEqual(judged, { done: [1], bad: [0, 3], behind: [2] })
})

test('without groups nothing is behind another', () => {
  const judged = judgedBy(pieceOf(1, 1, 1), [undefined, no, undefined], { grouping: false, keyed: false })
  assert.deepEqual(judged, { done: [0, 2], bad: [1], behind: [] })
})

test('where a document is kept for each key, a later one that was taken says all that a refused one would have', () => {
  const options = { grouping: true, keyed: true }
  assert.deepEqual(judgedBy(pieceOf(1, 1, 2), [no, undefined, no], options), { done: [0, 1], bad: [2], behind: [] })
  assert.deepEqual(judgedBy(pieceOf(1, 1), [undefined, no], options), { done: [0], bad: [1], behind: [] })
  // it was not looked at: it may be taken, and goes first
  assert.deepEqual(judgedBy(pieceOf(1, 1), [failed('throttled'), undefined], options), { done: [], bad: [0], behind: [1] })
})
