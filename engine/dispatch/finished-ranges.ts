/**
 * What is finished above the lowest unfinished message: ascending, disjoint, never touching ranges [start, end) of
 * sequence numbers. Acks mostly extend the last range; one elsewhere costs a binary search.
 */
export class FinishedRanges {
  readonly #starts: number[] = []
  readonly #ends: number[] = []

  get count(): number {
    return this.#starts.length
  }
  /** Where range i begins; Infinity: there are not so many. */
  start(i: number): number {
    return this.#starts[i] ?? Infinity
  }
  /** Where range i ends; Infinity: there are not so many. */
  end(i: number): number {
    return this.#ends[i] ?? Infinity
  }

  /** Adds [from, to); may overlap what is there. */
  add(from: number, to: number): void {
    const starts = this.#starts
    const ends = this.#ends
    const last = starts.length - 1
    if (last < 0 || from > this.end(last)) {
      starts.push(from)
      ends.push(to)
      return
    }
    if (from >= this.start(last)) {
      if (to > this.end(last)) ends[last] = to
      return
    }
    let low = 0 // the first range that ends at or after `from`
    let high = last
    while (low < high) {
      const mid = (low + high) >> 1
      if (this.end(mid) < from) low = mid + 1
      else high = mid
    }
    if (this.start(low) > to) {
      starts.splice(low, 0, from)
      ends.splice(low, 0, to)
      return
    }
    let until = low // the ranges low … until-1 melt into one
    let end = to
    while (this.start(until) <= to) end = Math.max(end, this.end(until++))
    starts[low] = Math.min(from, this.start(low))
    ends[low] = end
    if (until > low + 1) {
      starts.splice(low + 1, until - low - 1)
      ends.splice(low + 1, until - low - 1)
    }
  }

  /** Forgets everything below `seq`; no range may reach across it. */
  dropBelow(seq: number): void {
    let gone = 0
    while (this.end(gone) <= seq) gone++
    if (gone) {
      this.#starts.splice(0, gone)
      this.#ends.splice(0, gone)
    }
  }
}
