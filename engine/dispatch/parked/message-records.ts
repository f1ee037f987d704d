/** Reads from the state database what is known of the messages of a sink that wait outside the log or were given up. */
import { EngineError } from '../../errors.ts'
import { ACTION, MESSAGE_FLAG, type MessageView } from '../../log/pack.ts'
import { formatLsn } from '../../lsn.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf, type RowOf } from '../../postgres/rows.ts'
import { messageId, readOlderAckIds, sinkTag } from '../ack-id.ts'
import { keyOf, MESSAGE_COLUMNS, toView } from './parked-row.ts'

/** the last two: of those that were delivered, of a sink that sends, and of one whose clients ask */
type MessageState = 'backing off' | 'pending re-delivery' | 'discarded' | 'delivered' | 'acknowledged'
/** Tells what is known of one message. */
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

/** Gives the bytes of a recorded message as they are in the log, its metadata left open. */
export const bodyOf = ({ content }: Partial<RecordedMessage> = {}): Buffer | undefined =>
  content?.view.buffer.subarray(content.view.bodyStart(content.place), content.view.bodyEnd(content.place))

const ACTIONS = new Map<number, string>(Object.entries(ACTION).map(([name, code]) => [code, name]))
/** Gives the name of an action, as messages have it. */
export const actionName = (code: number): string => ACTIONS.get(code) ?? 'unknown'

/** The edits that people make of parked and discarded messages. */
export type MessageEdit = 'redeliver' | 'acknowledge' | 'discard'

/** `open`: all that wait; `failing`: those that have failed at least once; absent: those that wait and those that were given up */
type RecordedState = 'open' | 'failing' | 'discarded'
/** Says which messages are asked for. */
export type MessagesAsked = Readonly<{
  state?: RecordedState | undefined
  /** by their positions; absent: oldest first */
  order?: 'oldest' | 'newest' | undefined
  /** only messages after the one that has this cursor */
  after?: string | undefined
  limit: number
}>
/** Holds one page of a list of messages. */
export type MessagePage = Readonly<{ messages: readonly MessageRecord[]; /** absent: there are no more */ next?: string }>
/** @property content where the message stands as in the log, its metadata left open; absent: it was discarded or kept without */
export type RecordedMessage = Readonly<{ record: MessageRecord; content: Readonly<{ view: MessageView; place: number }> | undefined }>

const METADATA = `(('{' || convert_from(body, 'UTF8') || '}}')::json -> 'metadata')`
const SELECTED = `generation, partition, record_offset, record_index, record_key, action, flags, history, lsn::text, idx, part, commit_time, state, attempts,
  error, attempt_log, next_try_at, coalesce(next_try_at > now(), false) as backs_off,
  ${METADATA} ->> 'table_schema' as table_schema, ${METADATA} ->> 'table_name' as table_name`
type Attempt = Readonly<{ at?: string }>
const RECORDED = {
  generation: 'int',
  partition: 'int',
  record_offset: 'int',
  record_index: 'int',
  record_key: 'text',
  action: 'int',
  flags: 'int',
  history: 'int',
  lsn: 'lsn',
  idx: 'int',
  part: 'int',
  commit_time: 'time',
  state: 'text',
  attempts: 'int',
  error: 'text?',
  attempt_log: (value: unknown): readonly Attempt[] => (Array.isArray(value) ? value : []),
  next_try_at: 'time?',
  backs_off: 'boolean',
  table_schema: 'text?',
  table_name: 'text?',
} as const
type Recorded = RowOf<typeof RECORDED>
const LISTED = `state in ('open', 'discarded')`

/** Lists messages by their positions. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID: no such cursor */
export async function messageRecords(query: Query, sinkId: string, asked: MessagesAsked): Promise<MessagePage> {
  const { state, order = 'oldest', after, limit } = asked
  const direction = order === 'newest' ? 'desc' : 'asc'
  const found = await ask(
    query,
    `select ${SELECTED} from tailrace.parked where sink_id = $1::text::uuid and ${LISTED}
       and ($2::text is null or state = $2) and (not $3::boolean or attempts > 0)
       and ($4::int is null or (history, lsn, idx, part) ${order === 'newest' ? '<' : '>'} ($4, $5::pg_lsn, $6::int, $7::smallint))
     order by history ${direction}, lsn ${direction}, idx ${direction}, part ${direction} limit $8`,
    [sinkId, state === 'failing' ? 'open' : (state ?? null), state === 'failing', ...placeOf(after), limit + 1],
  )
  const rows = rowsOf(RECORDED, found)
  const shown = rows.slice(0, limit)
  const last = rows.length > limit ? shown.at(-1) : undefined
  return { messages: shown.map((row) => recordOf(sinkId, row)), ...(last && { next: cursorOf(last) }) }
}

/** Finds one message. @returns undefined: there is no such message outside the log. @throws EngineError STATE_UNAVAILABLE */
export async function messageRecord(query: Query, sinkId: string, id: string): Promise<RecordedMessage | undefined> {
  const { generations, partitions, offsets, indexes } = readOlderAckIds([id], sinkTag(sinkId), Infinity)
  if (offsets.length === 0) return undefined
  const found = await ask(
    query,
    `select ${SELECTED}, body, group_hash, relation, group_key, xid from tailrace.parked where sink_id = $1::text::uuid and ${LISTED}
       and generation = $2 and partition = $3 and record_offset = $4 and record_index = $5`,
    [sinkId, generations[0], partitions[0], offsets[0], indexes[0]],
  )
  const [row] = rowsOf(RECORDED, found)
  const [message] = rowsOf(MESSAGE_COLUMNS, found)
  if (!row || !message) return undefined
  const isLost = (row.flags & MESSAGE_FLAG.discarded) !== 0
  return { record: recordOf(sinkId, row), content: isLost ? undefined : { view: toView(message), place: 0 } }
}

function recordOf(sinkId: string, row: Recorded): MessageRecord {
  const { generation, partition, record_offset: offset, record_index: index, backs_off: backsOff, table_name: table } = row
  return {
    id: messageId(sinkId, { generation, partition, offset, index }),
    state: row.state === 'discarded' ? 'discarded' : backsOff ? 'backing off' : 'pending re-delivery',
    table: table === undefined ? null : `${row.table_schema}.${table}`,
    action: actionName(row.action),
    record_pks: keyOf(row.record_key),
    commit_lsn: row.lsn.toString(),
    commit_idx: row.idx,
    commit_timestamp: row.commit_time.toISOString(),
    deliver_count: row.attempts,
    last_delivered_at: row.attempt_log[0]?.at ?? null,
    not_visible_until: (backsOff && row.next_try_at?.toISOString()) || null,
    error: row.error ?? null,
    attempts: row.attempt_log,
  }
}

const cursorOf = ({ history, lsn, idx, part }: Recorded): string =>
  Buffer.from(JSON.stringify([history, formatLsn(lsn), idx, part])).toString('base64url')

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
    throw new EngineError('REQUEST_INVALID', 'cursor must be a next_cursor that this list has answered.')
  return [history, lsn, idx, part]
}
