/**
 * The slot and the server it belongs to: read once before each run, and judged by pure functions. Each way a slot can
 * be unfit has a code of its own and the SQL that mends it; a slot in use, and a server in recovery, are worth trying again.
 */
import { escapeIdentifier, escapeLiteral } from 'pg'
import { EngineError } from '../../errors.ts'
import { fieldsOf } from '../../json.ts'
import { OLDEST_TRANSACTION, readOldest } from '../../postgres/oldest-transaction.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import type { SlotState } from '../../status.ts'
import { formatLsn, parseLsn, type Lsn } from '../../lsn.ts'
import { wordsOf, type FaultCode, type Finding } from './finding.ts'

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

/** Names the slot and the publication that are judged. @property slot absent: only the server and the publication are @property publication absent: it is left out */
type Judged = Readonly<{ slot?: string | undefined; publication?: string | undefined; saved?: Lsn | undefined }>

/**
 * Finds everything that keeps a run from starting, the worst first: a standby that can't be read hides the rest, and a slot that is not fit hides
 * who reads it. @param saved what was confirmed last, to name from where changes are missing
 */
export function slotFindings(facts: SlotFacts, { slot: name, publication, saved }: Judged): readonly FaultFinding[] {
  const { slot, database } = facts
  // a standby with a slot of its own is read on purpose; what it lacks otherwise says nothing about the primary
  if (name !== undefined && facts.isInRecovery && (facts.serverVersion < READS_STANDBYS || !slot || slot.isCopy)) {
    const waits = !slot ? 'has no such slot' : slot.isCopy ? 'has a copy of the slot, kept for its promotion' : "can't be read from"
    const message = `the server is a standby and ${waits}: waiting until it is promoted, or the address leads to the primary`
    return [{ code: 'SOURCE_IN_RECOVERY', message }]
  }
  const fit = name === undefined ? undefined : fitness(facts, name, saved)
  return [
    ...(facts.walLevel === 'logical' ? [] : [walLevelFinding(facts.walLevel)]),
    ...(publication === undefined || facts.publicationOid !== undefined ? [] : [missingPublication(database, publication)]),
    ...(fit ? [fit] : []),
  ]
}

type FaultFinding = Finding & Readonly<{ code: FaultCode }>

/** Says that a server does not write what decoding needs. */
export const walLevelFinding = (level: string, server = 'the server'): FaultFinding => ({
  code: 'WAL_LEVEL_TOO_LOW',
  message: `wal_level of ${server} is "${level}": changes can't be decoded`,
  sql: 'alter system set wal_level = logical',
  how: 'and restart Postgres',
})

/** Says that a database lacks a publication. @param sql that creates it, where its user has SQL of his own */
export const missingPublication = (database: string, publication: string, sql = creatingPublication(publication)): FaultFinding => ({
  code: 'PUBLICATION_MISSING',
  message: `database "${database}" has no publication "${publication}"`,
  sql,
})

/** The SQL that creates a publication of all tables. */
export const creatingPublication = (publication: string): string =>
  `create publication ${escapeIdentifier(publication)} for all tables with (publish_via_partition_root = true)`

type SlotServer = Pick<SlotFacts, 'serverVersion' | 'isInRecovery' | 'database'>

/** Says that a server lacks a slot. @param saved what was confirmed last, to name from where changes are missing */
export const missingSlot = (name: string, server: SlotServer, saved?: Lsn): FaultFinding => ({
  ...{ code: 'SLOT_MISSING', message: `there is no replication slot "${name}"`, ...missingFrom(saved) },
  ...{ sql: creatingSlot(name, server), how: `in database "${server.database}"` },
})

const missingFrom = (saved: Lsn | undefined) =>
  saved !== undefined && { remedy: `Changes from ${formatLsn(saved)} on are then missing: an update that touches the rows brings them` }

/** The SQL that creates a slot, which standbys keep for their promotion where they can. A standby's own slot can't be such a one. */
export function creatingSlot(name: string, { serverVersion, isInRecovery }: SlotServer): string {
  const options = serverVersion >= HAS_FAILOVER_SLOTS && !isInRecovery ? ', failover => true' : ''
  return `select pg_create_logical_replication_slot(${escapeLiteral(name)}, 'pgoutput'${options})`
}

/** @returns why a slot can't be read; undefined: it can */
function fitness(facts: SlotFacts, name: string, saved: Lsn | undefined): FaultFinding | undefined {
  const { slot, database, serverVersion } = facts
  if (!slot) return missingSlot(name, facts, saved)
  const recreate = `select pg_drop_replication_slot(${escapeLiteral(name)}); ${creatingSlot(name, facts)}`
  if (slot.plugin !== 'pgoutput')
    return {
      code: 'SLOT_WRONG_PLUGIN',
      message: `slot "${name}" ${slot.plugin === null ? 'is physical' : `uses the plugin "${slot.plugin}"`}, not pgoutput`,
      ...{ sql: recreate, how: 'if nothing else needs it' },
    }
  if (slot.database !== database)
    return {
      code: 'SLOT_WRONG_DATABASE',
      message: `slot "${name}" belongs to database "${slot.database}", not to "${database}"`,
      ...{ sql: creatingSlot(`${name}_2`, facts), how: 'and name that slot' },
    }
  if (slot.restartLsn === undefined || slot.confirmedLsn === undefined || slot.walStatus === 'lost' || slot.invalidation !== null) {
    const why = slot.invalidation ?? 'the write-ahead log it needs was removed'
    return { code: 'SLOT_LOST', message: `Postgres has invalidated slot "${name}" (${why})`, ...missingFrom(saved), sql: recreate }
  }
  if (slot.twoPhase)
    return {
      code: 'SLOT_TWO_PHASE',
      message: `slot "${name}" was created with two_phase and would send rows before they are committed`,
      ...(serverVersion >= 180000
        ? {
            sql: `ALTER_REPLICATION_SLOT ${escapeIdentifier(name)} (TWO_PHASE false)`,
            how: `on a replication connection (psql "dbname=${database} replication=database")`,
          }
        : { sql: withoutTwoPhase(name) }),
    }
  if (slot.activePid !== null)
    return {
      code: 'SLOT_IN_USE',
      message: `slot "${name}" is read by process ${slot.activePid}${slot.reader ? ` ("${slot.reader}")` : ''}`,
      ...{ sql: `select pg_terminate_backend(${slot.activePid})`, how: 'or stop that program' },
    }
  return undefined
}

/** Makes a finding that keeps a source from starting an error. */
export const faultOf = (finding: FaultFinding, context: EngineError['context'] = {}): EngineError =>
  new EngineError(finding.code, wordsOf(finding), context)

/**
 * Decides whether a run may start from a slot. @param saved what was confirmed last, to name from where changes are missing
 * @returns the slot's positions when a run may start from it
 * @throws EngineError SOURCE_IN_RECOVERY, WAL_LEVEL_TOO_LOW, PUBLICATION_MISSING, SLOT_MISSING, SLOT_WRONG_PLUGIN, SLOT_WRONG_DATABASE,
 *   SLOT_LOST, SLOT_TWO_PHASE, SLOT_IN_USE
 */
export function judgeSlot(facts: SlotFacts, name: string, publication: string, saved: Lsn | undefined): FitSlot {
  const [fault] = slotFindings(facts, { slot: name, publication, saved })
  const { databaseOid, publicationOid, slot } = facts
  const { confirmedLsn, restartLsn, transactionsRead = 0 } = slot ?? {}
  if (fault) throw faultOf(fault, { slot: name, publication })
  if (publicationOid === undefined || confirmedLsn === undefined || restartLsn === undefined)
    throw new EngineError('INTERNAL', `nothing is wrong with the slot "${name}", and it has no position`)
  return { confirmedLsn, restartLsn, transactionsRead, databaseOid, publicationOid }
}

/** Logical decoding on a standby. */
export const READS_STANDBYS = 160_000
/** Slots that standbys keep for their promotion. */
const HAS_FAILOVER_SLOTS = 170_000

/** A copy has the position of the slot, and not its two_phase: unlike a slot that is made anew it leaves nothing out. */
function withoutTwoPhase(name: string): string {
  const [slot, copy] = [escapeLiteral(name), escapeLiteral(`${name.slice(0, 58)}_copy`)]
  const copied = (from: string, to: string) => `select pg_copy_logical_replication_slot(${from}, ${to})`
  const dropped = (one: string) => `select pg_drop_replication_slot(${one})`
  return `${copied(slot, copy)}; ${dropped(slot)}; ${copied(copy, slot)}; ${dropped(copy)}`
}

const STATE = {
  confirmedBytes: 'number',
  retainedBytes: 'number',
  walStatus: 'text?',
  safeWalBytes: 'number?',
  catalogXminAge: 'number?',
  transactions: 'int',
  times: 'int',
  bytes: 'number',
  oldest: readOldest,
} as const

/** Reads how a slot stands at its server, without the rate at which it nears its end. @returns undefined: there is no such slot */
export async function readSlotState(query: Query, slot: string): Promise<Omit<SlotState, 'secondsUntilLost'> | undefined> {
  const rows = await query(
    `select coalesce(pg_wal_lsn_diff(now, s.confirmed_flush_lsn), 0)::float8 as "confirmedBytes",
       coalesce(pg_wal_lsn_diff(now, s.restart_lsn), 0)::float8 as "retainedBytes",
       s.wal_status::text as "walStatus", s.safe_wal_size::float8 as "safeWalBytes", age(s.catalog_xmin)::float8 as "catalogXminAge",
       coalesce(t.spill_txns, 0) as transactions, coalesce(t.spill_count, 0) as times, coalesce(t.spill_bytes, 0)::float8 as bytes,
       ${OLDEST_TRANSACTION} as oldest
     from pg_replication_slots s left join pg_stat_replication_slots t on t.slot_name = s.slot_name,
       (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as now) w
     where s.slot_name = $1`,
    [slot],
  )
  const [row] = rowsOf(STATE, rows)
  if (!row) return undefined
  const { transactions, times, bytes, oldest, walStatus = null, safeWalBytes = null, catalogXminAge = null, ...lag } = row
  return { ...lag, walStatus, safeWalBytes, catalogXminAge, spilled: { transactions, times, bytes }, oldest }
}
