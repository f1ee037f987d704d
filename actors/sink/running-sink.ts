/** The types of what is asked of a sink at work, of what it answers, and of what it is given to work with. */
import type { Egress } from '../../engine/net/egress.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import type { SinkSurroundings } from '../partition/partition-sink.ts'
import type { Shape } from '../../sinks/pull.ts'
import type { FunctionStage } from '../../transforms/stage.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'

/** Messages taken from a sink for one client. */
export interface Receipt {
  /** the whole answer, `{"data":[…]}` */
  readonly body: Buffer
  readonly count: number
  /** Makes the messages deliverable again at once, because the answer could not be written. Called at most once. */
  giveBack(): void
  /** The answer was written whole, and `body` is not needed any more: its memory may be used again. Called at most once. */
  written?(): void
}

/** A receive that may wait is held at most this long while its sink is paused or disabled: a client that asks in a loop doesn't spin,
 *  and asks again within a second of the sink's coming back. */
export const OFF_HOLD_MS = 1_000

/** Asks a sink for messages, as a client does. */
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

/** Tells which partitions of a sink have been stopped in this process, and under which terms. */
export type HeldSink = Readonly<{ generation: number; partitions: readonly Readonly<{ partition: number; term: number }>[] }>

/** Chooses messages by their ids, or all of a kind: open ones that have failed, all open ones, or those that were given up. */
export type MessageChoice = readonly string[] | 'failing' | 'open' | 'discarded'
/** Holds what a person has decided about messages, and which ones. */
export type EditOfMessages = Readonly<{ edit: MessageEdit; choice: MessageChoice }>
/** Tells what came of an edit of messages in this process. */
export type EditedMessages = Readonly<{
  /** how many messages the ids name that there are */
  known: number
  /** how many of them are in the hands of partitions that live here */
  served: number
  /** how many the edit changed: the others were so already */
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

/** Holds what a sink that sends needs beside the rest. */
export type PushSurroundings = Readonly<{
  egress: Egress
  /** the HTTP endpoint that its destination names, as it is now */
  endpoint: (sink: Sink) => HttpEndpoint | undefined
  /** the database that its destination names, as it is now; absent: none does */
  target?: (sink: Sink) => Database | undefined
  warn: (text: string) => void
  /** of one message */
  maxMessageBytes: number
}>

/** Holds what a sink begins with. */
export type SinkOptions = SinkSurroundings &
  Readonly<{
    sink: Sink
    database: Database
    /** the functions of the sink, as they are stored now. @param former the stage until now */
    functions: (sink: Sink, database: Database, former?: FunctionStage) => FunctionStage
    /** messages since this process has the sink: handed out, delivered, and back because they failed */
    counts?: () => Readonly<{ attempts: number; successes: number; failures: number }>
    /** of sinks that send */
    push?: PushSurroundings
    /** a partition failed and will be tried again */
    onFailure?: (error: unknown, partition: number) => void
    /** monotonic milliseconds */
    clock?: () => number
  }>
