/**
 * The first open message of each group, by the hash of the group: what a Map would hold, in two arrays. A Map boxes each of
 * these numbers and calls out of compiled code for its hash; here a look-up is a few instructions (measured: a third of it).
 * Open addressing with linear probing: group hashes are spread already, so their low bits are the place.
 */

const EMPTY = -1
const FIRST_CAPACITY = 1 << 10
/** An empty table that once held a great many groups gives their memory back. */
const KEPT_CAPACITY = 1 << 16

/** The first open message of each group. */
export class GroupHeads {
  #groups = new Float64Array(FIRST_CAPACITY)
  /** EMPTY: the place is free */
  #seqs = new Float64Array(FIRST_CAPACITY).fill(EMPTY)
  #mask = FIRST_CAPACITY - 1
  #size = 0

  get size(): number {
    return this.#size
  }

  /** The first open message of a group; undefined: it has none. */
  get(group: number): number | undefined {
    const seq = this.#seqs[this.#placeOf(group)]
    return seq === EMPTY ? undefined : seq
  }

  /** Says which is the first open message of a group. @param seq 0 or above */
  set(group: number, seq: number): void {
    const place = this.#placeOf(group)
    const isNew = this.#seqs[place] === EMPTY
    this.#groups[place] = group
    this.#seqs[place] = seq
    if (isNew && ++this.#size * 2 > this.#mask) this.#resize((this.#mask + 1) * 2)
  }

  /** A group has nothing open. */
  delete(group: number): void {
    const seqs = this.#seqs
    const mask = this.#mask
    let free = this.#placeOf(group)
    if (seqs[free] === EMPTY) return
    this.#size--
    // what was pushed beyond this place by others moves up, so that no search ends too early
    for (let at = (free + 1) & mask; seqs[at] !== EMPTY; at = (at + 1) & mask) {
      const home = (this.#groups[at] ?? 0) & mask
      if (((at - home) & mask) < ((at - free) & mask)) continue // it stands between its home and the free place
      this.#groups[free] = this.#groups[at] ?? 0
      seqs[free] = seqs[at] ?? EMPTY
      free = at
    }
    seqs[free] = EMPTY
    if (this.#size === 0 && mask >= KEPT_CAPACITY) this.#resize(FIRST_CAPACITY)
  }

  /** Where a group stands, or would. */
  #placeOf(group: number): number {
    const mask = this.#mask
    let place = group & mask
    while (this.#seqs[place] !== EMPTY && this.#groups[place] !== group) place = (place + 1) & mask
    return place
  }

  #resize(capacity: number): void {
    const [groups, seqs] = [this.#groups, this.#seqs]
    this.#groups = new Float64Array(capacity)
    this.#seqs = new Float64Array(capacity).fill(EMPTY)
    this.#mask = capacity - 1
    for (const [i, seq] of seqs.entries()) {
      if (seq === EMPTY) continue
      const group = groups[i] ?? 0
      const place = this.#placeOf(group)
      this.#groups[place] = group
      this.#seqs[place] = seq
    }
  }
}
