/** One timer for the visibility times of a partition: set to the one that ends first. */
export class LapseTimer {
  readonly #clock: () => number
  readonly #lapsed: () => void
  #timer: NodeJS.Timeout | undefined
  #at = Infinity

  /** @param clock monotonic milliseconds. @param lapsed called when the time has come */
  constructor(clock: () => number, lapsed: () => void) {
    this.#clock = clock
    this.#lapsed = lapsed
  }

  /** Something ends at this time (monotonic ms); Infinity: nothing does. */
  by(at: number): void {
    if (at >= this.#at) return
    clearTimeout(this.#timer)
    this.#at = at
    this.#timer = setTimeout(
      () => {
        this.#at = Infinity
        this.#lapsed()
      },
      Math.min(Math.max(1, Math.ceil(at - this.#clock())), 0x7fffffff),
    )
    this.#timer.unref()
  }

  stop(): void {
    clearTimeout(this.#timer)
  }
}
