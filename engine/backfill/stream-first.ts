/**
 * The stream goes first: while changes are streamed, rows of backfills come in small slices, each of which a change may have to wait for, and
 * between two of them the source, the log and the clients are left to the changes. No I/O.
 */

/** Changes are streamed until none has come for so long. */
const STREAMING_MS = 1_000
/** From the beginning of one slice to that of the next. */
const SLICE_EVERY_MS = 8
/** A slice has about so many bytes of messages. */
const SLICE_BYTES = 128 * 1024

/** Says when backfills of one source may read, and how much at once. */
export class StreamFirst {
  #streamed = 0
  #streamedAt = -Infinity
  #nextAt = 0

  /** Whether changes are streamed. @param streamed how many have been so far; @param now monotonic ms */
  isStreaming(streamed: number, now: number): boolean {
    if (streamed !== this.#streamed) this.#streamedAt = now
    this.#streamed = streamed
    return now - this.#streamedAt < STREAMING_MS
  }

  /** A slice is to be read beside the stream. @returns ms until it may be begun */
  waitMs(now: number): number {
    const at = Math.max(now, this.#nextAt)
    this.#nextAt = at + SLICE_EVERY_MS
    return at - now
  }

  /** How many rows a slice has beside the stream. @param rowBytes of a message */
  rows(rowBytes: number): number {
    return Math.max(1, Math.floor(SLICE_BYTES / rowBytes))
  }
}
