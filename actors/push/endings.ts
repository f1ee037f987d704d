/**
 * Tells the partition how the messages end that were taken to be sent, each once. Those whose end it has not told are counted: they
 * are under way.
 *
 *  E1. An end is told until it is written: only another owner, or a stop, makes it void. A message in flight has no time to
 *      lapse, so nothing else would ever end it. E2. While none is under way here the partition holds none in flight. It is looked
 *      whether that is so, and what was forgotten is given back.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { refsOf, type Message } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-groups.ts'
import type { Failed, FailedMessage } from '../../engine/dispatch/parked/parking.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import { MESSAGE_LONGEST_MS, messageBackOff } from '../../engine/back-off.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { troubleOf, type Trouble } from '../../engine/status.ts'
import type { PushSink } from './push-sink.ts'

/**
 * @property isOwn it was the message's own failure
 * @property counts towards those after which a message is given up
 * @property retryAfterMs the answer asks for this pause
 */
export type Attempt = Pick<Failed, 'error' | 'record'> & Readonly<{ isOwn: boolean; counts: boolean; retryAfterMs?: number | undefined }>

/** The pause between two tries to write an end doubles so often: from about 1 s to 16 s. */
const MAX_DOUBLINGS = 4

/** Tells a partition the end of each message that was taken to be sent. */
export class Endings {
  readonly #owned: OwnedPartition
  readonly #sink: PushSink
  /** aborted: no end is written again and again any more until the state database takes it */
  readonly #signal: AbortSignal
  /** messages that were taken here and whose end is not told */
  #inFlight = 0
  /** ends that are told, and not yet written by the store */
  #unwritten = 0
  /** why the store doesn't write them, until it does */
  #trouble: Trouble | undefined
  #isClosed = false

  constructor(owned: OwnedPartition, sink: PushSink, signal: AbortSignal) {
    this.#owned = owned
    this.#sink = sink
    this.#signal = signal
  }

  /** Counts messages that were taken. */
  taken(messages: number): void {
    this.#count(messages)
  }

  /** Messages may go again at once. */
  release(origin: Origin, messages: readonly Message[]): void {
    if (messages.length === 0) return
    this.#count(-messages.length)
    this.#owned.release(refsOf(messages), origin)
  }

  /** Messages are not to be delivered. */
  drop(origin: Origin, messages: readonly Message[]): void {
    if (messages.length === 0) return
    this.#count(-messages.length)
    const dropped = this.#owned.drop(refsOf(messages), origin)
    if (dropped) void this.#whileUnwritten(dropped)
  }

  /** Messages have failed: they are parked with the attempt on record, or given up. */
  fail(origin: Origin, messages: readonly Message[], { isOwn, counts, error, record, retryAfterMs = 0 }: Attempt): void {
    const { max_retry_count: maxRetries } = this.#sink.host.sink
    const failures = messages.map(({ offset, index, former }): FailedMessage => {
      const attempts = (former?.attempts ?? 0) + (isOwn ? 1 : 0)
      const isSpent = counts && maxRetries !== null && attempts >= maxRetries
      const backOff = Math.max(messageBackOff(Math.max(1, attempts), Math.random()), Math.min(retryAfterMs, MESSAGE_LONGEST_MS))
      return { offset, index, failed: { attempts, retryInMs: isSpent ? undefined : backOff, error, record } }
    })
    this.#count(-messages.length)
    this.#owned.fail(failures, origin)
  }

  /** Messages are delivered. @returns settles when those of the parked store are ended there; undefined: there are none */
  finish(origin: Origin, messages: readonly Message[]): Promise<void> | undefined {
    this.#count(-messages.length)
    const end = () => this.#owned.delivered(refsOf(messages), origin)
    try {
      const ending = end()
      return ending && this.#whileUnwritten(this.#untilWritten(ending, async () => end()))
    } catch (error) {
      if (isVoid(error)) return undefined
      throw error
    }
  }

  /** The trouble that keeps ends from being written. */
  get trouble(): Trouble | undefined {
    return this.#trouble
  }

  /**
   * Looks for messages that are in flight although their end was told (E2), and gives them back. @throws EngineError INTERNAL: they
   * can't be found
   */
  look(): void {
    if (this.#isClosed || this.#inFlight > 0 || this.#unwritten > 0) return
    const { forgotten } = this.#owned
    if (forgotten === 0) return
    this.#sink.forgot(forgotten)
    this.#owned.releaseForgotten()
  }

  /** Ends that are told from here on count no more. */
  close(): void {
    this.#count(-this.#inFlight)
    this.#isClosed = true
  }

  #count(by: number): void {
    if (this.#isClosed) return
    this.#inFlight += by
    this.#sink.host.underWay.count += by
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
        this.#trouble = troubleOf(error)
        const pauseMs = messageBackOff(1 + Math.min(doublings, MAX_DOUBLINGS), Math.random())
        await delay(pauseMs, undefined, { signal: this.#signal }).catch(() => undefined)
        if (this.#signal.aborted) return
        ending = again()
      }
    }
  }
}

/** Tells whether another owner has the message now, or will have it, so that this one can't end it any more. */
const isVoid = (error: unknown): boolean => isFenced(error) || (error instanceof EngineError && error.code === 'STOPPING')
