/**
 * What becomes of the messages of a piece: the partition is told, each message once, and those whose end is not told
 * are counted, for they are under way.
 *
 *  E1. An end is told until it is written: only another owner, or a stop, makes it void. A message in flight has no time to
 *      lapse, so nobody else would ever end it.
 *  E2. While none is under way here the partition holds none in flight. It is looked whether that is so, and what was forgotten is given back.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { Failed } from '../../engine/dispatch/parked/parking.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import { MESSAGE_LONGEST_MS, messageBackOff } from '../../engine/back-off.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import type { HealthCheck } from '../../engine/status.ts'
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
  /** so many messages were in flight that nothing here knew of; they go again */
  forgotten: (messages: number) => void
}>

/** The pauses between two tries to write an end double so often: from about 1 s to 16 s. */
const MAX_DOUBLINGS = 4

export class PieceEndings {
  readonly #owned: OwnedPartition
  readonly #options: EndingsOptions
  /** aborted: nobody waits any more until the state takes what has ended */
  readonly #signal: AbortSignal
  /** messages that were taken here and whose end is not told */
  #inFlight = 0
  /** ends that are told, and not yet written by the store */
  #unwritten = 0
  /** why the store doesn't write them, until it does */
  #trouble: HealthCheck['error']
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
    const dropped = this.#owned.drop(refsOf(piece), piece.origin)
    if (dropped) void this.#whileUnwritten(dropped)
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
      return ending && this.#whileUnwritten(this.#untilWritten(ending, async () => end()))
    } catch (error) {
      if (isVoid(error)) return undefined
      throw error
    }
  }

  /** What keeps ends from being written. */
  get trouble(): HealthCheck['error'] {
    return this.#trouble
  }

  /** Looks for messages that are in flight although their end was told (E2), and gives them back. @throws EngineError INTERNAL: they can't be found */
  look(): void {
    if (this.#isClosed || this.#inFlight > 0 || this.#unwritten > 0) return
    const { forgotten } = this.#owned
    if (forgotten === 0) return
    this.#options.forgotten(forgotten)
    this.#owned.releaseForgotten()
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

  async #whileUnwritten(ending: Promise<void>): Promise<void> {
    this.#unwritten++
    try {
      await ending
    } finally {
      this.#unwritten--
    }
  }

  async #untilWritten(first: Promise<void>, again: () => Promise<void>): Promise<void> {
    let ending = first
    for (let doublings = 0; ; doublings++) {
      try {
        await ending
        this.#trouble = undefined
        return
      } catch (error) {
        if (isVoid(error)) return
        this.#trouble = {
          code: error instanceof EngineError ? error.code : 'INTERNAL',
          message: error instanceof Error ? error.message : String(error),
        }
        const pauseMs = messageBackOff(1 + Math.min(doublings, MAX_DOUBLINGS), this.#options.random())
        await delay(pauseMs, undefined, { signal: this.#signal }).catch(() => undefined)
        if (this.#signal.aborted) return
        ending = again()
      }
    }
  }
}

/** Another owner has the message now, or will: this one's word of it counts no more. */
const isVoid = (error: unknown): boolean => isFenced(error) || (error instanceof EngineError && error.code === 'STOPPING')
