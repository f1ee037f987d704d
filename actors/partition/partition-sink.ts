/** The types of what a sink partition is given to work with: its sink, and what sends its messages where clients don't ask for them. */
import { MB } from '../../engine/amounts.ts'
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import type { DispatchSettings } from '../../engine/dispatch/dispatcher.ts'
import type { PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import type { Generations, ServedGeneration } from '../../engine/dispatch/generations.ts'
import type { ReadMemory } from '../../engine/dispatch/read-memory.ts'
import { MAX_REPLAY_BYTES, type WindowBounds } from '../../engine/dispatch/replay/replay-window.ts'
import type { Log } from '../../engine/log/log.ts'
import type { Pack } from '../../engine/log/pack.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { replayWindowMs, type Sink } from '../../engine/state/resources.ts'
import type { PartitionFigures, Trouble } from '../../engine/status.ts'
import type { FunctionStage } from '../../transforms/stage.ts'
import type { MessageTraces } from '../tracing/message-traces.ts'
import type { OwnedPartition } from './owned-partition.ts'
import type { SinkObserver } from './sink-observer.ts'

/** Holds what a sink and its partitions work with, the same for as long as it runs. */
export type SinkSurroundings = Readonly<{
  log: Log
  /** the state database */
  query: Query
  /** names this process there */
  holder: string
  generations: Generations
  observer: SinkObserver
  /** looks at each pack that is read */
  recent?: Readonly<{ note(sink: Sink, pack: Pack): void }>
  /** of the sink's database; absent: nothing is traced */
  traces?: MessageTraces | undefined
  /** what all partitions of the process hold of the log; absent: it has no bound */
  memory?: ReadMemory
  /** what keeps an ended generation from being drained is parked after this (docs/rules.md, rule 24) */
  drainAfterMs?: number
}>

/** The settings of handing out that depend on who delivers the messages: clients that ask, or a sender. */
export type HandOutSettings = Omit<DispatchSettings, 'windowBytes'>

/** Sends the messages of a partition, where clients don't ask for them. */
export interface Sender {
  readonly trouble: Trouble | undefined
  /** Sends whatever may go, until the signal is aborted or a sending breaks. */
  deliver(signal: AbortSignal): Promise<void>
  figures(): Pick<PartitionFigures, 'requests' | 'held'>
  /** Ends what is under way, and gives back what has not gone. */
  drain(): Promise<void>
  /** Void from here on. */
  close(): void
  /** Settles when nothing is under way. */
  ended(): Promise<void>
}

/** Takes messages out of a partition: for clients that ask for them, or to send them. */
export interface PartitionTransport {
  /** keeps one document for each key: tombstones are delivered */
  readonly keyed: boolean
  /** it sends, rather than being asked */
  readonly sends: boolean
  /** Says how messages are handed out; how much is read does not depend on it. */
  settings(sink: Sink): HandOutSettings
  /** Begins to send what a partition has; absent where clients ask. */
  senderOf?(owned: OwnedPartition): Sender
}

/** A sink as its partitions see it. */
export interface PartitionSink {
  readonly surroundings: SinkSurroundings
  /** monotonic milliseconds */
  readonly clock: () => number
  /** its settings and functions, as they are now */
  readonly sink: Sink
  readonly stage: FunctionStage
  /** delivered and unacknowledged, over all of its partitions here */
  readonly pending: AckPending
  /** the newest messages that were delivered here */
  readonly delivered: DeliveredMessages
  readonly transport: PartitionTransport
  /** Messages of a partition were read or taken. */
  queueChanged(): void
  /** Something may be deliverable that wasn't: a message, a partition, a status. */
  deliverable(): void
  /** The last pack of the generation was met in a partition and nothing before it is unfinished: recorded. */
  drained(key: PartitionKey): void
}

/** Says how a partition hands out now: all have the same share of what their sink may read ahead. */
export const dispatchSettings = ({ sink, transport }: PartitionSink, { shape }: ServedGeneration): DispatchSettings => ({
  ...transport.settings(sink),
  windowBytes: Math.floor((sink.max_memory_mb * MB) / shape.partitions),
})

/** Says what a partition keeps of what is finished: all have the same share of what their sink may keep. */
export const replayBounds = ({ sink }: PartitionSink, { shape }: ServedGeneration): WindowBounds => ({
  windowMs: replayWindowMs(sink.replay_window),
  maxBytes: Math.floor(MAX_REPLAY_BYTES / shape.partitions),
})
