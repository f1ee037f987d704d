/**
 * The generations of one sink, oldest first: which one is delivered, and what it hands to the next. All of it stands in
 * the state database and the log, so that any process can go on wherever another one died.
 *
 *   unrouted ─a version names it─▶ waiting ─its routing mark came back─▶ open ─one that doesn't name it─▶ closed
 *     ─every partition drained, and the next one is open─▶ handed over ─▶ its replay window ends
 *
 *  A generation reads a stream, together with generations of other sinks.
 *
 *  G1. One generation is delivered at a time, the oldest that is not handed over (docs/rules.md, rule 24).
 *  G2. A hand-over begins when every partition is recorded as drained, and first raises the terms of all of them: no former
 *      owner can end a message that has gone to another.
 *  G3. Each step of a hand-over can be repeated: what has moved is found at its new owner, and the mark that all of it has
 *      is written last.
 *      A replay that goes back to a generation makes void what was begun of its hand-over before.
 *  G4. What may be with a client stays invisible for as long as it would have: exactly after a clean end, else for a whole
 *      visibility time.
 */
import { readerOf, type Log, type ReaderName, type TopicName } from '../log/log.ts'
import { makeTopics } from '../log/own-topics.ts'
import type { Position } from '../position.ts'
import { ask } from '../state/asking.ts'
import { readShape, type GenerationShape } from '../state/generation-shape.ts'
import { ownTopic } from '../wal/routing/routing.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { termKey } from './fenced-write.ts'
import { readPosition, takesOf, type Span, type Takes } from './span.ts'
import { goneBack, handParkedOver, OWNER_COLUMNS, WHILE_UNCHANGED, type ParkedOwner } from './parked/parked-hand-over.ts'

/** A generation that may be delivered. */
export type ServedGeneration = Readonly<{
  generation: number
  shape: GenerationShape
  topic: TopicName
  reader: ReaderName
  /** nothing up to there is its own; undefined: the source has not met its mark yet */
  opensAt: Position | undefined
}>

/** Finds the generation of a sink to deliver, and tells how it stands. */
export interface Generations {
  /**
   * The one to deliver now, its topic made; hands over what is drained before.
   * @returns undefined: there is none, because the sink has been disabled since it was made, or its mark has not come back yet
   * @throws EngineError STATE_UNAVAILABLE
   */
  serve(): Promise<ServedGeneration | undefined>
  stateOf(served: Pick<ServedGeneration, 'generation' | 'topic'>): Promise<GenerationState>
  /** Tells which part of its stream is a generation's own, as far as it is known. */
  span(generation: number): Promise<Span>
}

/**
 * open: no other follows it. closed: one does, or will. drained: every partition is, in whatever process; or it is handed
 * over, or a replay has gone back behind it, or it has got another topic: another one is to be served.
 */
export type GenerationState = 'open' | 'closed' | 'drained'

type GenerationsOptions = Readonly<{
  sinkId: string
  log: Log
  query: Query
  /** visibility time of the sink */
  ackWaitMs: () => number
  /** a generation has ended: what it keeps of its stream may go when its replay window is over */
  handedOver?: (generation: number) => void
}>

type Stored = Omit<ServedGeneration, 'topic' | 'reader'> &
  ParkedOwner &
  Readonly<{ topic: TopicName | undefined; endsAt: Position | undefined; drained: boolean }>

/** @param row of tailrace.generation. @returns the topic that it reads; undefined: no version has named it yet */
export function topicOfGeneration(
  sinkId: string,
  { topic, shape, generation }: Readonly<{ topic: string | undefined; shape: GenerationShape; generation: number }>,
): TopicName | undefined {
  return topic ?? (shape.stream ? undefined : ownTopic({ sinkId, generation }))
}

/** Gives, in SQL, the topic that generation g reads: before there were streams each had one of its own, which is named after it. */
export const TOPIC = `coalesce(g.topic, case when g.shape -> 'stream' is null then g.sink_id || '.' || g.generation end)`
/** SQL for what generation g says of its stream and of its place in it, and how that is read. */
export const READING = `g.sink_id, g.generation, g.shape, ${TOPIC} as topic, g.takes,
  json_build_object('history', g.history, 'lsn', g.lsn, 'idx', g.idx) as opens,
  json_build_object('history', g.ends_history, 'lsn', g.ends_lsn, 'idx', g.ends_idx) as ends`
export const READING_COLUMNS = {
  sink_id: 'text',
  generation: 'int',
  shape: readShape,
  topic: 'text?',
  takes: takesOf,
  opens: readPosition,
  ends: readPosition,
} as const
/** SQL for the first record of each partition that generation g needs, and how that is read. */
export const LINES = `(select jsonb_agg(l.line order by l.partition) from tailrace.reader_line l where l.sink_id = g.sink_id and l.generation = g.generation) as lines`
export const readLines = (value: unknown): number[] => (Array.isArray(value) ? value.map(Number) : [])

/** Names the generation of a sink as the reader of a topic. */
export const readerIn = (topic: TopicName, generation: Readonly<{ sinkId: string; generation: number }>): ReaderName =>
  readerOf(topic, ownTopic(generation))

/** Many sinks ask at the same time; a topic that is lost with its log is to be missed soon. */
const TOPICS_MAX_AGE_MS = 1_000

/** Stands where the holder of a term stands, once the messages of a partition have gone to the next generation. */
export const HANDED_OVER = 'handed over'

/** The generations of a sink as the state database has them. */
export class StoredGenerations implements Generations {
  readonly #options: GenerationsOptions

  constructor(options: GenerationsOptions) {
    this.#options = options
  }

  async serve(): Promise<ServedGeneration | undefined> {
    const { sinkId, log } = this.#options
    const stored = await this.#load()
    for (const [i, each] of stored.entries()) {
      const next = stored.slice(i + 1).find(({ opensAt }) => opensAt !== undefined)
      if (next && each.opensAt === undefined) await this.#markHandedOver(each) // a later mark came first: it never held
      else if (next && each.drained) await this.#handOver(each, next)
      else {
        const { topic, generation, shape, opensAt } = each
        const isAlone = topic === ownTopic({ sinkId, generation })
        if (topic === undefined || (opensAt === undefined && !isAlone)) return undefined // what stands in the stream is others'
        const isMade = !isAlone && (await log.topics(TOPICS_MAX_AGE_MS)).some((each) => each.topic === topic) // by the source
        if (!isMade) await makeTopics(this.#options.query, log, [{ topic, partitions: shape.partitions }])
        return { ...each, topic, reader: readerIn(topic, { sinkId, generation }) }
      }
    }
    return undefined
  }

  async stateOf({ generation, topic }: Pick<ServedGeneration, 'generation' | 'topic'>): Promise<GenerationState> {
    const stored = await this.#load()
    const it = stored.find((each) => each.generation === generation)
    const [first] = stored.filter(({ opensAt }) => opensAt !== undefined)
    if (!it || it.topic !== topic || (first && first.generation < generation)) return 'drained'
    const isFollowed = stored.some((each) => each.generation > generation && each.opensAt !== undefined)
    if (it.drained && isFollowed) return 'drained'
    return stored.at(-1) === it && !it.endsAt ? 'open' : 'closed'
  }

  async span(generation: number): Promise<Span> {
    const found = await this.#ask(
      `select ${READING}, coalesce(
         (select max(v.version) from tailrace.routing_version v where v.database_id = s.database_id and v.lsn is not null), 0) as version
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id where g.sink_id = $1::text::uuid and g.generation = $2`,
      [generation],
    )
    const [row] = rowsOf({ ...READING_COLUMNS, version: 'int' }, found)
    return { endsAt: row?.ends, takes: row?.takes ?? [], version: row?.version ?? 0 }
  }

  /** Reads the generations that are not handed over, oldest first. */
  async #load(): Promise<Stored[]> {
    const found = await this.#ask(
      `select ${READING}, g.rewinds, g.regrouped,
         (select count(*) from tailrace.drained_partition d where d.sink_id = g.sink_id and d.generation = g.generation) as drained
       from tailrace.generation g where g.sink_id = $1::text::uuid and g.drained_at is null order by g.generation`,
    )
    return rowsOf({ ...READING_COLUMNS, ...OWNER_COLUMNS, drained: 'int' }, found).map(
      ({ opens: opensAt, ends: endsAt, drained, ...row }) => ({
        ...row,
        opensAt,
        endsAt,
        drained: drained >= row.shape.partitions,
      }),
    )
  }

  async #handOver(from: Stored, to: Stored): Promise<void> {
    const { sinkId } = this.#options
    const partitions = Array.from({ length: from.shape.partitions }, (_, partition) => ({ sinkId, generation: from.generation, partition }))
    await this.#ask(
      `${WHILE_UNCHANGED} update tailrace.term set term = term + 1, holder = '${HANDED_OVER}' from unchanged where kind = 'partition' and key = any ($4)`,
      [from.generation, from.rewinds, partitions.map(termKey)],
    )
    for (const { partition } of partitions) await this.#hideHeld(from, partition)
    await handParkedOver(this.#options.query, sinkId, from, to)
    await this.#markHandedOver(from)
  }

  /** Says of each parked message of a partition for how long it may still be with a client. */
  async #hideHeld({ generation, topic = '' }: Stored, partition: number): Promise<void> {
    const { log, sinkId } = this.#options
    const held = (await log.committed(readerIn(topic, { sinkId, generation }), partition))?.inFlight
    const origins = held?.map(({ origin }) => origin ?? { generation, partition }) ?? []
    await this.#ask(
      `update tailrace.parked p set next_try_at = case when $4 then now() + $5 * interval '1 ms' else now() + (
         select r.ms * interval '1 ms' from unnest($6::int[], $7::int[], $8::bigint[], $9::int[], $10::float8[]) as r (g, p, o, i, ms)
         where r.g = p.generation and r.p = p.partition and r.o = p.record_offset and r.i = p.record_index) end
       where sink_id = $1::text::uuid and owner_generation = $2 and owner_partition = $3 and state = 'open'`,
      [
        generation,
        partition,
        held === undefined,
        this.#options.ackWaitMs(),
        origins.map((origin) => origin.generation),
        origins.map((origin) => origin.partition),
        held?.map(({ message }) => message.offset) ?? [],
        held?.map(({ message }) => message.index) ?? [],
        held?.map(({ invisibleForMs }) => invisibleForMs) ?? [],
      ],
    )
  }

  async #markHandedOver({ generation, rewinds }: Stored): Promise<void> {
    const { rows } = await this.#ask(
      `update tailrace.generation set drained_at = coalesce(drained_at, now())
       where sink_id = $1::text::uuid and generation = $2 and rewinds = $3 returning 1 as one`,
      [generation, rewinds],
    )
    if (rows.length === 0) throw goneBack(generation)
    await this.#ask('delete from tailrace.parked_backlog where sink_id = $1::text::uuid and generation = $2', [generation]) // its rows are others' now
    this.#options.handedOver?.(generation)
  }

  #ask(sql: string, params: readonly unknown[] = []): ReturnType<Query> {
    return ask(this.#options.query, sql, [this.#options.sinkId, ...params])
  }
}

const UNDELIVERED = 'g.lsn is not null and g.drained_at is null'

/** @property names those of the generations that may have undelivered messages in it, by `ownTopic` */
export type UndeliveredTopic = Readonly<{ topic: TopicName; partitions: number; names: readonly string[] }>

/** Finds the topics in which somebody may have undelivered messages. @param query of the state database */
export async function undeliveredTopics(query: Query): Promise<readonly UndeliveredTopic[]> {
  const found = await ask(
    query,
    `select ${TOPIC} as topic, (g.shape ->> 'partitions')::int as partitions, array_agg(g.sink_id || '.' || g.generation) as names
     from tailrace.generation g where ${UNDELIVERED} group by 1, 2`,
    [],
  )
  return rowsOf({ topic: 'text?', partitions: 'int', names: 'texts' }, found).flatMap(({ topic, ...rest }) =>
    topic === undefined ? [] : [{ topic, ...rest }],
  )
}

/** @property lines the first record of each partition that it needs; none: it is alone in its topic */
export type UndeliveredGeneration = Readonly<{
  sinkId: string
  reader: ReaderName
  partitions: number
  lines: readonly number[]
  endsAt: Position | undefined
  takes: Takes
}>

/** Finds the generations of some sinks that may have undelivered messages in the log. @param query of the state database */
export async function undeliveredGenerations(query: Query, sinkIds: readonly string[]): Promise<readonly UndeliveredGeneration[]> {
  const found = await ask(
    query,
    `select ${READING}, ${LINES} from tailrace.generation g where ${UNDELIVERED} and g.sink_id = any ($1::uuid[])`,
    [sinkIds],
  )
  return rowsOf({ ...READING_COLUMNS, lines: readLines }, found).flatMap((row) => {
    const { sink_id: sinkId, generation, topic, shape, lines, ends: endsAt, takes } = row
    if (topic === undefined) return []
    return [{ sinkId, reader: readerIn(topic, { sinkId, generation }), partitions: shape.partitions, lines, endsAt, takes }]
  })
}
