import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError, isRetryable, type ErrorCode } from '../../../../engine/errors.ts'
import { judgeSlot, type SlotFacts } from '../../../../engine/wal/connection/slot.ts'

const fit: NonNullable<SlotFacts['slot']> = {
  plugin: 'pgoutput',
  database: 'shop',
  activePid: null,
  reader: null,
  restartLsn: 10n,
  confirmedLsn: 20n,
  walStatus: 'reserved',
  twoPhase: false,
  invalidation: null,
  isCopy: false,
  transactionsRead: 0,
}
const facts = (slot: Partial<NonNullable<SlotFacts['slot']>> | undefined, over: Partial<SlotFacts> = {}): SlotFacts => ({
  serverVersion: 150000,
  isInRecovery: false,
  database: 'shop',
  walLevel: 'logical',
  databaseOid: 5,
  publicationOid: 6,
  slot: slot && { ...fit, ...slot },
  ...over,
})
const judge = (f: SlotFacts) => judgeSlot(f, 'it', 'Pub', 0x1fn)
function refused(f: SlotFacts, code: ErrorCode, message: RegExp): void {
  assert.throws(
    () => judge(f),
    (error) => {
      assert.ok(error instanceof EngineError)
      assert.equal(error.code, code)
      assert.match(error.message, message)
      assert.equal(isRetryable(error), code === 'SLOT_IN_USE' || code === 'SOURCE_IN_RECOVERY')
      return true
    },
  )
}

test('a fit slot gives its positions', () =>
  assert.deepEqual(judge(facts({})), { confirmedLsn: 20n, restartLsn: 10n, transactionsRead: 0, databaseOid: 5, publicationOid: 6 }))

test('each way to be unfit has a code of its own and the SQL that mends it; only one in use is tried again', () => {
  refused(facts({}, { walLevel: 'replica' }), 'WAL_LEVEL_TOO_LOW', /alter system set wal_level = logical/)
  refused(facts({}, { publicationOid: undefined }), 'PUBLICATION_MISSING', /create publication "Pub" for all tables/)
  refused(facts(undefined), 'SLOT_MISSING', /from 0\/1F on .*pg_create_logical_replication_slot\('it', 'pgoutput'\)/)
  refused(facts({ plugin: 'wal2json' }), 'SLOT_WRONG_PLUGIN', /"wal2json".*pg_drop_replication_slot\('it'\)/)
  refused(facts({ plugin: null }), 'SLOT_WRONG_PLUGIN', /is physical/)
  refused(facts({ database: 'other' }), 'SLOT_WRONG_DATABASE', /belongs to database "other"/)
  refused(facts({ restartLsn: undefined }), 'SLOT_LOST', /pg_drop_replication_slot/)
  refused(facts({ walStatus: 'lost' }), 'SLOT_LOST', /from 0\/1F on are then missing/)
  refused(facts({ invalidation: 'idle_timeout' }), 'SLOT_LOST', /idle_timeout/)
  refused(
    facts({ twoPhase: true }),
    'SLOT_TWO_PHASE',
    /pg_copy_logical_replication_slot\('it', 'it_copy'\); select pg_drop_replication_slot\('it'\)/,
  )
  refused(facts({ twoPhase: true }, { serverVersion: 180000 }), 'SLOT_TWO_PHASE', /ALTER_REPLICATION_SLOT "it" \(TWO_PHASE false\)/)
  refused(facts({ activePid: 42, reader: 'pg_recvlogical' }), 'SLOT_IN_USE', /42 \("pg_recvlogical"\).*pg_terminate_backend\(42\)/)
})

test('a standby is waited for, whatever it lacks; one of 16 or later with a slot of its own is read', () => {
  const standby = { isInRecovery: true, walLevel: 'replica', publicationOid: undefined }
  refused(facts({}, standby), 'SOURCE_IN_RECOVERY', /promoted/)
  for (const serverVersion of [150000, 180000])
    refused(facts(undefined, { ...standby, serverVersion }), 'SOURCE_IN_RECOVERY', /no such slot/)
  refused(
    facts({ isCopy: true, invalidation: 'wal_removed' }, { ...standby, serverVersion: 180000 }),
    'SOURCE_IN_RECOVERY',
    /a copy of the slot/,
  )
  assert.deepEqual(judge(facts({}, { isInRecovery: true, serverVersion: 180000 })), {
    confirmedLsn: 20n,
    restartLsn: 10n,
    transactionsRead: 0,
    databaseOid: 5,
    publicationOid: 6,
  })
})
