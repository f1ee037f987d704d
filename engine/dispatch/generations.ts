/**
 * The generations of one sink, oldest first: which one is delivered, and what it hands to the next. All of it stands in
 * the state database and the log, so that any process can go on wherever another one died.
 *
 *   unrouted ─a version names it─▶ waiting ─its routing mark came back─▶ open ─one that doesn't name it─▶ closed
 *     ─every partition drained, and the next one is open─▶ handed over ─▶ its replay window ends
 *
 *  A generation reads a stream, together with generations of other sinks.
 *
 *  G1. One generation is delivered at a time, the oldest that is not handed over (correctness 24, invariant 9).
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
import { type Position, toPosition } from '../position.ts'
import { ask } from '../state/asking.ts'
import type { GenerationShape } from '../state/generation-shape.ts'
import { ownTopic } from '../wal/routing/routing.ts'
import type { Query } from '../postgres/query.ts'
import { termKey } from './fenced-write.ts'
import { takesOf, type Span, type Takes } from './span.ts'
import { goneBack, handParkedOver, parkedOwner, WHILE_UNCHANGED, type ParkedOwner } from './parked/parked-hand-over.ts'

export type ServedGeneration = Readonly<{
  generation: number
  shape: GenerationShape
  topic: TopicName
  reader: ReaderName
  /** nothing up to there is its own; undefined: the source has not met its mark yet */
  opensAt: Position | undefined
}>

/** What a sink needs of its generations. */
export interface Generations {
  /**
   * The one to deliver now, its topic made; hands over what is drained before.
   * @returns undefined: there is none, because the sink has been disabled since it was made, or its mark has not come back yet
   * @throws EngineError STATE_UNAVAILABLE
   */
  serve(): Promise<ServedGeneration | undefined>
  stateOf(served: Pick<ServedGeneration, 'generation' | 'topic'>): Promise<GenerationState>
  /** What of its stream is a generation's own, as far as it is known. */
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

/** @param row of tailrace.generation, with generation, shape and topic. @returns undefined: no version has named it yet */
export function topicOfGeneration(sinkId: string, row: Readonly<Record<string, unknown>>): TopicName | undefined {
  if (row.topic !== null && row.topic !== undefined) return String(row.topic)
  return (row.shape as GenerationShape).stream ? undefined : ownTopic({ sinkId, generation: Number(row.generation) })
}

/** Many sinks ask at the same time; a topic that is lost with its log is to be missed soon. */
const TOPICS_MAX_AGE_MS = 1_000

/** Stands where the holder of a term stands, once the messages of a partition have gone to the next generation. */
export const HANDED_OVER = 'handed over'

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
        return { ...each, topic, reader: readerOf(topic, ownTopic({ sinkId, generation })) }
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
    const { rows } = await this.#ask(
      `select g.ends_history as history, g.ends_lsn as lsn, g.ends_idx as idx, g.takes,
         (select max(v.version) from tailrace.routing_version v where v.database_id = s.database_id and v.lsn is not null) as version
       from tailrace.generation g join tailrace.sink s on s.id = g.sink_id where g.sink_id = $1::text::uuid and g.generation = $2`,
      [generation],
    )
    const { takes, version, ...end } = rows[0] ?? {}
    return {
      endsAt: toPosition(end),
      takes: takesOf(takes),
      version: Number(version ?? 0),
    }
  }

  /** Those that are not handed over, oldest first. */
  async #load(): Promise<Stored[]> {
    const { rows } = await this.#ask(
      `select g.generation, g.shape, g.topic, g.rewinds, g.regrouped, g.history, g.lsn, g.idx, g.ends_history, g.ends_lsn, g.ends_idx,
         (select count(*) from tailrace.drained_partition d where d.sink_id = g.sink_id and d.generation = g.generation) as drained
       from tailrace.generation g where g.sink_id = $1::text::uuid and g.drained_at is null order by g.generation`,
    )
    return rows.map((row) => {
      const owner = parkedOwner(row)
      return {
        ...owner,
        topic: topicOfGeneration(this.#options.sinkId, row),
        opensAt: toPosition(row),
        endsAt: toPosition({ history: row.ends_history, lsn: row.ends_lsn, idx: row.ends_idx }),
        drained: Number(row.drained) >= owner.shape.partitions,
      }
    })
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
    const held = (await log.committed(readerOf(topic, ownTopic({ sinkId, generation })), partition))?.inFlight
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

/** SQL for the topic that generation g reads: before there were streams each had one of its own, which is named after it. */
const TOPIC = `coalesce(g.topic, case when g.shape -> 'stream' is null then g.sink_id || '.' || g.generation end)`
const UNDELIVERED = 'g.lsn is not null and g.drained_at is null'

/** @property names those of the generations that may have undelivered messages in it, by `ownTopic` */
export type UndeliveredTopic = Readonly<{ topic: TopicName; partitions: number; names: readonly string[] }>

/** Topics in which somebody may have undelivered messages. @param query of the state database */
export async function undeliveredTopics(query: Query): Promise<readonly UndeliveredTopic[]> {
  const { rows } = await ask(
    query,
    `select ${TOPIC} as topic, (g.shape ->> 'partitions')::int as partitions, string_agg(g.sink_id || '.' || g.generation, ' ') as names
     from tailrace.generation g where ${UNDELIVERED} group by 1, 2`,
    [],
  )
  return rows.flatMap(({ topic, partitions, names }) =>
    topic === null ? [] : [{ topic: String(topic), partitions: Number(partitions), names: String(names).split(' ') }],
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

/** Generations of some sinks that may have undelivered messages in the log. @param query of the state database */
export async function undeliveredGenerations(query: Query, sinkIds: readonly string[]): Promise<readonly UndeliveredGeneration[]> {
  const { rows } = await ask(
    query,
    `select g.sink_id, g.generation, ${TOPIC} as topic,
       (g.shape ->> 'partitions')::int as partitions, g.ends_history as history, g.ends_lsn as lsn, g.ends_idx as idx, g.takes,
       (select jsonb_agg(l.line order by l.partition) from tailrace.reader_line l where l.sink_id = g.sink_id and l.generation = g.generation) as lines
     from tailrace.generation g where ${UNDELIVERED} and g.sink_id = any ($1::uuid[])`,
    [sinkIds],
  )
  return rows.flatMap((row) => {
    const sinkId = String(row.sink_id)
    if (row.topic === null) return []
    const reader = readerOf(String(row.topic), ownTopic({ sinkId, generation: Number(row.generation) }))
    const lines = (row.lines as readonly number[] | null) ?? []
    return [{ sinkId, reader, partitions: Number(row.partitions), lines, endsAt: toPosition(row), takes: takesOf(row.takes) }]
  })
}
