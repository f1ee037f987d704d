import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError } from '../../../engine/errors.ts'
import { Landmark } from '../../../engine/wal/history.ts'

const otherPast = (found: string) => new EngineError('SOURCE_WENT_BACK', found)
const landmark = () => new Landmark({ lsn: 500n, xid: 7, commitTimeUs: 1_000_000 }, otherPast)
const begin = (lsn: bigint, xid: number, commitTimeUs: number) => ({ lsn, xid, commitTimeUs })

test('a past is proved by the transaction that the log has last: what comes before and after it may be anything', () => {
  const it = landmark()
  it.begin(begin(400n, 1, 5))
  it.pass(500n)
  assert.equal(it.isAhead, true)
  it.begin(begin(500n, 7, 1_000_000))
  assert.equal(it.isAhead, false)
  it.begin(begin(600n, 7, 9))
  it.pass(700n)
})

test('another transaction at its place, a later one, or the end of what is there without it: another past', () => {
  const cases: readonly [RegExp, (it: Landmark) => void][] = [
    [/LSN 0\/1F4 has transaction 8 of .*, and had transaction 7 of /, (it) => it.begin(begin(500n, 8, 1_000_000))],
    [/LSN 0\/1F4 has transaction 7 of /, (it) => it.begin(begin(500n, 7, 1_000_001))],
    [/LSN 0\/1F4 has no transaction 7 of 1970-01-01T00:00:01.000Z any more/, (it) => it.begin(begin(501n, 7, 1_000_000))],
    [/has no transaction 7/, (it) => it.pass(501n)],
  ]
  for (const [message, pass] of cases) assert.throws(() => pass(landmark()), { code: 'SOURCE_WENT_BACK', message })
})
