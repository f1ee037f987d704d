/**
 * The log: where changes become durable between the source and the sinks. Two homes stand behind it: `embedded`
 * (LMDB, one process) and Kafka. A topic holds one stream, which any number of readers read, each with commits of its own;
 * its records are packs (pack.ts), numbered from 0 in each partition.
 *
 * Who keeps which promise (docs/rules.md, rules 4, 16 to 18 and 21):
 *  - the caller has one `append` open at a time and appends nothing after one that failed; the log settles an
 *    append only when every record of it is on disk, all or none visible;
 *  - a commit is durable when it settles, and carries the position just below its offset, never the read head.
 */
import { formatLsn, type Lsn, parseLsn } from '../lsn.ts'
import type { Part, Position } from '../position.ts'
import type { PackHeader } from './pack.ts'
import type { Weight } from './weight.ts'

/** Names one topic. A topic of a stream, or of a copy of what a reader needs of one, is made once, and its name is never used again. */
export type TopicName = string

/** Names a topic, and says how many partitions it has. */
export type Topic = Readonly<{ topic: TopicName; partitions: number }>

/** Names one partition of a topic. */
export type TopicPartition = Readonly<{ topic: TopicName; partition: number }>

const COPY_PREFIX = 'copy.'
/** Tells whether a topic is a copy, whose first offset need not be 0. */
export const isCopy = (topic: TopicName): boolean => topic.startsWith(COPY_PREFIX)
/** SQL expression. */
export const NEW_COPY = `'${COPY_PREFIX}' || nextval('tailrace.stream_number') || '.' || substr(md5(gen_random_uuid()::text), 1, 8)`

/**
 * Names who reads a topic and commits there, a generation of a sink: `<topic>@<sink id>.<generation>`. A topic that was made for
 * one generation alone is named by it, and is the name of its reader too: `<sink id>.<generation>`.
 */
export type ReaderName = string

/** Makes the name of a reader of a topic. @param name `<sink id>.<generation>` */
export const readerOf = (topic: TopicName, name: string): ReaderName => (topic === name ? topic : `${topic}@${name}`)
/** Gives the topic that a reader reads. */
export function topicRead(reader: ReaderName): TopicName {
  const [topic = reader] = reader.split('@', 1)
  return topic
}
/** Gives the generation that a reader is: `<sink id>.<generation>`. */
export const generationRead = (reader: ReaderName): string => reader.slice(reader.lastIndexOf('@') + 1)

/** Lists every partition of things that have partitions: topics or readers. */
export const eachPartition = <T extends Readonly<{ partitions: number }>>(all: readonly T[]): (T & Readonly<{ partition: number }>)[] =>
  all.flatMap((each) => Array.from({ length: each.partitions }, (_, partition) => ({ ...each, partition })))

/** Holds a pack that is to be appended to a partition. */
export type AppendRecord = Readonly<{ topic: TopicName; partition: number; pack: Buffer }>

/** What tells a transaction from any other that has its LSN in another past of the server. */
type TransactionId = Readonly<{ xid: number; commitTimeUs: number }>
/**
 * Says how far a source's stream is durable in all partitions; saved in the same transaction as the records.
 * @property transaction the position's own; absent: saved by a version that didn't keep it
 */
export type Reached = Readonly<{ position: Position; transaction?: TransactionId }>
/** Says how far a source is when an append is durable. */
export type Progress = Reached & Readonly<{ source: string }>

/** Holds what a log keeps of the state database: the term of the source's owner, and what was saved as confirmed under it. */
export type RememberedState = Readonly<{ term: number; history: number; confirmed: Lsn }>

/** A pack as it is read. */
export type LogRecord = Readonly<{
  offset: number
  /** the encoded pack; stays valid after the next read */
  pack: Buffer
}>

/** Message (offset, index): the index-th message of the record. Finished messages from `from` up to before `to`. */
export type MessageRef = Readonly<{ offset: number; index: number }>
/** Messages that are done. */
export type FinishedRange = Readonly<{ from: MessageRef; to: MessageRef }>

/** @property origin of a message that was parked under another generation, and is named by its place there */
export type InFlight = Readonly<{
  message: MessageRef
  invisibleForMs: number
  origin?: Readonly<{ generation: number; partition: number }>
}>

/** Says what a reader has finished of a partition, and which messages may be with clients. */
export type Commit = Readonly<{
  /** the lowest unfinished message */
  next: MessageRef
  /** the greatest accepted position before `next`, which a restart begins with (docs/rules.md, rule 16) */
  accepted: Position
  /** finished messages above `next`, ascending, disjoint, not touching */
  finished: readonly FinishedRange[]
  /** messages below this may be with a client: invisible for a visibility time after a crash */
  handedOut: MessageRef
  /** after a clean stop: the messages that really are with a client, and how long they stay invisible */
  inFlight?: readonly InFlight[]
  term: number
  /** how often messages of the partition had been parked, as the state database counts it; absent: of a version that did not say it */
  parked?: number
}>

/** Tells what a partition holds, as one of its readers sees it. */
export type PartitionStats = Readonly<{
  /** first offset kept, for whichever reader, and the one the next record gets */
  first: number
  next: number
  /** of the records that are kept, from where it was asked on */
  bytes: number
  /** the share of those below the reader's committed offset: finished, and kept to be replayed */
  finishedBytes: number
  /** the reader's offset; 0: it has none yet */
  committed: number
}>

/**
 * Describes the part of a partition that is copied from one topic to another.
 * @property offset of the first record
 * @property until the first record whose messages begin there, or above, is not copied
 * @property end stands behind them
 */
export type CopiedPart = Readonly<{ from: TopicName; to: TopicName; partition: number; offset: number; until: Position; end: Buffer }>

/** Called when partitions come and go. */
export type AssignmentListener = Readonly<{
  assigned: (partition: number) => void
  /** what runs on the partition must be void when this returns */
  revoked: (partition: number) => void
  /** all partitions are about to be spread anew: what runs on them is to stop cleanly, in the little time there is; `revoked` follows */
  handOver?: () => Promise<void>
  /** it can't be learnt at the moment, and for a while now, which partitions are served here; undefined: it can again */
  trouble?: (error: unknown) => void
}>

/** The log, wherever it is. */
export interface Log extends AsyncDisposable {
  /** random, made with the log; a different one behind the same state database is a different log */
  readonly identity: string
  createTopic(topic: TopicName, partitions: number): Promise<void>
  /** With the commits of all its readers. */
  deleteTopic(topic: TopicName): Promise<void>
  /** Deletes the commits of a reader that reads no more; its topic stays. */
  deleteReader(reader: ReaderName): Promise<void>
  /** @param maxAgeMs how old the answer may be, where asking has a price (0) */
  topics(maxAgeMs?: number): Promise<readonly Topic[]>
  /** Takes up appending for a new run of a source. Called before its first append: forgets a failed append before it. */
  beginRun(source: string): Promise<void>
  /** Refused after a failed append until the next `beginRun` of the source: nothing may follow a hole (LOG_APPEND_FAILED). */
  append(records: readonly AppendRecord[], progress: Progress): Promise<void>
  progress(source: string): Promise<Reached | undefined>
  /**
   * The next run of a source appends whatever comes to it: also what the log has already, as it may have under names that mean
   * nothing any more.
   */
  forgetProgress(source: string): Promise<void>
  /**
   * Keeps what the state database says of a source, and saves what the log keeps there of itself. It is durable when this
   * settles, so that the server is told of nothing that one of the two could forget alone.
   */
  remember(source: string, state: RememberedState): Promise<void>
  remembered(source: string): RememberedState | undefined
  /** Tells how many appends of a source are durable; what is remembered elsewhere of it shows an older copy of the log as such. */
  appendCount(source: string): number
  /**
   * Whether the log has what is remembered of a source.
   * @param appends so many it had once
   * @param only of this partition, where the log can tell
   * @returns what it lacks, in words; undefined: nothing that is known
   */
  lacks(source: string, appends: number, only?: TopicPartition): Promise<string | undefined>
  /**
   * Every record from `from` (or from the first kept one above it), then waits for new ones until aborted.
   * A pack that many readers have at the same time is one buffer: nobody writes to it.
   * @param before for who looks and doesn't follow: ends there
   */
  read(topic: TopicName, partition: number, from: number, signal: AbortSignal, before?: number): AsyncIterable<LogRecord>
  /** @returns of the pack that stands at an offset; undefined: none does */
  headerAt(topic: TopicName, partition: number, offset: number): Promise<PackHeader | undefined>
  commit(reader: ReaderName, partition: number, commit: Commit): Promise<void>
  committed(reader: ReaderName, partition: number): Promise<Commit | undefined>
  /**
   * Says from where on somebody will read: from then on the log knows the reader, also one that the state database forgets.
   * Nothing happens where somebody has committed for it.
   */
  join(reader: ReaderName, partition: number, from: Commit): Promise<void>
  /** Lists the readers that have joined or committed, also those that the state database knows nothing of. */
  readers(): Promise<readonly ReaderName[]>
  /**
   * Tells which record must be kept for whoever is to read from a record on: as a rule from this record. Asked by who reads the partition.
   * @returns undefined: that is not known before this record has been read
   */
  neededFrom(topic: TopicName, partition: number, offset: number): number | undefined
  /**
   * Copies records into a new topic, as they are and each with its offset, as far as the partition reaches at the moment of the call.
   * It is done once: after a failure, another topic is to be made.
   * @returns the offset behind the copy
   * @throws EngineError LOG_TOPIC_UNKNOWN: one of them is gone; LOG_DISK_FULL, and others of appends
   */
  copy(part: CopiedPart, signal: AbortSignal): Promise<number>
  /** Deletes the records below `before`. */
  trim(topic: TopicName, partition: number, before: number): Promise<void>
  /** The first record that holds a message at or after a commit time (ms since the epoch), or above a position. */
  offsetFor(topic: TopicName, partition: number, at: { timeMs: number } | { position: Position }): Promise<number>
  /**
   * @param maxAgeMs as in `topics`
   * @param from what lies below is kept for others, and not counted
   */
  stats(reader: ReaderName, partition: number, maxAgeMs?: number, from?: number): Promise<PartitionStats>
  /**
   * Tells what the records from one offset up to before another take, as far as they are kept.
   * @param before Infinity: up to the end
   * @param maxAgeMs as in `topics`
   */
  weigh(topic: TopicName, partition: number, from: number, before: number, maxAgeMs?: number): Promise<Weight>
  /** Little room is left where the log is: what is kept only to be replayed should go. Asking costs next to nothing. */
  isShortOfSpace(): Promise<boolean>
  /** Tells which partitions this process serves for the reader: embedded all of them, at once. */
  subscribe(reader: ReaderName, listener: AssignmentListener): Promise<AsyncDisposable>
  /**
   * Whether what was assigned for a reader is surely still this process's: asked right before anything is handed
   * out, because a process that was frozen goes on before it hears that others took over (docs/rules.md, rule 19).
   */
  holds(reader: ReaderName): boolean
}

type StoredPosition = Readonly<{ history: number; lsn: string; idx: number; part: Part }>
/** Holds how far a source is, as plain JSON: an LSN is a text there, because it is beyond JSON's numbers. */
export type StoredReached = StoredPosition & Readonly<{ xid?: number; commitTimeUs?: number }>
/** Holds a commit as plain JSON, where `filter` is the accepted position. */
export type StoredCommit = Omit<Commit, 'accepted'> & Readonly<{ filter: StoredPosition }>

const positionToJson = ({ history, lsn, idx, part }: Position): StoredPosition => ({ history, lsn: formatLsn(lsn), idx, part })
const positionFromJson = ({ history, lsn, idx, part }: StoredPosition): Position => ({ history, lsn: parseLsn(lsn), idx, part })

/** Writes how far a source is as plain JSON. */
export const reachedToJson = ({ position, transaction }: Reached): StoredReached => ({ ...positionToJson(position), ...transaction })
/** Reads how far a source is from plain JSON. */
export function reachedFromJson({ xid, commitTimeUs, ...position }: StoredReached): Reached {
  const isNamed = xid !== undefined && commitTimeUs !== undefined
  return { position: positionFromJson(position), ...(isNamed ? { transaction: { xid, commitTimeUs } } : {}) }
}

/** Writes a commit as plain JSON. */
export const commitToJson = ({ accepted, ...rest }: Commit): StoredCommit => ({ ...rest, filter: positionToJson(accepted) })
/** Reads a commit from plain JSON. */
export const commitFromJson = ({ filter, ...rest }: StoredCommit): Commit => ({ ...rest, accepted: positionFromJson(filter) })
