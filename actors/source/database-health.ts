/**
 * The health of a database and its slot: what its source, its slot and the look at its set-up say, each check with what is wrong and what
 * to do. Pure.
 */
import { ERRORS, isErrorCode } from '../../engine/errors.ts'
import { redactText } from '../../engine/redaction.ts'
import type { Database } from '../../engine/state/resources.ts'
import { worst, type CheckStatus, type Health, type HealthCheck, type SlotState } from '../../engine/status.ts'
import type { SourceTable } from '../../engine/wal/source-tables.ts'
import type { Seen } from './source-sight.ts'

/**
 * Tells how a source is. @property state of its machine @property error why it does not stream @property slotError why the slot could not be
 * asked @property heartbeatMs since the last message that it wrote came back; undefined: none has, in this run
 */
export type SourceCondition = Readonly<{
  state: string
  sinceMs: number
  error: Readonly<{ code: string; message: string; course: string }> | undefined
  slot: SlotState | undefined
  slotError: Readonly<{ code: string; message: string }> | undefined
  seen: Seen | undefined
  heartbeatMs: number | undefined
}>

type Finding = Readonly<{ status: CheckStatus; code: string; message: string }>

const MB = 1024 * 1024
const HOUR_S = 3600
/** A slot that keeps more write-ahead log than this is told of. */
const MUCH_KEPT_BYTES = 2.5 * 1024 * MB
/** An open transaction is told of when it is as old as that, and the server keeps so much more than what was not confirmed. */
const OLD_TRANSACTION_S = 300
const HELD_BYTES = 64 * MB
/** A heartbeat is written every 15 s, and comes back at once where the source is not behind. */
const HEARTBEAT_LATE_MS = 120_000
const NAMED = 5

/** Failures that say that the server was not reached, or let nobody in. */
const UNREACHED: ReadonlySet<string> = new Set([
  ...['SOURCE_UNREACHABLE', 'SOURCE_UNABLE', 'SOURCE_LOGIN_REFUSED', 'SOURCE_REFUSED'],
  ...['TLS_REFUSED', 'EGRESS_REFUSED', 'SOURCE_IN_RECOVERY'],
])

/** Says how a database is whose source runs in no process that answers. */
export function idleDatabaseHealth({ slot }: Database): Health {
  const isOff = slot.status === 'disabled'
  const checks: HealthCheck[] = [{ name: 'Replication slot connection', status: isOff ? 'paused' : 'initializing' }]
  return { name: 'Database health', status: worst(checks), checks }
}

/** Says how a database and its slot are. */
export function databaseHealth(database: Database, now: SourceCondition): Health {
  const checks = [
    checkOf('Database reachability', reachability(database, now), isKnown(now) ? 'healthy' : 'waiting'),
    checkOf('Replication slot configuration', configuration(database, now), now.seen ? 'healthy' : 'waiting'),
    checkOf('Replication slot connection', connection(now), now.state === 'streaming' ? 'healthy' : 'initializing'),
    checkOf('Replication slot messages', messages(now), now.slot ? 'healthy' : 'waiting'),
  ]
  return { name: 'Database health', status: worst(checks), checks }
}

const isKnown = ({ slot, seen, state }: SourceCondition): boolean => slot !== undefined || seen !== undefined || state === 'streaming'

const RANK: readonly CheckStatus[] = ['notice', 'warning', 'error']

/** Makes one check of all that was found. @param otherwise where nothing was */
function checkOf(name: string, found: readonly Finding[], otherwise: CheckStatus): HealthCheck {
  const [first, ...others] = found.toSorted((a, b) => RANK.indexOf(b.status) - RANK.indexOf(a.status))
  if (!first) return { name, status: otherwise }
  const message = [first, ...others].map((finding) => finding.message).join('; ')
  return { name, status: first.status, error: { code: first.code, message: redactText(message) } }
}

const withRemedy = ({ code, message }: Readonly<{ code: string; message: string }>): string =>
  isErrorCode(code) ? `${message}. ${ERRORS[code].remedy}` : message

function reachability({ connection: { withoutTls } }: Database, { error, state, seen, slotError }: SourceCondition): readonly Finding[] {
  const stopped = state === 'waiting' || state === 'failed' ? error : undefined
  const unreached = [stopped, slotError].find((one) => one && UNREACHED.has(one.code))
  return [
    ...(unreached ? [{ status: 'error', code: unreached.code, message: withRemedy(unreached) } as const] : []),
    ...(withoutTls
      ? [
          {
            status: 'notice',
            code: 'without_tls',
            message: 'the connection is not encrypted: ssl is not set, and the server offers no TLS. Switch TLS on there and set ssl: true, or set ssl: false if the way to it is safe', // prettier-ignore
          } as const,
        ]
      : []),
    ...(seen?.isPooled
      ? [
          {
            status: 'warning',
            code: 'pooled',
            message: 'the address leads to a connection pooler. It passes replication on, but a pooler that shares sessions breaks the lock of the source: give the address of the server itself', // prettier-ignore
          } as const,
        ]
      : []),
  ]
}

function configuration({ slot }: Database, { seen }: SourceCondition): readonly Finding[] {
  if (!seen) return []
  const found: Finding[] = []
  const { slotError, tables } = seen
  if (slotError) found.push({ status: 'error', code: slotError.code, message: withRemedy(slotError) })
  const published = tables.filter(({ isPublished }) => isPublished)
  if (published.length === 0)
    found.push({
      status: 'notice',
      code: 'nothing_published',
      message: `the publication "${slot.publication}" has no table, so nothing comes. Run: alter publication ${quoted(slot.publication)} add table …`,
    })
  const without = seen.publishesOldRows
    ? published.filter(({ identityColumns, isPartitioned }) => identityColumns.length === 0 && !isPartitioned)
    : []
  if (without.length > 0)
    found.push({
      status: 'warning',
      code: 'no_replica_identity',
      message: `the server refuses updates and deletes in ${named(without)}: published, and without a replica identity. Add a primary key, or run: ${sqlFor(without, (table) => `alter table ${table} replica identity full;`)}`,
    })
  const partitioned = seen.viaRoot ? [] : tables.filter((table) => table.isPartitioned && hasPublishedLeaf(table, tables))
  if (partitioned.length > 0)
    found.push({
      status: 'notice',
      code: 'partition_root_not_published',
      message: `changes of ${named(partitioned)} come under the names of the partitions. Run: alter publication ${quoted(slot.publication)} set (publish_via_partition_root = true);`,
    })
  const partial = published.filter(({ replicaIdentity }) => replicaIdentity !== 'full')
  if (partial.length > 0)
    found.push({
      status: 'notice',
      code: 'replica_identity_not_full',
      message: `old values of ${named(partial)} come only as far as they are in the replica identity, and unchanged large values are missing. Where they are wanted run: ${sqlFor(partial, (table) => `alter table ${table} replica identity full;`)}`,
    })
  const secured = published.filter(({ isRowSecured }) => isRowSecured)
  if (secured.length > 0)
    found.push({
      status: 'notice',
      code: 'row_level_security',
      message: `row-level security hides rows of ${named(secured)} from the user of this database: their changes come, and backfills leave them out. Give the user bypassrls, or a policy that shows all rows`,
    })
  const unreadable = published.filter(({ mayRead }) => !mayRead)
  if (unreadable.length > 0)
    found.push({
      status: 'notice',
      code: 'no_select',
      message: `the user of this database may not read ${named(unreadable)}: their changes come, and backfills fail. Run: ${sqlFor(unreadable, (table) => `grant select on ${table} to …;`)}`,
    })
  if (seen.isFailover === false && seen.hasStandbys)
    found.push({
      status: 'notice',
      code: 'no_failover_slot',
      message: `the slot "${slot.name}" is no failover slot: after a failover it is missing. Stop the source (status disabled), run on a replication connection (psql "… replication=database"): ALTER_REPLICATION_SLOT ${quoted(slot.name)} (FAILOVER true); and start it again`,
    })
  return found
}

function connection({ state, error }: SourceCondition): readonly Finding[] {
  if (!error || (state !== 'waiting' && state !== 'failed')) return []
  const status = state === 'waiting' && error.course === 'soon' ? 'warning' : 'error'
  return [{ status, code: error.code, message: withRemedy(error) }]
}

function messages({ slot, state, sinceMs, heartbeatMs }: SourceCondition): readonly Finding[] {
  const found: Finding[] = []
  const late = heartbeatMs ?? sinceMs
  if (state === 'streaming' && late > HEARTBEAT_LATE_MS)
    found.push({
      status: 'warning',
      code: 'heartbeat_late',
      message: `the last heartbeat that came back is ${Math.round(late / 1000)} s old: the source is behind, or its heartbeats can't be written. GET /info shows what it waits for`,
    })
  if (!slot) return found
  const { walStatus, safeWalBytes, secondsUntilLost, retainedBytes, confirmedBytes, oldest, spilled } = slot
  if (walStatus !== null && walStatus !== 'reserved' && walStatus !== 'extended')
    found.push({
      status: 'error',
      code: 'slot_about_to_be_lost',
      message: `the slot is about to be lost, or is (wal_status ${walStatus}): see what holds up its source, and raise max_slot_wal_keep_size`,
    })
  else if (safeWalBytes !== null && secondsUntilLost !== null && secondsUntilLost < 24 * HOUR_S)
    found.push({
      status: secondsUntilLost < HOUR_S ? 'error' : 'warning',
      code: 'slot_near_its_end',
      message: `at the present rate the slot is lost in ${duration(secondsUntilLost)}: ${mb(safeWalBytes)} may still be written. See what holds up its source, or raise max_slot_wal_keep_size`,
    })
  const isHeld = oldest !== null && (oldest.seconds ?? 0) > OLD_TRANSACTION_S && retainedBytes - confirmedBytes > HELD_BYTES
  if (isHeld)
    found.push({
      status: 'warning',
      code: 'old_transaction',
      message: `an open transaction (${oldest.xid}, for ${duration(oldest.seconds ?? 0)}) keeps the slot from moving on: the server keeps ${mb(retainedBytes)}. End it: ${
        oldest.prepared === null
          ? `select pg_terminate_backend(${oldest.pid});`
          : `rollback prepared '${oldest.prepared.replaceAll("'", "''")}';`
      }`,
    })
  if (retainedBytes > MUCH_KEPT_BYTES && !isHeld)
    found.push({
      status: 'warning',
      code: 'slot_behind',
      message: `the server keeps ${mb(retainedBytes)} of write-ahead log for the slot, ${mb(confirmedBytes)} of it not confirmed. See what holds up its source, and that its disk has room`,
    })
  if (spilled.times > 0)
    found.push({
      status: 'notice',
      code: 'decoding_spills',
      message: `decoding wrote ${spilled.transactions} transactions to the disk of the server, ${mb(spilled.bytes)} in all: they were larger than logical_decoding_work_mem. Raise it if that is slow`,
    })
  return found
}

const hasPublishedLeaf = ({ schema, name }: SourceTable, tables: readonly SourceTable[]): boolean =>
  tables.some(({ partitionRoot, isPublished }) => isPublished && partitionRoot === `${schema}.${name}`)

const named = (tables: readonly SourceTable[]): string => {
  const names = tables.slice(0, NAMED).map(({ schema, name }) => `${schema}.${name}`)
  return tables.length > NAMED ? `${names.join(', ')} and ${tables.length - NAMED} more tables` : names.join(', ')
}
const sqlFor = (tables: readonly SourceTable[], sql: (table: string) => string): string => {
  const [first] = tables
  return first ? sql(`${quoted(first.schema)}.${quoted(first.name)}`) : ''
}
const quoted = (name: string): string => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`)
const mb = (bytes: number): string => `${Math.round(bytes / MB)} MB`
const duration = (seconds: number): string =>
  seconds < 120
    ? `${Math.round(seconds)} s`
    : seconds < 2 * HOUR_S
      ? `${Math.round(seconds / 60)} min`
      : `${Math.round(seconds / HOUR_S)} h`
