/**
 * Sinks that send: what a batch becomes on the wire, and what the answer means for each message of it. A wire decides
 * nothing about time: whether something is tried again, and when, is for whoever called it to say.
 */
import type { TObject } from 'typebox'
import type { ErrorCode } from '../engine/errors.ts'
import type { Batch } from '../engine/dispatch/batch.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { Destination, HttpEndpoint } from '../engine/state/destinations.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import type { Reason } from '../engine/schema-reasons.ts'
import type { DestinationRouting } from './routing.ts'

/** What a destination said when something went wrong: its own words, without our secrets, and cut at a limit. */
export type Answer = Readonly<{
  code: ErrorCode
  /** one line, for people; where the protocol isn't HTTP, with the code that it has */
  message: string
  /** of HTTP */
  status?: number
  headers?: Readonly<Record<string, string>>
  body?: string
}>

/**
 * How far a failure reaches.
 *
 *  unreachable   no connection: nothing was sent, and nothing else could be
 *  unavailable   it broke off, took too long or said that it can't serve: most likely the destination, perhaps a message
 *  refused       it takes nothing of this kind: credentials, rights, a missing index or path
 *  rejected      it didn't like what it got: most likely one of the messages, perhaps all would be
 *  throttled     it gets more than it can take
 *  tooLarge      it takes less at once
 *  message       this message, for certain: others were taken or judged beside it
 */
export type Blame = 'unreachable' | 'unavailable' | 'refused' | 'rejected' | 'throttled' | 'tooLarge' | 'message'
/** Why a message, or a whole request, was not delivered. */
export type Failure = Readonly<{
  blame: Blame
  answer: Answer
  /** the destination asks for this pause */
  retryAfterMs?: number
  /**
   * Of a message beside others that were delivered: the place that it goes to takes nothing now, such as its index, queue or shard, or
   * its confirmation didn't come. Nothing is counted against it, so it isn't given up, however often it is tried.
   */
  isOfPlace?: boolean
}>

/** What is worth keeping of an answer to what was delivered: one object for answers that say the same. */
export interface KeptAnswer {
  /** that it holds in memory, about */
  readonly bytes: number
  /** Without our secrets. */
  shown(): Pick<Answer, 'headers' | 'body'>
}

/** What became of the messages of a batch. @property status of HTTP; 200 where another protocol has confirmed them */
export type Outcome =
  /** all of them are delivered */
  | Readonly<{ kind: 'delivered'; status: number; answer?: KeptAnswer }>
  /** one for each message, in order; undefined: delivered */
  | Readonly<{ kind: 'each'; status: number; failures: readonly (Failure | undefined)[] }>
  /** none of them, as far as is known */
  | Readonly<{ kind: 'failed'; failure: Failure }>
  /** the signal was aborted: what was sent may have arrived */
  | Readonly<{ kind: 'aborted' }>

/** How a document stands at a destination, compared with what would be sent. @property id as the destination has it; extra: it should not be there */
export type Standing = Readonly<{ id: string; state: 'same' | 'different' | 'missing' | 'extra' }>
/** What a destination answers to who compares, or why it does not. */
export type Looked<T> = Readonly<{ found: T; answer?: undefined }> | Readonly<{ found?: undefined; answer: Answer }>
/**
 * Some documents of a destination. @property key of the row, where the document has it; @property table likewise, schema.table
 * @property next where the next page begins; undefined: these were the last
 */
export type StoredPage = Readonly<{
  documents: readonly Readonly<{ id: string; key: readonly string[] | undefined; table: string | undefined }>[]
  next: string | undefined
}>

/** Reads what a destination has, for who compares it with the source; it changes nothing. */
export interface Comparing {
  /** Tells of each message how its document stands; undefined: no document can be made of it. */
  compare(batch: Batch, signal: AbortSignal): Promise<Looked<readonly (Standing | undefined)[]>>
  /** Whether documents that do not tell the key of their row are named by it. @param columns of the key */
  namesByKey(columns: readonly string[]): boolean
  /** Lists the documents of the sink's own index. @param after `next` of the page before */
  stored(after: string | undefined, limit: number, signal: AbortSignal): Promise<Looked<StoredPage>>
  /** Says which of these documents are there. */
  present(ids: readonly string[], signal: AbortSignal): Promise<Looked<readonly string[]>>
  /** Counts them. */
  count(signal: AbortSignal): Promise<Looked<number>>
}

/**
 * Speaks to the destination of one sink, for all partitions of it that this process owns: connections are shared by them. Several loads
 * are under way at once, never two with messages of the same group; a protocol that needs an order among requests numbers them itself.
 */
export interface PushWire {
  /** most messages of one request */
  readonly maxMessages: number
  /** most bytes of one request */
  readonly maxBytes: number
  /** most bytes that a request has beside the body of each message */
  readonly overheadBytes: number
  /** An answer tells of each message: one that is refused spoils nothing for those beside it. */
  readonly judgesEach: boolean
  /** Sends messages that may go together. Always settles. */
  send(batch: Batch, signal: AbortSignal): Promise<Outcome>
  /**
   * Sends them without a promise, for a wire of many small requests: used in the place of `send` where there is one.
   * @param ended told once, after this has returned; of an answer in the tick in which it came, so that what is sent from within follows at
   *   once. Must not throw
   */
  begin?(batch: Batch, signal: AbortSignal, ended: (outcome: Outcome) => void): void
  /** What is shown of it beside what its callers know, such as what it waits for. */
  figures?(): Readonly<Record<string, number>>
  /** Tries what a delivery needs without delivering. @returns undefined: it works */
  test(signal: AbortSignal): Promise<Answer | undefined>
  /** absent: what the destination has can't be read */
  readonly comparing?: Comparing
  /** Ends its connections. */
  close(): Promise<void>
}

/** The settings and services that a wire is made with. */
export type PushOptions = Readonly<{
  /** its destination was checked by `settings` of its type when it was saved; `message_grouping`: whether messages have groups at all */
  sink: Sink
  database: Database
  /** the one that the destination names; undefined: it names none, or one that is gone */
  endpoint: HttpEndpoint | undefined
  /** the database that the destination names; undefined: it names none, or one that is gone */
  target?: Database | undefined
  /**
   * which addresses may be connected to, whatever the protocol: a wire of HTTP gives it to its `HttpPool`; another one checks names by
   * `guardedLookup`, and addresses before it connects
   */
  egress: Egress
  /** connections, at most */
  concurrency: number
  /** something about the settings that a user should know; never with a secret in it */
  warn: (text: string) => void
  /** the destination was heard of while it works on what it got: answers that take long are no silence */
  heard?: () => void
}>

/** What a sink is to be, before it is saved. */
export type SinkForm = Readonly<{ destination: Destination; batch_size: number; routing?: string | null | undefined }>

/** A type of destination: all that is known of it, here and nowhere else. */
export interface PushType {
  /** value of `destination.type` */
  readonly type: string
  /** of `destination`: for the API, the YAML file and the forms. A secret is a field of its own, marked by SECRET: a text, or a list of texts */
  readonly settings: TObject
  /** Keeps one document per key: tombstones are delivered as deletes, and of one key the last message says all. */
  readonly keyed: boolean
  /** of one that is keyed: what names a document is in what the transform makes, so it is asked of deleted rows too */
  readonly namesByTransform?: boolean
  /** what a routing function may say; absent: there is nothing to route */
  readonly routing?: DestinationRouting
  /** requests at once, when the sink doesn't say */
  readonly concurrency: number
  /** `batch_size` of a sink that doesn't say; absent: 1 */
  readonly batchSize?: number
  /** What rules there are across the settings of a sink. @returns fields, each with what is wrong with it */
  readonly refused?: (sink: SinkForm) => readonly Reason[]
  /** Why a document that a transform made can't be one of the destination; undefined: it can. @param document an object */
  readonly refusedDocument?: (document: object, destination: Destination) => string | undefined
  /** Cheap: it is made anew when the sink, its database or its endpoint is edited. @throws EngineError the settings can't be used */
  open(options: PushOptions): PushWire
}
