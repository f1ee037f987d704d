/**
 * How many rows of backfills may wait for a sink: so few that a change of the stream, which comes behind them, comes about as soon as
 * without them, and so many that the sink always has some. It is found by the time that rows take from their mark to the sink's
 * client: while that is no longer than the shortest one lately, more may wait, and fewer when it grows (the idea of TCP Vegas). No I/O.
 */

/** So many rows may always wait (docs/rules.md, rule 33). */
const LEAST_ROWS = 1_000
const MOST_ROWS = 100_000
/** The shortest time is of so long ago at most: then it is measured anew, by rows that have none before them. */
const SHORTEST_MAX_AGE_MS = 10_000
/** Rows join in so many parts of what may wait. */
const PARTS = 4
const LEAST_PART = 100
const GROW = 0.15
const SHRINK = 0.2

/** Rows that joined the stream at one mark. @property upTo how many had joined with them */
type Batch = Readonly<{ upTo: number; rows: number; at: number; isProbe: boolean }>

/** Finds out how many rows may wait for a sink. */
export class DeliveryPace {
  /** in their order */
  readonly #batches: Batch[] = []
  #queueMs: number
  #added = 0
  #through = 0
  #limit = LEAST_ROWS
  #shortestMs = Infinity
  /** no more rows than the next ones are to be under way */
  #isProbing = false
  #shortestAt = 0
  /** somebody has waited for room since the limit was changed last */
  #isFelt = false

  /** @param queueMs how much longer rows may take because of those before them */
  constructor(queueMs: number) {
    this.#queueMs = queueMs
  }

  /** Sets how much longer rows may take. A shorter time lets fewer rows wait at once. */
  set queueMs(ms: number) {
    if (ms < this.#queueMs) this.#limit = Math.max(LEAST_ROWS, (this.#limit * ms) / this.#queueMs)
    this.#queueMs = ms
  }

  /** Forgets the shortest time seen: times are measured by other means from now on. */
  forget(): void {
    this.#shortestMs = Infinity
    this.#limit = LEAST_ROWS
  }

  /** So many rows may wait. */
  get limit(): number {
    return Math.floor(this.#limit)
  }

  /** @param outstanding rows that are under way, or wait. @returns how many may join them at once; 0: none yet */
  grant(outstanding: number): number {
    if (this.#isProbing) return outstanding === 0 ? LEAST_PART : 0
    const part = Math.max(LEAST_PART, Math.floor(this.#limit / PARTS))
    return outstanding === 0 || outstanding + part <= this.#limit ? part : 0
  }

  /** Rows have joined the stream. @param now monotonic ms */
  added(rows: number, now: number): void {
    if (rows === 0) return
    this.#added += rows
    this.#batches.push({ upTo: this.#added, rows, at: now, isProbe: this.#isProbing && this.#batches.length === 0 })
  }

  /** @param waiting rows that the sink has not got yet. @returns whether some have got through since the last look */
  look(waiting: number, now: number): boolean {
    const through = Math.max(this.#through, this.#added - waiting)
    const isMore = through > this.#through
    this.#through = through
    let done = 0
    for (const batch of this.#batches) {
      if (batch.upTo > through) break
      this.#took(now - batch.at, batch, now)
      done++
    }
    this.#batches.splice(0, done)
    return isMore
  }

  /** Somebody waits for room. */
  felt(): void {
    this.#isFelt = true
  }

  #took(ms: number, { rows, isProbe }: Batch, now: number): void {
    if (isProbe || ms <= this.#shortestMs) {
      this.#shortestMs = ms
      this.#shortestAt = now
      this.#isProbing = false
    } else this.#isProbing ||= now - this.#shortestAt > SHORTEST_MAX_AGE_MS
    const longerMs = ms - this.#shortestMs
    const share = Math.min(1, rows / this.#limit)
    const queueMs = Math.max(this.#queueMs, this.#shortestMs / 2)
    if (longerMs > queueMs) this.#limit *= 1 - SHRINK * share
    else if (longerMs < queueMs / 2 && this.#isFelt) this.#limit *= 1 + GROW * share
    else return
    this.#isFelt = false
    this.#limit = Math.min(MOST_ROWS, Math.max(LEAST_ROWS, this.#limit))
  }
}
