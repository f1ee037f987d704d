/**
 * Chooses what a partition sends next: batches that were taken and have not gone yet, and more taken from the partition as
 * the destination has room, as many messages as go in one request.
 */
import type { TakenBatch } from '../../engine/dispatch/batch.ts'
import type { Lane } from '../../engine/dispatch/take.ts'
import type { PushWire } from '../../sinks/push.ts'
import type { SendLane } from './destination-state.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import type { Endings } from './endings.ts'
import { firstOf, isRetry, sendBatchOf, type SendBatch } from './send-batch.ts'
import type { PushSink } from './push-sink.ts'

/** of any destination */
const MAX_RETRIED_TOGETHER = 10_000

/** Chooses what a partition sends next. */
export class SendQueue {
  readonly #owned: OwnedPartition
  readonly #sink: PushSink
  readonly #grouping: boolean
  readonly #endings: Endings
  /** taken, and to be sent before anything else */
  #batches: SendBatch[] = []
  /** taken for having failed before, and to be sent before any others of them */
  #retries: SendBatch[] = []
  /** so many of those go in one request; undefined: nothing is known of that yet */
  #retriedTogether: number | undefined
  #fillingSince: number | undefined

  constructor(owned: OwnedPartition, sink: PushSink, grouping: boolean, endings: Endings) {
    this.#owned = owned
    this.#sink = sink
    this.#grouping = grouping
    this.#endings = endings
  }

  /** Nothing that has never failed is left to send. */
  get isExhausted(): boolean {
    return this.#batches.length === 0 && !this.#owned.mayDeliver('fresh')
  }

  /** When a request that waits to be full goes as it is (monotonic ms). */
  get fillsAt(): number {
    return this.#fillingSince === undefined ? Infinity : this.#fillingSince + this.#sink.host.sink.batch_timeout_ms
  }

  /** @returns undefined: there is nothing for this lane now */
  takeFor(lane: SendLane): SendBatch | undefined {
    const { wire } = this.#sink
    if (!wire) return undefined
    if (lane === 'failed') return this.#retries.shift() ?? this.#take(wire, 'failed', this.#retrySize(wire))
    if (lane === 'fresh') {
      if (wire.maxMessages === 1) return this.#batches.shift() ?? this.#takeSingles(wire)
      return this.#batches.shift() ?? (this.#isFilling(wire) ? undefined : this.#take(wire, 'fresh', wire.maxMessages))
    }
    const batch = this.#batches.shift()
    // what has failed before says least of the destination, but may be all there is
    if (!batch) return this.#take(wire, 'fresh', 1) ?? this.#firstOf(this.#retries.shift()) ?? this.#take(wire, 'failed', 1)
    return this.#firstOf(batch)
  }

  /** Puts a batch behind all others. */
  add(batch: SendBatch): void {
    this.#batches.push(batch)
  }

  /** Puts batches in front of all others of their kind. */
  next(batches: readonly SendBatch[]): void {
    for (const batch of batches.toReversed()) (isRetry(batch) ? this.#retries : this.#batches).unshift(batch)
  }

  /** Releases what was taken and has not gone. */
  release(): void {
    for (const batch of [...this.#batches.splice(0), ...this.#retries.splice(0)]) this.#endings.release(batch, batch.messages)
  }

  /** Forgets what was taken: it belongs to another owner. */
  close(): void {
    this.#batches = []
    this.#retries = []
  }

  /** A request with messages that had failed was taken: the next may have twice as many. */
  retryPassed(): void {
    this.#retriedTogether = Math.min((this.#retriedTogether ?? 1) * 2, MAX_RETRIED_TOGETHER)
  }

  /** A request with so many that had failed did so again, and by which of them can't be told. */
  retryFailed(messages: number): void {
    this.#retriedTogether = Math.max(1, Math.floor(messages / 2))
  }

  /** The destination is another one. */
  forgetRetries(): void {
    this.#retriedTogether = undefined
  }

  /**
   * Decides how many messages that have failed before go in one request. Where each gets an answer of its own, as many as fit: those
   * that are well by now are delivered, however many of the others aren't. Where a request fails as a whole, one at first.
   */
  #retrySize({ maxMessages, judgesEach }: PushWire): number {
    this.#retriedTogether ??= judgesEach ? maxMessages : 1
    return Math.min(maxMessages, this.#retriedTogether)
  }

  /** One message of a batch; the rest is sent next. */
  #firstOf(batch: SendBatch | undefined): SendBatch | undefined {
    if (!batch) return undefined
    const { first, behind, rest } = firstOf(batch, this.#grouping)
    this.#endings.release(batch, behind)
    if (rest) this.next([rest])
    return first
  }

  #take(wire: PushWire, lane: Lane, max: number): SendBatch | undefined {
    const [first, ...others] = this.#takeBatches(wire, lane, max).map((batch) => sendBatchOf(batch, batch.messages))
    ;(lane === 'failed' ? this.#retries : this.#batches).push(...others)
    return first
  }

  /** As many as may be under way, and as many again for when they are, each a batch of its own: one search for all of them. */
  #takeSingles(wire: PushWire): SendBatch | undefined {
    const { limit, inFlight } = this.#sink.destination
    for (const batch of this.#takeBatches(wire, 'fresh', Math.max(1, limit - inFlight) + limit))
      for (const message of batch.messages) this.#batches.push(sendBatchOf(batch, [message]))
    return this.#batches.shift()
  }

  #takeBatches({ maxBytes, overheadBytes: overhead }: PushWire, lane: Lane, max: number): readonly TakenBatch[] {
    const { destination, host } = this.#sink
    const room = Math.min(max, host.underWay.max - host.underWay.count)
    if (room <= 0 || !this.#owned.mayDeliver(lane)) return []
    this.#fillingSince = undefined
    const batches = this.#owned.take(room, { max: Math.min(maxBytes, destination.maxBytes), overhead, first: true }, lane)
    for (const { messages } of batches) this.#endings.taken(messages.length)
    return batches
  }

  /** A request waits a little to be full, when others are under way; at once when none is. */
  #isFilling({ maxMessages }: PushWire): boolean {
    const { destination, host } = this.#sink
    if (maxMessages === 1 || destination.inFlight === 0 || !this.#owned.mayDeliver('fresh')) return false
    if (this.#owned.waiting >= maxMessages) return false
    this.#fillingSince ??= host.clock()
    return host.clock() < this.fillsAt
  }
}
