import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  failoverFindings,
  publicationFindings,
  serverFindings,
  standingFindings,
  type PublicationFacts,
  type ServerFacts,
} from '../../../../engine/wal/connection/database-findings.ts'
import { remedyOf, wordsOf, type Finding } from '../../../../engine/wal/connection/finding.ts'
import type { SourceTable } from '../../../../engine/wal/source-tables.ts'

const GB = 1024 ** 3
const TABLE: SourceTable = {
  ...{ schema: 'public', name: 'goods', sql: 'public.goods', isPartitioned: false, partitionRoot: undefined, isPublished: true },
  ...{ publishedAs: undefined, primaryKey: ['id'], replicaIdentity: 'full', identityColumns: ['id'], isRowSecured: false },
  ...{ isUnlogged: false, mayRead: true },
}
const PUBLICATION: PublicationFacts = { insert: true, update: true, delete: true, viaRoot: true, user: '"Us"' }
const published = (tables: readonly Partial<SourceTable>[], over: Partial<PublicationFacts> = {}) =>
  publicationFindings(
    'Pub',
    { ...PUBLICATION, ...over },
    tables.map((one) => ({ ...TABLE, ...one })),
  )
const codes = (found: readonly Finding[]) => found.map(({ code }) => code)

test('what a publication or table is set up with is told with the SQL that mends it', () => {
  assert.deepEqual(published([{}]), [])
  const cases: readonly (readonly [found: readonly Finding[], code: string, sql: string])[] = [
    [published([{ isPublished: false }]), 'nothing_published', 'alter publication "Pub" add table …;'],
    [published([{}], { delete: false }), 'actions_left_out', `alter publication "Pub" set (publish = 'insert, update, delete, truncate');`],
    [
      published([{ identityColumns: [] }, { name: 'x', sql: 'public.x', identityColumns: [] }]),
      'no_replica_identity',
      'alter table public.goods replica identity full; alter table public.x replica identity full; -- or add a primary key',
    ],
    [
      published([{ replicaIdentity: 'default' }]),
      'replica_identity_not_full',
      'alter table public.goods replica identity full; -- where they are wanted',
    ],
    [published([{ mayRead: false, sql: 'public."order"' }]), 'no_select', 'grant select on public."order" to "Us";'],
    [
      published([{ isRowSecured: true }]),
      'row_level_security',
      'alter role "Us" bypassrls; -- or give the user a policy that shows all rows',
    ],
    [
      published(
        [
          { isPartitioned: true, isPublished: false },
          { name: 'goods_1', partitionRoot: 'public.goods' },
        ],
        { viaRoot: false },
      ),
      'partition_root_not_published',
      'alter publication "Pub" set (publish_via_partition_root = true);',
    ],
  ]
  for (const [found, code, sql] of cases) assert.deepEqual([codes(found), remedyOf(found[0] ?? assert.fail())], [[code], sql])
})

test('a replica identity is asked for where rows are: in partitions, and where updates or deletes are published', () => {
  assert.deepEqual(codes(published([{ identityColumns: [] }], { update: false, delete: false })), ['actions_left_out'])
  assert.deepEqual(codes(published([{ isPartitioned: true, identityColumns: [] }])), [])
  const leaf = { name: 'goods_1', isPublished: false, publishedAs: 'public.goods', partitionRoot: 'public.goods' }
  assert.deepEqual(codes(published([{ isPartitioned: true }, { ...leaf, identityColumns: [] }])), ['no_replica_identity'])
})

test('of many tables ten are named, and the others counted', () => {
  const many = Array.from({ length: 12 }, (_, i) => ({ name: `t${i}`, isRowSecured: true }))
  assert.match(
    wordsOf(published(many)[0] ?? assert.fail()),
    /public\.t9 and 2 more tables .*\. Run, or give .*: alter role "Us" bypassrls;$/,
  )
})

test('a slot that does not outlive its server is told of where servers follow it that could keep it', () => {
  const words = failoverFindings('it', { hasStandbys: true, isFailover: false }).map(wordsOf).join('')
  assert.match(words, /ALTER_REPLICATION_SLOT "it" \(FAILOVER true\)/)
  assert.deepEqual(failoverFindings('it', { hasStandbys: false, isFailover: false }), [])
  assert.deepEqual(failoverFindings('it', { hasStandbys: true, isFailover: undefined }), [], 'an older server knows no failover slots')
})

test('a server needs its version, the right of the user, and room for what is not there yet', () => {
  const server: ServerFacts = {
    ...{ version: 140_000, versionName: '14.0', walLevel: 'logical', isInRecovery: false, nowMs: 10_000, slots: 4, usedSlots: 3 },
    ...{ senders: 4, usedSenders: 3, user: 'us', mayReplicate: true },
  }
  const found = (over: Partial<ServerFacts>, hasSlot = false) => codes(serverFindings({ ...server, ...over }, { now: 15_000, hasSlot }))
  assert.deepEqual(found({}), [])
  assert.deepEqual(found({ version: 130_005, isInRecovery: true, nowMs: 1_000 }), ['server_too_old', 'standby', 'clock_apart'])
  const full = { usedSlots: 4, usedSenders: 4, mayReplicate: false }
  assert.deepEqual(found(full), ['no_free_slot', 'no_free_sender', 'no_replication_right'])
  assert.deepEqual(found(full, true), ['no_replication_right'])
})

test('a slot with less left than it keeps already is near its end, also where no rate is known', () => {
  const state = {
    ...{ confirmedBytes: 0, retainedBytes: GB, walStatus: 'extended', safeWalBytes: 2 * GB },
    ...{ catalogXminAge: 3, oldest: null, spilled: { transactions: 0, times: 0, bytes: 0 } },
  }
  assert.deepEqual(standingFindings(state), [])
  const [near] = standingFindings({ ...state, safeWalBytes: GB / 2 })
  assert.equal(near?.code, 'slot_near_its_end')
  assert.match(near.sql ?? '', /max_slot_wal_keep_size = '6GB'/)
})
