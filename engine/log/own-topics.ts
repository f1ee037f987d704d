/**
 * The topics of a log that are of this state database: it has had them made, and says so beforehand. What else is in the log
 * is of another installation that shares it by mistake, or of a state that was put back since: nobody here may delete it.
 */
import { ask } from '../state/asking.ts'
import type { Query } from '../postgres/query.ts'
import type { Log, TopicName } from './log.ts'

/** May be repeated. @throws EngineError STATE_UNAVAILABLE, and those of the log */
export async function makeTopics(
  query: Query,
  log: Log,
  topics: readonly Readonly<{ topic: TopicName; partitions: number }>[],
): Promise<void> {
  if (topics.length === 0) return
  await ask(query, 'insert into tailrace.log_topic (log, topic) select $1, unnest($2::text[]) on conflict do nothing', [
    log.identity,
    topics.map(({ topic }) => topic),
  ])
  for (const { topic, partitions } of topics) await log.createTopic(topic, partitions)
}

export async function deleteTopic(query: Query, log: Log, topic: TopicName): Promise<void> {
  await log.deleteTopic(topic)
  await ask(query, 'delete from tailrace.log_topic where log = $1 and topic = $2', [log.identity, topic])
}

export async function ownTopics(query: Query, log: Log): Promise<ReadonlySet<TopicName>> {
  const { rows } = await ask(query, 'select topic from tailrace.log_topic where log = $1', [log.identity])
  return new Set(rows.map(({ topic }) => String(topic)))
}
