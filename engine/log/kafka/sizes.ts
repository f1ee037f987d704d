/**
 * How many bytes a partition holds. Brokers tell that only in whole segments, so every record carries a counter: the bytes
 * appended to its partition, itself included. What is kept is the difference between the counters at both ends. This
 * process mostly knows them, because it appends or reads the partition; else it looks the records up, so few of a partition
 * that it is cheap however many read it, and between those that it knows it goes by their offsets.
 */
import type { TopicName } from '../log.ts'

/** @property total the record's counter; undefined: it has none */
export type Counted = Readonly<{ size: number; total: number | undefined }>
type LookUp = (topic: TopicName, partition: number, offset: number) => Promise<Counted | undefined>

/** The header of a record that holds the counter, in decimal digits. */
export const COUNTER_HEADER = 'bytes'
/** Counters of so many records that were read are remembered: a trim mostly ends at one of them. */
const REMEMBERED = 4_096
/** Of those that were asked for. */
const REMEMBERED_POINTS = 1_024
/** A look-up fetches a batch: of each partition so many in this time. */
const LOOK_UPS = 4
const LOOK_UPS_EVERY_MS = 5_000

/** Of a partition: the first one kept, the committed one, and the one its next record gets. */
export type Offsets = Readonly<{ first: number; committed: number; next: number }>
type Partition = {
  /** the next offset as it was known last, and the bytes appended before it */
  next: Readonly<{ offset: number; bytes: number }>
  /** the counters before records that were read last */
  readonly offsets: Float64Array
  readonly before: Float64Array
  /** the same of records that were asked for, those asked for last at the end */
  readonly points: Map<number, number>
  lookUps: number
  lookingSince: number
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
  async between(
    topic: TopicName,
    partition: number,
    { first, committed, next }: Offsets,
  ): Promise<{ bytes: number; finishedBytes: number }> {
    if (first >= next) return { bytes: 0, finishedBytes: 0 }
    const of = this.#of(topic, partition)
    if (of.next.offset !== next && this.#mayLookUp(of)) {
      const last = await this.#lookUp(topic, partition, next - 1)
      if (last?.total !== undefined && next > of.next.offset) of.next = { offset: next, bytes: last.total }
    }
    const before = await this.#before(topic, partition, first)
    const below = await this.#before(topic, partition, Math.max(first, Math.min(committed, next)))
    const bytes = Math.max(0, of.next.bytes - before)
    return { bytes, finishedBytes: Math.max(0, Math.min(bytes, below - before)) }
  }

  /** Bytes appended before a record. */
  async #before(topic: TopicName, partition: number, offset: number): Promise<number> {
    const of = this.#of(topic, partition)
    if (offset === of.next.offset) return of.next.bytes
    let bytes = wasRead(of, offset) ?? of.points.get(offset)
    if (bytes === undefined && this.#mayLookUp(of)) {
      const record = await this.#lookUp(topic, partition, offset)
      if (record?.total !== undefined) bytes = record.total - record.size
    }
    if (bytes === undefined) return estimate(of, offset)
    of.points.delete(offset)
    of.points.set(offset, bytes)
    if (of.points.size > REMEMBERED_POINTS) of.points.delete(of.points.keys().next().value as number)
    return bytes
  }

  #mayLookUp(of: Partition): boolean {
    const now = performance.now()
    if (now - of.lookingSince > LOOK_UPS_EVERY_MS) Object.assign(of, { lookUps: 0, lookingSince: now })
    return ++of.lookUps <= LOOK_UPS
  }

  drop(topic: TopicName): void {
    for (const key of this.#partitions.keys()) if (key.startsWith(`${topic}/`)) this.#partitions.delete(key)
  }

  #of(topic: TopicName, partition: number): Partition {
    const key = `${topic}/${partition}`
    let of = this.#partitions.get(key)
    if (!of) {
      of = {
        next: { offset: -1, bytes: 0 },
        points: new Map(),
        ...{ lookUps: 0, lookingSince: -Infinity },
        offsets: new Float64Array(REMEMBERED).fill(-1),
        before: new Float64Array(REMEMBERED),
      }
      this.#partitions.set(key, of)
    }
    return of
  }
}

function wasRead({ offsets, before }: Partition, offset: number): number | undefined {
  const at = offset % REMEMBERED
  return offsets[at] === offset ? before[at] : undefined
}

/** By the nearest ones that are known on both sides. */
function estimate({ points, next }: Partition, offset: number): number {
  let low: readonly [number, number] | undefined
  let high: readonly [number, number] | undefined
  for (const point of [...points, [next.offset, next.bytes] as const]) {
    if (point[0] <= offset && (!low || point[0] > low[0])) low = point
    if (point[0] >= offset && (!high || point[0] < high[0])) high = point
  }
  if (!low || !high) return (low ?? high)?.[1] ?? 0
  return high[0] === low[0] ? low[1] : low[1] + ((high[1] - low[1]) * (offset - low[0])) / (high[0] - low[0])
}
