import assert from 'node:assert/strict'
import { test } from 'node:test'
import { judgedBy } from '../../../actors/push/send-batch.ts'
import type { Message } from '../../../engine/dispatch/batch.ts'
import type { Blame, Failure } from '../../../sinks/push.ts'
import { batchOf } from '../../sinks/batch.ts'

const failed = (blame: Blame): Failure => ({ blame, answer: { code: 'DESTINATION_REJECTED', message: 'no' } })
/** Rows 1 and 2, one group each, in this order. */
const messagesOf = (...rows: readonly (1 | 2)[]): readonly Message[] =>
  batchOf(rows.map((row) => ({ key: [String(row)], group: row }))).messages
/** Their places. */
const judged = (...call: Parameters<typeof judgedBy>) => {
  const { done, bad, behind } = judgedBy(...call)
  const placesOf = (messages: readonly Message[]) => messages.map(({ place }) => place)
  return { done: placesOf(done), bad: placesOf(bad.map(({ message }) => message)), behind: placesOf(behind) }
}
const no = failed('message')

test('of a group the first that was refused is at fault, and what is behind it comes again', () => {
  const found = judged(messagesOf(1, 2, 1, 2), [no, undefined, undefined, no], { grouping: true, keyed: false })
  assert.deepEqual(found, { done: [1], bad: [0, 3], behind: [2] })
})

test('without groups nothing is behind another', () => {
  const found = judged(messagesOf(1, 1, 1), [undefined, no, undefined], { grouping: false, keyed: false })
  assert.deepEqual(found, { done: [0, 2], bad: [1], behind: [] })
})

test('where a document is kept for each key, a later one that was taken says all that a refused one would have', () => {
  const options = { grouping: true, keyed: true }
  assert.deepEqual(judged(messagesOf(1, 1, 2), [no, undefined, no], options), { done: [0, 1], bad: [2], behind: [] })
  assert.deepEqual(judged(messagesOf(1, 1), [undefined, no], options), { done: [0], bad: [1], behind: [] })
  // it was not looked at: it may be taken, and goes first
  assert.deepEqual(judged(messagesOf(1, 1), [failed('throttled'), undefined], options), { done: [], bad: [0], behind: [1] })
})
