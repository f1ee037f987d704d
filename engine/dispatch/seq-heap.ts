/** Messages that became deliverable out of turn, lowest first: a binary heap of sequence numbers, without an object per entry. */
export class SeqHeap {
  readonly #items: number[] = []

  get size(): number {
    return this.#items.length
  }

  /** The lowest, or Infinity when there is none. */
  peek(): number {
    return this.#at(0)
  }

  /** Adds a number. */
  push(seq: number): void {
    const items = this.#items
    let at = items.length
    items.push(seq)
    while (at > 0) {
      const up = (at - 1) >> 1
      const parent = this.#at(up)
      if (parent <= seq) break
      items[at] = parent
      at = up
    }
    items[at] = seq
  }

  /** Takes the lowest out. */
  pop(): void {
    const items = this.#items
    const last = items.pop()
    if (last === undefined || items.length === 0) return
    let at = 0
    for (;;) {
      const left = 2 * at + 1
      const down = this.#at(left + 1) < this.#at(left) ? left + 1 : left
      const child = this.#at(down)
      if (child >= last) break
      items[at] = child
      at = down
    }
    items[at] = last
  }

  /** Behind its end a heap has nothing that would come up. */
  #at(place: number): number {
    return place < this.#items.length ? (this.#items[place] ?? Infinity) : Infinity
  }
}
