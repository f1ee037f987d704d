/**
 * The topics of a log that are of this state database: it has had them made, and says so beforehand. What else is in the log
 * is of another installation that shares it by mistake, or of a state that was put back since: nobody here may delete it.
 */
import { ask } from '../state/asking.ts'
import { rowsOf } from '../postgres/rows.ts'
import type { Query } from '../postgres/query.ts'
import type { Log, TopicName, Topic } from './log.ts'
import { EngineError } from '../errors.ts'

/** Makes topics, as this state database's own. May be repeated. @throws EngineError STATE_UNAVAILABLE, and those of the log */
export async function makeTopics(query: Query, log: Log, topics: readonly Topic[]): Promise<void> {
  if (topics.length === 0) return
  await ask(query, 'insert into tailrace.log_topic (log, topic) select $1, unnest($2::text[]) on conflict do nothing', [
    log.identity,
    topics.map(({ topic }) => topic),
  ])
  for (const { topic, partitions } of topics) await log.createTopic(topic, partitions)
}

/** Deletes a topic, which is nobody's from then on. */
export async function deleteTopic(query: Query, log: Log, topic: TopicName): Promise<void> {
  await log.deleteTopic(topic)
  await ask(query, 'delete from tailrace.log_topic where log = $1 and topic = $2', [log.identity, topic])
}

/** The topics of a log that this state database has had made. */
export async function ownTopics(query: Query, log: Log): Promise<ReadonlySet<TopicName>> {
  const rows = await ask(query, 'select topic from tailrace.log_topic where log = $1', [log.identity])
  return new Set(rowsOf({ topic: 'text' }, rows).map(({ topic }) => topic))
}

/**
 * A state database under which no source has written to this log knows none of the topics that others have made in it: what they
 * hold would never be delivered, and Postgres has forgotten it. Nor may a source begin here: it would take its slot past what the
 * state database knows that the log belongs to.
 * @throws EngineError LOG_FOREIGN
 */
export async function refuseForeignLog(log: Log, query: Query): Promise<void> {
  const topics = await log.topics()
  if (topics.length === 0) return
  const sinks = rowsOf({ id: 'text' }, await query('select id from tailrace.sink'))
  const sources = await query('select from tailrace.source where log_identity = $1 limit 1', [log.identity])
  if (sources.rows.length > 0) return
  const known = new Set(sinks.map(({ id }) => id))
  const foreign = topics.filter(({ topic }) => !known.has(topic.slice(0, topic.lastIndexOf('.'))))
  if (foreign.length === 0) return
  throw new EngineError('LOG_FOREIGN', `the log has ${foreign.length} topics that this state database did not create`, {
    topics: foreign.length,
  })
}
