/** Whether a log was filled under the state database it is opened with: what another one's sinks were to get is in it. */
import { EngineError } from '../errors.ts'
import type { Query } from '../state/store.ts'
import type { Log } from './log.ts'

/**
 * A state database that no source has streamed under knows none of the topics of an older log: its sinks are others, so
 * what that log holds would never be delivered, and Postgres has forgotten it.
 * @throws EngineError LOG_FOREIGN
 */
export async function refuseForeignLog(log: Log, query: Query): Promise<void> {
  const topics = await log.topics()
  if (topics.length === 0) return
  const { rows } = await query<{ id: string }>('select id from tailrace.sink')
  const sources = await query('select from tailrace.source limit 1')
  if (sources.rows.length > 0) return
  const known = new Set(rows.map(({ id }) => id))
  const foreign = topics.filter(({ topic }) => !known.has(topic.slice(0, topic.lastIndexOf('.'))))
  if (foreign.length === 0) return
  throw new EngineError('LOG_FOREIGN', `the log has ${foreign.length} topics of sinks that this state database has never known`, {
    topics: foreign.length,
  })
}
