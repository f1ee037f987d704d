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
  start(i: number): number {
    return this.#starts[i] as number
  }
  end(i: number): number {
    return this.#ends[i] as number
  }

  /** Adds [from, to); may overlap what is there. */
  add(from: number, to: number): void {
    const starts = this.#starts
    const ends = this.#ends
    const last = starts.length - 1
    if (last < 0 || from > (ends[last] as number)) {
      starts.push(from)
      ends.push(to)
      return
    }
    if (from >= (starts[last] as number)) {
      if (to > (ends[last] as number)) ends[last] = to
      return
    }
    let low = 0 // the first range that ends at or after `from`
    let high = last
    while (low < high) {
      const mid = (low + high) >> 1
      if ((ends[mid] as number) < from) low = mid + 1
      else high = mid
    }
    if ((starts[low] as number) > to) {
      starts.splice(low, 0, from)
      ends.splice(low, 0, to)
      return
    }
    let until = low // the ranges low … until-1 melt into one
    let end = to
    while (until < starts.length && (starts[until] as number) <= to) end = Math.max(end, ends[until++] as number)
    starts[low] = Math.min(from, starts[low] as number)
    ends[low] = end
    if (until > low + 1) {
      starts.splice(low + 1, until - low - 1)
      ends.splice(low + 1, until - low - 1)
    }
  }

  /** Forgets everything below `seq`; no range may reach across it. */
  dropBelow(seq: number): void {
    let gone = 0
    while (gone < this.#ends.length && (this.#ends[gone] as number) <= seq) gone++
    if (gone) {
      this.#starts.splice(0, gone)
      this.#ends.splice(0, gone)
    }
  }
}
