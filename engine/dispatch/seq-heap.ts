/** Messages that became deliverable out of turn, lowest first: a binary heap of sequence numbers, without an object per entry. */
export class SeqHeap {
  readonly #items: number[] = []

  get size(): number {
    return this.#items.length
  }

  /** The lowest, or Infinity when there is none. */
  peek(): number {
    return this.#items.length ? (this.#items[0] as number) : Infinity
  }

  push(seq: number): void {
    const items = this.#items
    let at = items.length
    items.push(seq)
    while (at > 0) {
      const up = (at - 1) >> 1
      const parent = items[up] as number
      if (parent <= seq) break
      items[at] = parent
      at = up
    }
    items[at] = seq
  }

  pop(): void {
    const items = this.#items
    const last = items.pop()
    const size = items.length
    if (last === undefined || size === 0) return
    let at = 0
    for (;;) {
      let down = 2 * at + 1
      if (down >= size) break
      if (down + 1 < size && (items[down + 1] as number) < (items[down] as number)) down++
      const child = items[down] as number
      if (child >= last) break
      items[at] = child
      at = down
    }
    items[at] = last
  }
}
