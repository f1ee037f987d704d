/**
 * The packs appended last, until all readers near the tail of their partition have read them, over all partitions and up to
 * a bound in bytes: the oldest leaves first. A reader is at the tail, as a rule, or far behind it. For one that has fallen
 * behind by more than the bound nothing is kept: it would leave before it is read, and has cost the garbage collector dear
 * meanwhile.
 *
 * What several readers of a partition have in their hands at the same time, from here or from the disk, is one buffer.
 */
export class TailCache {
  readonly #maxBytes: number
  readonly #partitions = new Map<string, Partition>()
  /** the order of appending over all partitions; some have been read */
  #queue: { partition: Partition; offset: number }[] = []
  #head = 0
  #bytes = 0
  readonly #left = new FinalizationRegistry<{ held: Partition['held']; offset: number }>(({ held, offset }) => {
    if (held.get(offset)?.deref() === undefined) held.delete(offset)
  })

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  get bytes(): number {
    return this.#bytes
  }

  add(topic: number, partition: number, offset: number, pack: Buffer): void {
    const of = this.#partitions.get(keyOf(topic, partition))
    if (!of || of.near.size === 0) return
    of.packs.set(offset, { pack, left: of.near.size })
    this.#queue.push({ partition: of, offset })
    this.#bytes += pack.length
    for (let oldest = this.#queue[this.#head]; oldest; oldest = this.#queue[++this.#head]) {
      if (!oldest.partition.packs.has(oldest.offset)) continue
      if (this.#bytes <= this.#maxBytes) break
      this.#remove(oldest.partition, oldest.offset)
      for (const reader of oldest.partition.near) if (reader.next <= oldest.offset) oldest.partition.near.delete(reader)
    }
    if (this.#head > 1024 && this.#head * 2 > this.#queue.length) {
      this.#queue = this.#queue.slice(this.#head)
      this.#head = 0
    }
  }

  /** Somebody begins to follow a partition. */
  follow(topic: number, partition: number): Follower {
    const key = keyOf(topic, partition)
    const of = this.#partitions.get(key) ?? { packs: new Map(), near: new Set(), followers: 0, held: new Map() }
    this.#partitions.set(key, of)
    of.followers++
    const reader: Reader = { next: 0, counted: 0 }
    return {
      isNear: (offset, next) => {
        if (of.near.has(reader)) return
        Object.assign(reader, { next: offset, counted: next })
        of.near.add(reader)
      },
      take: (offset) => {
        reader.next = offset + 1
        const kept = of.packs.get(offset)
        if (!kept) return of.held.get(offset)?.deref()
        if (of.near.has(reader) && offset >= reader.counted && --kept.left <= 0) this.#remove(of, offset)
        this.#hold(of, offset, kept.pack)
        return kept.pack
      },
      read: (offset, pack) => this.#hold(of, offset, pack),
      [Symbol.dispose]: () => {
        if (of.near.delete(reader))
          for (const [offset, kept] of of.packs)
            if (offset >= reader.next && offset >= reader.counted && --kept.left <= 0) this.#remove(of, offset)
        if (--of.followers === 0) this.#partitions.delete(key)
      },
    }
  }

  /** Forgets the packs of a partition below an offset. */
  drop(topic: number, partition: number, before: number): void {
    const of = this.#partitions.get(keyOf(topic, partition))
    if (!of) return
    for (const offset of of.packs.keys()) {
      if (offset >= before) break
      this.#remove(of, offset)
    }
  }

  /** Remembers what somebody has in hand, where others may come for it. */
  #hold(of: Partition, offset: number, pack: Buffer): void {
    if (of.followers < 2 || of.held.get(offset)?.deref() === pack) return
    of.held.set(offset, new WeakRef(pack))
    this.#left.register(pack, { held: of.held, offset })
  }

  #remove(of: Partition, offset: number): void {
    const kept = of.packs.get(offset)
    if (!kept) return // dropped before
    of.packs.delete(offset)
    this.#bytes -= kept.pack.length
  }
}

/** Stands for a reader that follows a partition. */
export interface Follower extends Disposable {
  /** It has come near the tail: what is appended from now on, from `next`, will be read soon. */
  isNear(offset: number, next: number): void
  /** @returns undefined: it is to be read from the disk; then tell by `read` */
  take(offset: number): Buffer | undefined
  read(offset: number, pack: Buffer): void
}

/** @property counted from here on packs wait for it */
type Reader = { next: number; counted: number }
type Partition = {
  /** in the order of appending, each with how many are still to read it */
  readonly packs: Map<number, { readonly pack: Buffer; left: number }>
  readonly near: Set<Reader>
  followers: number
  /** in the hands of readers */
  readonly held: Map<number, WeakRef<Buffer>>
}

const keyOf = (topic: number, partition: number): string => `${topic}/${partition}`
