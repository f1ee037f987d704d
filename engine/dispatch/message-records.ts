/** What is known of the messages of a sink that wait outside the log or were given up: read from the state database, by whoever asks. */
import { ACTION } from '../log/pack.ts'
import { parseLsn } from '../lsn.ts'
import { ask } from '../state/asking.ts'
import type { Query } from '../wal/slot.ts'
import { ackIdPrefix, sinkTag } from './ack-id.ts'

export type MessageState = 'backing off' | 'pending re-delivery' | 'discarded'
export type MessageRecord = Readonly<{
  id: string
  state: MessageState
  action: string
  record_pks: readonly (string | null)[]
  /** digits: they may be more than a JavaScript number keeps */
  commit_lsn: string
  commit_idx: number
  commit_timestamp: string
  deliver_count: number
  not_visible_until: string | null
  error: string | null
  /** newest first */
  attempts: readonly unknown[]
}>

const ACTIONS = new Map(Object.entries(ACTION).map(([name, code]) => [code as number, name]))

/** @returns in the order of their positions. @throws EngineError STATE_UNAVAILABLE */
export async function messageRecords(
  query: Query,
  sinkId: string,
  { state, limit }: Readonly<{ state: 'open' | 'discarded' | undefined; limit: number }>,
): Promise<readonly MessageRecord[]> {
  const { rows } = await ask(
    query,
    `select generation, partition, record_offset, record_index, record_key, action, lsn::text, idx, commit_time, state, attempts, error,
       attempt_log, next_try_at, next_try_at > now() as backs_off
     from tailrace.parked where sink_id = $1::text::uuid and state in ('open', 'discarded') and ($2::text is null or state = $2)
     order by history, lsn, idx, part limit $3`,
    [sinkId, state ?? null, limit],
  )
  const tag = sinkTag(sinkId)
  const time = (value: unknown) => (value === null || value === undefined ? null : new Date(value as string | Date).toISOString())
  return rows.map((row) => ({
    id: `${ackIdPrefix(tag, Number(row.generation), Number(row.partition))}${Number(row.record_offset).toString(36)}.${Number(row.record_index).toString(36)}`,
    state: row.state === 'discarded' ? 'discarded' : row.backs_off === true ? 'backing off' : 'pending re-delivery',
    action: ACTIONS.get(Number(row.action)) ?? 'unknown',
    record_pks: JSON.parse(String(row.record_key)) as (string | null)[],
    commit_lsn: parseLsn(String(row.lsn)).toString(),
    commit_idx: Number(row.idx),
    commit_timestamp: time(row.commit_time) ?? '',
    deliver_count: Number(row.attempts),
    not_visible_until: row.backs_off === true ? time(row.next_try_at) : null,
    error: row.error as string | null,
    attempts: row.attempt_log as unknown[],
  }))
}
