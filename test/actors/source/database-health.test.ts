import assert from 'node:assert/strict'
import { test } from 'node:test'
import { databaseHealth, idleDatabaseHealth, type SourceCondition } from '../../../actors/source/database-health.ts'
import { secondsLeft } from '../../../actors/source/slot-watch.ts'
import type { Seen } from '../../../actors/source/source-sight.ts'
import type { SlotState } from '../../../engine/status.ts'
import type { Finding } from '../../../engine/wal/connection/finding.ts'
import { POOLED } from '../../../engine/wal/connection/database-findings.ts'
import { DATABASE } from '../sink-fixture.ts'

const GB = 1024 ** 3
const SLOT: SlotState = {
  ...{ confirmedBytes: 10, retainedBytes: 100, walStatus: 'reserved', safeWalBytes: null, secondsUntilLost: null },
  ...{ catalogXminAge: 3, oldest: null, spilled: { transactions: 0, times: 0, bytes: 0 } },
}
const SEEN: Seen = { findings: [] }
const GOOD: SourceCondition = {
  ...{ state: 'streaming', sinceMs: 1_000, error: undefined, slot: SLOT, slotError: undefined, seen: SEEN, heartbeatMs: 1 },
}
const checks = (now: Partial<SourceCondition>, database = DATABASE) => databaseHealth(database, { ...GOOD, ...now })
/** The checks that are not healthy, in short. */
const told = (now: Partial<SourceCondition>, database = DATABASE) =>
  checks(now, database).checks.flatMap(({ status, error }) => (status === 'healthy' ? [] : [`${status} ${error?.code ?? ''}`.trim()]))
const slot = (state: Partial<SlotState>) => ({ slot: { ...SLOT, ...state } })

test('a source that streams from a sound slot is healthy, and one that is not known yet waits', () => {
  assert.deepEqual([checks({}).status, told({})], ['healthy', []])
  const unknown = { slot: undefined, seen: undefined, state: 'opening' }
  assert.deepEqual([checks(unknown).status, told(unknown)], ['initializing', ['waiting', 'waiting', 'initializing', 'waiting']])
  assert.equal(idleDatabaseHealth(DATABASE).status, 'initializing')
  assert.equal(idleDatabaseHealth({ ...DATABASE, slot: { ...DATABASE.slot, status: 'disabled' } }).status, 'paused')
})

test('what keeps a source from its server is an error of its reachability, and of its connection by how soon it is tried again', () => {
  const away = (code: string, course: string) => ({ state: 'waiting', error: { code, message: 'no', course } })
  assert.deepEqual(told(away('SOURCE_UNREACHABLE', 'soon')), ['error SOURCE_UNREACHABLE', 'warning SOURCE_UNREACHABLE'])
  assert.deepEqual(told(away('TLS_REFUSED', 'later')), ['error TLS_REFUSED', 'error TLS_REFUSED'])
  assert.deepEqual(told(away('SLOT_MISSING', 'stop')), ['error SLOT_MISSING'])
  assert.deepEqual(told({ slotError: { code: 'SOURCE_UNABLE', message: 'no' } }), ['error SOURCE_UNABLE'])
  const { error } = checks(away('SLOT_IN_USE', 'soon')).checks.find(({ status }) => status === 'warning') ?? {}
  assert.match(error?.message ?? '', /^no\. Stop the other program/)
  const plain = { ...DATABASE, connection: { ...DATABASE.connection, withoutTls: true as const } }
  assert.deepEqual([told({}, plain), checks({}, plain).status], [['notice without_tls'], 'healthy'])
  assert.deepEqual(told({ seen: { findings: [POOLED] } }), ['warning pooled'])
})

test('what was found of the set-up is told with the SQL that mends it, the worst first', () => {
  const slot: Finding = { code: 'SLOT_TWO_PHASE', message: 'two', sql: 'select 1', how: 'once' }
  assert.deepEqual(told({ seen: { findings: [slot] } }), ['error SLOT_TWO_PHASE'])
  const notice: Finding = { code: 'row_level_security', message: 'hidden' }
  const { status, error } = checks({ seen: { findings: [notice, slot] } }).checks[1] ?? {}
  assert.deepEqual([status, error?.code], ['error', 'SLOT_TWO_PHASE'])
  assert.match(error?.message ?? '', /^two\. Run, once: select 1; Run the SQL .* · hidden$/)
  assert.deepEqual(told({ seen: { findings: [notice] } }), ['notice row_level_security'])
  assert.deepEqual(told({ seen: { findings: [{ code: 'clock_apart', message: 'late' }] } }), [], 'the source works all the same')
})

test('a slot that makes its server keep much, or nears its end, is told of with what holds it up', () => {
  const oldest = { xid: '7', pid: 8, prepared: null, seconds: 900 }
  const found: readonly (readonly [state: Partial<SlotState>, told: readonly string[], words?: RegExp])[] = [
    [{ walStatus: 'extended' }, []],
    [{ walStatus: 'unreserved' }, ['error slot_about_to_be_lost'], /max_slot_wal_keep_size/],
    [{ safeWalBytes: GB, secondsUntilLost: 90_000 }, []],
    [{ safeWalBytes: GB, secondsUntilLost: 7_200 }, ['warning slot_near_its_end'], /lost in 2 h: 1 GB/],
    [{ safeWalBytes: GB, secondsUntilLost: 60 }, ['error slot_near_its_end'], /lost in 60 s/],
    [{ retainedBytes: 3 * GB }, ['warning slot_behind'], /3 GB/],
    [{ retainedBytes: 3 * GB, oldest }, ['warning old_transaction'], /7, for 15 min.*pg_terminate_backend\(8\)/],
    [{ retainedBytes: 3 * GB, oldest: { ...oldest, pid: null, prepared: `a'b` } }, ['warning old_transaction'], /rollback prepared 'a''b'/],
    [{ oldest }, [], undefined],
    [
      { spilled: { transactions: 2, times: 5, bytes: GB } },
      ['notice decoding_spills'],
      /2 transactions .* 1 GB.*logical_decoding_work_mem/,
    ],
  ]
  for (const [state, words, pattern = /^/] of found) {
    assert.deepEqual(told(slot(state)), words)
    assert.match(checks(slot(state)).checks[3]?.error?.message ?? '', pattern)
  }
  assert.deepEqual(told({ heartbeatMs: undefined, sinceMs: 300_000 }), ['warning heartbeat_late'])
  assert.deepEqual(told({ heartbeatMs: 300_000, sinceMs: 300_000 }), ['warning heartbeat_late'])
})

test('how long what is left of a slot lasts is told at the rate of the samples, while it becomes less', () => {
  const at = (seconds: number, safeWalBytes: number) => ({ at: seconds * 1_000, safeWalBytes })
  assert.equal(secondsLeft([]), null)
  assert.equal(secondsLeft([at(0, 100)]), null)
  assert.equal(secondsLeft([at(0, 1_000), at(5, 1_000), at(10, 900)]), 90)
  assert.equal(secondsLeft([at(0, 900), at(10, 1_000)]), null)
  assert.equal(secondsLeft([at(0, 100), at(10, -20)]), 0)
})
