/** Messages that go together: in one answer to a client, or in one request to a destination. */
import type { MessageView } from '../log/pack.ts'
import type { RefList } from './ack-id.ts'

/** Tells how often a message has failed before, and what is on record of that, newest first, as plain JSON. */
export type Former = Readonly<{ attempts: number; records: readonly unknown[] }>

/** Stands for one message that is handed out: where its bytes stand, its name in the log, and what functions made of it. */
export type Message = Readonly<{
  /** it stands in `view` at `place` */
  view: MessageView
  place: number
  /** its name in the log: record offset, and index in the record */
  offset: number
  index: number
  /** when it was taken for having failed: such are taken apart from the others */
  former?: Former
  /**
   * what a function made of it, whole JSON in a larger text: it goes out in the place of the body. `done` frees a large one: told once,
   * when nobody reads it any more
   */
  payload?: Readonly<{ text: Buffer; start: number; end: number; done?: () => void }> | undefined
  /** JSON of the row that enriches the default message */
  enrichment?: Uint8Array | undefined
}>

/** Holds messages that go together, in their order; all were handed out under one generation and partition. */
export type Batch = Readonly<{
  generation: number
  partition: number
  messages: readonly Message[]
  /** what a routing function says of all of them, checked */
  route?: Readonly<Record<string, unknown>> | undefined
  /** of the request that they go in: name, value, name, value; absent: they have no trace */
  traceHeaders?: readonly string[]
}>

/** A batch as the dispatcher has handed it out. */
export type TakenBatch = Batch & {
  readonly messages: Message[]
  /** what holds them until they are finished, returned, or the visibility time is over */
  readonly lease: number
  /** of the bodies, or of the payloads */
  bytes: number
  /** taken with it: messages parked under earlier generations, each batch named by its place there; under the same lease */
  readonly others: TakenBatch[]
}

/** Makes an empty batch to put messages into. */
export const emptyBatch = (generation: number, partition: number, lease: number): TakenBatch => ({
  generation,
  partition,
  lease,
  messages: [],
  bytes: 0,
  others: [],
})

/** Gives the references of messages, as parallel lists. */
export const refsOf = (messages: readonly Message[]): RefList => ({
  offsets: messages.map(({ offset }) => offset),
  indexes: messages.map(({ index }) => index),
})
