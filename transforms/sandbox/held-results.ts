/**
 * What functions said stays in this process until it has been delivered: how much of it there is, of all batches together, and how
 * much the next batch may add. Whoever holds results says nothing when it is done with them; the garbage collector does.
 *
 * Nobody waits here: the more there is, the smaller batches become, down to a message at a time. So one that is slow to deliver holds
 * up no other.
 */

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
    this.#released.register(results, results.byteLength)
  }
}

/** The results that this process holds. */
export const heldResults = new HeldResults()
