/** Messages handed out together, as parallel lists: one entry a message, no object per message. */
import type { MessageView } from '../log/message-view.ts'

/** The bytes of entry i are those of `texts[i]` from `starts[i]` to `ends[i]`: no view per message. */
export type Payloads = { readonly texts: Buffer[]; readonly starts: number[]; readonly ends: number[] }

/** How often a message has failed before, and what is on record of that, newest first: plain JSON. */
export type Former = Readonly<{ attempts: number; records: readonly unknown[] }>

export type Batch = {
  readonly generation: number
  readonly partition: number
  /** what holds them until they are finished, returned, or the visibility time is over */
  readonly lease: number
  /** where message i stands: `views[i]` at `places[i]` */
  readonly views: MessageView[]
  readonly places: number[]
  /** its name in the log: record offset, and index in the record */
  readonly offsets: number[]
  readonly indexes: number[]
  /** what functions made of its messages, to go out in the place of their bodies */
  readonly payloads?: Payloads
  /** the rows that enrich its messages, as JSON, where they have one */
  readonly enrichments?: readonly (Uint8Array | undefined)[]
  /** of the bodies, or of the payloads */
  bytes: number
  /** of each message, when they were taken for having failed: such are taken apart from the others */
  former?: Former[]
  /** taken with it: messages parked under earlier generations, each batch named by its place there; under the same lease */
  readonly others: Batch[]
}

export const emptyBatch = (generation: number, partition: number, lease: number): Batch => ({
  generation,
  partition,
  lease,
  views: [],
  places: [],
  offsets: [],
  indexes: [],
  bytes: 0,
  others: [],
})
