/**
 * The log at home on one machine: two LMDB environments, memory-mapped, no set-up. An environment has one writer at a time,
 * so commits have one of their own: an ack need not wait until megabytes of another source's backlog are on disk.
 *
 * What holds it together:
 *  - one transaction for each append: the records of all partitions, their counters and the source's progress, or none;
 *  - a write counts when the disk has it: lmdb may resolve a write before that, so every write waits for `flushed`,
 *    with a time limit, because after a failed flush it would wait for ever;
 *  - no read transaction lives across an await (it would keep every page freed meanwhile): values are copied out;
 *  - the last packs appended stay in memory until all readers near the tail have read them, and what readers have in their
 *    hands is given to others as it is: many readers of a topic cost the memory and the disk of one;
 *  - a record's key ends with its size and the shares of its actions, so that trimming knows what it frees without reading the
 *    values, and what is finished, or of others, is weighed by keys alone.
 * The file never shrinks, but space freed by trims is used again.
 */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { type Database, open, type RootDatabase } from 'lmdb'
import { MB } from '../amounts.ts'
import { EngineError } from '../errors.ts'
import { formatLsn, parseLsn } from '../lsn.ts'
import { comparePositions, type Position, positionBefore } from '../position.ts'
import {
  type AppendRecord,
  type AssignmentListener,
  type Commit,
  commitFromJson,
  commitToJson,
  type CopiedPart,
  type Log,
  type LogRecord,
  type PartitionStats,
  type Progress,
  type Reached,
  reachedFromJson,
  reachedToJson,
  type ReaderName,
  type RememberedState,
  type StoredCommit,
  type StoredReached,
  type TopicName,
  topicRead,
  type Topic,
} from './log.ts'
import { DiskRoom, FlushLimit } from './disk.ts'
import { Pack, type PackHeader } from './pack.ts'
import { offsetOf, recordKey, recordRange, weightOfKey } from './record-key.ts'
import { type Follower, TailCache } from './tail-cache.ts'
import { minus, NO_WEIGHT, plus, readShares, type Weight, Weights } from './weight.ts'

const FORMAT = 1
/** Memory for the packs at the tail. */
const CACHE_BYTES = 32 * MB

/** The settings of an embedded log that only some callers change. */
export type EmbeddedLogOptions = Readonly<{
  /** appends are refused when the file system has less left: commits and trims must still work */
  reserveBytes?: (fileSystemBytes: number) => number
  /** a write that the disk hasn't taken by then has failed for good */
  flushTimeoutMs?: number
  /** a flush failed: what is on disk is unknown, so the process must end */
  onFatal?: (error: EngineError) => void
  /** opens an environment: lmdb's own, or what a test puts before it */
  open?: typeof open
}>

type OpenTopic = { name: TopicName; number: number; partitions: PartitionState[]; deleted: boolean }
type StoredTopic = Readonly<{ number: number; partitions: number }>
type Counters = Readonly<{ next: number; bytes: number }>
type StoredState = Readonly<{ term: number; history: number; confirmed: string }>
/** @property appends of the source so far; absent in logs of versions that did not count */
type StoredProgress = (StoredReached | Forgotten) & Readonly<{ appends?: number }>
/** How far it is has been forgotten, and not how often it was appended to: an older copy is known by that. */
type Forgotten = Readonly<{ lsn?: undefined }>
/** What is kept beside the records, by kind and name: of a topic, of "topic/partition", of a source. */
type Meta = Readonly<{ topic: StoredTopic; counters: Counters; progress: StoredProgress; state: StoredState }>

/** Opens the log in a folder of its own, or makes it there. @throws EngineError LOG_TOO_NEW */
export async function openEmbeddedLog(folder: string, options: EmbeddedLogOptions = {}): Promise<Log> {
  return EmbeddedLog.open(folder, options)
}

class EmbeddedLog implements Log {
  readonly identity: string
  readonly #root: RootDatabase
  readonly #meta: Database<unknown, string>
  readonly #records: Database<Buffer, Buffer>
  readonly #commits: RootDatabase<StoredCommit, string>
  readonly #topics = new Map<TopicName, OpenTopic>()
  readonly #failed = new Set<string>()
  /** how many appends of each source are durable */
  readonly #appends = new Map<string, number>()
  readonly #cache: TailCache
  readonly #room: DiskRoom
  readonly #disk: FlushLimit
  /** the number given last: one is never used again, for records of a deleted topic may still be on their way out */
  #lastTopic = 0
  #closed = false

  static async open(folder: string, options: EmbeddedLogOptions): Promise<EmbeddedLog> {
    const environment = options.open ?? open
    const root = environment({ ...LMDB_OPTIONS, path: join(folder, 'log.mdb'), maxDbs: 4 })
    const commits = environment<StoredCommit, string>({ ...LMDB_OPTIONS, path: join(folder, 'commits.mdb') })
    const log = new EmbeddedLog(root, commits, folder, options)
    await log.#load()
    return log
  }

  private constructor(root: RootDatabase, commits: RootDatabase<StoredCommit, string>, folder: string, options: EmbeddedLogOptions) {
    this.#root = root
    this.#commits = commits
    this.#room = new DiskRoom(folder, options.reserveBytes ?? ((size) => Math.max(256 * MB, size * 0.05)))
    this.#meta = root.openDB<unknown, string>({ name: 'meta', encoding: 'json' })
    this.#records = root.openDB<Buffer, Buffer>({ name: 'records', encoding: 'binary', keyEncoding: 'binary' })
    const fatal = (error: EngineError) => {
      throw error
    }
    this.#disk = new FlushLimit({ timeoutMs: options.flushTimeoutMs ?? 30_000, onFatal: options.onFatal ?? fatal })
    this.#cache = new TailCache(CACHE_BYTES)
    const format = this.#meta.get('format')
    if (typeof format === 'number' && format > FORMAT) {
      throw new EngineError(
        'LOG_TOO_NEW',
        `the log in ${folder} has format ${format}; this version of Tailrace reads formats up to ${FORMAT}`,
        { format, known: FORMAT },
      )
    }
    const identity = this.#meta.get('identity')
    this.identity = typeof identity === 'string' ? identity : randomUUID()
  }

  async #load(): Promise<void> {
    if (this.#meta.get('identity') === undefined) {
      this.#disk.watch(this.#meta.put('format', FORMAT))
      await this.#disk.flushed(this.#meta.put('identity', this.identity))
    }
    const given = this.#meta.get('topics')
    this.#lastTopic = typeof given === 'number' ? given : 0
    for (const key of this.#meta.getKeys({ start: 'topic:', end: 'topic;' })) {
      const name = key.slice('topic:'.length)
      const topic = this.#kept('topic', name)
      if (topic) this.#topics.set(name, this.#loadTopic(name, topic))
    }
    this.#root.resetReadTxn()
    await this.#dropCommitsBeyondEnds()
  }

  /**
   * Forgets commits beyond the end of their partition, as there are when the file of the records is an older copy than that of the
   * commits: a reader that went on there would pass over as many new records as it lacks.
   */
  async #dropCommitsBeyondEnds(): Promise<void> {
    const isBeyond = (key: string, { next }: StoredCommit): boolean => {
      const at = key.lastIndexOf('/')
      const state = this.#topics.get(topicRead(key.slice(0, at)))?.partitions[Number(key.slice(at + 1))]
      return state !== undefined && next.offset > state.next
    }
    const beyond = readOf(this.#commits, () =>
      [...this.#commits.getRange()].filter(({ key, value }) => isBeyond(String(key), value)).map(({ key }) => key),
    )
    await Promise.all(beyond.map((key) => this.#disk.flushed(this.#commits.remove(key))))
  }

  #loadTopic(name: TopicName, { number, partitions }: StoredTopic): OpenTopic {
    const states = Array.from({ length: partitions }, (_, partition): PartitionState => {
      const counters = this.#kept('counters', `${name}/${partition}`)
      const next = counters?.next ?? 0
      const [key] = this.#records.getKeys({
        ...recordRange(number, partition, 0, next),
        limit: 1,
      })
      const first = key ? offsetOf(key) : next
      const sizes = { bytes: counters?.bytes ?? 0, placed: { records: 0, bytes: 0 }, weights: new Weights(first) }
      return { first, next, committed: new Map(), waiting: new Set(), ...sizes }
    })
    return { name, number, partitions: states, deleted: false }
  }

  async createTopic(name: TopicName, partitions: number): Promise<void> {
    const existing = this.#topics.get(name)
    if (existing) {
      if (existing.partitions.length === partitions) return
      throw new EngineError('INTERNAL', `topic ${name} has ${existing.partitions.length} partitions, not ${partitions}`)
    }
    const number = ++this.#lastTopic // not asked of the disk: another topic may be on its way there
    this.#topics.set(name, this.#loadTopic(name, { number, partitions }))
    this.#disk.watch(this.#meta.put('topics', number))
    await this.#disk.flushed(this.#keep('topic', name, { number, partitions }))
  }

  async deleteTopic(name: TopicName): Promise<void> {
    const topic = this.#topics.get(name)
    if (!topic) return
    this.#topics.delete(name)
    topic.deleted = true
    const commits = this.#removeCommits(`${name}/`, `${name}@`) // on disk before the topic is gone: one of the same name must not begin with them
    for (const [partition, state] of topic.partitions.entries()) {
      wake(state)
      this.#cache.drop(topic.number, partition, Infinity)
      await this.#removeRecords(topic, partition, state.next)
      this.#disk.watch(this.#meta.remove(`counters:${name}/${partition}`))
    }
    await commits
    await this.#disk.flushed(this.#meta.remove(`topic:${name}`))
  }

  async deleteReader(reader: ReaderName): Promise<void> {
    for (const state of this.#topics.get(topicRead(reader))?.partitions ?? []) state.committed.delete(reader)
    await this.#removeCommits(`${reader}/`)
  }

  async topics(): Promise<readonly Topic[]> {
    return [...this.#topics.values()].map(({ name, partitions }) => ({ topic: name, partitions: partitions.length }))
  }

  async beginRun(source: string): Promise<void> {
    this.#failed.delete(source)
  }

  async append(records: readonly AppendRecord[], progress: Progress): Promise<void> {
    if (this.#failed.has(progress.source))
      throw new EngineError('LOG_APPEND_FAILED', 'an earlier append of this run failed: nothing is appended until the source starts again')
    const placed = records.map((record) => ({ record, topic: this.#topic(record.topic), offset: 0 }))
    const touched = new Map<PartitionState, { topic: OpenTopic; partition: number; next: number; bytes: number }>()
    try {
      await this.#room.require(records.reduce((sum, { pack }) => sum + pack.length, 0))
      for (const item of placed) {
        const { partition, pack } = item.record
        const state = this.#partition(item.topic, partition)
        const after = touched.get(state) ?? { topic: item.topic, partition, next: state.next, bytes: state.bytes }
        item.offset = after.next
        touched.set(state, { ...after, next: after.next + 1, bytes: after.bytes + pack.length })
        this.#disk.watch(this.#records.put(keyOf(item.topic, partition, item.offset, pack), pack))
      }
      for (const [state, { next, bytes }] of touched) state.placed = { records: next - state.next, bytes: bytes - state.bytes }
      for (const { topic, partition, next, bytes } of touched.values())
        this.#disk.watch(this.#keep('counters', `${topic.name}/${partition}`, { next, bytes }))
      const appends = this.appendCount(progress.source) + 1
      const last = this.#keep('progress', progress.source, { ...reachedToJson(progress), appends })
      await this.#disk.flushed(last)
      this.#appends.set(progress.source, appends)
      for (const { record, topic, offset } of placed) this.#cache.add(topic.number, record.partition, offset, record.pack)
      for (const [state, { next }] of touched) {
        for (const item of placed) if (item.topic.partitions[item.record.partition] === state) state.bytes += item.record.pack.length
        state.next = next
        wake(state)
      }
    } catch (error) {
      this.#failed.add(progress.source)
      throw error
    } finally {
      for (const state of touched.keys()) state.placed = { records: 0, bytes: 0 }
    }
  }

  async progress(source: string): Promise<Reached | undefined> {
    const stored = readOf(this.#root, () => this.#kept('progress', source))
    return stored?.lsn === undefined ? undefined : reachedFromJson(stored)
  }

  async forgetProgress(source: string): Promise<void> {
    await this.#disk.flushed(this.#keep('progress', source, { appends: this.appendCount(source) }))
  }

  async remember(source: string, { term, history, confirmed }: RememberedState): Promise<void> {
    if (this.#closed) return
    await this.#disk.flushed(this.#keep('state', source, { term, history, confirmed: formatLsn(confirmed) }))
  }

  remembered(source: string): RememberedState | undefined {
    const stored = readOf(this.#root, () => this.#kept('state', source))
    return stored && { ...stored, confirmed: parseLsn(stored.confirmed) }
  }

  appendCount(source: string): number {
    let appends = this.#appends.get(source)
    if (appends === undefined) this.#appends.set(source, (appends = readOf(this.#root, () => this.#kept('progress', source))?.appends ?? 0))
    return appends
  }

  async lacks(source: string, appends: number): Promise<string | undefined> {
    const kept = this.appendCount(source)
    return kept < appends ? `it ends with append ${kept} of the source, and the state database knows of ${appends}` : undefined
  }

  async *read(name: TopicName, partition: number, from: number, signal: AbortSignal, before = Infinity): AsyncIterable<LogRecord> {
    const topic = this.#topic(name)
    const state = this.#partition(topic, partition)
    using follower = before === Infinity ? this.#cache.follow(topic.number, partition) : undefined // who only looks is not waited for
    let offset = Math.max(from, state.first)
    while (!signal.aborted && !topic.deleted && !this.#closed && offset < before) {
      if (offset < state.first) offset = state.first // trimmed meanwhile
      if (state.next - offset <= NEAR_RECORDS) follower?.isNear(offset, state.next)
      if (offset >= state.next) {
        await waitFor(state, signal)
        continue
      }
      const pack = follower?.take(offset) ?? this.#find(topic, partition, offset, follower)
      if (pack) yield { offset, pack }
      offset++
    }
  }

  async headerAt(name: TopicName, partition: number, offset: number): Promise<PackHeader | undefined> {
    const pack = this.#find(this.#topic(name), partition, offset)
    return pack && Pack.header(pack)
  }

  async commit(reader: ReaderName, partition: number, commit: Commit): Promise<void> {
    const state = this.#partition(this.#topic(topicRead(reader)), partition)
    await this.#disk.flushed(this.#commits.put(commitKey(reader, partition), commitToJson(commit)))
    state.committed.set(reader, commit.next.offset)
  }

  async join(reader: ReaderName, partition: number, from: Commit): Promise<void> {
    const key = commitKey(reader, partition)
    await this.#disk.flushed(this.#commits.ifNoExists(key, () => void this.#commits.put(key, commitToJson(from))))
  }

  async committed(reader: ReaderName, partition: number): Promise<Commit | undefined> {
    const stored = readOf(this.#commits, () => this.#commits.get(commitKey(reader, partition)))
    return stored && commitFromJson(stored)
  }

  async readers(): Promise<readonly ReaderName[]> {
    const keys = readOf(this.#commits, () => [...this.#commits.getKeys()].map(String))
    return [...new Set(keys.map((key) => key.slice(0, key.lastIndexOf('/'))))]
  }

  neededFrom(_name: TopicName, _partition: number, offset: number): number {
    return offset
  }

  async copy({ from, to, partition, offset, until, end }: CopiedPart, signal: AbortSignal): Promise<number> {
    const source = this.#topic(from)
    const { first, next: before } = this.#partition(source, partition)
    const target = this.#topic(to)
    const state = this.#partition(target, partition)
    if (state.next > 0) throw new EngineError('INTERNAL', `topic ${to} is not empty`, { topic: to, partition })
    let next = Math.max(offset, first)
    const last = await this.offsetFor(from, partition, { position: positionBefore(until) })
    const room = (await this.weigh(from, partition, next, last)).bytes
    await this.#room.requireToSpare(room)
    Object.assign(state, { first: next, next, weights: new Weights(next) })
    let batch: LogRecord[] = []
    let bytes = 0
    for await (const record of this.read(from, partition, next, signal, before)) {
      next = record.offset
      if (comparePositions(Pack.header(record.pack).first, until) >= 0) break
      next++
      batch.push(record)
      bytes += record.pack.length
      if (bytes < COPY_BYTES && batch.length < COPY_RECORDS) continue
      await this.#put(target, partition, batch)
      batch = []
      bytes = 0
    }
    signal.throwIfAborted()
    if (source.deleted || this.#closed) throw new EngineError('LOG_TOPIC_UNKNOWN', `topic ${from} has been deleted`, { topic: from })
    await this.#put(target, partition, [...batch, { offset: next, pack: end }])
    return next + 1
  }

  async trim(name: TopicName, partition: number, before: number): Promise<void> {
    const topic = this.#topic(name)
    const state = this.#partition(topic, partition)
    const end = Math.min(before, state.next)
    if (end <= state.first) return
    this.#cache.drop(topic.number, partition, end)
    await this.#removeRecords(topic, partition, end)
  }

  async offsetFor(name: TopicName, partition: number, at: { timeMs: number } | { position: Position }): Promise<number> {
    const topic = this.#topic(name)
    const state = this.#partition(topic, partition)
    const reached = (pack: Buffer): boolean => {
      const header = Pack.header(pack)
      if (header.isMarker && header.last.lsn === 0n) return true // of a former version: nothing comes after it
      return 'timeMs' in at ? header.maxCommitTimeUs >= at.timeMs * 1000 : comparePositions(header.last, at.position) > 0
    }
    // commit times and positions grow along a partition, so the first record that reaches is found by halving
    let low = state.first
    let high = state.next
    while (low < high) {
      const middle = Math.floor((low + high) / 2)
      const pack = this.#find(topic, partition, middle)
      if (pack && reached(pack)) high = middle
      else low = middle + 1
    }
    return low
  }

  async stats(reader: ReaderName, partition: number, _maxAgeMs?: number, from = 0): Promise<PartitionStats> {
    const topic = this.#topic(topicRead(reader))
    const state = this.#partition(topic, partition)
    let committed = state.committed.get(reader)
    if (committed === undefined) {
      committed = readOf(this.#commits, () => this.#commits.get(commitKey(reader, partition)))?.next.offset ?? 0
      state.committed.set(reader, committed)
    }
    const begin = Math.max(state.first, from)
    const above = (await this.#weightBelow(topic, partition, begin)).bytes
    const finished = (await this.#weightBelow(topic, partition, committed)).bytes
    const { first, next, bytes } = state
    const skipped = above - (await this.#weightBelow(topic, partition, first)).bytes
    return { first, next, bytes: bytes - skipped, finishedBytes: Math.max(0, finished - above), committed }
  }

  async weigh(name: TopicName, partition: number, from: number, before: number): Promise<Weight> {
    const topic = this.#topic(name)
    const start = await this.#weightBelow(topic, partition, from)
    return minus(await this.#weightBelow(topic, partition, before), start)
  }

  async subscribe(reader: ReaderName, listener: AssignmentListener): Promise<AsyncDisposable> {
    const { partitions } = this.#topic(topicRead(reader))
    for (const partition of partitions.keys()) listener.assigned(partition)
    return {
      [Symbol.asyncDispose]: async () => {
        for (const partition of partitions.keys()) listener.revoked(partition)
      },
    }
  }

  isShortOfSpace(): Promise<boolean> {
    return this.#room.isShort()
  }

  holds(): boolean {
    return true // the data folder is locked
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    for (const topic of this.#topics.values()) for (const state of topic.partitions) wake(state)
    await Promise.all([this.#root.close(), this.#commits.close()])
  }

  /** Reads what was kept under a kind and a name, in the form of that kind, as this log has written it. */
  #kept<K extends keyof Meta>(kind: K, name: string): Meta[K] | undefined {
    return this.#meta.get(`${kind}:${name}`) as Meta[K] | undefined
  }

  #keep<K extends keyof Meta>(kind: K, name: string, value: Meta[K]): Promise<boolean> {
    return this.#meta.put(`${kind}:${name}`, value)
  }

  #topic(name: TopicName): OpenTopic {
    const topic = this.#topics.get(name)
    if (!topic) throw new EngineError('LOG_TOPIC_UNKNOWN', `the log has no topic ${name}`, { topic: name })
    return topic
  }

  #partition(topic: OpenTopic, partition: number): PartitionState {
    const state = topic.partitions[partition]
    if (!state)
      throw new EngineError('LOG_TOPIC_UNKNOWN', `topic ${topic.name} has no partition ${partition}`, { topic: topic.name, partition })
    return state
  }

  /** Puts records where they stand in another topic. */
  async #put(topic: OpenTopic, partition: number, records: readonly LogRecord[]): Promise<void> {
    if (this.#closed) throw new EngineError('STOPPING', 'the log is closed')
    const state = this.#partition(topic, partition)
    const items = records.map(({ offset, pack }) => ({ offset, pack, key: keyOf(topic, partition, offset, pack) }))
    const added = items.reduce((sum, { pack }) => sum + pack.length, 0)
    await this.#room.require(added)
    let { next } = state
    for (const { offset, key, pack } of items) {
      this.#disk.watch(this.#records.put(key, pack))
      next = offset + 1
    }
    const counters = { next, bytes: state.bytes + added }
    await this.#disk.flushed(this.#keep('counters', `${topic.name}/${partition}`, counters))
    if (topic.deleted) {
      for (const { key } of items) this.#disk.watch(this.#records.remove(key))
      await this.#disk.flushed(this.#meta.remove(`counters:${topic.name}/${partition}`))
      throw new EngineError('LOG_TOPIC_UNKNOWN', `topic ${topic.name} has been deleted`, { topic: topic.name })
    }
    Object.assign(state, counters)
  }

  #find(topic: OpenTopic, partition: number, offset: number, follower?: Follower): Buffer | undefined {
    const range = { ...recordRange(topic.number, partition, offset, offset + 1), limit: 1 }
    const pack = readOf(this.#root, () => {
      for (const key of this.#records.getKeys(range)) return this.#records.getBinary(key)
      return undefined
    })
    if (pack) follower?.read(offset, pack)
    return pack
  }

  /** Removes the commits of readers whose keys begin so. */
  async #removeCommits(...prefixes: readonly string[]): Promise<void> {
    const keys = readOf(this.#commits, () =>
      prefixes.flatMap((start) => [...this.#commits.getKeys({ start, end: `${start}\uffff` })].map(String)),
    )
    await Promise.all(keys.map((key) => this.#disk.flushed(this.#commits.remove(key))))
  }

  /** Removes the records below `end` in slices that don't hold up the event loop. */
  async #removeRecords(topic: OpenTopic, partition: number, end: number): Promise<void> {
    const state = this.#partition(topic, partition)
    while (state.first < end) {
      const range = {
        ...recordRange(topic.number, partition, state.first, end),
        limit: REMOVE_SLICE,
      }
      const keys = readOf(this.#root, () => [...this.#records.getKeys(range)].map((key) => Buffer.from(key)))
      const lastKey = keys.at(-1)
      state.first = keys.length < REMOVE_SLICE || !lastKey ? end : offsetOf(lastKey) + 1
      let removed = NO_WEIGHT
      for (const key of keys) {
        removed = plus(removed, weightOfKey(key))
        this.#disk.watch(this.#records.remove(key))
      }
      state.bytes -= removed.bytes
      state.weights.trim(state.first, removed)
      const { next, bytes, placed } = state
      const counters = { next: next + placed.records, bytes: bytes + placed.bytes }
      if (!topic.deleted) await this.#disk.flushed(this.#keep('counters', `${topic.name}/${partition}`, counters))
      else await nextTurn()
    }
  }

  /** Adds up what the records before an offset take, counted from any beginning, in slices that don't hold up the event loop. */
  async #weightBelow(topic: OpenTopic, partition: number, offset: number): Promise<Weight> {
    const state = this.#partition(topic, partition)
    for (;;) {
      const end = Math.max(state.first, Math.min(offset, state.next))
      const from = state.weights.below(end)
      if (from.offset === end) return from.weight
      const range = { ...recordRange(topic.number, partition, from.offset, end), limit: WEIGH_SLICE }
      let { weight } = from
      let last: number | undefined
      let count = 0
      readOf(this.#root, () => {
        for (const key of this.#records.getKeys(range)) {
          weight = plus(weight, weightOfKey(key))
          last = offsetOf(key)
          count++
        }
      })
      const upTo = count < WEIGH_SLICE || last === undefined ? end : last + 1
      state.weights.add({ offset: upTo, weight })
      if (upTo === end) return weight
      await nextTurn()
    }
  }
}

/** Nothing that was read is kept by lmdb when this returns: a read transaction keeps every page that is freed meanwhile. */
function readOf<T>(environment: Pick<RootDatabase, 'resetReadTxn'>, read: () => T): T {
  try {
    return read()
  } finally {
    environment.resetReadTxn()
  }
}

const LMDB_OPTIONS = { separateFlushed: true, overlappingSync: false, encoding: 'json' } as const
const REMOVE_SLICE = 1000
/** A copy writes so much of a topic in one transaction: appends wait for it. */
const COPY_BYTES = MB
const COPY_RECORDS = 1000
/** A reader that is no further behind is at the tail. */
const NEAR_RECORDS = 16
const WEIGH_SLICE = 1024

const keyOf = ({ number }: OpenTopic, partition: number, offset: number, pack: Buffer) =>
  recordKey(number, partition, offset, pack.length, readShares(pack))
const commitKey = (reader: ReaderName, partition: number) => `${reader}/${partition}`

/** What is known of a partition without asking the disk, and who waits for its next record. */
type PartitionState = {
  first: number
  /** of what is on disk */
  next: number
  bytes: number
  /** of the open append: what else writes the counters must not take it back */
  placed: { records: number; bytes: number }
  /** the committed offset of each reader, as it was looked up or written last */
  committed: Map<string, number>
  weights: Weights
  waiting: Set<() => void>
}

function wake(state: PartitionState): void {
  const waiting = [...state.waiting]
  state.waiting.clear()
  for (const resume of waiting) resume()
}

function waitFor(state: PartitionState, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const resume = () => {
    signal.removeEventListener('abort', resume)
    state.waiting.delete(resume)
    resolve()
  }
  state.waiting.add(resume)
  signal.addEventListener('abort', resume, { once: true })
  return promise
}
