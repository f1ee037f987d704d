/** What a program gets of a pull sink: messages, and the batches they come in. Each is settled once, by an ack or a nack. */
import type { Metadata } from '../../engine/message-metadata.ts'
import type { Settlements } from './settlements.ts'

export type { Metadata } from '../../engine/message-metadata.ts'
/** A row of any table: its columns as docs/messages.md has them; integers beyond ±2^53 are BigInt. */
export type Row = Record<string, unknown>
/** A deleted row: columns outside the table's replica identity are null. `tailrace types` writes them beside each row's type. */
export type Deleted<R = Row> = { [Column in keyof R]: R[Column] | null }

type Change<R, D> =
  | { readonly action: 'insert' | 'read'; readonly record: R; readonly changes: null }
  | { readonly action: 'update'; readonly record: R; readonly changes: Partial<R> }
  | { readonly action: 'delete'; readonly record: D; readonly changes: null }

/** A message of a sink: a change of a row, and the means to settle it. @typeParam T what a transform of the sink returns */
export type Message<R = Row, D = Deleted<R>, T = unknown> = Change<R, D> & {
  readonly ack_id: string
  readonly metadata: Metadata
  /** only of a sink with a transform: what that returned, and nothing of record, changes, action and metadata */
  readonly data: T
  /** when the service gives it to another client, if it is not settled before; as Date.now() tells the time */
  readonly expiresAt: number
  /** Says that it is done: it never comes again. @returns settles when the service has that on disk */
  ack(): Promise<void>
  /** Gives it back: it comes again at once. */
  nack(): Promise<void>
}

/** A message as the service sends it. */
type Wire = Readonly<{ ack_id: string; record?: unknown; changes?: unknown; action?: string; metadata?: unknown; data?: unknown }>
type Received = Readonly<{ data: readonly Wire[]; ack_token?: string }>
type Verb = 'ack' | 'nack'

/** Knows which messages of one answer are settled. */
class Ledger {
  readonly expiresAt: number
  readonly #settlements: Settlements
  readonly #size: number
  /** stands for all of them */
  readonly #token: string | undefined

  constructor({ data, ack_token: token }: Received, settlements: Settlements, expiresAt: number) {
    this.expiresAt = expiresAt
    this.#settlements = settlements
    this.#size = data.length
    this.#token = token
  }

  /** Settles one that was not settled before. */
  settle(verb: Verb, delivery: Delivery): Promise<void> {
    return delivery.take() ? this.#settlements.send(verb, [delivery.ack_id]) : Promise.resolve()
  }

  /** Settles what of these was not settled before. */
  settleAll(verb: Verb, deliveries: readonly Delivery[]): Promise<void> {
    const open = deliveries.filter((delivery) => delivery.take())
    if (open.length === 0) return Promise.resolve()
    // of a whole answer only: an ack by the token would also end what was given back one by one
    const isWhole = open.length === this.#size
    return this.#settlements.send(verb, isWhole && this.#token !== undefined ? [this.#token] : open.map(({ ack_id }) => ack_id))
  }
}

class Delivery {
  readonly ack_id: string
  readonly record: unknown
  readonly changes: unknown
  readonly action: string | undefined
  readonly metadata: unknown
  readonly data: unknown
  readonly #ledger: Ledger
  #isSettled = false

  constructor({ ack_id, record, changes, action, metadata, data }: Wire, ledger: Ledger) {
    this.ack_id = ack_id
    this.record = record
    this.changes = changes
    this.action = action
    this.metadata = metadata
    this.data = data
    this.#ledger = ledger
  }

  get expiresAt(): number {
    return this.#ledger.expiresAt
  }

  ack(): Promise<void> {
    return this.#ledger.settle('ack', this)
  }

  nack(): Promise<void> {
    return this.#ledger.settle('nack', this)
  }

  /** @returns false: it was settled before */
  take(): boolean {
    if (this.#isSettled) return false
    return (this.#isSettled = true)
  }
}

/** The messages of one answer. */
export class Batch<R = Row, D = Deleted<R>, T = unknown> {
  readonly messages: readonly Message<R, D, T>[]
  readonly #deliveries: readonly Delivery[]
  readonly #ledger: Ledger

  constructor(received: Received, settlements: Settlements, expiresAt: number) {
    const ledger = new Ledger(received, settlements, expiresAt)
    this.#ledger = ledger
    this.#deliveries = received.data.map((wire) => new Delivery(wire, ledger))
    this.messages = this.#deliveries as unknown as readonly Message<R, D, T>[] // the types are what the user says of the rows
  }

  /** when the service gives to other clients what is not settled before; as Date.now() tells the time */
  get expiresAt(): number {
    return this.#ledger.expiresAt
  }

  /** Says that all of them are done but those that were settled one by one. @returns settles when the service has that on disk */
  ack(): Promise<void> {
    return this.#ledger.settleAll('ack', this.#deliveries)
  }

  /** Gives all of them back but those that were settled one by one: they come again at once. */
  nack(): Promise<void> {
    return this.#ledger.settleAll('nack', this.#deliveries)
  }

  [Symbol.iterator](): Iterator<Message<R, D, T>> {
    return this.messages[Symbol.iterator]()
  }
}
