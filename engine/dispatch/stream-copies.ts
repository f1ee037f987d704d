/**
 * A generation that has left its stream, and holds up the trimming of it for those that go on, gets what it still needs in a topic
 * of its own: its sink is disabled, or it has not come to its end for a while (docs/rules.md, rule 44). Each record keeps its offset,
 * so parked rows, ack ids, replay points and commits mean what they meant, and the topic is read, trimmed and deleted as a stream with
 * one reader.
 *
 *   named ─▶ copied, while its owners go on ─▶ all its partitions stand still ─▶ one transaction: it reads the copy
 *
 *  S1. Whoever has the lease of the database's streams copies (stream-trim.ts), one generation at a time. What is named is the copy that
 *      counts: the next attempt names another one, and whoever goes on late with a former one finds it void, and its topic gone.
 *  S2. Until the transaction nothing has changed but the log; after it nothing is left to do. It raises the terms of all partitions and
 *      leaves the commit for their next owners, as a replay does: what a former owner still writes is refused.
 *  S3. What is a generation's own ends below its end, and all of that is in the log when the source has confirmed it: so nothing is
 *      added to what is copied, and a marker closes it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError, isRetryable } from '../errors.ts'
import { NEW_COPY, type Commit, type Log, type ReaderName, type TopicName } from '../log/log.ts'
import { deleteTopic, makeTopics } from '../log/own-topics.ts'
import { encodeMarker } from '../log/pack-builder.ts'
import type { Position } from '../position.ts'
import { ask } from '../state/asking.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { ownTopic } from '../wal/routing/routing.ts'
import { termKey } from './fenced-write.ts'
import { READING, READING_COLUMNS, readerIn } from './generations.ts'
import { knownGenerations } from './replay/replay-reach.ts'
import { mustBeStopped, saveCommit, type Stopped } from './replay/replay.ts'
import { goesOnFrom } from './replay/rewound.ts'
import { NOTHING_NEEDED, type TrimmedDatabase } from './stream-trim.ts'

/** A generation that still needs records of a stream which it has left. */
type Holding = Readonly<{
  sinkId: string
  sink: string
  generation: number
  topic: TopicName
  reader: ReaderName
  partitions: number
  endsAt: Position
  isDisabled: boolean
}>
/** @property ends the offset behind the copy, by partition */
type Copy = Readonly<{ topic: TopicName; reader: ReaderName; ends: readonly number[] }>

/** Tells how a copy ended for a generation of a sink. @property error why it was not made; it is tried again */
export type CopyOutcome = Readonly<{ sink: string; generation: number }> &
  (Readonly<{ topic: TopicName; error?: undefined }> | Readonly<{ topic?: undefined; error: unknown }>)

/** Holds what copies of streams are made with. */
export type StreamCopiesOptions = Readonly<{
  /** of the state database */
  query: Query
  transaction: <T>(work: (query: Query) => Promise<T>) => Promise<T>
  log: Log
  /** Runs `work` while every partition of a sink stands still, in every process. */
  whileStopped: <T>(sinkId: string, work: (stopped: Stopped) => Promise<T>) => Promise<T>
  /** a generation of a sink that is not disabled may take so long to come to its end */
  patienceMs?: number
}>

const PATIENCE_MS = 5 * 60_000
/** A copy that failed, or could not be put into effect, is tried again after this. */
const AGAIN_MS = 60_000
/** So often partitions are asked to stand still before the copy is given up. */
const TRIES = 5
/** Partitions whose commits are asked for side by side. */
const AT_ONCE = 16

/** Stands where the holder of a term stands, until somebody takes the partition over with its new topic. */
const COPIED = 'copied'

/** Gives generations that hold up a stream a copy of it. */
export class StreamCopies {
  readonly #options: StreamCopiesOptions
  /** by name of the generation: since when it holds up its stream, and when it is to be tried again; monotonic ms */
  readonly #holding = new Map<string, { since: number; notBefore: number }>()
  /** databases where no copy is left that nobody makes */
  #cleared: ReadonlySet<string> = new Set()

  constructor(options: StreamCopiesOptions) {
    this.#options = options
  }

  /**
   * Copies, one after another, what is due, and says how each ended. @param trimmed whose streams this process trims. @throws
   * EngineError STATE_UNAVAILABLE
   */
  async *run(trimmed: readonly TrimmedDatabase[], signal: AbortSignal): AsyncGenerator<CopyOutcome> {
    const databases = trimmed.map(({ databaseId }) => databaseId)
    const uncleared = databases.filter((id) => !this.#cleared.has(id))
    if (uncleared.length > 0) await this.#dropLeft(uncleared)
    this.#cleared = new Set(databases)
    for (const holding of await this.#due(trimmed.filter(({ isHeldUp }) => isHeldUp).map(({ databaseId }) => databaseId))) {
      if (signal.aborted) return
      const { sink, generation } = holding
      try {
        const topic = await this.#copy(holding, signal)
        if (topic !== undefined) yield { sink, generation, topic }
      } catch (error) {
        const known = this.#holding.get(nameOf(holding))
        if (known) known.notBefore = performance.now() + AGAIN_MS
        if (!signal.aborted) yield { sink, generation, error }
      }
    }
  }

  /** Deletes copies that are named and not being made here: a process began them that has ended, or has lost the lease. */
  async #dropLeft(databases: readonly string[]): Promise<void> {
    const { query, log } = this.#options
    const { rows } = await ask(
      query,
      `delete from tailrace.stream_copy c using tailrace.sink s where s.id = c.sink_id and s.database_id = any ($1::uuid[]) returning c.topic`,
      [databases],
    )
    for (const { topic } of rows) await deleteTopic(query, log, String(topic))
  }

  async #due(databases: readonly string[]): Promise<readonly Holding[]> {
    const all = databases.length > 0 ? await this.#holdings(databases) : []
    const names = new Set(all.map(nameOf))
    for (const name of this.#holding.keys()) if (!names.has(name)) this.#holding.delete(name)
    const { patienceMs = PATIENCE_MS } = this.#options
    const now = performance.now()
    return all.filter((holding) => {
      const known = this.#holding.get(nameOf(holding)) ?? { since: now, notBefore: 0 }
      this.#holding.set(nameOf(holding), known)
      return now >= known.notBefore && (holding.isDisabled || now - known.since >= patienceMs)
    })
  }

  /** Finds the generations that need records which no open generation of their stream needs; the source has passed their end. */
  async #holdings(databases: readonly string[]): Promise<readonly Holding[]> {
    const found = await ask(
      this.#options.query,
      `select ${READING}, s.name, s.status
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id join tailrace.source c on c.database_id = s.database_id
       where s.database_id = any ($1::uuid[]) and g.lsn is not null and g.drained_at is null and c.confirmed_lsn > g.ends_lsn
         and (select count(*) from tailrace.drained_partition d where d.sink_id = g.sink_id and d.generation = g.generation)
           < (g.shape ->> 'partitions')::int
         and exists (
           select from tailrace.reader_line l
           where l.sink_id = g.sink_id and l.generation = g.generation and l.copied_to is null and l.line < (
             select min(o.line) from tailrace.generation r join tailrace.reader_line o on o.sink_id = r.sink_id and o.generation = r.generation
             where r.topic = g.topic and r.lsn is not null and r.ends_lsn is null and o.partition = l.partition))
       order by g.sink_id, g.generation`,
      [databases],
    )
    return rowsOf({ ...READING_COLUMNS, name: 'text', status: 'text' }, found).flatMap((row) => {
      const { sink_id: sinkId, generation, topic, shape, ends: endsAt, name: sink, status } = row
      if (topic === undefined || !endsAt) return []
      const reader = readerIn(topic, { sinkId, generation })
      return [{ sinkId, generation, topic, reader, sink, partitions: shape.partitions, endsAt, isDisabled: status === 'disabled' }]
    })
  }

  /** @returns undefined: it is not needed any more, or another process copies it */
  async #copy(holding: Holding, signal: AbortSignal): Promise<TopicName | undefined> {
    const topic = await this.#begin(holding)
    try {
      const ends = await this.#copyAll(holding, topic, signal)
      const copy = { topic, ends, reader: readerIn(topic, holding) }
      if (!(await this.#putIntoEffect(holding, copy, signal))) return undefined
    } catch (error) {
      await this.#giveUp(topic).catch(() => (this.#cleared = new Set())) // the next run does
      throw error
    }
    await this.#options.log.deleteReader(holding.reader).catch(() => undefined) // it goes with its stream at the latest
    this.#holding.delete(nameOf(holding))
    return topic
  }

  /** Names the copy, so that it is not taken for a topic that nobody reads, and makes it. */
  async #begin({ sinkId, generation, partitions }: Holding): Promise<TopicName> {
    const { query, log } = this.#options
    const { rows } = await ask(
      query,
      `insert into tailrace.stream_copy (sink_id, generation, topic) select sink_id, generation, ${NEW_COPY} from tailrace.generation
       where sink_id = $1::text::uuid and generation = $2 on conflict (sink_id, generation) do update set topic = excluded.topic returning topic`,
      [sinkId, generation],
    )
    const [row] = rows
    if (!row) throw new EngineError('NOT_FOUND', 'the sink has been deleted')
    const topic = String(row.topic)
    await makeTopics(query, log, [{ topic, partitions }])
    return topic
  }

  /** Its sink may have been deleted meanwhile, or another process copies it. */
  async #isNamed(topic: TopicName): Promise<boolean> {
    const { rows } = await ask(this.#options.query, 'select 1 as one from tailrace.stream_copy where topic = $1', [topic])
    return rows.length > 0
  }

  /** One that is not named any more may be in effect, although that was not answered. */
  async #giveUp(topic: TopicName): Promise<void> {
    const { query, log } = this.#options
    const { rows } = await ask(query, 'delete from tailrace.stream_copy where topic = $1 returning topic', [topic])
    if (rows.length > 0) await deleteTopic(query, log, topic)
  }

  /** @returns the offset behind the copy of each partition */
  async #copyAll(
    { sinkId, generation, topic: from, reader, partitions, endsAt }: Holding,
    to: TopicName,
    signal: AbortSignal,
  ): Promise<number[]> {
    const { query, log } = this.#options
    const end = encodeMarker({ history: endsAt.history, term: 0, routing: 0 }, endsAt, Date.now() * 1000)
    const { rows } = await ask(
      query,
      'select partition, line from tailrace.reader_line where sink_id = $1::text::uuid and generation = $2',
      [sinkId, generation],
    )
    const lines = new Map(rows.map(({ partition, line }) => [Number(partition), Number(line)]))
    const ends: number[] = []
    for (let partition = 0; partition < partitions; partition++) {
      const line = lines.get(partition) ?? 0
      // one that has left needs its end alone
      const offset = line < NOTHING_NEEDED ? line : ((await log.committed(reader, partition))?.next.offset ?? 0)
      ends.push(await log.copy({ from, to, partition, offset, until: endsAt, end }, signal))
    }
    return ends
  }

  /** @returns false: it is void */
  async #putIntoEffect(holding: Holding, copy: Copy, signal: AbortSignal): Promise<boolean> {
    const { whileStopped, transaction } = this.#options
    for (let tries = 1; ; tries++) {
      try {
        return await whileStopped(holding.sinkId, async (stopped) => {
          const commits = await this.#joined(holding, copy)
          return transaction((query) => moveTo(query, holding, { ...copy, commits }, stopped))
        })
      } catch (error) {
        if (!isRetryable(error) || tries >= TRIES || signal.aborted) throw error
        await delay(AGAIN_MS, undefined, { signal, ref: false }).catch(() => undefined)
        if (!(await this.#isNamed(copy.topic))) return false
      }
    }
  }

  /**
   * Says in the log who reads the copy, before the state database does: should that be put back to an older one, the log knows it.
   * @returns where the next owner of each partition goes on
   */
  async #joined({ sinkId, generation, reader, partitions }: Holding, copy: Copy): Promise<readonly (Commit | undefined)[]> {
    const { query, log } = this.#options
    const { rows } = await ask(
      query,
      'select partition, term, content from tailrace.rewound_partition where sink_id = $1::text::uuid and generation = $2',
      [sinkId, generation],
    )
    const rewound = new Map(rows.map((row) => [Number(row.partition), row]))
    const commitOf = async (partition: number): Promise<Commit | undefined> => {
      const commit = goesOnFrom(await log.committed(reader, partition), rewound.get(partition))
      if (commit) await log.join(copy.reader, partition, commit)
      return commit
    }
    const commits: (Commit | undefined)[] = []
    for (let from = 0; from < partitions; from += AT_ONCE) {
      const some = Array.from({ length: Math.min(AT_ONCE, partitions - from) }, (_, i) => commitOf(from + i))
      commits.push(...(await Promise.all(some)))
    }
    return commits
  }
}

const nameOf = (holding: Holding): string => ownTopic(holding)

/**
 * From its end on, the generation reads the copy.
 * @param query of the transaction
 * @returns false: the copy is void, or the generation has come to its end meanwhile
 * @throws EngineError PARTITION_MOVING: not every partition stands still
 */
async function moveTo(
  query: Query,
  { sinkId, generation, topic, partitions }: Holding,
  copy: Copy & Readonly<{ commits: readonly (Commit | undefined)[] }>,
  stopped: Stopped,
): Promise<boolean> {
  await ask(query, 'select from tailrace.sink where id = $1::text::uuid for update', [sinkId])
  const known = await knownGenerations(query, sinkId, true)
  const it = known.find((each) => each.generation === generation)
  const named = await ask(
    query,
    'delete from tailrace.stream_copy where sink_id = $1::text::uuid and generation = $2 and topic = $3 returning topic',
    [sinkId, generation, copy.topic],
  )
  if (it?.topic === copy.topic) return true // it was not answered
  if (!it || it.topic !== topic || it.endedUs !== undefined || named.rows.length === 0) return false
  await mustBeStopped(query, sinkId, known, stopped)
  const keys = Array.from({ length: partitions }, (_, partition) => termKey({ sinkId, generation, partition }))
  const raised = await ask(
    query,
    `update tailrace.term set term = term + 1, holder = '${COPIED}' where kind = 'partition' and key = any ($1) returning key, term`,
    [keys],
  )
  const terms = new Map(raised.rows.map(({ key, term }) => [String(key), Number(term)]))
  for (const [partition, key] of keys.entries())
    await saveCommit(query, { sinkId, generation, partition, term: terms.get(key) ?? 0, commit: copy.commits[partition] })
  await ask(
    query,
    `update tailrace.reader_line l set copied_to = e.next from unnest($3::int[], $4::bigint[]) as e (partition, next)
     where l.sink_id = $1::text::uuid and l.generation = $2 and l.partition = e.partition`,
    [sinkId, generation, [...copy.ends.keys()], copy.ends],
  )
  await ask(query, 'update tailrace.generation set topic = $3 where sink_id = $1::text::uuid and generation = $2', [
    sinkId,
    generation,
    copy.topic,
  ])
  return true
}
