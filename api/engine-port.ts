/**
 * What the HTTP layer needs of the running engine and of the resources held in memory, and nothing more. The process
 * (cli) puts the actors and the resource cache behind these interfaces; tests put a scripted engine there. No call of
 * them asks a database, except edits, `acceptGap`, `retrySource` and `replay`.
 */
import type { MessagePage, MessageRecord, MessagesAsked } from '../engine/dispatch/parked/message-records.ts'
import type { ErrorContext } from '../engine/errors.ts'
import type { Destination, HttpEndpoint } from '../engine/state/destinations.ts'
import type { EndpointInput, SinkInput } from '../engine/state/resource-store.ts'
import type { Account, Database, Sink, SinkSettings } from '../engine/state/resources.ts'

/** How one element of receive's `data` looks: record, changes, … beside `ack_id`, or under `data`. */
export type Shape = 'flat' | 'nested'

export type ReceiveRequest = Readonly<{
  /** 1..1000 */
  batchSize: number
  /** 0..300000; 0 answers at once with what is there */
  waitMs: number
  shape: Shape
  /** whether one token for all messages of the answer is wanted */
  ackToken?: boolean
  /** aborted when the client has gone or the service stops: the wait ends and no message is taken */
  signal: AbortSignal
  /** asked on behalf of a client that another place has counted among those that wait (max_waiting) */
  isCounted?: boolean
}>

/** Messages taken from a sink for one client. */
export interface Receipt {
  /** the whole answer, `{"data":[…]}` */
  readonly body: Buffer
  readonly count: number
  /** Makes the messages deliverable again at once, because the answer could not be written. Called at most once. */
  giveBack(): void
  /** The answer was written whole, and nobody looks at `body` any more: its memory may be used again. Called at most once. */
  written?(): void
}

/** One pull sink at work. Rejections are EngineErrors: TOO_MANY_WAITING, ACK_NOT_DURABLE, STOPPING, … */
export interface RunningSink {
  /** An aborted wait settles soon, either way: with an empty receipt or with the signal's reason. */
  receive(request: ReceiveRequest): Promise<Receipt>
  /** Settles when the acknowledgement is durable. Unknown ids are ignored. */
  ack(ids: readonly string[]): Promise<void>
  nack(ids: readonly string[]): Promise<void>
}

export type CheckStatus = 'healthy' | 'warning' | 'error' | 'initializing' | 'paused' | 'waiting' | 'stale' | 'notice'
export type Health = Readonly<{
  name: string
  status: 'healthy' | 'warning' | 'error' | 'initializing' | 'paused'
  checks: readonly Readonly<{ name: string; status: CheckStatus; error?: unknown }>[]
}>

export type ActorStatus = Readonly<{
  /** unique in the process, such as "sink/<id>" */
  id: string
  kind: string
  /** of the resource, when there is one */
  name?: string
  /** whose it is; absent: the process's own, shown to every account */
  accountId?: string
  /** state of its machine, such as "streaming" */
  state: string
  /** since when in this state */
  since?: Date
  lastError?: Readonly<{ error: unknown; at: Date }>
  /** positions, counts: names and numbers only */
  details?: ErrorContext
  /** of a sink: one row for each partition that this process serves, or is about to */
  partitions?: readonly ErrorContext[]
}>

/** A stream with its readers and the bytes that it takes in the log. Offsets are records of the log. */
export type StreamStatus = Readonly<{
  topic: string
  /** whose it is */
  accountId: string
  databaseId: string
  database: string
  partitions: number
  /** in short; undefined: the stream is of a version in which each generation of a sink had a topic of its own */
  selects: string | undefined
  bytes: number
  readers: readonly Readonly<{
    sinkId: string
    sink: string
    status: Sink['status']
    generation: number
    state: 'reading' | 'leaving' | 'kept'
    backlogBytes: number
    othersBytes: number
    heldBytes: number
    partitions: readonly Readonly<{
      partition: number
      committed: number
      line: number
      backlogBytes: number
      othersBytes: number
      heldBytes: number
    }>[]
  }>[]
}>

export type Readiness = Readonly<{
  ready: boolean
  /** what is not streaming, and why */
  waiting: readonly Readonly<{ kind: string; name: string; state: string; code?: string; reason?: string }>[]
}>

/** Inclusive. `fromUs` is a commit time in µs since the epoch; an offset is that of a record, of the generation that is delivered
 *  unless another one is named. */
export type ReplayTarget = Readonly<{ lsn: bigint } | { fromUs: number } | { offset: number; partition: number; generation?: number }>
export type Replayed = Readonly<{
  /** that are set back */
  partitions: number
  /** about how many come again */
  messages: number
  /** of the first message that comes again: its commit; undefined: there is none */
  from: Readonly<{ lsn: bigint; time: string }> | undefined
}>
/** What of a sink has stopped in one process. */
export type HeldSink = Readonly<{ generation: number; partitions: readonly Readonly<{ partition: number; term: number }>[] }>
export type Holder = Readonly<{
  /** of the node */
  id: string
  hold: (by: string) => Promise<HeldSink>
  release: (by: string) => Promise<void>
}>

/** The fields of a sink that an update sets; what is absent stays. */
export type SinkChanges = Readonly<Partial<Omit<SinkSettings, 'database'>> & { destination?: Destination }>

export interface EnginePort {
  /** undefined: no actor of that sink runs here at the moment */
  sink(id: string): RunningSink | undefined
  /** How these sinks are, over all processes; one that no process runs is left out. */
  sinkHealth(ids: readonly string[]): Promise<ReadonlyMap<string, Health>>
  actors(): readonly ActorStatus[]
  /** The streams of all databases, as they were some seconds ago: any process knows all of them. */
  streams(): readonly StreamStatus[]
  ready(): Readiness
  /** Settles when the change has taken effect (routing included) with the sink as it is then.
   *  @throws EngineError NOT_FOUND, VALIDATION_FAILED */
  updateSink(sinkId: string, changes: SinkChanges): Promise<Sink>
  /** The same of a new one. @throws EngineError NOT_FOUND, VALIDATION_FAILED */
  createSink(account: Account, database: Database, input: SinkInput): Promise<Sink>
  /** With everything that waits for it. */
  deleteSink(sinkId: string): Promise<void>
  /** Tries what a delivery needs, and delivers nothing. @returns what is wrong, in the destination's own words; undefined: nothing */
  testSink(sink: Sink): Promise<string | undefined>
  /** Those that wait outside the log or were discarded, of all processes. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID */
  messages(sinkId: string, asked: MessagesAsked): Promise<MessagePage>
  /** The newest that were delivered since their processes began, of all processes, newest first. */
  delivered(sinkId: string, limit: number): Promise<readonly MessageRecord[]>
  /** One of either. @throws EngineError STATE_UNAVAILABLE */
  message(sinkId: string, id: string, look: MessageLook): Promise<ShownMessage | undefined>
  /** The last messages that sinks have read, of all processes, oldest first; none of sensitive sinks. */
  recent(asked: RecentAsked): Promise<readonly RecentMessage[]>
  /** What somebody decided of some of them. @throws EngineError STATE_UNAVAILABLE */
  editMessages(sinkId: string, edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages>
  createEndpoint(account: Account, input: EndpointInput): Promise<HttpEndpoint>
  /** Reaches the sinks that send to it before it settles. */
  updateEndpoint(endpoint: HttpEndpoint, changes: Partial<EndpointInput>): Promise<HttpEndpoint>
  /** @throws EngineError RESOURCE_IN_USE */
  deleteEndpoint(endpoint: HttpEndpoint): Promise<void>
  testEndpoint(endpoint: HttpEndpoint): Promise<string | undefined>
  /** Lets a source that stopped at missing changes go on without them. @returns what it had stopped at
   *  @throws EngineError NO_GAP */
  acceptGap(databaseId: string): Promise<string>
  /** A source that has given up, or waits, tries again at once; any other goes on as it is.
   *  @returns how it is when it streams, stands by or has stopped again, at the latest after `waitMs` */
  retrySource(databaseId: string, waitMs: number): Promise<SourceOutcome>
  /** Sets a sink back: what came since then comes again.
   *  @throws EngineError REPLAY_OUT_OF_WINDOW, REPLAY_RUNNING, VALIDATION_FAILED, SINK_NOT_RUNNING, … */
  replay(sinkId: string, target: ReplayTarget): Promise<Replayed>
}

/** Of a table (`schema.table`), or the newest of each table that one of these sinks has read. */
export type RecentAsked = Readonly<{ databaseId: string } & ({ table: string } | { sinkIds: readonly string[] })>
/** @property at its place, as text that sorts @property text JSON, its metadata without what belongs to one sink */
export type RecentMessage = Readonly<{ at: string; text: string }>

export type MessageEdit = 'redeliver' | 'acknowledge' | 'discard'
/** By their ids, or all of a kind: open ones that have failed, all open ones, those that were given up. */
export type MessageChoice = readonly string[] | 'failing' | 'open' | 'discarded'
export type EditedMessages = Readonly<{
  /** of those named by their ids: there are such messages · their owners were asked */
  known: number
  served: number
  /** it held for so many: others were so already */
  edited: number
}>
/** @property withFunctions the functions of the sink, as they are now, are run on it */
export type MessageLook = Readonly<{ withFunctions: boolean }>
/**
 * @property message before any function, with the row that enriches it: JSON; null: not kept, or the sink is sensitive
 * @property functions what they make of it: JSON; null: there are none, or they were not to be run
 */
export type ShownMessage = Readonly<{ record: MessageRecord; message: string | null; functions: string | null }>

/** `streaming`, `standby` (another process has it), or what it waits in, with the reason. */
export type SourceOutcome = Readonly<{ state: string; code?: string; reason?: string }>

/** The engine of this process, as the rest of a cluster uses it. */
export interface LocalEngine extends EnginePort {
  /** Settles when what the state database held at the call has taken effect here. */
  reload(): Promise<void>
  /** Says how the other processes that live are asked to stop what they serve of a sink. */
  among(peers: (sinkId: string) => readonly Holder[]): void
  /** Stops what is served of a sink here, for the replay that `by` names; for ten seconds at most. */
  holdSink(sinkId: string, by: string): Promise<HeldSink>
  /** Settles when it is at work again, or that takes long. */
  releaseSink(sinkId: string, by: string): Promise<void>
  /** Partitions of the sink may have other owners, as the state database has it. @param sinkId undefined: those of any sink */
  ownersChanged(sinkId?: string): void
}

/** The resources in memory. */
export interface ResourcePort {
  /** @param tokenHash sha256 of the token, lower-case hexadecimal */
  findAccount(tokenHash: string): Account | undefined
  /** @param idOrName a UUID-shaped text is an id, anything else a name */
  findSink(accountId: string, idOrName: string): Sink | undefined
  /** by name */
  listSinks(accountId: string): readonly Sink[]
  /** @param idOrName as above */
  findDatabase(accountId: string, idOrName: string): Database | undefined
  /** @param idOrName as above */
  findEndpoint(accountId: string, idOrName: string): HttpEndpoint | undefined
  /** by name */
  listEndpoints(accountId: string): readonly HttpEndpoint[]
}
