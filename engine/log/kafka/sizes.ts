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

type Point = { offset: number; bytes: number }
type Partition = {
  /** bytes appended before the first offset, and before the next one, as they were known last */
  first: Point
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

  /** Bytes between the first offset kept and the next one, which the log has just named. */
  async between(topic: TopicName, partition: number, first: number, next: number): Promise<number> {
    if (first >= next) return 0
    const of = this.#of(topic, partition)
    if (of.first.offset !== first && of.offsets[first % REMEMBERED] === first)
      of.first = { offset: first, bytes: of.before[first % REMEMBERED] as number }
    const isKnown = of.first.offset === first && of.next.offset === next
    if (!isKnown && performance.now() - of.lookedUpAt > LOOK_UP_EVERY_MS) {
      of.lookedUpAt = performance.now()
      if (of.first.offset !== first) {
        const record = await this.#lookUp(topic, partition, first)
        if (record?.total !== undefined) of.first = { offset: first, bytes: record.total - record.size }
      }
      if (of.next.offset !== next) {
        const record = await this.#lookUp(topic, partition, next - 1)
        if (record?.total !== undefined) of.next = { offset: next, bytes: record.total }
      }
    }
    return Math.max(0, of.next.bytes - of.first.bytes)
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
        ...{ first: nowhere, next: nowhere, lookedUpAt: -Infinity },
        offsets: new Float64Array(REMEMBERED).fill(-1),
        before: new Float64Array(REMEMBERED),
      }
      this.#partitions.set(key, of)
    }
    return of
  }
}
