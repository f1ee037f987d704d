/**
 * What becomes of the messages of a piece: the partition is told, each message once, and those whose end is not told
 * are counted, for they are under way.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { Failed } from '../../engine/dispatch/parked/parking.ts'
import { EngineError } from '../../engine/errors.ts'
import { MESSAGE_LONGEST_MS, messageBackOff } from '../back-off.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { refsOf, type Piece } from './pieces.ts'

/**
 * @property isOwn it was the message's own failure
 * @property counts towards those after which a message is given up
 * @property retryAfterMs the answer asks for this pause
 */
export type Attempt = Pick<Failed, 'error' | 'record'> & Readonly<{ isOwn: boolean; counts: boolean; retryAfterMs?: number | undefined }>

type EndingsOptions = Readonly<{
  /** messages under way from all partitions of the sink that live here */
  underWay: AckPending
  limits: () => Readonly<{ maxRetries: number | null }>
  random: () => number
}>

const STATE_RETRY_MS = 1_000

export class PieceEndings {
  readonly #owned: OwnedPartition
  readonly #options: EndingsOptions
  /** aborted: nobody waits any more until the state takes what has ended */
  readonly #signal: AbortSignal
  /** messages that were taken here and whose end is not told */
  #inFlight = 0
  #isClosed = false

  constructor(owned: OwnedPartition, options: EndingsOptions, signal: AbortSignal) {
    this.#owned = owned
    this.#options = options
    this.#signal = signal
  }

  /** So many messages were taken. */
  taken(messages: number): void {
    this.#count(messages)
  }

  /** They may go again at once. */
  release(piece: Piece): void {
    this.#count(-piece.views.length)
    if (piece.origin) this.#owned.releaseParked(refsOf(piece), piece.origin)
    else this.#owned.release(refsOf(piece))
  }

  /** Nothing is to be delivered of them. */
  drop(piece: Piece): void {
    this.#count(-piece.views.length)
    this.#owned.drop(refsOf(piece), piece.origin)
  }

  /** They are parked with the attempt on record, or given up. */
  fail(piece: Piece, { isOwn, counts, error, record, retryAfterMs = 0 }: Attempt): void {
    const { limits, random } = this.#options
    const { maxRetries } = limits()
    const failures = piece.views.map((_, i): Failed => {
      const attempts = (piece.former?.[i]?.attempts ?? 0) + (isOwn ? 1 : 0)
      const isSpent = counts && maxRetries !== null && attempts >= maxRetries
      const backOff = Math.max(messageBackOff(Math.max(1, attempts), random()), Math.min(retryAfterMs, MESSAGE_LONGEST_MS))
      return { attempts, retryInMs: isSpent ? undefined : backOff, error, record }
    })
    this.#count(-piece.views.length)
    this.#owned.fail(refsOf(piece), failures, piece.origin)
  }

  /** All of them are delivered; those in the parked store are ended durably when what is returned settles. */
  finish(piece: Piece): Promise<void> | undefined {
    this.#count(-piece.views.length)
    const end = () => (piece.origin ? this.#owned.finishParked(refsOf(piece), piece.origin) : this.#owned.delivered(refsOf(piece)))
    try {
      const ending = end()
      return ending && this.#untilFinished(ending, async () => end())
    } catch {
      return undefined // another owner goes on
    }
  }

  /** Whoever still has messages has no say any more. */
  close(): void {
    this.#count(-this.#inFlight)
    this.#isClosed = true
  }

  #count(by: number): void {
    if (this.#isClosed) return
    this.#inFlight += by
    this.#options.underWay.count += by
  }

  async #untilFinished(first: Promise<void>, again: () => Promise<void>): Promise<void> {
    let ending = first
    for (;;) {
      try {
        return await ending
      } catch (error) {
        const code = error instanceof EngineError ? error.code : undefined
        if (code !== 'STATE_UNAVAILABLE') return // the commit's own loop tells, or another owner goes on
        await delay(STATE_RETRY_MS, undefined, { signal: this.#signal }).catch(() => undefined)
        if (this.#signal.aborted) return
        ending = again()
      }
    }
  }
}
