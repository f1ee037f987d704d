/** Acks out of order over a window of 10,000 messages survive a SIGKILL, with the log in the data folder. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { killAfterGaps, PATTERNS, type Pattern } from './gaps.ts'
import { LONG } from './size.ts'

const RUN: readonly Pattern[] = LONG ? (Object.keys(PATTERNS) as Pattern[]) : ['all but a few']

for (const pattern of RUN) {
  test(`of 10,000 messages ${pattern} acknowledged, in any order: after a SIGKILL the others come again and no more`, async () => {
    const { unacked, redelivered } = await killAfterGaps(pattern)
    assert.equal(redelivered, unacked)
  })
}
