/** What a sink partition is given to work with. */
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import type { DispatchSettings } from '../../engine/dispatch/dispatcher.ts'
import type { PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import type { WindowBounds } from '../../engine/dispatch/replay/replay-window.ts'
import type { ReadMemory } from '../../engine/dispatch/read-memory.ts'
import type { Span } from '../../engine/dispatch/span.ts'
import type { Log, ReaderName, TopicName } from '../../engine/log/log.ts'
import type { Pack } from '../../engine/log/pack.ts'
import type { Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { SinkObserver } from './sink-observer.ts'

export type PartitionOptions = Readonly<{
  log: Log
  query: Query
  topic: TopicName
  /** of the generation, in the topic */
  reader: ReaderName
  key: PartitionKey
  /** names this process in the state database */
  holder: string
  grouping: boolean
  /** where its generation opens, once that is known */
  opensAt: Position | undefined
  /** what of the stream is the generation's own, as it is saved now */
  span: () => Promise<Span>
  keyed: boolean
  /** changes of the primary key are delivered as a delete and an insert */
  splitsKeyChanges: boolean
  /** the owner's owner sends; otherwise clients ask */
  sends: boolean
  settings: () => DispatchSettings
  /** what is kept of what is finished */
  replay: () => WindowBounds
  pending: AckPending
  memory: ReadMemory
  /** keeps the newest that clients acknowledge */
  delivered: DeliveredMessages
  /** 1 for each message of a pack that the sink's filter drops; undefined: none */
  drops: (pack: Pack) => Promise<Uint8Array | undefined> | undefined
  /** monotonic milliseconds */
  clock: () => number
  observer: SinkObserver
  /** something may be deliverable that wasn't */
  deliverable: () => void
  /** the last pack of the generation was met and nothing before it is unfinished: recorded */
  drained: () => void
  /** what stands in the way of that for so long is parked (correctness 24) */
  drainAfterMs?: number
}>
