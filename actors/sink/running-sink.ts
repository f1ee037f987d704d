/** A sink at work as the rest of the process sees it, and what it is given to work with. */
import type { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import type { Generations } from '../../engine/dispatch/generations.ts'
import type { ReadMemory } from '../../engine/dispatch/read-memory.ts'
import type { Log } from '../../engine/log/log.ts'
import type { Pack } from '../../engine/log/pack.ts'
import type { Egress } from '../../engine/net/egress.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { Shape } from '../../sinks/pull.ts'
import type { FunctionStage } from '../../transforms/stage.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import type { SinkObserver } from '../partition/sink-observer.ts'
import type { ActorStatus, HealthCheck } from '../../engine/status.ts'

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
  /** asked on behalf of a client that another process has counted among those that wait (max_waiting) */
  isCounted?: boolean
}>

/** What of a sink has been stopped here, and under which terms. */
export type HeldSink = Readonly<{ generation: number; partitions: readonly Readonly<{ partition: number; term: number }>[] }>

/** Messages by their ids, or all of a kind: open ones that have failed, all open ones, those that were given up. */
export type MessageChoice = readonly string[] | 'failing' | 'open' | 'discarded'
export type EditedMessages = Readonly<{
  /** of those named by their ids: there are such messages · they are in the hands of partitions that live here */
  known: number
  served: number
  /** it held for so many: others were so already */
  edited: number
}>

/** The calls of a pull sink’s clients: receive, ack and nack. */
export interface PulledSink {
  /** @throws EngineError TOO_MANY_WAITING, STOPPING */
  receive(request: ReceiveRequest): Promise<Receipt>
  /** Settles when the acknowledgement is durable; unknown ids are ignored. @throws EngineError ACK_NOT_DURABLE, STOPPING */
  ack(ackIds: readonly string[]): Promise<void>
  nack(ackIds: readonly string[]): Promise<void>
}

export interface RunningSink {
  /** settles when the sink has stopped; rejects when it can't run */
  readonly ended: Promise<void>
  /** undefined: it sends its messages */
  readonly pulled: PulledSink | undefined
  /** What somebody decided of messages that wait outside the log, or were given up. @throws EngineError STATE_UNAVAILABLE */
  edit(edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages>
  /** The newest that were delivered here. */
  readonly delivered: DeliveredMessages
  /** The source has met a mark: a sink that waits for its first one may begin. */
  routed(): void
  /** Partitions may have other owners, as the state database has it. */
  ownersChanged(): void
  /** An edit: holds for what is handed out from now on. */
  update(sink: Sink, database: Database): void
  health(): readonly HealthCheck[]
  status(): ActorStatus
  /**
   * Stops every partition that is served here, cleanly, for a replay; they stay assigned, and begin again when they are
   * released, or after ten seconds.
   * @param by names the replay
   * @throws EngineError REPLAY_RUNNING: it is held already; SINK_NOT_RUNNING: it does not come to rest
   */
  hold(by: string): Promise<HeldSink>
  /** Settles when they are at work again, or that takes long. */
  release(by: string): Promise<void>
  /** Answers those who wait with nothing, writes down what is in flight, then settles. */
  stop(): Promise<void>
}

/** What a sink that sends needs beside the rest. */
export type PushSurroundings = Readonly<{
  egress: Egress
  /** the HTTP endpoint that its destination names, as it is now */
  endpoint: (sink: Sink) => HttpEndpoint | undefined
  warn: (text: string) => void
  /** of one message */
  maxMessageBytes: number
}>

export type SinkOptions = Readonly<{
  sink: Sink
  database: Database
  generations: Generations
  log: Log
  /** the state database */
  query: Query
  /** names this process there */
  holder: string
  observer: SinkObserver
  /** the functions of the sink, as they are stored now. @param former the stage until now */
  functions: (sink: Sink, database: Database, former?: FunctionStage) => FunctionStage
  /** told of each pack that is read */
  read?: (sink: Sink, pack: Pack) => void
  /** what all partitions of the process hold of the log; absent: it has no bound */
  memory?: ReadMemory
  /** of sinks that send */
  push?: PushSurroundings
  /** a partition failed and will be tried again */
  onFailure?: (error: unknown, partition: number) => void
  /** what keeps an ended generation from being drained is parked after this */
  drainAfterMs?: number
  /** monotonic milliseconds */
  clock?: () => number
}>
