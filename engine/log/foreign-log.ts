/** Whether a log was filled under the state database it is opened with: what another one's sinks were to get is in it. */
import { EngineError } from '../errors.ts'
import type { StateQuery } from '../state/store.ts'
import type { Log } from './log.ts'

/**
 * A state database under which no source has written to this log knows none of the topics that others have made in it: what they
 * hold would never be delivered, and Postgres has forgotten it. Nor may a source begin here: it would take its slot past what the
 * state database knows that the log belongs to.
 * @throws EngineError LOG_FOREIGN
 */
export async function refuseForeignLog(log: Log, query: StateQuery): Promise<void> {
  const topics = await log.topics()
  if (topics.length === 0) return
  const { rows } = await query<{ id: string }>('select id from tailrace.sink')
  const sources = await query('select from tailrace.source where log_identity = $1 limit 1', [log.identity])
  if (sources.rows.length > 0) return
  const known = new Set(rows.map(({ id }) => id))
  const foreign = topics.filter(({ topic }) => !known.has(topic.slice(0, topic.lastIndexOf('.'))))
  if (foreign.length === 0) return
  throw new EngineError('LOG_FOREIGN', `the log has ${foreign.length} topics that this state database has never known`, {
    topics: foreign.length,
  })
}
