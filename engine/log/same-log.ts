/**
 * Whether a log is the one that a source has been writing to, with all of it (correctness 37): asked before the source
 * streams, and before a partition of its sinks is read. Another one, or an older copy, lacks what is undelivered, and the
 * names in it would mean other messages.
 */
import { EngineError } from '../errors.ts'
import { ask } from '../state/asking.ts'
import type { Query } from '../wal/connection/slot.ts'
import { acceptRemedy } from '../wal/history.ts'
import type { Log, TopicName } from './log.ts'

/** @property appends of the source, when it was last confirmed */
export type RememberedLog = Readonly<{ identity: string; appends: number }>

/** @param row of tailrace.source */
export const rememberedLog = (row: Readonly<Record<string, unknown>>): RememberedLog => ({
  identity: String(row.log_identity),
  appends: Number(row.log_appends),
})

/** @throws EngineError LOG_CHANGED, LOG_WENT_BACK */
export async function mustBeSameLog(
  log: Log,
  source: Readonly<{ id: string; name: string; log: RememberedLog }>,
  only?: Readonly<{ topic: TopicName; partition: number }>,
): Promise<void> {
  const { id, name: database, log: remembered } = source
  if (remembered.identity !== log.identity)
    throw new EngineError(
      'LOG_CHANGED',
      `the source "${database}" has been writing to log ${remembered.identity}, this is log ${log.identity}: what the former one holds undelivered is not in it. ` +
        `To go on without it, ${acceptRemedy(database)}`,
      { database, saved: remembered.identity, found: log.identity },
    )
  const lacking = await log.lacks(id, remembered.appends, only)
  if (lacking === undefined) return
  throw new EngineError(
    'LOG_WENT_BACK',
    `the log is an older copy of the one that the source "${database}" has been writing to: ${lacking}. What was appended since and is not delivered yet is not in it, ` +
      `and what it holds may have been delivered: put the newer one back. If that is gone, ${acceptRemedy(database)}`,
    { database },
  )
}

/** As its source will. @param partition of one of its sinks, about to be read */
export async function mustReadSameLog(
  query: Query,
  log: Log,
  { sinkId, topic, partition }: Readonly<{ sinkId: string; topic: TopicName; partition: number }>,
): Promise<void> {
  const { rows } = await ask(
    query,
    `select d.id, d.name, s.log_identity, s.log_appends
     from tailrace.source s join tailrace.source_database d on d.id = s.database_id join tailrace.sink k on k.database_id = d.id
     where k.id = $1`,
    [sinkId],
  )
  const [row] = rows
  if (row) await mustBeSameLog(log, { id: String(row.id), name: String(row.name), log: rememberedLog(row) }, { topic, partition })
}
