/**
 * Deletes the topics of ended generations, and those of deleted sinks. A source that starts again meets what it had not confirmed, and appends it where
 * it belonged; so a topic goes only when the source has confirmed the transaction that holds the switch (correctness 28).
 * And it stays for the replay window of its sink, whose bound holds over all its topics: the oldest go first.
 * What this state database has not made itself stays: it is another installation's, or of a state that was put back.
 */
import type { Log, TopicName } from '../log/log.ts'
import { deleteTopic, ownTopics } from '../log/own-topics.ts'
import { ask } from '../state/asking.ts'
import { replayWindowMs } from '../state/resources.ts'
import { topicOf } from '../wal/routing/routing.ts'
import type { Query } from '../wal/connection/slot.ts'

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/**
 * @property unknown topics of sinks that this state database doesn't know and has not made: they stay
 * @property againInMs when to look again, because some stay for now; undefined: there are none
 */
export type Swept = Readonly<{ deleted: readonly TopicName[]; unknown: readonly TopicName[]; againInMs: number | undefined }>

type Ended = Readonly<{ sinkId: string; generation: number; topic: TopicName; passed: boolean; dropped: boolean; keptMs: number }>

/** How often it is looked whether sources have passed what keeps the topics. */
const SOURCE_EVERY_MS = 2_000
/** The same of what they take. */
const BYTES_EVERY_MS = 10_000

/** @param maxBytes what is kept of a sink at most. @throws EngineError STATE_UNAVAILABLE */
export async function deleteOldTopics(query: Query, log: Log, maxBytes: number): Promise<Swept> {
  const existing = new Map((await log.topics()).map(({ topic, partitions }) => [topic, partitions]))
  const orphans = await orphanedTopics(query, [...existing.keys()])
  const ended = (await endedGenerations(query)).filter(({ topic }) => existing.has(topic))
  const outgrown = await outgrowing(log, ended, existing, maxBytes)
  const deleted: TopicName[] = []
  let againInMs = Infinity
  for (const generation of ended) {
    const { topic, passed, dropped, keptMs } = generation
    if (!passed) againInMs = Math.min(againInMs, SOURCE_EVERY_MS)
    else if (!dropped && keptMs > 0 && !outgrown.has(topic)) againInMs = Math.min(againInMs, keptMs, BYTES_EVERY_MS)
    else if (dropped || (await drop(query, generation))) {
      await deleteTopic(query, log, topic)
      deleted.push(topic)
    }
  }
  const own = await ownTopics(query, log)
  const unknown: TopicName[] = []
  for (const { topic, isPassed } of orphans) {
    if (!own.has(topic)) unknown.push(topic)
    else if (isPassed) {
      await deleteTopic(query, log, topic)
      deleted.push(topic)
    } else againInMs = Math.min(againInMs, SOURCE_EVERY_MS)
  }
  return { deleted, unknown, againInMs: againInMs === Infinity ? undefined : againInMs }
}

/** Oldest first. */
async function endedGenerations(query: Query): Promise<readonly Ended[]> {
  const { rows } = await ask(
    query,
    `select g.sink_id, g.generation, coalesce(c.confirmed_lsn > n.lsn, false) as passed, g.dropped_at is not null as dropped,
       s.settings -> 'replay_window' as replay_window, extract(epoch from now() - g.drained_at)::float8 * 1000 as age
     from tailrace.generation g
     join lateral (
       select lsn from tailrace.generation n where n.sink_id = g.sink_id and n.generation > g.generation and n.lsn is not null
       order by n.generation limit 1
     ) n on true
     join tailrace.sink s on s.id = g.sink_id
     left join tailrace.source c on c.database_id = s.database_id
     where g.drained_at is not null order by g.sink_id, g.generation`,
    [],
  )
  return rows.map((row) => {
    const sinkId = String(row.sink_id)
    const generation = Number(row.generation)
    const keptMs = replayWindowMs(row.replay_window as number | string | null) - Number(row.age)
    return {
      sinkId,
      generation,
      topic: topicOf({ sinkId, generation }),
      passed: row.passed === true,
      dropped: row.dropped === true,
      keptMs,
    }
  })
}

/** The topics that have to go although their time is not over: newer ones fill the bound, or the log is short of space. */
async function outgrowing(
  log: Log,
  ended: readonly Ended[],
  existing: ReadonlyMap<TopicName, number>,
  maxBytes: number,
): Promise<ReadonlySet<TopicName>> {
  const short = ended.length > 0 && (await log.isShortOfSpace())
  const outgrown = new Set<TopicName>()
  for (const [sinkId, generations] of Map.groupBy(ended, (generation) => generation.sinkId)) {
    const topics = new Set(generations.map(({ topic }) => topic))
    let kept = 0
    for (const [topic, partitions] of existing)
      if (topic.startsWith(`${sinkId}.`) && !topics.has(topic)) kept += await finishedBytes(log, topic, partitions)
    for (const { topic } of generations.toReversed()) {
      kept += await finishedBytes(log, topic, existing.get(topic) ?? 0)
      if (short || kept > maxBytes) outgrown.add(topic)
    }
  }
  return outgrown
}

async function finishedBytes(log: Log, topic: TopicName, partitions: number): Promise<number> {
  let bytes = 0
  for (let partition = 0; partition < partitions; partition++) {
    const stats = await log.stats(topic, partition, BYTES_EVERY_MS).catch(() => undefined) // deleted by another process
    bytes += stats?.finishedBytes ?? 0
  }
  return bytes
}

/** From here on no replay goes back to it. @returns false: one just has. Of its points only those at its end stay: they say up to where it was. */
async function drop(query: Query, { sinkId, generation }: Ended): Promise<boolean> {
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

/** Topics whose sink exists no more, and whether its source has passed the routing version that left it out. */
async function orphanedTopics(
  query: Query,
  topics: readonly TopicName[],
): Promise<readonly Readonly<{ topic: TopicName; isPassed: boolean }>[]> {
  const named = topics.map((topic) => ({ topic, sinkId: topic.slice(0, topic.lastIndexOf('.')) }))
  const ids = [...new Set(named.map(({ sinkId }) => sinkId))].filter((id) => UUID.test(id))
  if (ids.length === 0) return []
  const { rows } = await ask(
    query,
    `select o.id, last.database_id is null or coalesce(c.confirmed_lsn > n.lsn, false) as passed
     from unnest($1::uuid[]) as o (id)
     left join lateral (
       select v.database_id, v.version from tailrace.routing_version v
       where v.sinks @> jsonb_build_array(jsonb_build_object('sinkId', o.id)) order by v.version desc limit 1
     ) last on true
     left join lateral (
       select n.lsn from tailrace.routing_version n
       where n.database_id = last.database_id and n.version > last.version and n.lsn is not null order by n.version limit 1
     ) n on true
     left join tailrace.source c on c.database_id = last.database_id
     where not exists (select from tailrace.sink s where s.id = o.id)`,
    [ids],
  )
  const passed = new Map(rows.map((row) => [String(row.id), row.passed === true]))
  return named.flatMap(({ topic, sinkId }) => {
    const isPassed = passed.get(sinkId)
    return isPassed === undefined ? [] : [{ topic, isPassed }]
  })
}
