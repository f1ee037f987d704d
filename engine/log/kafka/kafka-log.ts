/**
 * The log at home in Kafka: one topic for each stream, one consumer group for each generation of a sink that reads it, so that
 * a change of one rebalances no other. What Kafka doesn't keep, or not for ever, is in the state database (second-memory.ts).
 *
 * Differences from the embedded log that callers meet:
 *  - an append over several partitions is atomic in each, not over all: after a failure the next run appends the same again;
 *  - progress is saved every second, and with what is confirmed, so a run may append up to a second's worth again;
 *  - a trim may come a moment later than it is asked for;
 *  - offsets begin with 0 there: the first record of a copy stands for the offset that it has elsewhere, its base, and every offset that
 *    comes in or goes out is translated here; only commits are what their readers say;
 *  - a pack that is larger than a record of its topic may be lies in several (../pack-parts.ts).
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'
import { comparePositions, type Position } from '../../position.ts'
import type { Query } from '../../postgres/query.ts'
import {
  type AppendRecord,
  type AssignmentListener,
  type Commit,
  type CopiedPart,
  isCopy,
  type Log,
  type LogRecord,
  type PartitionStats,
  type Progress,
  type Reached,
  type ReaderName,
  type TopicName,
  topicRead,
  type Topic,
  type TopicPartition,
} from '../log.ts'
import { Pack, type PackHeader } from '../pack.ts'
import { NO_WEIGHT, type Weight } from '../weight.ts'
import { isLaterPart, isWholeWith, PartPlaces } from '../pack-parts.ts'
import { Brokers } from './brokers.ts'
import { Commits } from './commits.ts'
import { addressOf, type KafkaConnection } from './connection.ts'
import { Feeds } from './feeds.ts'
import { Fetching, fetchOnce } from './fetching.ts'
import { FormerMembers, Membership, type ServedTopic } from './membership.ts'
import { Offsets } from './offsets.ts'
import { patiently } from './patience.ts'
import type { ProducedMessage } from './kafkajs.ts'
import { Producer, timestampOf } from './producer.ts'
import { ProgressKeeper } from './progress-keeper.ts'
import { SecondMemory } from './second-memory.ts'
import { type Counted, countedOf, counters, Sizes } from './sizes.ts'
import { Topics } from './topics.ts'

/** Says where the log is, and which of its settings are not as usual. */
export type KafkaLogOptions = Readonly<{
  connection: KafkaConnection
  /** in front of the names of topics and groups ("tailrace.") */
  prefix?: string
  /** copies of each partition; absent: 3, or as many as there are brokers */
  replication?: number | undefined
  /** of the state database */
  query: Query
  /** a folder that belongs to one process at a time: one that is started after a crash needn't wait for its former session to end */
  folder?: string | undefined
  /** what an operator should hear of: not a failure of any call */
  notice?: (text: string, error?: unknown) => void
  /** a process that is silent for so long loses its partitions (6,000, the least that brokers allow) */
  sessionTimeoutMs?: number
  /** how long brokers are waited for at the start (10,000) */
  openTimeoutMs?: number
  /** limit of one append (20,000) */
  appendTimeoutMs?: number
  /** how large a record may be, where the cluster lets us say so (64 MB) */
  maxRecordBytes?: number
  /** memory for what has been read and not been taken (64 MB) */
  readBytes?: number
}>

const DEFAULTS = {
  prefix: 'tailrace.',
  sessionTimeoutMs: 6_000,
  openTimeoutMs: 10_000,
  appendTimeoutMs: 20_000,
  maxRecordBytes: 64 * 1024 * 1024,
  readBytes: 64 * 1024 * 1024,
} as const

/** Opens the log in Kafka. @throws EngineError LOG_UNREACHABLE, LOG_REFUSED */
export async function openKafkaLog(options: KafkaLogOptions): Promise<Log> {
  const brokers = new Brokers(options.connection)
  try {
    const { clusterId } = await patiently(() => brokers.describe(), undefined, options.openTimeoutMs ?? DEFAULTS.openTimeoutMs)
    return new KafkaLog({ ...DEFAULTS, ...options, notice: options.notice ?? (() => undefined) }, brokers, clusterId ?? 'unnamed')
  } catch (cause) {
    brokers.close()
    if (!(cause instanceof EngineError) || cause.code !== 'LOG_UNREACHABLE') throw cause
    const named = options.connection.brokers.map(addressOf).join(', ')
    throw new EngineError(
      'LOG_UNREACHABLE',
      `none of the Kafka brokers ${named} can be reached: ${cause.message}`,
      { brokers: named },
      { cause },
    )
  }
}

/** A copy fetches and sends so much of a topic at once. */
const COPY_BYTES = 1024 * 1024
const LACKING_TRIES = 3
const LACKING_PAUSE_MS = 500

type Options = KafkaLogOptions & Required<Pick<KafkaLogOptions, keyof typeof DEFAULTS | 'notice'>>

class KafkaLog implements Log {
  readonly identity: string
  readonly #options: Options
  /** for questions and administration */
  readonly #brokers: Brokers
  /** for what groups ask, commits and heartbeats: over connections of their own, so that they wait for nothing else */
  readonly #groupBrokers: Brokers
  readonly #topics: Topics
  readonly #offsets: Offsets
  readonly #sizes: Sizes
  readonly #memory: SecondMemory
  readonly #commits: Commits
  readonly #progress: ProgressKeeper
  readonly #producers = new Map<string, Producer>()
  readonly #formerMembers: FormerMembers | undefined
  readonly #members = new Map<ReaderName, Membership>()
  /** names this process to others in the groups */
  readonly #node = randomUUID()
  readonly #served = new Map<TopicName, ServedTopic>()
  readonly #feeds: Feeds
  /** where packs in parts stand, by topic and partition */
  readonly #places = new Map<string, PartPlaces>()
  /** of copies, by topic */
  readonly #bases = new Map<TopicName, readonly number[]>()
  readonly #closed = new AbortController()

  constructor(options: Options, brokers: Brokers, clusterId: string) {
    const { connection, prefix, notice, maxRecordBytes } = options
    this.#options = options
    this.#formerMembers = options.folder === undefined ? undefined : new FormerMembers(options.folder)
    this.#brokers = brokers
    this.#groupBrokers = new Brokers(connection)
    this.identity = `kafka:${clusterId}/${prefix}`
    this.#topics = new Topics(brokers, { prefix, replication: options.replication, maxRecordBytes })
    this.#offsets = new Offsets(brokers)
    this.#sizes = new Sizes((topic, partition, offset) => this.#counted(topic, partition, offset))
    this.#feeds = new Feeds({ connection, brokers, maxBytes: options.readBytes })
    this.#memory = new SecondMemory(options.query, this.identity)
    this.#progress = new ProgressKeeper(this.#memory, notice)
    this.#commits = new Commits({
      brokers: this.#groupBrokers,
      memory: this.#memory,
      nameOf: (name) => this.#topics.nameOf(name),
      generationOf: (reader, partition) => {
        const member = this.#members.get(reader)
        return member ? member.generationOf(partition) : 'outside'
      },
      notice,
    })
  }

  createTopic(topic: TopicName, partitions: number): Promise<void> {
    return this.#topics.create(topic, partitions)
  }

  /** With the groups of its readers and what is remembered of them. */
  async deleteTopic(topic: TopicName): Promise<void> {
    const name = this.#topics.nameOf(topic)
    await this.#memory.dropEnds(topic) // first: a topic that is gone is missed
    await this.#topics.delete(topic)
    if (isCopy(topic)) await this.#memory.dropBases(topic)
    this.#bases.delete(topic)
    this.#offsets.forget(name)
    this.#sizes.drop(topic)
    this.#served.delete(topic)
    for (const key of this.#places.keys()) if (key.startsWith(`${topic}/`)) this.#places.delete(key)
    const listed = (await this.readers()).filter((reader) => topicRead(reader) === topic)
    for (const reader of new Set([topic, ...listed, ...(await this.#memory.readersOf(topic))])) await this.deleteReader(reader)
    await this.#memory.dropEnds(topic) // what was saved meanwhile
  }

  async deleteReader(reader: ReaderName): Promise<void> {
    this.#commits.forget(reader)
    await this.#memory.dropCheckpoints(reader)
    const group = this.#topics.nameOf(reader)
    try {
      await this.#groupBrokers.coordinator(group, (broker) => broker.deleteGroups([group]))
    } catch (error) {
      this.#options.notice(`the group ${group}, which reads no more, is left to expire`, error)
    }
  }

  topics(maxAgeMs = 0): Promise<readonly Topic[]> {
    return this.#topics.list(maxAgeMs)
  }

  async beginRun(source: string): Promise<void> {
    this.#producers.get(source)?.close()
    this.#producers.delete(source)
    await this.#progress.flush(source)
    const producer = await this.#beginProducer({
      ends: (topic, partition, next) => this.#progress.ends(source, topic, partition, next),
      lastTotal: async (topic, partition) => {
        const { first, next } = await this.#stored(topic, partition)
        return next > first ? ((await this.#counted(topic, partition, next - 1))?.total ?? NO_WEIGHT) : NO_WEIGHT
      },
    })
    this.#producers.set(source, producer)
  }

  async append(records: readonly AppendRecord[], progress: Progress): Promise<void> {
    const producer = this.#producers.get(progress.source)
    if (!producer)
      throw new EngineError('LOG_APPEND_FAILED', 'an earlier append of this run failed: nothing is appended until the source starts again')
    try {
      await producer.append(records)
    } catch (error) {
      producer.close()
      if (this.#producers.get(progress.source) === producer) this.#producers.delete(progress.source)
      throw error
    }
    this.#progress.reached(progress)
  }

  progress(source: string): Promise<Reached | undefined> {
    return this.#progress.of(source)
  }

  forgetProgress(source: string): Promise<void> {
    return this.#progress.forget(source)
  }

  /** It has no place of its own for it. Where its partitions end is saved here: an older copy of them is known by that. */
  remember(source: string): Promise<void> {
    return this.#progress.flush(source)
  }

  remembered(): undefined {
    return undefined
  }

  appendCount(): number {
    return 0
  }

  /** Asked again where something is missing: a partition may have a new leader that does not know its end yet. */
  async lacks(source: string, _appends: number, only?: TopicPartition): Promise<string | undefined> {
    let lacking = await this.#lacks(source, only)
    for (let tries = 1; lacking !== undefined && tries < LACKING_TRIES; tries++) {
      await delay(LACKING_PAUSE_MS, undefined, { ref: false })
      lacking = await this.#lacks(source, only)
    }
    return lacking
  }

  read(topic: TopicName, partition: number, from: number, signal: AbortSignal, before = Infinity): AsyncIterable<LogRecord> {
    return isCopy(topic) ? this.#readCopy(topic, partition, from, signal, before) : this.#readStored(topic, partition, from, signal, before)
  }

  async *#readCopy(topic: TopicName, partition: number, from: number, signal: AbortSignal, before: number): AsyncIterable<LogRecord> {
    const base = await this.#baseOf(topic, partition)
    for await (const { offset, pack } of this.#readStored(topic, partition, Math.max(0, from - base), signal, before - base))
      yield { offset: offset + base, pack }
  }

  #readStored(topic: TopicName, partition: number, from: number, signal: AbortSignal, before: number): AsyncIterable<LogRecord> {
    const name = this.#topics.nameOf(topic)
    const fed = {
      topic: name,
      partition,
      places: this.#placesOf(topic, partition),
      bounds: () => this.#stored(topic, partition),
      recordAt: (offset: number) => this.#recordAt(topic, partition, offset),
      fetched: (offset: number, counted: Counted) => this.#sizes.read(topic, partition, offset, counted),
    }
    return this.#feeds.read(fed, from, before, AbortSignal.any([signal, this.#closed.signal]))
  }

  async headerAt(topic: TopicName, partition: number, offset: number): Promise<PackHeader | undefined> {
    const record = await this.#recordAt(topic, partition, offset - (await this.#baseOf(topic, partition)))
    return record && isWholeWith(record) ? Pack.header(record) : undefined
  }

  commit(reader: ReaderName, partition: number, commit: Commit): Promise<void> {
    return this.#commits.commit(reader, partition, commit)
  }

  join(reader: ReaderName, partition: number, from: Commit): Promise<void> {
    return this.#commits.join(reader, partition, from)
  }

  committed(reader: ReaderName, partition: number): Promise<Commit | undefined> {
    const topic = topicRead(reader)
    return this.#commits.restore(reader, partition, async () => {
      const { next } = await this.#stored(topic, partition)
      return next + (await this.#baseOf(topic, partition))
    })
  }

  /** Kafka lists groups without members for a week after their last commit. */
  readers(): Promise<readonly ReaderName[]> {
    return this.#topics.readers()
  }

  neededFrom(topic: TopicName, partition: number, offset: number): number | undefined {
    if (offset === 0) return 0
    const base = isCopy(topic) ? this.#bases.get(topic)?.[partition] : 0
    if (base === undefined) return undefined
    if (offset <= base) return offset
    const needed = this.#placesOf(topic, partition).neededFrom(offset - base)
    return needed === undefined ? undefined : needed + base
  }

  /** Parts of packs are records as others are: each offset is taken. */
  async copy({ from, to, partition, offset, until, end }: CopiedPart, signal: AbortSignal): Promise<number> {
    const { first, next: before } = await this.#stored(from, partition)
    const base = Math.max(offset, first)
    await this.#memory.saveBase(to, partition, base)
    const producer = await this.#beginProducer({ ends: () => undefined, lastTotal: async () => NO_WEIGHT })
    const fetching = new Fetching({
      connection: this.#options.connection,
      brokers: this.#brokers,
      topic: this.#topics.nameOf(from),
      partition,
      bounds: () => this.#stored(from, partition),
    })
    const stop = () => fetching.close()
    signal.addEventListener('abort', stop, { once: true })
    try {
      let next = base
      for (let isMet = false; next < before && !isMet;) {
        const beganAt = performance.now()
        const answer = await fetching.fetch(next, COPY_BYTES)
        signal.throwIfAborted()
        if (!answer) throw new EngineError('LOG_TOPIC_UNKNOWN', `topic ${from} has been deleted`, { topic: from })
        const copied: ProducedMessage[] = []
        for (const { offset: at, value, timestamp, headers } of answer.messages) {
          if (Number(at) !== next || !value) break
          isMet = comparePositions(Pack.header(value).first, until) >= 0
          if (isMet) break
          const { total } = countedOf(value, headers)
          copied.push({ key: null, value, timestamp: Number(timestamp), headers: total ? counters(total) : {} })
          next++
        }
        if (copied.length === 0 && !isMet)
          throw new EngineError('LOG_TRUNCATED', `${from}/${partition} has no record at ${next}`, { topic: from, partition })
        await producer.copy(to, partition, copied)
        // half of the time: the source appends through the same brokers (measured: without it a quarter of its rate was left)
        await delay(performance.now() - beganAt, undefined, { signal }).catch(() => undefined)
      }
      signal.throwIfAborted()
      await producer.copy(to, partition, [{ key: null, value: end, timestamp: timestampOf(end) }])
      return next + 1
    } finally {
      signal.removeEventListener('abort', stop)
      fetching.close()
      producer.close()
    }
  }

  /** Keeps what is needed of packs in parts. */
  async trim(topic: TopicName, partition: number, before: number): Promise<void> {
    const kept = this.neededFrom(topic, partition, before)
    const base = await this.#baseOf(topic, partition)
    if (kept !== undefined) return this.#trim(topic, partition, kept - base)
    const record = await this.#recordAt(topic, partition, before - base) // nobody here has read it
    if (!record || !isLaterPart(record)) await this.#trim(topic, partition, before - base)
  }

  async offsetFor(topic: TopicName, partition: number, at: { timeMs: number } | { position: Position }): Promise<number> {
    const name = this.#topics.nameOf(topic)
    const { first, next } = await this.#stored(topic, partition)
    const base = await this.#baseOf(topic, partition)
    if ('timeMs' in at) return base + ((await this.#offsets.atTime(name, partition, at.timeMs)) ?? next)
    let low = first
    let high = next
    while (low < high) {
      const middle = Math.floor((low + high) / 2)
      const [message] = await fetchOnce(this.#brokers, name, partition, middle)
      const isAbove = message?.value && comparePositions(Pack.header(message.value).last, at.position) > 0
      if (isAbove) high = middle
      else low = Math.max(middle, Number(message?.offset ?? middle)) + 1
    }
    return base + Math.min(low, next)
  }

  async stats(reader: ReaderName, partition: number, maxAgeMs = 0, from = 0): Promise<PartitionStats> {
    const topic = topicRead(reader)
    const name = this.#topics.nameOf(topic)
    const bounds = maxAgeMs > 0 ? this.#offsets.recentBounds(name, partition, maxAgeMs) : this.#offsets.bounds(name, partition)
    const [{ first, next }, committed] = await Promise.all([bounds, this.#commits.offset(reader, partition, maxAgeMs)])
    this.#places.get(`${topic}/${partition}`)?.forget(first)
    const base = await this.#baseOf(topic, partition)
    const kept = { first: Math.max(first, from - base), committed: Math.max(0, committed - base), next }
    return { first: first + base, next: next + base, committed, ...(await this.#sizes.between(topic, partition, kept)) }
  }

  async weigh(topic: TopicName, partition: number, from: number, before: number, maxAgeMs = 0): Promise<Weight> {
    const name = this.#topics.nameOf(topic)
    const { first, next } = await (maxAgeMs > 0
      ? this.#offsets.recentBounds(name, partition, maxAgeMs)
      : this.#offsets.bounds(name, partition))
    const base = await this.#baseOf(topic, partition)
    return this.#sizes.weigh(topic, partition, { from: Math.max(first, from - base), before: Math.min(before - base, next), next })
  }

  /** The brokers' disks are not ours to see. */
  async isShortOfSpace(): Promise<boolean> {
    return false
  }

  async subscribe(reader: ReaderName, listener: AssignmentListener): Promise<AsyncDisposable> {
    if (this.#members.has(reader)) throw new EngineError('INTERNAL', `this process has subscribed to ${reader} already`, { reader })
    const { connection, sessionTimeoutMs, notice } = this.#options
    const member = new Membership({
      connection,
      sessionTimeoutMs,
      notice,
      brokers: this.#groupBrokers,
      topic: this.#topics.nameOf(topicRead(reader)),
      groupId: this.#topics.nameOf(reader),
      formerMembers: this.#formerMembers,
      node: this.#node,
      served: this.#servedOf(topicRead(reader)),
      listener: {
        assigned: (partition) => listener.assigned(partition),
        revoked: (partition) => {
          this.#commits.fence(reader, partition)
          listener.revoked(partition)
        },
        handOver: async () => listener.handOver?.(),
        trouble: (error) => listener.trouble?.(error),
      },
    })
    this.#members.set(reader, member)
    const leave = async () => {
      await member.stop()
      if (this.#members.get(reader) === member) this.#members.delete(reader)
    }
    try {
      await member.start()
    } catch (error) {
      await leave()
      throw error
    }
    return { [Symbol.asyncDispose]: leave }
  }

  holds(reader: ReaderName): boolean {
    return this.#members.get(reader)?.holds ?? false
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed.signal.aborted) return
    this.#closed.abort()
    await Promise.all([...this.#members.values()].map((member) => member.stop()))
    for (const producer of this.#producers.values()) producer.close()
    await this.#progress[Symbol.asyncDispose]()
    await this.#commits[Symbol.asyncDispose]()
    this.#groupBrokers.close()
    this.#brokers.close()
  }

  async #lacks(source: string, only?: TopicPartition): Promise<string | undefined> {
    const exists = new Set((await this.topics()).map(({ topic }) => topic))
    for (const { topic, partition, next } of await this.#memory.ends(source, only)) {
      if (!exists.has(topic)) return `topic ${this.#topics.nameOf(topic)} does not exist any more`
      const found = await this.#offsets.recentBounds(this.#topics.nameOf(topic), partition, LACKING_PAUSE_MS / 2)
      if (found.next < next)
        return `partition ${partition} of topic ${this.#topics.nameOf(topic)} ends at offset ${found.next}, and ended at offset ${next} before`
    }
    return undefined
  }

  #trim(topic: TopicName, partition: number, before: number): Promise<void> {
    return this.#offsets.trim(this.#topics.nameOf(topic), partition, before)
  }

  async #recordAt(topic: TopicName, partition: number, offset: number): Promise<Buffer | undefined> {
    const { first, next } = await this.#stored(topic, partition)
    if (offset < first || offset >= next) return undefined
    const [message] = await fetchOnce(this.#brokers, this.#topics.nameOf(topic), partition, offset)
    return message && Number(message.offset) === offset ? (message.value ?? undefined) : undefined
  }

  #servedOf(topic: TopicName): ServedTopic {
    const served = this.#served.get(topic) ?? { groups: new Map(), changes: 0, changedAt: 0 }
    this.#served.set(topic, served)
    return served
  }

  #placesOf(topic: TopicName, partition: number): PartPlaces {
    const key = `${topic}/${partition}`
    const places = this.#places.get(key) ?? new PartPlaces(() => performance.now())
    this.#places.set(key, places)
    return places
  }

  /** The offset that the first record of a partition stands for. @throws EngineError LOG_TOPIC_UNKNOWN, STATE_UNAVAILABLE */
  async #baseOf(topic: TopicName, partition: number): Promise<number> {
    if (!isCopy(topic)) return 0
    const known = this.#bases.get(topic)?.[partition]
    if (known !== undefined) return known
    const bases = await this.#memory.bases(topic)
    this.#bases.set(topic, bases)
    const base = bases[partition]
    if (base === undefined)
      throw new EngineError('LOG_TOPIC_UNKNOWN', `nothing has been copied to ${topic}/${partition}`, { topic, partition })
    return base
  }

  #beginProducer(of: Pick<Parameters<typeof Producer.begin>[0], 'ends' | 'lastTotal'>): Promise<Producer> {
    const { connection, appendTimeoutMs } = this.#options
    return Producer.begin({ connection, timeoutMs: appendTimeoutMs, topics: this.#topics, sizes: this.#sizes, ...of })
  }

  /** The first record and the next one, as the brokers count them. */
  #stored(topic: TopicName, partition: number): Promise<Readonly<{ first: number; next: number }>> {
    return this.#offsets.bounds(this.#topics.nameOf(topic), partition)
  }

  async #counted(topic: TopicName, partition: number, offset: number): Promise<Counted | undefined> {
    const [message] = await fetchOnce(this.#brokers, this.#topics.nameOf(topic), partition, offset)
    return message?.value ? countedOf(message.value, message.headers) : undefined
  }
}
