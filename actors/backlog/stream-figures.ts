/**
 * What the streams hold in the log, and for whom: of each reader how far it has come, from which record on the log is kept for
 * it, its backlog, what is others' before its place, and how much of what it keeps others of its stream need no more. All of it
 * stands in the state database and the log, so every process knows the same; it is looked at now and then, so that a question is
 * answered from memory.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { LINES, READING, READING_COLUMNS, readLines } from '../../engine/dispatch/generations.ts'
import type { Takes } from '../../engine/dispatch/span.ts'
import { NOTHING_NEEDED } from '../../engine/dispatch/stream-trim.ts'
import { readerOf, type Log, type TopicName } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import type { Position } from '../../engine/position.ts'
import { ask } from '../../engine/state/asking.ts'
import { describeStream, type GenerationShape } from '../../engine/state/generation-shape.ts'
import { ownTopic } from '../../engine/wal/routing/routing.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import type { ReaderPartition, Stream } from '../../engine/status.ts'
import type { BacklogSizes } from './backlog-sizes.ts'

const EVERY_MS = 5_000
/** The figures of the log may be so old. */
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

/** Looks now and then how much the streams hold in the log, and for which readers. */
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

  /** The streams as they were looked at last, ordered by topic. */
  get streams(): readonly Stream[] {
    return this.#streams
  }

  /** Tells how many bytes the log keeps for this sink alone, in all streams that it reads. */
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
        if (!isFailing && !signal.aborted) this.#logger.warn({ err }, 'the sizes of the streams could not be read; they are read again')
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

  /** Reads the generations that read a stream or may be replayed from it. */
  async #stored(): Promise<readonly StoredReader[]> {
    const found = await ask(
      this.#query,
      `select ${READING}, ${LINES}, s.database_id, g.drained_at is not null as drained,
         (select coalesce(sum(b.bytes), 0)::float8 from tailrace.parked_backlog b where b.sink_id = g.sink_id and b.generation = g.generation) as parked
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id
       where g.lsn is not null and (g.dropped_at is null or g.drained_at is null) order by g.topic, s.name, g.generation`,
      [],
    )
    const columns = { ...READING_COLUMNS, lines: readLines, database_id: 'text', drained: 'boolean', parked: 'number' } as const
    return rowsOf(columns, found).flatMap(
      ({ sink_id: sinkId, database_id: databaseId, topic, ends: endsAt, parked: parkedBytes, ...row }) =>
        topic === undefined ? [] : [{ ...row, sinkId, databaseId, topic, endsAt, parkedBytes }],
    )
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
