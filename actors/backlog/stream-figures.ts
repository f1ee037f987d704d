/**
 * What the streams hold in the log, and for whom: of each reader how far it has come, from which record on the log is kept for
 * it, its backlog, what is others' before its place, and how much of what it keeps others of its stream need no more. All of it
 * stands in the state database and the log, so every process knows the same; it is looked at now and then, so that whoever asks is
 * answered from memory.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { topicOfGeneration } from '../../engine/dispatch/generations.ts'
import { takesOf, type Takes } from '../../engine/dispatch/span.ts'
import { NOTHING_NEEDED } from '../../engine/dispatch/stream-trim.ts'
import { readerOf, type Log, type TopicName } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import { type Position, toPosition } from '../../engine/position.ts'
import { ask } from '../../engine/state/asking.ts'
import { describeStream, type GenerationShape } from '../../engine/state/generation-shape.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { ownTopic } from '../../engine/wal/routing/routing.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { BacklogSizes } from './backlog-sizes.ts'

/**
 * How far one reader has come in one partition of its stream. Offsets are records of the log.
 * @property committed the lowest record with an unfinished message
 * @property line the first record that it needs, for delivery or for a replay
 * @property othersBytes of messages that it doesn't take and has not passed by yet: the backlog is without them
 * @property heldBytes what is kept from its line on although another reader needs it no more; 0: its line isn't the lowest
 */
type ReaderPartition = Readonly<{
  partition: number
  committed: number
  line: number
  backlogBytes: number
  othersBytes: number
  heldBytes: number
}>
/**
 * A generation of a sink. reading: it is open. leaving: another one follows, or the sink is disabled, and this one is not delivered
 * yet. kept: it is, and its replay window is not over.
 * @property backlogBytes parked messages included
 */
type StreamReader = Readonly<{
  sinkId: string
  generation: number
  state: 'reading' | 'leaving' | 'kept'
  backlogBytes: number
  othersBytes: number
  heldBytes: number
  partitions: readonly ReaderPartition[]
}>
/** @property selects in short; undefined: of a version in which each generation had a topic of its own */
export type Stream = Readonly<{
  topic: TopicName
  databaseId: string
  partitions: number
  selects: string | undefined
  /** in the log */
  bytes: number
  readers: readonly StreamReader[]
}>

/** With names, for who looks. */
export type StreamStatus = Omit<Stream, 'readers'> &
  Readonly<{
    accountId: string
    database: string
    readers: readonly (StreamReader & Readonly<{ sink: string; status: Sink['status'] }>)[]
  }>

const EVERY_MS = 5_000
/** How old the figures of the log may be. */
const STATS_MAX_AGE_MS = 2_000

type StoredReader = Readonly<{
  sinkId: string
  databaseId: string
  generation: number
  topic: TopicName
  shape: GenerationShape
  endsAt: Position | undefined
  takes: Takes
  drained: boolean
  parkedBytes: number
  /** none: it is alone in its topic */
  lines: readonly number[]
}>

export class StreamFigures implements Disposable {
  readonly #log: Log
  readonly #query: Query
  readonly #sizes: BacklogSizes
  readonly #logger: Logger
  readonly #ended = new AbortController()
  #streams: readonly Stream[] = []
  #held: ReadonlyMap<string, number> = new Map()

  /** @param query of the state database */
  constructor({ log, query, sizes, logger }: Readonly<{ log: Log; query: Query; sizes: BacklogSizes; logger: Logger }>) {
    this.#log = log
    this.#query = query
    this.#sizes = sizes
    this.#logger = logger
    void this.#run()
  }

  /** As they were looked at last, ordered by topic. */
  get streams(): readonly Stream[] {
    return this.#streams
  }

  /** How many bytes the log keeps for this sink alone, in all streams that it reads. */
  heldBytes(sinkId: string): number {
    return this.#held.get(sinkId) ?? 0
  }

  [Symbol.dispose](): void {
    this.#ended.abort()
  }

  async #run(): Promise<void> {
    const { signal } = this.#ended
    let isFailing = false
    while (!signal.aborted) {
      try {
        this.#streams = await this.#look()
        this.#held = heldBySink(this.#streams)
        isFailing = false
      } catch (err) {
        if (!isFailing && !signal.aborted) this.#logger.warn({ err }, 'it is not known how the streams are; it is asked again')
        isFailing = true
      }
      await delay(EVERY_MS, undefined, { signal, ref: false }).catch(() => undefined)
    }
  }

  async #look(): Promise<readonly Stream[]> {
    const streams: Stream[] = []
    for (const [topic, readers] of Map.groupBy(await this.#stored(), (reader) => reader.topic)) {
      const stream = await this.#streamOf(topic, readers).catch(() => undefined) // its topic is not made yet, or deleted meanwhile
      if (stream) streams.push(stream)
    }
    return streams
  }

  async #streamOf(topic: TopicName, stored: readonly StoredReader[]): Promise<Stream | undefined> {
    const [first] = stored
    if (!first) return undefined
    const rows: ReaderPartition[][] = stored.map(() => [])
    let bytes = 0
    for (let partition = 0; partition < first.shape.partitions; partition++) {
      const kept = await Promise.all(stored.map((reader) => this.#partitionOf(reader, partition)))
      const needing = kept.filter(({ needsNothing }) => !needsNothing)
      const lines = needing.map(({ line }) => line)
      const [lowest, highest] = [Math.min(...lines), Math.max(...lines)]
      const others = needing.find(({ line }) => line === highest)?.bytes ?? 0
      for (const [i, { bytes: own, needsNothing, ...figures }] of kept.entries()) {
        const isLast = !needsNothing && figures.line === lowest && lowest < highest
        rows[i]?.push({ ...figures, heldBytes: isLast ? Math.max(0, own - others) : 0 })
      }
      bytes += (await this.#log.stats(nameOf(first), partition, STATS_MAX_AGE_MS)).bytes
    }
    const sum = (i: number, of: (row: ReaderPartition) => number) => (rows[i] ?? []).reduce((total, row) => total + of(row), 0)
    return {
      topic,
      databaseId: first.databaseId,
      partitions: first.shape.partitions,
      bytes,
      selects: first.shape.stream && describeStream(first.shape.stream),
      readers: stored.map(({ sinkId, generation, endsAt, drained, parkedBytes }, i) => ({
        sinkId,
        generation,
        state: drained ? 'kept' : endsAt ? 'leaving' : 'reading',
        backlogBytes: sum(i, (row) => row.backlogBytes) + parkedBytes,
        othersBytes: sum(i, (row) => row.othersBytes),
        heldBytes: sum(i, (row) => row.heldBytes),
        partitions: rows[i] ?? [],
      })),
    }
  }

  async #partitionOf(reader: StoredReader, partition: number): Promise<KeptPartition> {
    const name = nameOf(reader)
    const stats = await this.#log.stats(name, partition, STATS_MAX_AGE_MS, reader.lines[partition])
    const { first, next, bytes, committed } = stats
    const stored = reader.lines[partition] ?? 0
    const line = Math.min(Math.max(first, stored), next)
    const unfinished = reader.drained ? undefined : await this.#sizes.unfinished({ ...reader, reader: name }, partition, stats)
    const { ownBytes: backlogBytes, othersBytes } = unfinished ?? { ownBytes: 0, othersBytes: 0 }
    const figures = { partition, committed: Math.max(committed, line), line, backlogBytes, othersBytes }
    return { ...figures, bytes, needsNothing: stored >= NOTHING_NEEDED }
  }

  /** Those that read a stream or may be replayed from it. */
  async #stored(): Promise<readonly StoredReader[]> {
    const { rows } = await ask(
      this.#query,
      `select g.sink_id, s.database_id, g.generation, g.shape, g.topic, g.ends_history as history, g.ends_lsn as lsn, g.ends_idx as idx,
         g.takes, g.drained_at is not null as drained,
         (select jsonb_agg(l.line order by l.partition) from tailrace.reader_line l where l.sink_id = g.sink_id and l.generation = g.generation) as lines,
         (select coalesce(sum(b.bytes), 0)::float8 from tailrace.parked_backlog b where b.sink_id = g.sink_id and b.generation = g.generation) as parked
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id
       where g.lsn is not null and (g.dropped_at is null or g.drained_at is null) order by g.topic, s.name, g.generation`,
      [],
    )
    return rows.flatMap((row) => {
      const sinkId = String(row.sink_id)
      const topic = topicOfGeneration(sinkId, row)
      if (topic === undefined) return []
      return [
        {
          sinkId,
          topic,
          databaseId: String(row.database_id),
          generation: Number(row.generation),
          shape: row.shape as GenerationShape,
          endsAt: toPosition(row),
          takes: takesOf(row.takes),
          drained: row.drained === true,
          parkedBytes: Number(row.parked),
          lines: (row.lines as readonly number[] | null) ?? [],
        },
      ]
    })
  }
}

function heldBySink(streams: readonly Stream[]): ReadonlyMap<string, number> {
  const held = new Map<string, number>()
  for (const { readers } of streams) for (const { sinkId, heldBytes } of readers) held.set(sinkId, (held.get(sinkId) ?? 0) + heldBytes)
  return held
}

/** @property bytes what the log has from its line on */
type KeptPartition = Omit<ReaderPartition, 'heldBytes'> & Readonly<{ bytes: number; needsNothing: boolean }>

const nameOf = (reader: StoredReader) => readerOf(reader.topic, ownTopic(reader))
