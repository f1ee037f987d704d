/**
 * Ends what nobody reads any more: generations whose replay window is over, and topics without a reader. A source that starts again
 * meets what it had not confirmed, and appends it where it belonged; so a topic goes only when the source has confirmed the
 * transaction from which on it writes nothing to it (docs/rules.md, rules 28 and 45). A generation that has ended is kept for the
 * replay window of its sink, whose bound holds over all its generations: the oldest go first. What this state database has not made
 * itself stays: it is another installation's, or of a state that was put back.
 */
import type { Log, ReaderName, TopicName } from '../log/log.ts'
import { deleteTopic, ownTopics } from '../log/own-topics.ts'
import { ask } from '../state/asking.ts'
import { replayWindowMs } from '../state/resources.ts'
import { ownerOf } from '../wal/routing/routing.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { LINES, READING, READING_COLUMNS, readerIn, readLines } from './generations.ts'

/**
 * @property unknown topics that this state database does not know and has not made: they stay
 * @property againInMs when to look again, because some stay for now; undefined: there are none
 */
type Swept = Readonly<{ deleted: readonly TopicName[]; unknown: readonly TopicName[]; againInMs: number | undefined }>

type Generation = Readonly<{
  sinkId: string
  generation: number
  topic: TopicName
  reader: ReaderName
  partitions: number
  /** the first record of each partition that it keeps; none: it is alone in its topic, and keeps what is there */
  lines: readonly number[]
  /** delivered; undefined: it is open, or not yet drained */
  ended: Readonly<{ passed: boolean; dropped: boolean; keptMs: number }> | undefined
}>
type Ended = Generation & Readonly<{ ended: NonNullable<Generation['ended']> }>

/** It is looked so often whether sources have passed the versions that keep topics. */
const SOURCE_EVERY_MS = 2_000
/** The bytes of ended generations are looked at so often. */
const BYTES_EVERY_MS = 10_000

/**
 * Deletes topics that nobody reads any more, and ends generations whose replay window is over. @param maxBytes what is kept of a
 * sink at most. @throws EngineError STATE_UNAVAILABLE
 */
export async function deleteOldTopics(query: Query, log: Log, maxBytes: number): Promise<Swept> {
  const existing = new Set((await log.topics()).map(({ topic }) => topic))
  const generations = (await generationsOf(query)).filter(({ topic }) => existing.has(topic))
  const ended = generations.filter((generation): generation is Ended => generation.ended !== undefined)
  const outgrown = await outgrowing(log, generations, ended, maxBytes)
  let againInMs = Infinity
  for (const generation of ended) {
    const { reader, topic } = generation
    const { passed, dropped, keptMs } = generation.ended
    if (!passed) againInMs = Math.min(againInMs, SOURCE_EVERY_MS)
    else if (!dropped && keptMs > 0 && !outgrown.has(reader)) againInMs = Math.min(againInMs, keptMs, BYTES_EVERY_MS)
    else if ((dropped || (await drop(query, generation))) && topic !== reader) await forget(query, log, generation)
  }
  const own = await ownTopics(query, log)
  const unknown: TopicName[] = []
  const deleted: TopicName[] = []
  for (const { topic, isPassed } of await unreadTopics(query, [...existing])) {
    if (!own.has(topic)) unknown.push(topic)
    else if (isPassed) {
      await deleteTopic(query, log, topic)
      deleted.push(topic)
    } else againInMs = Math.min(againInMs, SOURCE_EVERY_MS)
  }
  return { deleted, unknown, againInMs: againInMs === Infinity ? undefined : againInMs }
}

/** Oldest first. */
async function generationsOf(query: Query): Promise<readonly Generation[]> {
  const found = await ask(
    query,
    `select ${READING}, ${LINES}, coalesce(c.confirmed_lsn > g.ends_lsn, false) as passed, g.drained_at is not null as drained,
       g.dropped_at is not null as dropped, s.settings -> 'replay_window' as replay_window,
       coalesce(extract(epoch from now() - g.drained_at)::float8 * 1000, 0) as age
     from tailrace.generation g
     join tailrace.sink s on s.id = g.sink_id
     left join tailrace.source c on c.database_id = s.database_id
     where g.lsn is not null and (g.dropped_at is null or g.drained_at is null or g.topic is null
       or exists (select from tailrace.reader_line l where l.sink_id = g.sink_id and l.generation = g.generation))
     order by g.sink_id, g.generation`,
    [],
  )
  const ended = { passed: 'boolean', drained: 'boolean', dropped: 'boolean', replay_window: readWindow, age: 'number' } as const
  return rowsOf({ ...READING_COLUMNS, lines: readLines, ...ended }, found).flatMap((row) => {
    const { sink_id: sinkId, generation, topic, shape, lines, passed, dropped, replay_window: keptMs, age } = row
    if (topic === undefined) return []
    const reader = readerIn(topic, { sinkId, generation })
    const { partitions } = shape
    return [
      { sinkId, generation, topic, reader, partitions, lines, ended: row.drained ? { passed, dropped, keptMs: keptMs - age } : undefined },
    ]
  })
}

const readWindow = (value: unknown): number => replayWindowMs(typeof value === 'string' || typeof value === 'number' ? value : null)

/** Finds the readers that have to go although their time is not over: newer ones fill the bound, or the log is short of space. */
async function outgrowing(
  log: Log,
  generations: readonly Generation[],
  ended: readonly Ended[],
  maxBytes: number,
): Promise<ReadonlySet<ReaderName>> {
  const short = ended.length > 0 && (await log.isShortOfSpace())
  const outgrown = new Set<ReaderName>()
  for (const [sinkId, old] of Map.groupBy(ended, (generation) => generation.sinkId)) {
    let kept = 0
    for (const each of generations) if (each.sinkId === sinkId && !each.ended) kept += await finishedBytes(log, each)
    for (const each of old.toReversed()) {
      kept += await finishedBytes(log, each)
      if (short || kept > maxBytes) outgrown.add(each.reader)
    }
  }
  return outgrown
}

async function finishedBytes(log: Log, { reader, partitions, lines }: Generation): Promise<number> {
  let bytes = 0
  for (let partition = 0; partition < partitions; partition++) {
    const stats = await log.stats(reader, partition, BYTES_EVERY_MS, lines[partition]).catch(() => undefined) // deleted by another process
    bytes += stats?.finishedBytes ?? 0
  }
  return bytes
}

/**
 * Ends the replay window of a generation: from here on no replay goes back to it. @returns false: one just has. Of its points only
 * those at its end stay: they say up to where it was.
 */
async function drop(query: Query, { sinkId, generation }: Generation): Promise<boolean> {
  const { rows } = await ask(
    query,
    `update tailrace.generation set dropped_at = now() where sink_id = $1::text::uuid and generation = $2 and drained_at is not null
     returning generation`,
    [sinkId, generation],
  )
  if (rows.length === 0) return false
  await ask(
    query,
    `delete from tailrace.replay_point p where sink_id = $1::text::uuid and generation = $2 and exists (
       select from tailrace.replay_point l where l.sink_id = p.sink_id and l.generation = p.generation and l.partition = p.partition
         and l.record_offset > p.record_offset)`,
    [sinkId, generation],
  )
  return true
}

/** Forgets the lines and commits of a generation, so that it holds nothing of its stream any more. */
async function forget(query: Query, log: Log, { sinkId, generation, reader }: Generation): Promise<void> {
  await ask(query, 'delete from tailrace.reader_line where sink_id = $1::text::uuid and generation = $2', [sinkId, generation])
  await log.deleteReader(reader)
}

/**
 * Finds the topics that no generation reads or may be replayed from, and whether their source has passed the routing version that
 * left them out.
 */
async function unreadTopics(
  query: Query,
  topics: readonly TopicName[],
): Promise<readonly Readonly<{ topic: TopicName; isPassed: boolean }>[]> {
  const found = await ask(
    query,
    `select t.topic, last.database_id is null or coalesce(c.confirmed_lsn > n.lsn, false) as passed
     from unnest($1::text[], $2::jsonb[], $3::jsonb[]) as t (topic, as_stream, as_sink)
     left join lateral (
       select v.database_id, v.version from tailrace.routing_version v
       where v.streams @> t.as_stream or v.sinks @> t.as_sink order by v.version desc limit 1
     ) last on true
     left join lateral (
       select n.lsn from tailrace.routing_version n
       where n.database_id = last.database_id and n.version > last.version and n.lsn is not null order by n.version limit 1
     ) n on true
     left join tailrace.source c on c.database_id = last.database_id
     where not exists (select from tailrace.stream_copy s where s.topic = t.topic) and not exists (
       select from tailrace.generation g where coalesce(g.topic, g.sink_id || '.' || g.generation) = t.topic and (g.dropped_at is null or g.drained_at is null))`,
    [topics, topics.map((topic) => JSON.stringify([{ topic }])), topics.map((topic) => JSON.stringify([ownerOf(topic)]))],
  )
  return rowsOf({ topic: 'text', passed: 'boolean' }, found).map(({ topic, passed: isPassed }) => ({ topic, isPassed }))
}
