/** What is known of the messages of a sink that wait outside the log or were given up: read from the state database, by whoever asks. */
import { EngineError } from '../../errors.ts'
import { ACTION, MESSAGE_FLAG } from '../../log/pack.ts'
import { parseLsn } from '../../lsn.ts'
import { ask } from '../../state/asking.ts'
import type { Query, Row } from '../../postgres/query.ts'
import type { MessageView } from '../../log/message-view.ts'
import { messageId, readOlderAckIds, sinkTag } from '../ack-id.ts'
import { toView } from './parked-row.ts'

/** the last two: of those that were delivered, of a sink that sends, and of one whose clients ask */
type MessageState = 'backing off' | 'pending re-delivery' | 'discarded' | 'delivered' | 'acknowledged'
export type MessageRecord = Readonly<{
  id: string
  state: MessageState
  /** `schema.table` */
  table: string | null
  action: string
  record_pks: readonly (string | null)[]
  /** digits: they may be more than a JavaScript number keeps */
  commit_lsn: string
  commit_idx: number
  commit_timestamp: string
  deliver_count: number
  last_delivered_at: string | null
  not_visible_until: string | null
  error: string | null
  /** newest first */
  attempts: readonly unknown[]
}>

/** @returns the message as in the log, its metadata left open */
export const bodyOf = ({ content }: Partial<RecordedMessage> = {}): Buffer | undefined =>
  content?.view.buffer.subarray(content.view.bodyStart(content.place), content.view.bodyEnd(content.place))

const ACTIONS = new Map(Object.entries(ACTION).map(([name, code]) => [code as number, name]))
export const actionName = (code: number): string => ACTIONS.get(code) ?? 'unknown'

/** The edits that people make of parked and discarded messages. */
export type MessageEdit = 'redeliver' | 'acknowledge' | 'discard'

/** `open`: all that wait; `failing`: those that have failed at least once; absent: those that wait and those that were given up */
type RecordedState = 'open' | 'failing' | 'discarded'
export type MessagesAsked = Readonly<{
  state?: RecordedState | undefined
  /** by their positions; absent: oldest first */
  order?: 'oldest' | 'newest' | undefined
  /** those after the one that has this cursor */
  after?: string | undefined
  limit: number
}>
export type MessagePage = Readonly<{ messages: readonly MessageRecord[]; /** absent: there are no more */ next?: string }>
/** @property content where the message stands as in the log, its metadata left open; absent: it was discarded or kept without */
export type RecordedMessage = Readonly<{ record: MessageRecord; content: Readonly<{ view: MessageView; place: number }> | undefined }>

const MESSAGE = `(('{' || convert_from(body, 'UTF8') || '}}')::json -> 'metadata')`
const COLUMNS = `generation, partition, record_offset, record_index, record_key, action, flags, history, lsn::text, idx, part, commit_time, state, attempts,
  error, attempt_log, next_try_at, next_try_at > now() as backs_off,
  ${MESSAGE} ->> 'table_schema' as table_schema, ${MESSAGE} ->> 'table_name' as table_name`
const LISTED = `state in ('open', 'discarded')`

/** @returns by their positions. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID: no such cursor */
export async function messageRecords(query: Query, sinkId: string, asked: MessagesAsked): Promise<MessagePage> {
  const { state, order = 'oldest', after, limit } = asked
  const direction = order === 'newest' ? 'desc' : 'asc'
  const { rows } = await ask(
    query,
    `select ${COLUMNS} from tailrace.parked where sink_id = $1::text::uuid and ${LISTED}
       and ($2::text is null or state = $2) and (not $3::boolean or attempts > 0)
       and ($4::int is null or (history, lsn, idx, part) ${order === 'newest' ? '<' : '>'} ($4, $5::pg_lsn, $6::int, $7::smallint))
     order by history ${direction}, lsn ${direction}, idx ${direction}, part ${direction} limit $8`,
    [sinkId, state === 'failing' ? 'open' : (state ?? null), state === 'failing', ...placeOf(after), limit + 1],
  )
  const messages = rows.slice(0, limit).map((row) => recordOf(sinkId, row))
  return { messages, ...(rows.length > limit && { next: cursorOf(rows[limit - 1] as Row) }) }
}

/** @returns undefined: there is no such message outside the log. @throws EngineError STATE_UNAVAILABLE */
export async function messageRecord(query: Query, sinkId: string, id: string): Promise<RecordedMessage | undefined> {
  const { generations, partitions, offsets, indexes } = readOlderAckIds([id], sinkTag(sinkId), Infinity)
  if (offsets.length === 0) return undefined
  const { rows } = await ask(
    query,
    `select ${COLUMNS}, body, group_hash, relation, group_key, xid from tailrace.parked where sink_id = $1::text::uuid and ${LISTED}
       and generation = $2 and partition = $3 and record_offset = $4 and record_index = $5`,
    [sinkId, generations[0], partitions[0], offsets[0], indexes[0]],
  )
  const [row] = rows
  if (!row) return undefined
  const isLost = (Number(row.flags) & MESSAGE_FLAG.discarded) !== 0
  return { record: recordOf(sinkId, row), content: isLost ? undefined : { view: toView(row), place: 0 } }
}

function recordOf(sinkId: string, row: Row): MessageRecord {
  const time = (value: unknown) => (value === null || value === undefined ? null : new Date(value as string | Date).toISOString())
  const attempts = row.attempt_log as readonly Readonly<{ at?: string }>[]
  return {
    id: messageId(sinkId, {
      generation: Number(row.generation),
      partition: Number(row.partition),
      offset: Number(row.record_offset),
      index: Number(row.record_index),
    }),
    state: row.state === 'discarded' ? 'discarded' : row.backs_off === true ? 'backing off' : 'pending re-delivery',
    table: row.table_name === null ? null : `${String(row.table_schema)}.${String(row.table_name)}`,
    action: actionName(Number(row.action)),
    record_pks: JSON.parse(String(row.record_key)) as (string | null)[],
    commit_lsn: parseLsn(String(row.lsn)).toString(),
    commit_idx: Number(row.idx),
    commit_timestamp: time(row.commit_time) ?? '',
    deliver_count: Number(row.attempts),
    last_delivered_at: attempts[0]?.at ?? null,
    not_visible_until: row.backs_off === true ? time(row.next_try_at) : null,
    error: row.error as string | null,
    attempts,
  }
}

const cursorOf = ({ history, lsn, idx, part }: Row): string => Buffer.from(JSON.stringify([history, lsn, idx, part])).toString('base64url')

/** The four parameters of a place in the list: nulls for its beginning. */
function placeOf(cursor: string | undefined): readonly unknown[] {
  if (cursor === undefined) return [null, null, null, null]
  let place: unknown
  try {
    place = JSON.parse(Buffer.from(cursor, 'base64url').toString('utf8'))
  } catch {} // told below
  const [history, lsn, idx, part] = Array.isArray(place) ? place : []
  const isNumber = (value: unknown) => Number.isSafeInteger(value)
  if (!isNumber(history) || typeof lsn !== 'string' || !/^[0-9A-F]{1,8}\/[0-9A-F]{1,8}$/.test(lsn) || !isNumber(idx) || !isNumber(part))
    throw new EngineError('REQUEST_INVALID', 'cursor is not one that this list has given.')
  return [history, lsn, idx, part]
}
