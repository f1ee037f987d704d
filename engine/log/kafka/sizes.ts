/**
 * Tells how many bytes a partition holds. Brokers tell that only in whole segments, so every record carries counters: the bytes
 * appended to its partition, itself included, and those of each action. What is kept is the difference between the counters at
 * both ends. This process mostly knows them, because it appends or reads the partition; else it looks the records up, so few of a partition
 * that it is cheap however many read it, and between those that it knows it goes by their offsets.
 */
import type { TopicName } from '../log.ts'
import { minus, NO_WEIGHT, plus, readShares, weightOf, type Weight } from '../weight.ts'

/** @property weight of the record. @property total its counters; undefined: it has none */
export type Counted = Readonly<{ weight: Weight; total: Weight | undefined }>
type LookUp = (topic: TopicName, partition: number, offset: number) => Promise<Counted | undefined>

/** Headers of a record that hold the counters, in decimal digits: of all bytes, and of inserts, updates and deletes. */
const BYTES_HEADER = 'bytes'
const ACTIONS_HEADER = 'actions'
type Headers = Readonly<Record<string, Buffer | Buffer[] | string | undefined>>

/** Writes counters as the headers of a record. */
export const counters = ({ bytes, insert, update, delete: deleted }: Weight): Readonly<Record<string, string>> => ({
  [BYTES_HEADER]: String(bytes),
  [ACTIONS_HEADER]: `${insert} ${update} ${deleted}`,
})

/** Reads what a record weighs, and its counters. @param value of the record */
export function countedOf(value: Buffer, headers: Headers): Counted {
  const numbers = (name: string) => String(headers[name] ?? NaN).split(' ').map(Number) // prettier-ignore
  const [bytes = NaN] = numbers(BYTES_HEADER)
  const [insert = NaN, update = NaN, deleted = NaN] = numbers(ACTIONS_HEADER)
  const counted = (count: number) => (Number.isFinite(count) ? count : 0) // a former version counted bytes alone
  return {
    weight: weightOf(value.length, readShares(value)),
    total: Number.isFinite(bytes) ? { bytes, insert: counted(insert), update: counted(update), delete: counted(deleted) } : undefined,
  }
}

/** Counters of so many records that were read are remembered: a trim mostly ends at one of them. */
const REMEMBERED = 4_096
const COUNTERS = 4
/** Of those that were asked for. */
const REMEMBERED_POINTS = 1_024
/** A look-up fetches a batch: of each partition so many in this time. */
const LOOK_UPS = 4
const LOOK_UPS_EVERY_MS = 5_000

/** Of a partition: the first one kept, the committed one, and the one its next record gets. */
type Offsets = Readonly<{ first: number; committed: number; next: number }>
type Partition = {
  /** the next offset as it was known last, and the bytes appended before it */
  next: Readonly<{ offset: number; total: Weight }>
  /** the counters before records that were read last, those of one side by side */
  readonly offsets: Float64Array
  readonly before: Float64Array
  /** the counters before records that were asked for, those asked for last at the end */
  readonly points: Map<number, Weight>
  lookUps: number
  lookingSince: number
}

/** Tells how many bytes partitions hold. */
export class Sizes {
  readonly #partitions = new Map<string, Partition>()
  readonly #lookUp: LookUp

  constructor(lookUp: LookUp) {
    this.#lookUp = lookUp
  }

  /** Records up to before `next` are durable, the last one with this counter. */
  appended(topic: TopicName, partition: number, next: number, total: Weight): void {
    this.#of(topic, partition).next = { offset: next, total }
  }

  /** A record has been read. */
  read(topic: TopicName, partition: number, offset: number, { weight, total }: Counted): void {
    if (!total) return
    const known = this.#of(topic, partition)
    const at = offset % REMEMBERED
    known.offsets[at] = offset
    const { bytes, insert, update, delete: deleted } = minus(total, weight)
    known.before.set([bytes, insert, update, deleted], at * COUNTERS)
  }

  /**
   * Bytes between the first offset kept for a reader and the next one, which the log has just named, and how many of them lie below
   * the committed one.
   */
  async between(
    topic: TopicName,
    partition: number,
    { first, committed, next }: Offsets,
  ): Promise<{ bytes: number; finishedBytes: number }> {
    if (first >= next) return { bytes: 0, finishedBytes: 0 }
    const known = this.#of(topic, partition)
    await this.#lookAtEnd(topic, partition, known, next)
    const before = await this.#before(topic, partition, first)
    const below = await this.#before(topic, partition, Math.max(first, Math.min(committed, next)))
    const { bytes } = minus(known.next.total, before)
    return { bytes, finishedBytes: Math.min(bytes, minus(below, before).bytes) }
  }

  /** Tells what the records from one offset up to before another take. @param range with the next offset, which the log has just named */
  async weigh(
    topic: TopicName,
    partition: number,
    { from, before, next }: Readonly<{ from: number; before: number; next: number }>,
  ): Promise<Weight> {
    if (from >= before) return NO_WEIGHT
    const known = this.#of(topic, partition)
    await this.#lookAtEnd(topic, partition, known, next)
    const below = await this.#before(topic, partition, from)
    return minus(before === next ? known.next.total : await this.#before(topic, partition, before), below)
  }

  async #lookAtEnd(topic: TopicName, partition: number, known: Partition, next: number): Promise<void> {
    if (known.next.offset === next || !this.#mayLookUp(known)) return
    const last = await this.#lookUp(topic, partition, next - 1)
    if (last?.total && next > known.next.offset) known.next = { offset: next, total: last.total }
  }

  /** Tells what was appended before a record. */
  async #before(topic: TopicName, partition: number, offset: number): Promise<Weight> {
    const known = this.#of(topic, partition)
    if (offset === known.next.offset) return known.next.total
    let before = wasRead(known, offset) ?? known.points.get(offset)
    if (!before && this.#mayLookUp(known)) {
      const record = await this.#lookUp(topic, partition, offset)
      if (record?.total) before = minus(record.total, record.weight)
    }
    if (!before) return estimate(known, offset)
    known.points.delete(offset)
    known.points.set(offset, before)
    const [oldest] = known.points.keys()
    if (oldest !== undefined && known.points.size > REMEMBERED_POINTS) known.points.delete(oldest)
    return before
  }

  #mayLookUp(known: Partition): boolean {
    const now = performance.now()
    if (now - known.lookingSince > LOOK_UPS_EVERY_MS) Object.assign(known, { lookUps: 0, lookingSince: now })
    return ++known.lookUps <= LOOK_UPS
  }

  drop(topic: TopicName): void {
    for (const key of this.#partitions.keys()) if (key.startsWith(`${topic}/`)) this.#partitions.delete(key)
  }

  #of(topic: TopicName, partition: number): Partition {
    const key = `${topic}/${partition}`
    let known = this.#partitions.get(key)
    if (!known) {
      known = {
        next: { offset: -1, total: NO_WEIGHT },
        points: new Map(),
        lookUps: 0,
        lookingSince: -Infinity,
        offsets: new Float64Array(REMEMBERED).fill(-1),
        before: new Float64Array(REMEMBERED * COUNTERS),
      }
      this.#partitions.set(key, known)
    }
    return known
  }
}

function wasRead({ offsets, before }: Partition, offset: number): Weight | undefined {
  const at = offset % REMEMBERED
  if (offsets[at] !== offset) return undefined
  const [bytes = 0, insert = 0, update = 0, deleted = 0] = before.subarray(at * COUNTERS, (at + 1) * COUNTERS)
  return { bytes, insert, update, delete: deleted }
}

/** By the nearest ones that are known on both sides. */
function estimate({ points, next }: Partition, offset: number): Weight {
  let low: readonly [number, Weight] | undefined
  let high: readonly [number, Weight] | undefined
  for (const point of [...points, [next.offset, next.total] as const]) {
    if (point[0] <= offset && (!low || point[0] > low[0])) low = point
    if (point[0] >= offset && (!high || point[0] < high[0])) high = point
  }
  if (!low || !high) return (low ?? high)?.[1] ?? NO_WEIGHT
  const share = high[0] === low[0] ? 0 : (offset - low[0]) / (high[0] - low[0])
  return plus(low[1], partOf(minus(high[1], low[1]), share))
}

const partOf = ({ bytes, insert, update, delete: deleted }: Weight, share: number): Weight => ({
  bytes: bytes * share,
  insert: insert * share,
  update: update * share,
  delete: deleted * share,
})
