/**
 * The packs appended last, until they are read once, over all partitions and up to a bound in bytes: the oldest leaves first.
 * A partition has one reader, as a rule, which is at the tail or far behind it. Of one that has fallen behind by more than
 * the bound nothing is kept: it would leave before it is read, and has cost the garbage collector dear meanwhile.
 */
export class TailCache {
  readonly #maxBytes: number
  /** by partition, then by offset; in the order of appending */
  readonly #packs = new Map<string, Map<number, Buffer>>()
  /** whose packs have left unread */
  readonly #behind = new Set<string>()
  /** the order of appending over all partitions; some have been read */
  #queue: { partition: string; offset: number }[] = []
  #head = 0
  #bytes = 0

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get bytes(): number {
    return this.#bytes
  }

  add(topic: number, partition: number, offset: number, pack: Buffer): void {
    const key = keyOf(topic, partition)
    if (this.#behind.has(key)) return
    let packs = this.#packs.get(key)
    if (!packs) this.#packs.set(key, (packs = new Map()))
    packs.set(offset, pack)
    this.#queue.push({ partition: key, offset })
    this.#bytes += pack.length
    for (let oldest = this.#queue[this.#head]; oldest; oldest = this.#queue[++this.#head]) {
      const isThere = this.#packs.get(oldest.partition)?.has(oldest.offset) === true
      if (!isThere) continue
      if (this.#bytes <= this.#maxBytes) break
      this.#remove(oldest.partition, oldest.offset)
      this.#behind.add(oldest.partition)
    }
    if (this.#head > 1024 && this.#head * 2 > this.#queue.length) {
      this.#queue = this.#queue.slice(this.#head)
      this.#head = 0
    }
  }

  /** @returns undefined: it is to be read from the disk, now or for the second time */
  take(topic: number, partition: number, offset: number): Buffer | undefined {
    const key = keyOf(topic, partition)
    const pack = this.#packs.get(key)?.get(offset)
    if (pack) this.#remove(key, offset)
    return pack
  }

  /** The reader of a partition is near the tail: what is appended from now on will be read soon. */
  caughtUp(topic: number, partition: number): void {
    if (this.#behind.size > 0) this.#behind.delete(keyOf(topic, partition))
  }

  /** Forgets the packs of a partition below an offset. */
  drop(topic: number, partition: number, before: number): void {
    const key = keyOf(topic, partition)
    for (const offset of this.#packs.get(key)?.keys() ?? []) {
      if (offset >= before) break
      this.#remove(key, offset)
    }
  }

  /** Forgets a partition. */
  forget(topic: number, partition: number): void {
    this.drop(topic, partition, Infinity)
    this.caughtUp(topic, partition)
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

const keyOf = (topic: number, partition: number): string => `${topic}/${partition}`
