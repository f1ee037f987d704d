/**
 * Deletes the topics of ended generations. A source that starts again meets what it had not confirmed, and appends it where
 * it belonged; so a topic goes only when the source has confirmed the transaction that holds the switch (correctness 28).
 */
import type { Log, TopicName } from '../log/log.ts'
import { ask } from '../state/asking.ts'
import { topicOf } from '../wal/routing.ts'
import type { Query } from '../wal/slot.ts'

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
  const existing = new Set((await log.topics()).map(({ topic }) => topic))
  const deleted: TopicName[] = []
  let waiting = false
  for (const row of rows) {
    const topic = topicOf({ sinkId: String(row.sink_id), generation: Number(row.generation) })
    if (!existing.has(topic)) continue
    if (row.passed === true) {
      await log.deleteTopic(topic)
      deleted.push(topic)
    } else waiting = true
  }
  return { deleted, waiting }
}
