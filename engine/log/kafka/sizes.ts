/**
 * How many bytes a partition holds. Brokers tell that only in whole segments, so every record carries a counter: the bytes
 * appended to its partition, itself included. What is kept is the difference between the counters at both ends. This
 * process mostly knows them, because it appends or reads the partition; else it looks the records up, not too often.
 */
import { topicRead, type ReaderName, type TopicName } from '../log.ts'

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
type Point = Readonly<{ offset: number; bytes: number }>
const NOWHERE: Point = { offset: -1, bytes: 0 }
type Partition = {
  /** bytes appended before the next offset, as they were known last */
  next: Point
  readonly offsets: Float64Array
  readonly before: Float64Array
  /** the same before the first offset and before the committed one of each reader */
  readonly readers: Map<ReaderName, { first: Point; committed: Point; lookedUpAt: number }>
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

  /** Bytes between the first offset kept for a reader and the next one, which the log has just named, and how many of them lie below the committed one. */
  async between(reader: ReaderName, partition: number, at: Offsets): Promise<{ bytes: number; finishedBytes: number }> {
    const { first, next } = at
    if (first >= next) return { bytes: 0, finishedBytes: 0 }
    const topic = topicRead(reader)
    const committed = Math.max(first, Math.min(at.committed, next))
    const of = this.#of(topic, partition)
    let its = of.readers.get(reader)
    if (!its) of.readers.set(reader, (its = { first: NOWHERE, committed: NOWHERE, lookedUpAt: -Infinity }))
    its.first = wasRead(of, first) ?? its.first
    its.committed = wasRead(of, committed) ?? its.committed
    if (committed === next && of.next.offset === next) its.committed = of.next
    if (committed === first && its.first.offset === first) its.committed = its.first
    const isKnown = its.first.offset === first && its.committed.offset === committed && of.next.offset === next
    if (!isKnown && performance.now() - its.lookedUpAt > LOOK_UP_EVERY_MS) {
      its.lookedUpAt = performance.now()
      if (its.first.offset !== first) its.first = await this.#before(topic, partition, first, its.first)
      if (of.next.offset !== next) of.next = await this.#upTo(topic, partition, next, of.next)
      if (its.committed.offset !== committed)
        its.committed = committed === next ? of.next : await this.#before(topic, partition, committed, its.committed)
    }
    const bytes = Math.max(0, of.next.bytes - its.first.bytes)
    return { bytes, finishedBytes: Math.max(0, Math.min(bytes, its.committed.bytes - its.first.bytes)) }
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
      of = {
        next: NOWHERE,
        readers: new Map(),
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
