/**
 * The stream goes first: while changes are streamed, rows of backfills come in small slices, each of which a change may have to wait for, and
 * between two of them the source, the log and the clients are left to the changes. No I/O.
 */
import { MB } from '../amounts.ts'

/** Changes are streamed until none has come for so long. */
const STREAMING_MS = 1_000
/** From the beginning of one slice to that of the next. */
const SLICE_EVERY_MS = 8
/** When a slice is durable nothing is read for this share of what it took: where it had to wait, changes had to, too. */
const REST = 0.5
const MOST_REST_MS = 16
/** A slice has about so many bytes of messages. */
const SLICE_BYTES = 128 * 1024
/** Where slices take long whatever is in them, they have more, so that a backfill does not stand still. */
const LEAST_BYTES_PER_MS = 2048
/** Beside a stream or without one, a slice is rendered to so much: its rows are held until their mark comes, and are added to the stream at once. */
export const MOST_SLICE_BYTES = MB

/** Says when backfills of one source may read, and how much at once. */
export class StreamFirst {
  #streamed = 0
  #streamedAt = -Infinity
  #nextAt = 0
  #bytes = SLICE_BYTES

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

  /** A slice has become durable. @param ms that it took */
  took(ms: number, now: number): void {
    this.#nextAt = Math.max(this.#nextAt, now + Math.min(ms * REST, MOST_REST_MS))
    this.#bytes = Math.min(MOST_SLICE_BYTES, Math.max(SLICE_BYTES, ms * LEAST_BYTES_PER_MS))
  }

  /** How many rows a slice has beside the stream. @param rowBytes of a message */
  rows(rowBytes: number): number {
    return Math.max(1, Math.floor(this.#bytes / rowBytes))
  }
}
