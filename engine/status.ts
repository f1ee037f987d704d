/** The types by which actors say how they are, which `GET /info`, health and the logs show. */
import { EngineError, errorText } from './errors.ts'
import type { Lsn } from './lsn.ts'
import type { OldestTransaction } from './postgres/oldest-transaction.ts'

/** The status of one check. */
export type CheckStatus = 'healthy' | 'warning' | 'error' | 'initializing' | 'paused' | 'waiting' | 'stale' | 'notice'

/** Tells what was looked at, and how it is. */
export type HealthCheck = Readonly<{
  name: string
  status: CheckStatus
  /** `node`: of a cluster, the process that has it */
  error?: Readonly<{ code: string; message: string; node?: string }>
}>

/** Says what stands in the way of something, in words for people. */
export type Trouble = NonNullable<HealthCheck['error']>

/** Makes of an error a code and words for people. */
export const troubleOf = (error: unknown): Trouble => ({
  code: error instanceof EngineError ? error.code : 'INTERNAL',
  message: errorText(error),
})

/** The status of something as a whole. */
export type HealthStatus = 'healthy' | 'warning' | 'error' | 'initializing' | 'paused'

/** Tells how a sink is as a whole, with the checks that say why. */
export type Health = Readonly<{ name: string; status: HealthStatus; checks: readonly HealthCheck[] }>

/** Names and numbers only; never row values or secrets. */
export type Figures = Readonly<Record<string, string | number | boolean | null>>

/** Holds the figures of one partition of a sink, where it is served. Offsets are records of the log. */
export type PartitionFigures = Readonly<{
  partition: number
  /** the lowest record with a message that is not finished, and that message in it */
  committed: number
  committedIndex: number
  /** the next record to be read, and the first one that the log does not have yet */
  read: number
  head: number
  /** records from the lowest one with an unfinished message on */
  lag: number
  /** messages handed out, neither acknowledged nor back */
  inFlight: number
  /** messages read ahead and not finished, parked ones included */
  unfinished: number
  /** since the commit of the oldest message that is not finished; 0: there is none */
  oldestMs: number
  /** messages that wait outside the log, and their groups */
  parked: number
  parkedGroups: number
  /** messages given up in the last day, but for their size */
  discardedLately: number
  /** bytes from the lowest unfinished message to the read head */
  windowBytes: number
  /** bytes of the partition in the log; those of them, and about how many messages, that are finished and kept to be replayed */
  logBytes: number
  keptBytes: number
  keptMessages: number
  /** messages handed out since this process took the partition over */
  delivered: number
  /** under which it owns the partition */
  term: number
  /** of a sink that sends: requests under way, and messages that are held back to find out whose fault a failure is */
  requests?: number
  held?: number
}>
/** Tells the state of a partition's machine; one that is not served here at the moment has no figures. */
export type PartitionStatus = Readonly<{ state: string; partition: number }> & Partial<PartitionFigures>

/** The figures that every sink has, beside those of its kind. */
export type SinkFigures = Readonly<{
  generation: number
  partitions: number
  /** messages handed out, or put aside to be delivered again */
  ackPending: number
  keptMessages: number
  /** messages read ahead and not finished, parked ones included; those that are parked; since the commit of the oldest one */
  unfinished: number
  parked: number
  oldestMs: number
  /** share of the last 10 s in which messages lay ready and waited for the destination */
  readyPercent: number
}> &
  Figures

/** Tells how far a source is, and what holds it up. */
export type SourceFigures = Readonly<{
  confirmedLsn: Lsn
  /** durable in the log; confirmed soon */
  durableLsn: Lsn
  /** greatest LSN the server told of */
  receivedLsn: Lsn
  bytesInFlight: number
  pausedMs: number
  pauseCauses: readonly string[]
  /** commit time of the last transaction that became durable, µs since the epoch; 0: none in this run */
  lastCommitUs: number
  history: number
  routingVersion: number
  /** shares of the last ten seconds: decoding was at work, and an append was open */
  decodingPercent: number
  appendingPercent: number
}>

/** Tells how many bytes of the server's log the slot is behind: with what it has confirmed, and with what it makes the server keep. */
export type SlotLag = Readonly<{ confirmedBytes: number; retainedBytes: number }>

/**
 * Tells how a slot stands at its server. @property walStatus as pg_replication_slots has it @property safeWalBytes that may be written
 * before the slot is lost; null: it is never lost for that @property secondsUntilLost at the rate of the last minutes; null: not in sight
 * @property catalogXminAge transactions since the one from which the catalogue is kept for it
 * @property oldest the open transaction that began first, which may keep the slot from moving on
 * @property spilled transactions that were too large for logical_decoding_work_mem, how often parts of them were written to disk, and bytes
 */
export type SlotState = SlotLag &
  Readonly<{
    walStatus: string | null
    safeWalBytes: number | null
    secondsUntilLost: number | null
    catalogXminAge: number | null
    oldest: OldestTransaction | null
    spilled: Readonly<{ transactions: number; times: number; bytes: number }>
  }>

/** Tells how a database is, and its slot; null: the slot was not asked yet, or can't be. */
export type DatabaseSight = Readonly<{ health: Health; slot: SlotState | null }>

/** Tells how a backfill is that is active here. Only `reading` asks something of its source. */
export type BackfillStatus = Readonly<{
  id: string
  table: string
  sinkId: string
  /** failing: it failed for now, and is tried again */
  state: 'queued' | 'reading' | 'waiting' | 'failing'
  /** why it waits, in words */
  cause: string | undefined
  since: Date
  lastError: Readonly<{ error: unknown; at: Date }> | undefined
  /** about how many rows there are; undefined: not known yet */
  rows: number | undefined
  /** rows that were read, and those of them that were added to the stream: durable ones */
  processed: number
  ingested: number
}>

/** An actor of this process, as it is now. */
export type ActorStatus = Readonly<{
  /** unique in the process, such as "sink/<id>" */
  id: string
  kind: string
  /** of the resource, when there is one */
  name?: string
  /** the account that it belongs to; absent: it is the process's own, shown to every account */
  accountId?: string
  /** state of its machine */
  state: string
  /** since when in this state */
  since?: Date
  lastError?: Readonly<{ error: unknown; at: Date }>
  details?: Figures
  /** one row for each partition */
  partitions?: readonly PartitionStatus[]
}>
/** The status of a sink, which has figures for each of its partitions. */
export type SinkActorStatus = ActorStatus & Readonly<{ details: SinkFigures; partitions: readonly PartitionStatus[] }>

/**
 * Tells how far one reader has come in one partition of its stream. Offsets are records of the log.
 * @property committed the lowest record with an unfinished message
 * @property line the first record that it needs, for delivery or for a replay
 * @property othersBytes of messages that it doesn't take and has not passed by yet: the backlog is without them
 * @property heldBytes what is kept from its line on although another reader needs it no more; 0: its line isn't the lowest
 */
export type ReaderPartition = Readonly<{
  partition: number
  committed: number
  line: number
  backlogBytes: number
  othersBytes: number
  heldBytes: number
}>
/**
 * A generation of a sink. reading: it is open. leaving: another one follows, or the sink is disabled, and this one is not delivered
 * yet. kept: it is, and its replay window is not over.
 * @property backlogBytes parked messages included
 */
export type StreamReader = Readonly<{
  sinkId: string
  generation: number
  state: 'reading' | 'leaving' | 'kept'
  backlogBytes: number
  othersBytes: number
  heldBytes: number
  partitions: readonly ReaderPartition[]
}>
/**
 * Tells what one stream holds in the log, and for whom. @property selects in short; undefined: of a version in which each
 * generation had a topic of its own
 */
export type Stream = Readonly<{
  topic: string
  databaseId: string
  partitions: number
  selects: string | undefined
  /** in the log */
  bytes: number
  readers: readonly StreamReader[]
}>
/** A stream with the names of its database and sinks. */
export type StreamStatus = Omit<Stream, 'readers'> &
  Readonly<{
    accountId: string
    database: string
    /** @property status of the sink, as its user set it */
    readers: readonly (StreamReader & Readonly<{ sink: string; status: string }>)[]
  }>

const RANK: Readonly<Record<HealthStatus, number>> = { error: 4, warning: 3, paused: 2, initializing: 1, healthy: 0 }

/** Makes one status of several checks: the worst wins; notices and waiting checks don't degrade, and a stale one is a warning. */
export function worst(checks: readonly HealthCheck[]): HealthStatus {
  let status: HealthStatus = 'healthy'
  for (const check of checks) {
    const as: HealthStatus =
      check.status === 'notice' || check.status === 'waiting' ? 'healthy' : check.status === 'stale' ? 'warning' : check.status
    if (RANK[as] > RANK[status]) status = as
  }
  return status
}
