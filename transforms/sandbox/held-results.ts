/**
 * What functions said stays in this process until it has been delivered: how much of it there is, of all batches together, and how
 * much the next batch may add. Whoever is done with a large one that stands alone says so, and it is freed; the others are left to the
 * garbage collector.
 *
 * Nobody waits here: the more there is, the smaller batches become, down to a message at a time. So one that is slow to deliver holds
 * up no other.
 */
import { free } from '../../engine/body-memory.ts'

/** What one batch may have when there is nothing else. It is about what goes out in one answer or request. */
const MOST_BYTES = 8 * 1024 * 1024
/** When so much is held, a batch ends with the first message that says anything. */
const HELD_BYTES = 48 * 1024 * 1024
/** The most that a batch takes of what is left: others come, too. */
const SHARE = 1 / 4
/** Smaller answers are not worth counting. */
const FROM_BYTES = 64 * 1024

class HeldResults {
  #bytes = 0
  readonly #released = new FinalizationRegistry<number>((bytes) => (this.#bytes -= bytes))

  get bytes(): number {
    return this.#bytes
  }

  /** How many bytes of results a batch may have from now on. */
  get room(): number {
    return Math.max(0, Math.min(MOST_BYTES, (HELD_BYTES - this.#bytes) * SHARE))
  }

  /** Counts an answer for as long as anybody has it. */
  add(results: ArrayBuffer): void {
    if (results.byteLength < FROM_BYTES) return
    this.#bytes += results.byteLength
    this.#released.register(results, results.byteLength, results)
  }

  /** Frees results that nobody reads any more. */
  free(results: ArrayBuffer): void {
    const { byteLength } = results
    if (this.#released.unregister(results)) this.#bytes -= byteLength
    free(results)
  }
}

/** The results that this process holds. */
export const heldResults = new HeldResults()
