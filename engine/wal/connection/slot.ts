/**
 * The slot and the server it belongs to: read once before each run, and judged by a pure function. Each way a slot can
 * be unfit has a code of its own and the SQL that mends it; a slot in use, and a server in recovery, are worth trying again.
 */
import { escapeIdentifier } from 'pg'
import { EngineError } from '../../errors.ts'
import { fieldsOf } from '../../json.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import type { SlotState } from '../../status.ts'
import { formatLsn, parseLsn, type Lsn } from '../../lsn.ts'

/** A slot, and the server that it is on, as they were found. */
export type SlotFacts = Readonly<{
  serverVersion: number
  /** the server replays what another one writes: a standby */
  isInRecovery: boolean
  database: string
  databaseOid: number
  walLevel: string
  /** undefined: no publication of this name */
  publicationOid: number | undefined
  /** undefined: no slot of this name */
  slot:
    | Readonly<{
        plugin: string | null
        database: string | null
        activePid: number | null
        /** application_name of whoever reads from it */
        reader: string | null
        restartLsn: Lsn | undefined
        confirmedLsn: Lsn | undefined
        walStatus: string | null
        twoPhase: boolean
        /** 16 and later: why it was invalidated */
        invalidation: string | null
        /** 17 and later: a standby keeps it like that of its primary, and nobody may read from it before the promotion */
        isCopy: boolean
        /** transactions that were read from it so far */
        transactionsRead: number
      }>
    | undefined
}>

/** Holds the slot that a run starts from, with what it reads: with other oids, it is another slot or publication of the same name. */
export type FitSlot = Readonly<{
  confirmedLsn: Lsn
  restartLsn: Lsn
  databaseOid: number
  publicationOid: number
  transactionsRead: number
}>

/** Asks a server for a slot and all else that decides whether a run may start. */
export async function readSlotFacts(query: Query, slot: string, publication: string): Promise<SlotFacts> {
  const rows = await query(
    `select current_setting('server_version_num')::int as "serverVersion", pg_is_in_recovery() as "isInRecovery", current_database() as database,
            current_setting('wal_level') as "walLevel", (select oid::int8 from pg_database where datname = current_database()) as "databaseOid",
            (select oid::int8 from pg_publication where pubname = $2) as "publicationOid",
            (select to_jsonb(s) from pg_replication_slots s where slot_name = $1) as slot,
            coalesce((select total_txns from pg_stat_replication_slots where slot_name = $1), 0) as "transactionsRead",
            (select a.application_name from pg_replication_slots s join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = $1) as reader`,
    [slot, publication],
  )
  const [row] = rowsOf(SERVER, rows)
  if (!row) throw new EngineError('INTERNAL', 'the server answered nothing about itself')
  const { slot: found, transactionsRead, reader, ...server } = row
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  const lsn = (value: unknown): Lsn | undefined => (typeof value === 'string' ? parseLsn(value) : undefined)
  return {
    ...server,
    slot: found && {
      plugin: text(found.plugin),
      database: text(found.database),
      activePid: typeof found.active_pid === 'number' ? found.active_pid : null,
      reader: reader ?? null,
      restartLsn: lsn(found.restart_lsn),
      confirmedLsn: lsn(found.confirmed_flush_lsn),
      walStatus: text(found.wal_status),
      twoPhase: found.two_phase === true,
      invalidation: text(found.invalidation_reason) ?? (found.conflicting === true ? 'conflict with recovery' : null),
      isCopy: found.synced === true,
      transactionsRead,
    },
  }
}

const SERVER = {
  serverVersion: 'int',
  isInRecovery: 'boolean',
  database: 'text',
  walLevel: 'text',
  databaseOid: 'int',
  publicationOid: 'int?',
  /** as JSON: which columns there are depends on the version */
  slot: (value: unknown) => (value === null ? undefined : fieldsOf(value)),
  transactionsRead: 'int',
  reader: 'text?',
} as const

/**
 * Decides whether a run may start from a slot. @param saved what was confirmed last, to name from where changes are missing
 * @returns the slot's positions when a run may start from it
 * @throws EngineError SOURCE_IN_RECOVERY, WAL_LEVEL_TOO_LOW, PUBLICATION_MISSING, SLOT_MISSING, SLOT_WRONG_PLUGIN, SLOT_WRONG_DATABASE,
 *   SLOT_LOST, SLOT_TWO_PHASE, SLOT_IN_USE
 */
export function judgeSlot(facts: SlotFacts, name: string, publication: string, saved: Lsn | undefined): FitSlot {
  const { slot } = facts
  const create = `select pg_create_logical_replication_slot(${literal(name)}, 'pgoutput')`
  const recreate = `select pg_drop_replication_slot(${literal(name)}); ${create}`
  const missingFrom =
    saved === undefined ? '' : ` Changes from ${formatLsn(saved)} on are then missing: an update that touches the rows brings them.`
  const fail = (code: ConstructorParameters<typeof EngineError>[0], text: string) =>
    new EngineError(code, text, { slot: name, publication })

  // a standby with a slot of its own is read on purpose; what it lacks otherwise says nothing about the primary
  if (facts.isInRecovery && (facts.serverVersion < READS_STANDBYS || !slot || slot.isCopy)) {
    const waits = !slot ? 'has no such slot' : slot.isCopy ? 'has a copy of the slot, kept for its promotion' : "can't be read from"
    throw fail(
      'SOURCE_IN_RECOVERY',
      `the server is a standby and ${waits}: waiting until it is promoted, or the address leads to the primary`,
    )
  }
  if (facts.walLevel !== 'logical')
    throw fail('WAL_LEVEL_TOO_LOW', `wal_level is "${facts.walLevel}". Run: alter system set wal_level = logical; and restart Postgres`)
  if (facts.publicationOid === undefined)
    throw fail(
      'PUBLICATION_MISSING',
      `database "${facts.database}" has no publication "${publication}". Run: create publication ${escapeIdentifier(publication)} for all tables with (publish_via_partition_root = true)`,
    )
  if (!slot)
    throw fail('SLOT_MISSING', `there is no replication slot "${name}". Run in database "${facts.database}": ${create}.${missingFrom}`)
  if (slot.plugin !== 'pgoutput')
    throw fail(
      'SLOT_WRONG_PLUGIN',
      `slot "${name}" ${slot.plugin === null ? 'is physical' : `uses the plugin "${slot.plugin}"`}, not pgoutput. If nothing else needs it, run: ${recreate}`,
    )
  if (slot.database !== facts.database)
    throw fail(
      'SLOT_WRONG_DATABASE',
      `slot "${name}" belongs to database "${slot.database}", not to "${facts.database}". Name another slot: ${create.replace(literal(name), literal(`${name}_2`))}`,
    )
  if (slot.restartLsn === undefined || slot.confirmedLsn === undefined || slot.walStatus === 'lost' || slot.invalidation !== null) {
    const why = slot.invalidation ?? 'the write-ahead log it needs was removed'
    throw fail('SLOT_LOST', `Postgres has invalidated slot "${name}" (${why}). Run: ${recreate}.${missingFrom}`)
  }
  if (slot.twoPhase) {
    const remedy =
      facts.serverVersion >= 180000
        ? ` on a replication connection (psql "dbname=${facts.database} replication=database"): ALTER_REPLICATION_SLOT ${escapeIdentifier(name)} (TWO_PHASE false)`
        : `: ${withoutTwoPhase(name)}`
    throw fail('SLOT_TWO_PHASE', `slot "${name}" was created with two_phase and would send rows before they are committed. Run${remedy}`)
  }
  if (slot.activePid !== null)
    throw fail(
      'SLOT_IN_USE',
      `slot "${name}" is read by process ${slot.activePid}${slot.reader ? ` ("${slot.reader}")` : ''}. Stop it, or run: select pg_terminate_backend(${slot.activePid})`,
    )
  const { databaseOid, publicationOid } = facts
  const { confirmedLsn, restartLsn, transactionsRead } = slot
  return { confirmedLsn, restartLsn, transactionsRead, databaseOid, publicationOid }
}

/** Logical decoding on a standby. */
const READS_STANDBYS = 160_000

/** A copy has the position of the slot, and not its two_phase: unlike a slot that is made anew it leaves nothing out. */
function withoutTwoPhase(name: string): string {
  const [slot, copy] = [literal(name), literal(`${name.slice(0, 58)}_copy`)]
  const copied = (from: string, to: string) => `select pg_copy_logical_replication_slot(${from}, ${to})`
  const dropped = (one: string) => `select pg_drop_replication_slot(${one})`
  return `${copied(slot, copy)}; ${dropped(slot)}; ${copied(copy, slot)}; ${dropped(copy)}`
}

const literal = (text: string): string => `'${text.replaceAll("'", "''")}'`

const STATE = {
  confirmedBytes: 'number',
  retainedBytes: 'number',
  walStatus: 'text?',
  safeWalBytes: 'number?',
  catalogXminAge: 'number?',
  transactions: 'int',
  times: 'int',
  bytes: 'number',
  oldest: (value: unknown) => (value === null ? undefined : fieldsOf(value)),
} as const

/** Reads how a slot stands at its server, without the rate at which it nears its end. @returns undefined: there is no such slot */
export async function readSlotState(query: Query, slot: string): Promise<Omit<SlotState, 'secondsUntilLost'> | undefined> {
  const rows = await query(
    `select coalesce(pg_wal_lsn_diff(now, s.confirmed_flush_lsn), 0)::float8 as "confirmedBytes",
       coalesce(pg_wal_lsn_diff(now, s.restart_lsn), 0)::float8 as "retainedBytes",
       s.wal_status::text as "walStatus", s.safe_wal_size::float8 as "safeWalBytes", age(s.catalog_xmin)::float8 as "catalogXminAge",
       coalesce(t.spill_txns, 0) as transactions, coalesce(t.spill_count, 0) as times, coalesce(t.spill_bytes, 0)::float8 as bytes,
       (select to_jsonb(o) from (
          select backend_xid::text as xid, pid, null as prepared, extract(epoch from now() - xact_start)::float8 as seconds, age(backend_xid) as age
            from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
          union all
          select transaction::text, null, gid, extract(epoch from now() - prepared)::float8, age(transaction) from pg_prepared_xacts
          order by age desc limit 1) o) as oldest
     from pg_replication_slots s left join pg_stat_replication_slots t on t.slot_name = s.slot_name,
       (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as now) w
     where s.slot_name = $1`,
    [slot],
  )
  const [row] = rowsOf(STATE, rows)
  if (!row) return undefined
  const { transactions, times, bytes, oldest, walStatus = null, safeWalBytes = null, catalogXminAge = null, ...lag } = row
  const { xid, pid, prepared, seconds } = oldest ?? {}
  return {
    ...lag,
    walStatus,
    safeWalBytes,
    catalogXminAge,
    spilled: { transactions, times, bytes },
    oldest: oldest
      ? {
          xid: String(xid),
          pid: typeof pid === 'number' ? pid : null,
          prepared: typeof prepared === 'string' ? prepared : null,
          seconds: typeof seconds === 'number' ? seconds : null, // of others it is not shown to every user
        }
      : null,
  }
}
