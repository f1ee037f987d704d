/**
 * What the partitions of a process hold of the log together has one bound. While it is reached a partition holds no more than
 * a little, whatever its sink may have, and one record in any case: so all of them go on, and what blocks a small window is parked
 * as what blocks a large one is.
 */

/** All partitions of a process together hold at most so many bytes of the log, for each of many sinks may have `max_memory_mb`. */
export const READ_MEMORY_BYTES = 512 * 1024 * 1024
/** Each partition may hold so much even while that bound is reached. */
const LEAST_BYTES = 1024 * 1024

/** Counts what all partitions of a process hold of the log. */
export class ReadMemory {
  readonly #maxBytes: number
  #bytes = 0

  constructor(maxBytes = Infinity) {
    this.#maxBytes = maxBytes
  }

  get bytes(): number {
    return this.#bytes
  }
  get isFull(): boolean {
    return this.#bytes >= this.#maxBytes
  }

  /** @param bytes more than before; less than none: so many were let go of */
  add(bytes: number): void {
    this.#bytes += bytes
  }

  /** Gives the bytes that a partition may hold now. @param own what its sink lets it have */
  limit(own: number): number {
    return this.isFull ? Math.min(own, LEAST_BYTES) : own
  }
}
