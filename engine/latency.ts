/** Distributions of latencies, counted a batch at a time. Nothing here does I/O. */

/** Upper bounds of a histogram's buckets in microseconds, as the Sequin API has them. */
export const LATENCY_BUCKETS_US = [10, 100, 1e3, 1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7, 5e7] as const

/** A latency distribution that takes many equal observations at once. */
export class LatencyCounts {
  /** one place a bucket, the last one for what is above all bounds */
  readonly #counts = new Float64Array(LATENCY_BUCKETS_US.length + 1)
  #sum = 0

  /** @param us microseconds; a clock that ran backwards counts as 0 */
  add(us: number, count = 1): void {
    const value = us > 0 ? us : 0
    const within = LATENCY_BUCKETS_US.findIndex((bound) => value <= bound)
    const bucket = within < 0 ? LATENCY_BUCKETS_US.length : within
    this.#counts[bucket] = (this.#counts[bucket] ?? 0) + count
    this.#sum += value * count
  }

  /** Counts up to each bound, the whole count, and the sum. */
  cumulative(): { upTo: number[]; count: number; sum: number } {
    let count = 0
    const upTo: number[] = []
    for (const part of this.#counts) upTo.push((count += part))
    return { upTo: upTo.slice(0, -1), count, sum: this.#sum }
  }
}
