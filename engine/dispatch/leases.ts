/**
 * Remembers who holds which messages, and until when: a lease is one batch in one client's hands. Times are the monotonic clock's
 * milliseconds. Leases stand in the order of their ends, so looking for lapsed ones costs nothing while there are none.
 */
type Lease = {
  readonly number: number
  readonly endsAt: number
  /** what it was given; empty again when nothing of it is open */
  seqs: readonly number[]
  /** how many of them are still held under this lease */
  open: number
}

/** The leases of one partition. */
export class Leases {
  #byEnd: Lease[] = []
  #first = 0
  readonly #byNumber = new Map<number, Lease>()
  #last: Lease | undefined
  #nextNumber = 1

  /** A number for a batch; `hold` gives it its messages. */
  reserve(): number {
    const number = this.#nextNumber
    this.#nextNumber = number === 0xffffffff ? 1 : number + 1
    return number
  }

  /** Gives a lease its messages. */
  hold(number: number, endsAt: number, seqs: readonly number[]): void {
    const lease: Lease = { number, endsAt, seqs, open: seqs.length }
    this.#byNumber.set(number, lease)
    let at = this.#byEnd.length
    while (at > this.#first && (this.#byEnd[at - 1]?.endsAt ?? 0) > endsAt) at-- // only after the visibility time was made shorter
    if (at === this.#byEnd.length) this.#byEnd.push(lease)
    else this.#byEnd.splice(at, 0, lease)
  }

  /** When a lease ends; 0: it is over, or has nothing left. */
  endOf(number = 0): number {
    return this.#byNumber.get(number)?.endsAt ?? 0
  }

  /** Counts messages that left a lease. */
  letGo(number = 0, messages = 1): void {
    const lease = this.#last?.number === number ? this.#last : this.#byNumber.get(number)
    if (!lease) return
    this.#last = lease
    lease.open -= messages
    if (lease.open > 0) return
    lease.seqs = NONE
    this.#byNumber.delete(number)
    this.#last = undefined
  }

  /** The end of the first lease that still holds something, or Infinity. */
  nextEnd(): number {
    this.#skipClosed()
    return this.#byEnd[this.#first]?.endsAt ?? Infinity
  }

  /** Counts messages under the leases that end by then. */
  countEndingBy(end: number): number {
    this.#skipClosed()
    let count = 0
    for (let at = this.#first; at < this.#byEnd.length; at++) {
      const lease = this.#byEnd[at]
      if (!lease || lease.endsAt > end) break
      count += lease.open
    }
    return count
  }

  /** Takes out the first lease that ended by `now`. Its messages are the caller's. */
  lapsed(now: number): Lease | undefined {
    this.#skipClosed()
    const lease = this.#byEnd[this.#first]
    if (!lease || lease.endsAt > now) return undefined
    this.#first++
    this.#byNumber.delete(lease.number)
    if (this.#last === lease) this.#last = undefined
    return lease
  }

  /** The leases that hold something. */
  held(): Iterable<Lease> {
    return this.#byNumber.values()
  }

  #skipClosed(): void {
    while (this.#byEnd[this.#first]?.open === 0) this.#first++
    if (this.#first > 256 && this.#first * 2 > this.#byEnd.length) {
      this.#byEnd = this.#byEnd.slice(this.#first)
      this.#first = 0
    }
  }
}

const NONE: readonly number[] = []
