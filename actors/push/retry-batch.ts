/**
 * How many messages that have failed before go in one request. Where each gets an answer of its own, as many as fit: those
 * that are well by now are delivered, however many of the others aren't. Where a request fails as a whole, one, and twice as
 * many after each that was taken.
 */
import type { PushWire } from '../../sinks/push.ts'

export class RetryBatch {
  #size: number | undefined

  size({ maxMessages, judgesEach }: Pick<PushWire, 'maxMessages' | 'judgesEach'>): number {
    this.#size ??= judgesEach ? maxMessages : 1
    return Math.min(maxMessages, this.#size)
  }

  passed(): void {
    this.#size = Math.min((this.#size ?? 1) * 2, MAX)
  }

  /** A request with so many failed, and nobody can tell by which of them. */
  failed(messages: number): void {
    this.#size = Math.max(1, Math.floor(messages / 2))
  }

  /** The destination is another one. */
  forget(): void {
    this.#size = undefined
  }
}

/** of any destination */
const MAX = 10_000
