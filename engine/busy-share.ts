/** Measures how long something was at work lately: for figures that say how near to its limit a stage is.
 *  Time is counted into the second it falls in, so that whoever asks, and how often, changes nothing. */
const SECONDS = 10

/** The share of the last ten seconds in which something was at work. */
export class BusyShare {
  /** busy ms by second; one place more than the span, for the second that goes on */
  readonly #busy = new Float64Array(SECONDS + 1)
  readonly #created: number
  /** the last second anything was said of */
  #second: number
  #since: number | undefined

  /** @param now monotonic ms, here and below */
  constructor(now: number) {
    this.#created = now
    this.#second = Math.floor(now / 1000)
  }

  /** At work from here on; `end` says until when. One stretch at a time. */
  begin(now: number): void {
    this.#since ??= now
  }

  end(now: number): void {
    if (this.#since === undefined) return
    this.add(this.#since, now)
    this.#since = undefined
  }

  /** Was at work between the two. */
  add(from: number, to: number): void {
    this.#advance(to)
    for (let at = Math.max(from, (this.#second - SECONDS) * 1000); at < to;) {
      const second = Math.floor(at / 1000)
      const until = Math.min(to, (second + 1) * 1000)
      const place = second % this.#busy.length
      this.#busy[place] = (this.#busy[place] ?? 0) + until - at
      at = until
    }
  }

  /** 0–100, of the last ten seconds or of its life while that is shorter. */
  percent(now: number): number {
    if (this.#since !== undefined) {
      this.add(this.#since, now)
      this.#since = now
    } else this.#advance(now)
    const from = Math.max(this.#created, (this.#second - SECONDS) * 1000)
    const busy = this.#busy.reduce((sum, ms) => sum + ms, 0)
    return now > from ? Math.min(100, (100 * busy) / (now - from)) : 0
  }

  #advance(now: number): void {
    const second = Math.floor(now / 1000)
    for (let s = Math.max(this.#second + 1, second - SECONDS); s <= second; s++) this.#busy[s % this.#busy.length] = 0
    if (second > this.#second) this.#second = second
  }
}
