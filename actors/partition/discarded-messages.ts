/**
 * Counts what a partition has given up in the last day, for the health of its sink: at first as its owners before have recorded it, then
 * as it happens. The record itself, message by message, is in the parked store.
 */
import type { Discards } from '../../engine/dispatch/parked/parked-store.ts'
import type { Discarded } from './sink-observer.ts'

const TOLD_MS = 24 * 3_600_000
const NONE: Discards = { messages: 0, lastAt: new Date(0) }

/** Counts the messages that a partition has given up in the last day. */
export class DiscardedMessages {
  #bySize: Discards
  #others: Discards

  constructor({ bySize, others }: Readonly<{ bySize: Discards; others: Discards }> = { bySize: NONE, others: NONE }) {
    this.#bySize = bySize
    this.#others = others
  }

  /** larger than MAX_MESSAGE_MB; undefined: none lately */
  get bySize(): Discards | undefined {
    return lately(this.#bySize)
  }
  /** for too many attempts, or by hand */
  get others(): Discards | undefined {
    return lately(this.#others)
  }

  add(messages: number, why: Discarded): void {
    const lastAt = new Date()
    if (why === 'size') this.#bySize = { messages: this.#bySize.messages + messages, lastAt }
    else this.#others = { messages: this.#others.messages + messages, lastAt }
  }

  /** They are to be delivered after all. */
  reopened(messages: number): void {
    this.#others = { ...this.#others, messages: Math.max(0, this.#others.messages - messages) }
  }
}

const lately = (some: Discards): Discards | undefined =>
  some.messages > 0 && Date.now() - some.lastAt.getTime() < TOLD_MS ? some : undefined
