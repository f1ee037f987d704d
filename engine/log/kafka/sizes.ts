/**
 * How many bytes a partition holds. Brokers tell that only in whole segments, so every record carries a counter: the bytes
 * appended to its partition, itself included. What is kept is the difference between the counters at both ends. This
 * process mostly knows them, because it appends or reads the partition; else it looks the records up, not too often.
 */
import type { TopicName } from '../log.ts'

/** @property total the record's counter; undefined: it has none */
export type Counted = Readonly<{ size: number; total: number | undefined }>
type LookUp = (topic: TopicName, partition: number, offset: number) => Promise<Counted | undefined>

/** The header of a record that holds the counter, in decimal digits. */
export const COUNTER_HEADER = 'bytes'
/** Counters of so many records that were read are remembered: a trim mostly ends at one of them. */
const REMEMBERED = 4_096
const LOOK_UP_EVERY_MS = 5_000

/** Of a partition: the first one kept, the committed one, and the one its next record gets. */
export type Offsets = Readonly<{ first: number; committed: number; next: number }>
type Point = { offset: number; bytes: number }
type Partition = {
  /** bytes appended before the first offset, before the committed and before the next one, as they were known last */
  first: Point
  committed: Point
  next: Point
  readonly offsets: Float64Array
  readonly before: Float64Array
  lookedUpAt: number
}

export class Sizes {
  readonly #partitions = new Map<string, Partition>()
  readonly #lookUp: LookUp

  constructor(lookUp: LookUp) {
    this.#lookUp = lookUp
  }

  /** Records up to before `next` are durable, the last one with this counter. */
  appended(topic: TopicName, partition: number, next: number, total: number): void {
    this.#of(topic, partition).next = { offset: next, bytes: total }
  }

  /** A record has been read. */
  read(topic: TopicName, partition: number, offset: number, { size, total }: Counted): void {
    if (total === undefined) return
    const of = this.#of(topic, partition)
    of.offsets[offset % REMEMBERED] = offset
    of.before[offset % REMEMBERED] = total - size
  }

  /** Bytes between the first offset kept and the next one, which the log has just named, and how many of them lie below the committed one. */
  async between(topic: TopicName, partition: number, at: Offsets): Promise<{ bytes: number; finishedBytes: number }> {
    const { first, next } = at
    if (first >= next) return { bytes: 0, finishedBytes: 0 }
    const committed = Math.max(first, Math.min(at.committed, next))
    const of = this.#of(topic, partition)
    of.first = wasRead(of, first) ?? of.first
    of.committed = wasRead(of, committed) ?? of.committed
    if (committed === next && of.next.offset === next) of.committed = of.next
    if (committed === first && of.first.offset === first) of.committed = of.first
    const isKnown = of.first.offset === first && of.committed.offset === committed && of.next.offset === next
    if (!isKnown && performance.now() - of.lookedUpAt > LOOK_UP_EVERY_MS) {
      of.lookedUpAt = performance.now()
      if (of.first.offset !== first) of.first = await this.#before(topic, partition, first, of.first)
      if (of.next.offset !== next) of.next = await this.#upTo(topic, partition, next, of.next)
      if (of.committed.offset !== committed)
        of.committed = committed === next ? of.next : await this.#before(topic, partition, committed, of.committed)
    }
    const bytes = Math.max(0, of.next.bytes - of.first.bytes)
    return { bytes, finishedBytes: Math.max(0, Math.min(bytes, of.committed.bytes - of.first.bytes)) }
  }

  async #before(topic: TopicName, partition: number, offset: number, otherwise: Point): Promise<Point> {
    const record = await this.#lookUp(topic, partition, offset)
    return record?.total === undefined ? otherwise : { offset, bytes: record.total - record.size }
  }

  async #upTo(topic: TopicName, partition: number, next: number, otherwise: Point): Promise<Point> {
    const record = await this.#lookUp(topic, partition, next - 1)
    return record?.total === undefined ? otherwise : { offset: next, bytes: record.total }
  }

  drop(topic: TopicName): void {
    for (const key of this.#partitions.keys()) if (key.startsWith(`${topic}/`)) this.#partitions.delete(key)
  }

  #of(topic: TopicName, partition: number): Partition {
    const key = `${topic}/${partition}`
    let of = this.#partitions.get(key)
    if (!of) {
      const nowhere = { offset: -1, bytes: 0 }
      of = {
        ...{ first: nowhere, committed: nowhere, next: nowhere, lookedUpAt: -Infinity },
        offsets: new Float64Array(REMEMBERED).fill(-1),
        before: new Float64Array(REMEMBERED),
      }
      this.#partitions.set(key, of)
    }
    return of
  }
}

function wasRead({ offsets, before }: Partition, offset: number): Point | undefined {
  const at = offset % REMEMBERED
  return offsets[at] === offset ? { offset, bytes: before[at] as number } : undefined
}
