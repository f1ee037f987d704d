/** Bounds of partitions, places by time, and trims. */
import type { Brokers } from './brokers.ts'
import { kafkaCode } from './failure.ts'
import { patiently } from './patience.ts'
import { Recent } from './recent.ts'

type Bounds = Readonly<{ first: number; next: number }>
type Trim = { wanted: number; done: number; at: number; timer: NodeJS.Timeout | undefined }

const EARLIEST = -2
const LATEST = -1
const NO_REPLICA = -1
const READ_UNCOMMITTED = 0
/** Trims of a partition are gathered: brokers free whole segments only, so more of them free nothing sooner. */
const TRIM_EVERY_MS = 1_000

/** Asks brokers for offsets, and trims. */
export class Offsets {
  readonly #brokers: Brokers
  readonly #known = new Recent<readonly Bounds[]>()
  readonly #trims = new Map<string, Trim>()

  constructor(brokers: Brokers) {
    this.#brokers = brokers
  }

  /** First offset kept and the next one. @param topic as Kafka knows it */
  async bounds(topic: string, partition: number): Promise<Bounds> {
    const [[first], [next]] = await Promise.all([this.#list(topic, [partition], EARLIEST), this.#list(topic, [partition], LATEST)])
    return { first: first ?? 0, next: next ?? 0 }
  }

  /** The bounds as they were asked for no longer ago than `maxAgeMs`, for all partitions of the topic at once. */
  async recentBounds(topic: string, partition: number, maxAgeMs: number): Promise<Bounds> {
    const bounds = await this.#known.get(topic, maxAgeMs, () => this.#allBounds(topic))
    return bounds[partition] ?? this.bounds(topic, partition)
  }

  forget(topic: string): void {
    this.#known.forget(topic)
    for (const key of this.#trims.keys()) if (key.startsWith(`${topic}/`)) this.#trims.delete(key)
  }

  /** The first record whose latest commit is at or after a time, in ms since the epoch. */
  async atTime(topic: string, partition: number, timeMs: number): Promise<number | undefined> {
    const [offset = -1] = await this.#list(topic, [partition], Math.max(0, Math.ceil(timeMs)))
    return offset < 0 ? undefined : offset
  }

  /** Deletes the records below `before`: at once, or a moment later if that was done just now. */
  async trim(topic: string, partition: number, before: number): Promise<void> {
    const key = `${topic}/${partition}`
    const trim = this.#trims.get(key) ?? { wanted: 0, done: 0, at: -Infinity, timer: undefined }
    this.#trims.set(key, trim)
    trim.wanted = Math.max(trim.wanted, before)
    if (trim.wanted <= trim.done || trim.timer) return
    const waitMs = trim.at + TRIM_EVERY_MS - performance.now()
    if (waitMs <= 0) return this.#trim(topic, partition, trim)
    trim.timer = setTimeout(() => {
      trim.timer = undefined
      this.#trim(topic, partition, trim).catch(() => undefined) // the next trim asks for this one too
    }, waitMs).unref()
  }

  async #trim(topic: string, partition: number, trim: Trim): Promise<void> {
    trim.at = performance.now()
    const { wanted } = trim
    const { next } = await this.bounds(topic, partition)
    const offset = Math.min(wanted, next)
    try {
      await this.#brokers.leader(topic, partition, (broker) =>
        broker.deleteRecords({ topics: [{ topic, partitions: [{ partition, offset: String(offset) }] }] }),
      )
    } catch (error) {
      if (kafkaCode(error) !== 'OFFSET_OUT_OF_RANGE') throw error // trimmed further by another
    }
    if (offset === wanted) trim.done = wanted
    this.#known.forget(topic)
  }

  async #allBounds(topic: string): Promise<readonly Bounds[]> {
    const { leaders } = await patiently(() => this.#brokers.layout(topic))
    const bounds: Bounds[] = []
    await Promise.all(
      [...new Set(leaders)].map(async (leader) => {
        const partitions = [...leaders.keys()].filter((partition) => leaders[partition] === leader)
        const [firsts, nexts] = await Promise.all([this.#list(topic, partitions, EARLIEST), this.#list(topic, partitions, LATEST)])
        for (const [i, partition] of partitions.entries()) bounds[partition] = { first: firsts[i] ?? 0, next: nexts[i] ?? 0 }
      }),
    )
    return bounds
  }

  /** @param partitions of one leader @returns in their order; -1: none */
  async #list(topic: string, partitions: readonly number[], timestamp: number): Promise<number[]> {
    const request = {
      replicaId: NO_REPLICA,
      isolationLevel: READ_UNCOMMITTED,
      topics: [{ topic, partitions: partitions.map((partition) => ({ partition, timestamp })) }],
    }
    const { responses } = await patiently(() => this.#brokers.leader(topic, partitions[0] ?? 0, (broker) => broker.listOffsets(request)))
    const found = new Map(responses[0]?.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
    return partitions.map((partition) => found.get(partition) ?? -1)
  }
}
