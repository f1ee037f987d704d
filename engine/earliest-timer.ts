/** One timer for many times, of which the earliest counts: whoever is told then looks anew, and says what is next. */
export class EarliestTimer {
  readonly #clock: () => number
  readonly #due: () => void
  #timer: NodeJS.Timeout | undefined
  #at = Infinity

  /** @param clock monotonic milliseconds. @param due called when the time has come */
  constructor(clock: () => number, due: () => void) {
    this.#clock = clock
    this.#due = due
  }

  /** At this time at the latest (monotonic ms); Infinity: there is none. */
  by(at: number): void {
    if (at >= this.#at) return
    clearTimeout(this.#timer)
    this.#at = at
    this.#timer = setTimeout(
      () => {
        this.#at = Infinity
        this.#due()
      },
      Math.min(Math.max(1, Math.ceil(at - this.#clock())), 0x7fffffff),
    )
    this.#timer.unref()
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#at = Infinity
  }
}
