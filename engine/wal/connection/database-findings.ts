/**
 * What is asked of a database that is read, and what the answers mean: its server, its publication with its tables, and what its slot costs. The
 * questions read no row of any table, and the judgements are pure. Whether the slot can be read is judged in `slot.ts`.
 */
import { escapeIdentifier } from 'pg'
import { durationText, MB, sizeText } from '../../amounts.ts'
import { ending, type OldestTransaction } from '../../postgres/oldest-transaction.ts'
import type { Query } from '../../postgres/query.ts'
import { rowOf, rowsOf, type RowOf } from '../../postgres/rows.ts'
import type { SlotState } from '../../status.ts'
import type { SourceTable } from '../source-tables.ts'
import type { Finding } from './finding.ts'

const OLDEST_VERSION = 140_000
/** A clock that is further off makes ages and times of replays wrong. */
const CLOCK_MS = 5_000
/** A slot that keeps more write-ahead log than this is told of. */
const MUCH_KEPT_BYTES = 2.5 * 1024 * MB
/** An open transaction is told of when it is as old as that, and the server keeps so much more than what was not confirmed. */
const OLD_TRANSACTION_S = 300
const HELD_BYTES = 64 * MB
const HOUR_S = 3600
/** Tables are named up to so many, the others counted. */
const NAMED_TABLES = 10

/** A pooler stands between this process and the server. */
export const POOLED: Finding = {
  code: 'pooled',
  message:
    'the address leads to a connection pooler. Most pass no replication on, and one that shares sessions breaks the lock of the source',
  remedy: 'Give the address of the server itself',
}

const SERVER = {
  version: 'int',
  versionName: 'text',
  walLevel: 'text',
  isInRecovery: 'boolean',
  nowMs: 'number',
  slots: 'int',
  usedSlots: 'int',
  senders: 'int',
  usedSenders: 'int',
  /** quoted as in SQL */
  user: 'text',
  mayReplicate: 'boolean',
} as const
/** Facts that decide whether a server can feed a source: its version and settings, room for a slot and a sender, and the user's right to replicate. */
export type ServerFacts = RowOf<typeof SERVER>

/** Asks a server what it has for a source. */
export async function readServer(query: Query): Promise<ServerFacts> {
  const { rows } = await query(
    `select current_setting('server_version_num')::int as version, current_setting('server_version') as "versionName", current_setting('wal_level') as "walLevel",
       pg_is_in_recovery() as "isInRecovery", extract(epoch from clock_timestamp())::float8 * 1000 as "nowMs",
       current_setting('max_replication_slots')::int as slots, (select count(*)::int from pg_replication_slots) as "usedSlots",
       current_setting('max_wal_senders')::int as senders, (select count(*)::int from pg_stat_replication) as "usedSenders",
       quote_ident(current_user) as "user", rolreplication or rolsuper or
         exists (select from pg_roles r where r.rolname = 'rds_replication' and pg_has_role(current_user, r.oid, 'member')) as "mayReplicate"
     from pg_roles where rolname = current_user`,
  )
  return rowOf(SERVER, rows[0])
}

/** Judges a server. @param now milliseconds since the epoch @param hasSlot the slot is there already, and needs no room */
export function serverFindings(server: ServerFacts, { now, hasSlot }: Readonly<{ now: number; hasSlot: boolean }>): readonly Finding[] {
  const { version, versionName, isInRecovery, nowMs, slots, usedSlots, senders, usedSenders } = server
  const found: Finding[] = []
  if (version < OLDEST_VERSION)
    found.push({ code: 'server_too_old', message: `PostgreSQL ${versionName} is too old`, remedy: 'Upgrade to PostgreSQL 14 or later' })
  if (isInRecovery)
    found.push({
      code: 'standby',
      message: 'the server replays another one',
      remedy: 'Give the address of the primary, or name it as `primary`',
    })
  const apartMs = Math.abs(nowMs - now)
  if (apartMs > CLOCK_MS)
    found.push({
      code: 'clock_apart',
      message: `its clock is ${durationText(apartMs / 1000)} apart from that of this machine`,
      remedy: 'Let both machines follow a time server',
    })
  if (!hasSlot && usedSlots >= slots)
    found.push({
      code: 'no_free_slot',
      message: `all ${slots} replication slots are in use`,
      ...{
        sql: `alter system set max_replication_slots = ${slots + 5}`,
        how: 'and restart the server, or drop one of pg_replication_slots',
      },
    })
  if (!hasSlot && usedSenders >= senders)
    found.push({
      code: 'no_free_sender',
      message: `all ${senders} senders are in use`,
      ...{ sql: `alter system set max_wal_senders = ${senders + 5}`, how: 'and restart the server' },
    })
  if (!server.mayReplicate) found.push(replicationRightFinding(server.user))
  return found
}

/** Says that a user lacks the right to replicate. @param user quoted as in SQL */
export const replicationRightFinding = (user: string): Finding => ({
  code: 'no_replication_right',
  message: `the user ${user} lacks the right to replicate`,
  ...{ sql: `alter role ${user} replication`, how: `or on RDS grant rds_replication to ${user} instead` },
})

const PUBLICATION = { insert: 'boolean', update: 'boolean', delete: 'boolean', viaRoot: 'boolean', user: 'text' } as const
/** Which actions a publication has, and whether changes of partitions come under their root. @property user of this database, quoted as in SQL */
export type PublicationFacts = RowOf<typeof PUBLICATION>

/** Asks a database for a publication. @returns undefined: it has none of this name */
export async function readPublication(query: Query, publication: string): Promise<PublicationFacts | undefined> {
  const rows = await query(
    `select pubinsert as insert, pubupdate as update, pubdelete as delete, pubviaroot as "viaRoot", quote_ident(current_user) as "user"
     from pg_publication where pubname = $1`,
    [publication],
  )
  return rowsOf(PUBLICATION, rows)[0]
}

/** Judges a publication that is there, and the tables of its database. */
export function publicationFindings(
  publication: string,
  { user, viaRoot, ...actions }: PublicationFacts,
  tables: readonly SourceTable[],
): readonly Finding[] {
  const found: Finding[] = []
  const alter = `alter publication ${escapeIdentifier(publication)}`
  const published = tables.filter(({ isPublished }) => isPublished)
  if (published.length === 0)
    found.push({
      code: 'nothing_published',
      message: `the publication "${publication}" has no table, so nothing comes`,
      sql: `${alter} add table …`,
    })
  const left = (['insert', 'update', 'delete'] as const).filter((action) => !actions[action])
  if (left.length > 0)
    found.push({
      code: 'actions_left_out',
      message: `the publication "${publication}" leaves out ${left.join(', ')}`,
      sql: `${alter} set (publish = 'insert, update, delete, truncate')`,
    })
  const partitioned = viaRoot ? [] : tables.filter((table) => table.isPartitioned && hasPublishedLeaf(table, tables))
  if (partitioned.length > 0)
    found.push({
      code: 'partition_root_not_published',
      message: `changes of ${named(partitioned)} come under the names of the partitions`,
      sql: `${alter} set (publish_via_partition_root = true)`,
    })
  // rows are in the partitions, whose own identity counts, under whatever name they are published
  const unkeyed = tables.filter(
    ({ isPublished, publishedAs, isPartitioned, identityColumns }) =>
      (isPublished || publishedAs !== undefined) && !isPartitioned && identityColumns.length === 0,
  )
  if (unkeyed.length > 0 && (actions.update || actions.delete))
    found.push({
      code: 'no_replica_identity',
      message: `the server refuses updates and deletes in ${named(unkeyed)}: published, and without a replica identity`,
      ...{ sql: forEach(unkeyed, ({ sql }) => `alter table ${sql} replica identity full`), how: 'or add a primary key' },
    })
  const partial = published.filter(({ replicaIdentity }) => replicaIdentity !== 'full')
  if (partial.length > 0)
    found.push({
      code: 'replica_identity_not_full',
      message: `old values of ${named(partial)} come only as far as they are in the replica identity, and unchanged large values are missing`,
      ...{ sql: forEach(partial, ({ sql }) => `alter table ${sql} replica identity full`), how: 'where they are wanted' },
    })
  const unreadable = published.filter(({ mayRead }) => !mayRead)
  if (unreadable.length > 0)
    found.push({
      code: 'no_select',
      message: `the user of this database may not read ${named(unreadable)}: their changes come, and backfills and look-ups fail`,
      sql: forEach(unreadable, ({ sql }) => `grant select on ${sql} to ${user}`),
      ...(unreadable.some(({ schema }) => schema !== 'public') && { how: 'with usage of the schema, if that is missing, too' }),
    })
  const secured = published.filter(({ mayRead, isRowSecured }) => mayRead && isRowSecured)
  if (secured.length > 0)
    found.push({
      code: 'row_level_security',
      message: `row-level security hides rows of ${named(secured)} from the user of this database: their changes come, and backfills and look-ups leave them out`,
      ...{ sql: `alter role ${user} bypassrls`, how: 'or give the user a policy that shows all rows' },
    })
  return found
}

const FAILOVER = { hasStandbys: 'boolean', isFailover: 'boolean?' } as const
/**
 * Whether a slot outlives its server. @property hasStandbys servers follow this one @property isFailover they keep the slot for their promotion;
 * undefined: the server is too old to know
 */
export type FailoverFacts = RowOf<typeof FAILOVER>

/** Asks a server whether a slot outlives it. */
export async function readFailover(query: Query, slot: string): Promise<FailoverFacts> {
  const { rows } = await query(
    `select exists (select from pg_replication_slots where slot_type = 'physical' and active) as "hasStandbys",
       (select (to_jsonb(s) ->> 'failover')::boolean from pg_replication_slots s where slot_name = $1) as "isFailover"`,
    [slot],
  )
  return rowOf(FAILOVER, rows[0])
}

/** Judges whether a slot outlives its server. */
export const failoverFindings = (slot: string, { isFailover, hasStandbys }: FailoverFacts): readonly Finding[] =>
  isFailover === false && hasStandbys
    ? [
        {
          code: 'no_failover_slot',
          message: `the slot "${slot}" is no failover slot: after a failover it is missing`,
          remedy: 'Stop the source (status disabled), and start it again afterwards',
          sql: `ALTER_REPLICATION_SLOT ${escapeIdentifier(slot)} (FAILOVER true)`,
          how: 'on a replication connection (psql "… replication=database")',
        },
      ]
    : []

/** How a slot stands, which is without a rate where it was asked once. */
type Standing = Omit<SlotState, 'secondsUntilLost'> & Partial<Pick<SlotState, 'secondsUntilLost'>>

/** Judges what a slot costs its server, and how near it is to its end. */
export function standingFindings(state: Standing): readonly Finding[] {
  const { walStatus, safeWalBytes, secondsUntilLost, retainedBytes, confirmedBytes, oldest, spilled } = state
  const found: Finding[] = []
  const sql = `alter system set max_slot_wal_keep_size = '${Math.ceil((4 * (retainedBytes + (safeWalBytes ?? 0))) / (1024 * MB))}GB'; select pg_reload_conf()`
  const raise = { remedy: 'See what holds up its source (GET /info), or let the server keep more', sql }
  if (walStatus !== null && walStatus !== 'reserved' && walStatus !== 'extended')
    found.push({ code: 'slot_about_to_be_lost', message: `the slot is about to be lost, or is (wal_status ${walStatus})`, ...raise })
  else if (safeWalBytes !== null && secondsUntilLost != null && secondsUntilLost < 24 * HOUR_S)
    found.push({
      code: 'slot_near_its_end',
      message: `at the present rate the slot is lost in ${durationText(secondsUntilLost)}: ${sizeText(safeWalBytes)} may still be written`,
      isUrgent: secondsUntilLost < HOUR_S,
      ...raise,
    })
  else if (safeWalBytes !== null && safeWalBytes < retainedBytes)
    found.push({
      code: 'slot_near_its_end',
      message: `the server keeps ${sizeText(retainedBytes)} of write-ahead log for the slot, which is lost after ${sizeText(safeWalBytes)} more`,
      ...raise,
    })
  const isHeld = oldest !== null && retainedBytes - confirmedBytes > HELD_BYTES
  const held = isHeld ? transactionFindings(oldest, `keeps the slot from moving on: the server keeps ${sizeText(retainedBytes)}`) : []
  found.push(...held)
  if (retainedBytes > MUCH_KEPT_BYTES && held.length === 0)
    found.push({
      code: 'slot_behind',
      message: `the server keeps ${sizeText(retainedBytes)} of write-ahead log for the slot, ${sizeText(confirmedBytes)} of it not confirmed`,
      remedy: 'See what holds up its source (GET /info), and that its disk has room',
    })
  if (spilled.times > 0)
    found.push({
      code: 'decoding_spills',
      message: `decoding wrote ${spilled.transactions} transactions to the disk of the server, ${sizeText(spilled.bytes)} in all: they were larger than logical_decoding_work_mem`,
      ...{ sql: `alter system set logical_decoding_work_mem = '256MB'; select pg_reload_conf()`, how: 'if that is slow' },
    })
  return found
}

/** Judges the transaction that is open for longest. @param consequence what it keeps from happening */
export const transactionFindings = (oldest: OldestTransaction | null, consequence: string): readonly Finding[] =>
  oldest !== null && oldest.seconds !== null && oldest.seconds > OLD_TRANSACTION_S
    ? [
        {
          code: 'old_transaction',
          message: `an open transaction (${oldest.xid}, for ${durationText(oldest.seconds)}) ${consequence}`,
          ...{ sql: ending(oldest), how: 'to end it' },
        },
      ]
    : []

/** Says for how long a transaction may be open before it is told of. */
export const OLD_TRANSACTION_TEXT = durationText(OLD_TRANSACTION_S)

const hasPublishedLeaf = ({ schema, name }: SourceTable, tables: readonly SourceTable[]): boolean =>
  tables.some(({ partitionRoot, isPublished }) => isPublished && partitionRoot === `${schema}.${name}`)

const named = (tables: readonly SourceTable[]): string => {
  const names = tables.slice(0, NAMED_TABLES).map(({ schema, name }) => `${schema}.${name}`).join(', ') // prettier-ignore
  return tables.length > NAMED_TABLES ? `${names} and ${tables.length - NAMED_TABLES} more tables` : names
}
const forEach = (tables: readonly SourceTable[], sql: (table: SourceTable) => string): string =>
  tables.slice(0, NAMED_TABLES).map(sql).join('; ')
