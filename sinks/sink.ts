/**
 * What a destination type is to the rest of the engine. Each lives in one file of this folder and says: which settings
 * it takes, whether it keeps documents by key, what a batch becomes on the wire, and what an answer means for each message.
 *
 * The wire differs by who starts: a client that pulls asks for messages and answers later, by their ids; a push is
 * answered by the destination in the same call. What is the same for both is here.
 */
import type { TSchema } from 'typebox'
import type { Batch } from '../engine/dispatch/batch.ts'
import type { OlderRefs, readAckIds } from '../engine/dispatch/ack-id.ts'
import type { Database, Sink } from '../engine/state/resources.ts'

export interface DestinationType<Wire> {
  /** value of `destination.type` */
  readonly type: string
  /** of `destination`: for the API, the YAML file and the forms */
  readonly settings: TSchema
  /** Keeps one document per key, so that a tombstone is delivered as a delete; others don't see tombstones. */
  readonly keyed: boolean
  /** What speaks to the destination for one sink. Cheap: it is made anew when the sink or its database is edited. */
  open(sink: Sink, database: Database): Wire
  /** Tries what a delivery needs without delivering. @throws EngineError: what is wrong, and the remedy */
  testConnection(sink: Sink, signal: AbortSignal): Promise<void>
}

/** The wire of a sink whose messages are asked for. */
export interface PullWire {
  /** what an answer has beside the body of each message: batches are bounded by bytes */
  readonly overheadBytes: number
  /** The bytes of an answer. @param hasToken whether it ends with one token for all of its messages */
  encode(batches: readonly Batch[], shape: Shape, hasToken?: boolean): Buffer
  /** Nobody reads an answer any more: its memory is used again. */
  reuse(answer: Buffer): void
  /** Which messages the ids of a later answer mean, by partition; ids that aren't of this sink and generation are told apart. */
  named(ids: readonly string[], generation: number): ReturnType<typeof readAckIds>
  /** The same of ids that an earlier generation gave. */
  namedBefore(ids: readonly string[], generation: number): OlderRefs
}

/** How one element of an answer looks: record, changes, … beside `ack_id`, or under `data`. */
export type Shape = 'flat' | 'nested'
