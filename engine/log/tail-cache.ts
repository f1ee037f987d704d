/** The packs appended last, over all partitions, up to a bound in bytes: the oldest leaves first. */
export class TailCache {
  readonly #maxBytes: number
  /** by partition, then by offset; in the order of appending */
  readonly #packs = new Map<string, Map<number, Buffer>>()
  /** the order of appending over all partitions */
  #queue: { partition: string; offset: number }[] = []
  #head = 0
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  add(topic: number, partition: number, offset: number, pack: Buffer): void {
    const key = `${topic}/${partition}`
    let packs = this.#packs.get(key)
    if (!packs) this.#packs.set(key, (packs = new Map()))
    packs.set(offset, pack)
    this.#queue.push({ partition: key, offset })
    this.#bytes += pack.length
    while (this.#bytes > this.#maxBytes && this.#head < this.#queue.length) {
      const oldest = this.#queue[this.#head++]
      if (oldest) this.#remove(oldest.partition, oldest.offset)
    }
    if (this.#head > 1024 && this.#head * 2 > this.#queue.length) {
      this.#queue = this.#queue.slice(this.#head)
      this.#head = 0
    }
  }

  get(topic: number, partition: number, offset: number): Buffer | undefined {
    return this.#packs.get(`${topic}/${partition}`)?.get(offset)
  }

  /** Forgets the packs of a partition below an offset. */
  drop(topic: number, partition: number, before: number): void {
    const key = `${topic}/${partition}`
    for (const offset of this.#packs.get(key)?.keys() ?? []) {
      if (offset >= before) break
      this.#remove(key, offset)
    }
  }

  #remove(key: string, offset: number): void {
    const packs = this.#packs.get(key)
    const pack = packs?.get(offset)
    if (!packs || !pack) return // dropped before
    packs.delete(offset)
    this.#bytes -= pack.length
    if (packs.size === 0) this.#packs.delete(key)
  }
}
