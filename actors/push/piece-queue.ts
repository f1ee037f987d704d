/**
 * What a partition sends next: pieces that were taken and have not gone yet, and more taken from the partition as
 * the destination has room, as many messages as go in one request.
 */
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { Batch } from '../../engine/dispatch/batch.ts'
import type { Lane } from '../../engine/dispatch/dispatcher.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-group.ts'
import type { PushWire } from '../../sinks/push.ts'
import type { DestinationState, SendLane } from './destination-state.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import type { PieceEndings } from './piece-endings.ts'
import { firstOf, pieceOf, singlesOf, type Piece } from './pieces.ts'
import type { RetryBatch } from './retry-batch.ts'

type QueueOptions = Readonly<{
  /** what speaks to the destination now; undefined: its settings can't be used */
  wire: () => Pick<PushWire, 'maxMessages' | 'maxBytes' | 'overheadBytes' | 'judgesEach'> | undefined
  destination: DestinationState
  /** messages under way from all partitions of the sink that live here */
  underWay: AckPending
  grouping: boolean
  /** a request waits so long to be full */
  limits: () => Readonly<{ fillMs: number }>
  clock: () => number
}>

export class PieceQueue {
  readonly #owned: OwnedPartition
  readonly #endings: PieceEndings
  readonly #retryBatch: RetryBatch
  readonly #options: QueueOptions
  /** taken, and to be sent before anything else */
  #pieces: Piece[] = []
  /** the same of what has failed before */
  #retries: Piece[] = []
  #fillingSince: number | undefined

  constructor(
    { owned, endings, retryBatch }: Readonly<{ owned: OwnedPartition; endings: PieceEndings; retryBatch: RetryBatch }>,
    options: QueueOptions,
  ) {
    this.#owned = owned
    this.#endings = endings
    this.#retryBatch = retryBatch
    this.#options = options
  }

  /** Nothing that has never failed is left to send. */
  get isExhausted(): boolean {
    return this.#pieces.length === 0 && !this.#owned.mayDeliver('fresh')
  }

  /** When a request that waits to be full goes as it is (monotonic ms). */
  get fillsAt(): number {
    return this.#fillingSince === undefined ? Infinity : this.#fillingSince + this.#options.limits().fillMs
  }

  /** @returns undefined: there is nothing for this lane now */
  takeFor(lane: SendLane): Piece | undefined {
    const wire = this.#options.wire()
    if (!wire) return undefined
    if (lane === 'failed') return this.#retries.shift() ?? this.#take('failed', this.#retryBatch.size(wire))
    if (lane === 'fresh') {
      if (wire.maxMessages === 1) return this.#pieces.shift() ?? this.#takeSingles()
      return this.#pieces.shift() ?? (this.#isFilling() ? undefined : this.#take('fresh', wire.maxMessages))
    }
    const piece = this.#pieces.shift()
    // what has failed before says least of the destination, but may be all there is
    if (!piece) return this.#take('fresh', 1) ?? this.#firstOf(this.#retries.shift()) ?? this.#take('failed', 1)
    return this.#firstOf(piece)
  }

  /** After all others. */
  add(piece: Piece): void {
    this.#pieces.push(piece)
  }

  /** To be sent before anything else of their kind. */
  next(pieces: readonly Piece[]): void {
    for (const piece of pieces.toReversed()) (piece.former ? this.#retries : this.#pieces).unshift(piece)
  }

  /** What was taken may go again, by whoever has it next. */
  release(): void {
    for (const piece of [...this.#pieces.splice(0), ...this.#retries.splice(0)]) this.#endings.release(piece)
  }

  /** They are nobody's any more. */
  close(): void {
    this.#pieces = []
    this.#retries = []
  }

  /** One message of a piece; the rest is sent next. */
  #firstOf(piece: Piece | undefined): Piece | undefined {
    if (!piece) return undefined
    const { first, behind, rest } = firstOf(piece, this.#options.grouping)
    if (behind) this.#endings.release(behind)
    if (rest) this.next([rest])
    return first
  }

  #take(lane: Lane, max: number): Piece | undefined {
    const [first, ...others] = this.#takeAll(lane, max)
    ;(lane === 'failed' ? this.#retries : this.#pieces).push(...others)
    return first
  }

  /** As many as may be under way, and as many again for when they are, each a piece of its own: one search for all of them. */
  #takeSingles(): Piece | undefined {
    const { destination } = this.#options
    this.#pieces.push(...this.#takeAll('fresh', Math.max(1, destination.limit - destination.inFlight) + destination.limit, singlesOf))
    return this.#pieces.shift()
  }

  #takeAll(lane: Lane, max: number, piecesOf: (batch: Batch, origin: Origin | undefined) => readonly Piece[] = onePiece): readonly Piece[] {
    const { destination, underWay } = this.#options
    const wire = this.#options.wire()
    const room = Math.min(max, underWay.max - underWay.count)
    if (!wire || room <= 0 || !this.#owned.mayDeliver(lane)) return []
    const bytes = { max: Math.min(wire.maxBytes, destination.maxBytes), overhead: wire.overheadBytes, first: true }
    this.#fillingSince = undefined
    const taken: Piece[] = []
    for (const batch of this.#owned.take(room, bytes, lane)) {
      const { generation, partition } = batch
      this.#endings.taken(batch.views.length)
      taken.push(...piecesOf(batch, this.#owned.names(batch) ? undefined : { generation, partition }))
    }
    return taken
  }

  /** A request waits a little to be full, when others are under way; at once when none is. */
  #isFilling(): boolean {
    const { destination, clock, limits } = this.#options
    const { fillMs } = limits()
    const { maxMessages = 1 } = this.#options.wire() ?? {}
    if (maxMessages === 1 || destination.inFlight === 0 || !this.#owned.mayDeliver('fresh')) return false
    if (this.#owned.waiting >= maxMessages) return false
    this.#fillingSince ??= clock()
    return clock() < this.#fillingSince + fillMs
  }
}

const onePiece = (batch: Batch, origin: Origin | undefined): readonly Piece[] => [pieceOf(batch, origin)]
