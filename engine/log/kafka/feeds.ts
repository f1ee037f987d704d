/**
 * Reads partitions once for all of their readers in this process: whoever reads a partition follows a feed, and those who are near
 * the same place follow the same one. So a record is fetched once for all of them, a pack in parts is put together once, and what
 * they get is one buffer.
 *
 *  F1. A feed fetches when one of its followers has begun with what came last: there are no more than two answers ahead of the
 *      quickest, and who asks for nothing fetches nothing. F2. A feed keeps what one of its followers has still to read, up to a
 *      bound that all feeds share; then the oldest leaves,
 *      whoever needs it. Nobody is waited for. F3. A follower stands in the feed that is furthest ahead of those that have what it
 *      reads next, or are to fetch it next. One
 *      that has fallen behind, or begins where nobody is, makes a feed of its own there; it ends when the last one has left,
 *      as it does when it has come to where another one is.
 */
import type { LogRecord } from '../log.ts'
import { PartJoiner, type PartPlaces } from '../pack-parts.ts'
import type { Brokers } from './brokers.ts'
import type { KafkaConnection } from './connection.ts'
import { Fetching } from './fetching.ts'
import type { FetchedMessage } from './kafkajs.ts'
import { countedOf, type Counted } from './sizes.ts'

/** A partition as its feeds know it. */
type FedPartition = Readonly<{
  /** as Kafka knows it */
  topic: string
  partition: number
  places: PartPlaces
  /** @returns first offset kept and the next one */
  bounds: () => Promise<Readonly<{ first: number; next: number }>>
  recordAt: (offset: number) => Promise<Buffer | undefined>
  /** a record has been fetched */
  fetched: (offset: number, counted: Counted) => void
}>

type FeedsOptions = Readonly<{
  connection: KafkaConnection
  brokers: Brokers
  /** memory for what all feeds hold */
  maxBytes: number
}>

const MOST_FETCHED_BYTES = 2 * 1024 * 1024
/** A broker ends an answer within a batch, which is fetched again: of small answers that is much. */
const LEAST_FETCHED_BYTES = 512 * 1024
/** Bytes that are kept after all followers have read them: a follower that has caught up finds its place in them. */
const PASSED_BYTES = 256 * 1024

/** The feeds of all partitions that are read in this process. */
export class Feeds {
  readonly #options: FeedsOptions
  readonly #partitions = new Map<string, Set<Feed>>()
  #count = 0

  constructor(options: FeedsOptions) {
    this.#options = options
  }

  /** The bytes that one feed may keep. */
  get share(): number {
    return Math.max(2 * LEAST_FETCHED_BYTES, this.#options.maxBytes / Math.max(1, this.#count))
  }

  /**
   * The records of a partition from an offset on, then new ones until aborted.
   * @throws EngineError LOG_UNREACHABLE, LOG_REFUSED, LOG_TRUNCATED, PACK_MALFORMED
   */
  async *read(partition: FedPartition, from: number, before: number, signal: AbortSignal): AsyncGenerator<LogRecord> {
    const follower = new Follower(from)
    const leave = () => {
      follower.follow(undefined) // at once: who holds a record in hand may never ask for the next one
      follower.wake()
    }
    signal.addEventListener('abort', leave, { once: true })
    try {
      while (!signal.aborted && follower.at < before) {
        const record = follower.take()
        if (record) {
          if (record.offset < before) yield record
          continue
        }
        if (follower.at >= before) return
        follower.follow(this.#feedAt(partition, follower.at))
        if (follower.hasMore()) continue
        if (!(await follower.more())) return
      }
    } finally {
      signal.removeEventListener('abort', leave)
      leave()
    }
  }

  // ── by feeds ────────────────────────────────────────────────────────────────────────────────────

  /** Whether another feed has what the feed would fetch next. */
  isAhead(feed: Feed): boolean {
    const best = this.#best(feed.partition, feed.end)
    return best !== undefined && best !== feed
  }

  /** Followers of others that wait for what it has now needn't. */
  grew(feed: Feed): void {
    for (const other of this.#partitions.get(keyOf(feed.partition)) ?? [])
      if (other !== feed && feed.start <= other.end && other.end <= feed.end) other.wake()
  }

  /** Nobody follows it, or it has failed. */
  ended(feed: Feed): void {
    const key = keyOf(feed.partition)
    const feeds = this.#partitions.get(key)
    if (!feeds?.delete(feed)) return
    this.#count--
    if (feeds.size === 0) this.#partitions.delete(key)
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #feedAt(partition: FedPartition, at: number): Feed {
    const found = this.#best(partition, at)
    if (found) return found
    const { connection, brokers } = this.#options
    const feed = new Feed({ connection, brokers, partition, at, feeds: this })
    const key = keyOf(partition)
    const feeds = this.#partitions.get(key) ?? new Set()
    this.#partitions.set(key, feeds.add(feed))
    this.#count++
    for (const all of this.#partitions.values()) for (const other of all) other.shrink()
    return feed
  }

  /** Chooses, of the feeds that have the record at an offset or fetch it next, the one that is furthest ahead, and of equals the oldest. */
  #best(partition: FedPartition, at: number): Feed | undefined {
    let best: Feed | undefined
    for (const feed of this.#partitions.get(keyOf(partition)) ?? [])
      if (feed.start <= at && at <= feed.end && (!best || feed.end > best.end)) best = feed
    return best
  }
}

const keyOf = ({ topic, partition }: FedPartition): string => `${topic}/${partition}`

/** What one answer held. @property records none, once it has left */
type Chunk = { readonly from: number; readonly next: number; readonly bytes: number; records: readonly LogRecord[]; hasLeft: boolean }

/** Where one reader stands. */
class Follower {
  #at: number
  #feed: Feed | undefined
  #chunk: Chunk | undefined
  #index = 0
  #awake: (() => void) | undefined

  constructor(at: number) {
    this.#at = at
  }

  /** The offset after what was read. */
  get at(): number {
    return this.#at
  }

  /** @param feed undefined: it reads no more */
  follow(feed: Feed | undefined): void {
    if (feed === this.#feed) return
    this.#feed?.leave(this)
    this.#feed = feed
    if (!feed) this.#chunk = undefined
    feed?.enter(this)
  }

  /** @returns undefined: its feed has no more at the moment, or not any more */
  take(): LogRecord | undefined {
    for (;;) {
      const record = this.#chunk?.records[this.#index]
      if (record) {
        this.#index++
        this.#at = record.offset + 1
        return record
      }
      if (this.#chunk && !this.#chunk.hasLeft) this.#at = Math.max(this.#at, this.#chunk.next)
      this.#chunk = this.#feed?.begin(this.#at)
      if (!this.#chunk) return undefined
      const index = this.#chunk.records.findIndex(({ offset }) => offset >= this.#at)
      this.#index = index < 0 ? this.#chunk.records.length : index
    }
  }

  hasMore(): boolean {
    return this.#feed?.has(this.#at) ?? false
  }

  /** Settles when its feed has more, or when it is woken. @returns false: there is no more */
  async more(): Promise<boolean> {
    const feed = this.#feed
    if (!feed) return false
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#awake = resolve
    feed.ask()
    await promise
    if (feed.failure) throw feed.failure
    return !feed.isOver
  }

  wake(): void {
    this.#awake?.()
  }
}

type FeedOptions = Readonly<{ connection: KafkaConnection; brokers: Brokers; partition: FedPartition; at: number; feeds: Feeds }>

class Feed {
  readonly partition: FedPartition
  readonly #feeds: Feeds
  readonly #fetching: Fetching
  readonly #joiner: PartJoiner
  readonly #followers = new Set<Follower>()
  #chunks: Chunk[] = []
  #bytes = 0
  #end: number
  #isFetching = false
  #isOver = false
  #failure: unknown

  constructor({ connection, brokers, partition, at, feeds }: FeedOptions) {
    const { topic, partition: number, bounds, recordAt, places } = partition
    this.partition = partition
    this.#feeds = feeds
    this.#end = at
    this.#fetching = new Fetching({ connection, brokers, topic, partition: number, bounds })
    this.#joiner = new PartJoiner({ fetch: recordAt, places })
  }

  /** The first offset it has. */
  get start(): number {
    return this.#chunks[0]?.from ?? this.#end
  }
  /** The one it fetches next. */
  get end(): number {
    return this.#end
  }
  /** The topic is gone, or nobody follows any more. */
  get isOver(): boolean {
    return this.#isOver
  }
  get failure(): unknown {
    return this.#failure
  }

  enter(follower: Follower): void {
    this.#followers.add(follower)
  }

  leave(follower: Follower): void {
    this.#followers.delete(follower)
    if (this.#followers.size === 0) this.#close()
  }

  has(offset: number): boolean {
    return this.start <= offset && offset < this.#end
  }

  /** Somebody begins with what has an offset. */
  begin(offset: number): Chunk | undefined {
    if (!this.has(offset)) return undefined
    const at = this.#chunks.findLastIndex(({ from }) => from <= offset)
    if (at === this.#chunks.length - 1 && !this.#feeds.isAhead(this)) this.ask()
    return this.#chunks[at]
  }

  /** Fetches on. */
  ask(): void {
    if (this.#isFetching || this.#isOver) return
    this.#isFetching = true
    void this.#fetch()
  }

  wake(): void {
    for (const follower of this.#followers) follower.wake()
  }

  /** Lets go of what is above its share, except for what came last. */
  shrink(): void {
    while (this.#chunks.length > 1 && this.#bytes > this.#feeds.share) this.#drop()
  }

  async #fetch(): Promise<void> {
    try {
      const bytes = Math.min(MOST_FETCHED_BYTES, Math.max(LEAST_FETCHED_BYTES, this.#feeds.share / 2))
      const answer = await this.#fetching.fetch(this.#end, Math.floor(bytes))
      if (!answer) this.#close()
      else if (!this.#isOver) {
        await this.#take(answer.messages, answer.next)
        this.#feeds.grew(this)
      }
    } catch (error) {
      this.#failure = error
      this.#close()
    }
    this.#isFetching = false
    this.wake()
  }

  async #take(messages: readonly FetchedMessage[], next: number): Promise<void> {
    const { fetched, places } = this.partition
    const records: LogRecord[] = []
    for (const { offset: text, value, headers } of messages) {
      if (!value) continue
      const offset = Number(text)
      const met = this.#joiner.push({ offset, pack: copied(value) })
      const record = met instanceof Promise ? await met : met
      fetched(offset, countedOf(value, headers))
      if (record) records.push(record)
    }
    places.met(this.#end, next)
    const bytes = records.reduce((sum, { pack }) => sum + pack.length, 0)
    this.#chunks.push({ from: this.#end, next, bytes, records, hasLeft: false })
    this.#bytes += bytes
    this.#end = next
    const passed = Math.min(...Array.from(this.#followers, ({ at }) => at))
    for (let first = this.#chunks[0]; first && first.next <= passed && this.#bytes - first.bytes > PASSED_BYTES; [first] = this.#chunks)
      this.#drop()
    this.shrink()
  }

  #drop(): void {
    const chunk = this.#chunks.shift()
    if (!chunk) return
    this.#bytes -= chunk.bytes
    chunk.records = []
    chunk.hasLeft = true
  }

  #close(): void {
    this.#isOver = true
    this.#fetching.close()
    this.#feeds.ended(this)
  }
}

/** In memory of its own: a pack that stays long would keep the whole answer. Aligned, so that decoding doesn't copy again. */
function copied(value: Buffer): Buffer {
  const copy = Buffer.from(new ArrayBuffer(value.length))
  copy.set(value)
  return copy
}
