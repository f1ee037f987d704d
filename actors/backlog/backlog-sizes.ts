/**
 * How large the backlog of each sink is: what the guard of backlog.ts compares with its bound. It is what unfinished
 * messages take, in the log and parked in the state database, so that a sink whose messages wait there is bounded too. Messages
 * that it doesn't take (other actions) stay in the log for as long as it has not passed them by: they are a figure of their
 * own, with the same bound. Whose they are follows from the shares that each record has of each action, without reading any.
 */
import { MB } from '../../engine/amounts.ts'
import {
  undeliveredGenerations,
  undeliveredTopics,
  type UndeliveredGeneration,
  type UndeliveredTopic,
} from '../../engine/dispatch/generations.ts'
import { readerOf, topicRead, type Log, type PartitionStats, type ReaderName, type TopicName } from '../../engine/log/log.ts'
import { bytesOfOthers } from '../../engine/dispatch/span.ts'
import type { Position } from '../../engine/position.ts'
import { ask } from '../../engine/state/asking.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { ALL_ACTIONS, ownerOf } from '../../engine/wal/routing/routing.ts'
import type { BacklogOf, Relief } from './backlog.ts'

/** The figures that a backlog's size is made of may be so old. */
const READERS_MAX_AGE_MS = 2_000
/** They may be so old while a sink has no generation yet: what comes before it is known to have one is not bounded. */
const NEW_MAX_AGE_MS = 200
const STATS_MAX_AGE_MS = 1_000

type Sizes = ReadonlyMap<string, number>
/** A reader of a stream, where it ends, and which messages it takes from which position on. */
type ReaderPlace = Pick<UndeliveredGeneration, 'reader' | 'endsAt' | 'takes'>
/** Counts the bytes of a reader from its committed offset on: of messages that it takes, and of messages that only others take. */
type Unfinished = Readonly<{ ownBytes: number; othersBytes: number }>

/** Says how large the backlogs of sinks are. */
export class BacklogSizes {
  readonly #log: Log
  readonly #query: Query
  #parked: Sizes = new Map()
  #parkedAt = -Infinity
  #topics: readonly UndeliveredTopic[] = []
  /** the topics that each sink reads */
  #read: ReadonlyMap<string, readonly TopicName[]> = new Map()
  #topicsAt = -Infinity
  /** of sinks whose backlog may be large */
  #generations: ReadonlyMap<string, readonly UndeliveredGeneration[]> = new Map()
  #generationsAt = -Infinity
  /** by "reader/partition": the first record above positions at which something changes for the reader, by their text */
  readonly #places = new Map<string, Map<string, number>>()

  /** @param query of the state database */
  constructor({ log, query }: Readonly<{ log: Log; query: Query }>) {
    this.#log = log
    this.#query = query
  }

  /**
   * The sinks that are bound and whose backlog is at least a share of what it may be. Most streams hold less than that
   * altogether: then no sink's share of them is asked for.
   * @param reliefOf what is done when a backlog is full; undefined: it isn't for this process to do it
   */
  async large(sinks: readonly Sink[], share: number, reliefOf: (sink: Sink) => Relief | undefined): Promise<readonly BacklogOf[]> {
    const [, parked] = await Promise.all([this.#look(sinks), this.#inState()])
    const kept = await this.#keptBytes()
    const most = ({ id }: Sink): number =>
      (this.#read.get(id) ?? []).reduce((sum, topic) => sum + (kept.get(topic) ?? 0), parked.get(id) ?? 0)
    const mayBeLarge = sinks.filter((sink) => most(sink) >= sink.max_backlog_mb * MB * share && sink.status !== 'disabled')
    const generations = await this.#generationsOf(mayBeLarge)
    const large: BacklogOf[] = []
    for (const sink of mayBeLarge) {
      const maxBytes = sink.max_backlog_mb * MB
      const relief = reliefOf(sink)
      if (!relief) continue
      const own = generations.get(sink.id)
      let bytes = own ? (parked.get(sink.id) ?? 0) : most(sink) // the state database is away: until it is known the bound must hold
      let othersBytes = 0
      for (const generation of own ?? []) {
        const unfinished = await this.#unfinished(generation)
        bytes += unfinished.ownBytes
        othersBytes += unfinished.othersBytes
      }
      const of = { sinkId: sink.id, name: sink.name, maxBytes, relief }
      if (bytes >= maxBytes * share) large.push({ ...of, what: 'own', bytes })
      if (othersBytes >= maxBytes * share) large.push({ ...of, what: 'others', bytes: othersBytes })
    }
    return large
  }

  /** Bytes that the log has of each topic that still has a reader. */
  async #keptBytes(): Promise<ReadonlyMap<TopicName, number>> {
    const kept = new Map<TopicName, number>()
    for (const { topic, partitions, names } of this.#topics) {
      const [name = ''] = names // any of them
      let bytes = 0
      for (let partition = 0; partition < partitions; partition++)
        bytes += (await this.#statsOf(readerOf(topic, name), partition))?.bytes ?? 0
      kept.set(topic, bytes)
    }
    return kept
  }

  /** Counts the bytes in the log that a generation has not finished. What is kept to be replayed doesn't count. */
  async #unfinished(generation: UndeliveredGeneration): Promise<Unfinished> {
    let [ownBytes, othersBytes] = [0, 0]
    for (let partition = 0; partition < generation.partitions; partition++) {
      const stats = await this.#statsOf(generation.reader, partition, generation.lines[partition])
      if (!stats) continue
      const unfinished = await this.unfinished(generation, partition, stats).catch(() => undefined) // its topic was deleted meanwhile
      ownBytes += unfinished?.ownBytes ?? 0
      othersBytes += unfinished?.othersBytes ?? 0
    }
    return { ownBytes, othersBytes }
  }

  /** @param stats of the partition from the reader's line on */
  async unfinished({ reader, endsAt, takes }: ReaderPlace, partition: number, stats: PartitionStats): Promise<Unfinished> {
    const topic = topicRead(reader)
    const end = endsAt ? await this.#placeOf(reader, partition, endsAt) : Infinity
    const beyond = endsAt ? (await this.#log.weigh(topic, partition, end, Infinity, STATS_MAX_AGE_MS)).bytes : 0
    const all = Math.max(0, stats.bytes - stats.finishedBytes - beyond)
    let othersBytes = 0
    for (const [i, { from: position, actions }] of takes.entries()) {
      if (actions === ALL_ACTIONS) continue
      const next = takes[i + 1]
      const from = i === 0 ? 0 : await this.#placeOf(reader, partition, position) // nothing of it stands before the first
      const before = next ? await this.#placeOf(reader, partition, next.from) : end
      const weight = await this.#log.weigh(topic, partition, Math.max(from, stats.committed), Math.min(before, end), STATS_MAX_AGE_MS)
      othersBytes += bytesOfOthers(weight, actions)
    }
    othersBytes = Math.min(all, othersBytes)
    return { ownBytes: all - othersBytes, othersBytes }
  }

  /** @returns undefined: the topic was deleted meanwhile */
  #statsOf(reader: ReaderName, partition: number, from?: number): Promise<PartitionStats | undefined> {
    return this.#log.stats(reader, partition, STATS_MAX_AGE_MS, from).catch(() => undefined)
  }

  /** The first record that holds something above a position. */
  async #placeOf(reader: ReaderName, partition: number, position: Position): Promise<number> {
    const key = `${reader}/${partition}`
    const places = this.#places.get(key) ?? new Map<string, number>()
    this.#places.set(key, places)
    const text = `${position.history}/${position.lsn}/${position.idx}/${position.part}`
    let place = places.get(text)
    if (place === undefined) places.set(text, (place = await this.#log.offsetFor(topicRead(reader), partition, { position })))
    return place
  }

  /** Finds out which sinks still have messages to deliver, and in which topics. */
  async #look(sinks: readonly Sink[]): Promise<void> {
    const now = performance.now()
    const hasNew = sinks.some(({ id, status }) => status !== 'disabled' && !this.#read.has(id))
    if (now - this.#topicsAt < (hasNew ? NEW_MAX_AGE_MS : READERS_MAX_AGE_MS)) return
    this.#topicsAt = now
    const topics = await undeliveredTopics(this.#query).catch(() => undefined)
    if (!topics) return
    this.#topics = topics
    const read = new Map<string, TopicName[]>()
    const readers = new Set<ReaderName>()
    for (const { topic, names } of topics) {
      for (const name of names) {
        readers.add(readerOf(topic, name))
        const { sinkId } = ownerOf(name)
        const others = read.get(sinkId)
        if (others) others.push(topic)
        else read.set(sinkId, [topic])
      }
    }
    this.#read = read
    for (const key of this.#places.keys()) if (!readers.has(key.slice(0, key.lastIndexOf('/')))) this.#places.delete(key)
  }

  /** Reads how far the generations of these sinks need the log, by sink. */
  async #generationsOf(sinks: readonly Sink[]): Promise<ReadonlyMap<string, readonly UndeliveredGeneration[]>> {
    const now = performance.now()
    const isKnown = now - this.#generationsAt < READERS_MAX_AGE_MS && sinks.every(({ id }) => this.#generations.has(id))
    if (sinks.length === 0 || isKnown) return this.#generations
    const ids = sinks.map(({ id }) => id)
    const found = await undeliveredGenerations(this.#query, ids).catch(() => undefined)
    if (!found) return this.#generations
    this.#generationsAt = now
    const bySink = Map.groupBy(found, ({ sinkId }) => sinkId)
    return (this.#generations = new Map(ids.map((id) => [id, bySink.get(id) ?? []])))
  }

  /** Bytes of the parked messages that are open: counted by their owners, so that asking costs next to nothing. */
  async #inState(): Promise<Sizes> {
    const now = performance.now()
    if (now - this.#parkedAt < STATS_MAX_AGE_MS) return this.#parked
    this.#parkedAt = now
    try {
      const sql = 'select sink_id, sum(bytes)::float8 as bytes from tailrace.parked_backlog group by sink_id'
      const rows = rowsOf({ sink_id: 'text', bytes: 'number' }, await ask(this.#query, sql, []))
      this.#parked = new Map(rows.map(({ sink_id: sinkId, bytes }) => [sinkId, bytes]))
    } catch {} // while the state database is away nothing is parked, acked or confirmed: what was known holds
    return this.#parked
  }
}
