/**
 * Deletes the topics of ended generations, and those of deleted sinks. A source that starts again meets what it had not confirmed, and appends it where
 * it belonged; so a topic goes only when the source has confirmed the transaction that holds the switch (correctness 28).
 */
import type { Log, TopicName } from '../log/log.ts'
import { ask } from '../state/asking.ts'
import { topicOf } from '../wal/routing.ts'
import type { Query } from '../wal/slot.ts'

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** @returns the topics that were deleted, and whether others wait for their source. @throws EngineError STATE_UNAVAILABLE */
export async function deleteOldTopics(query: Query, log: Log): Promise<Readonly<{ deleted: readonly TopicName[]; waiting: boolean }>> {
  const { rows } = await ask(
    query,
    `select g.sink_id, g.generation, coalesce(c.confirmed_lsn > n.lsn, false) as passed
     from tailrace.generation g
     join lateral (
       select lsn from tailrace.generation n where n.sink_id = g.sink_id and n.generation > g.generation and n.lsn is not null
       order by n.generation limit 1
     ) n on true
     join tailrace.sink s on s.id = g.sink_id
     left join tailrace.source c on c.database_id = s.database_id
     where g.drained_at is not null`,
    [],
  )
  const topics = (await log.topics()).map(({ topic }) => topic)
  const existing = new Set(topics)
  const orphans = await orphanedTopics(query, topics)
  const deleted: TopicName[] = []
  let waiting = false
  const ended = rows.map((row) => ({
    topic: topicOf({ sinkId: String(row.sink_id), generation: Number(row.generation) }),
    isPassed: row.passed === true,
  }))
  for (const { topic, isPassed } of [...ended, ...orphans]) {
    if (!existing.has(topic)) continue
    if (isPassed) {
      await log.deleteTopic(topic)
      deleted.push(topic)
    } else waiting = true
  }
  return { deleted, waiting }
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
