/**
 * A parked message as a row of the state database: which column is written with what, and how a row is read back as a view of one
 * message.
 */
import { ACTION, type ActionCode } from '../../log/pack.ts'
import { formatLsn } from '../../lsn.ts'
import type { RowOf } from '../../postgres/rows.ts'
import { readPart } from '../span.ts'
import { ParkedMessage } from './parked-message.ts'
import type { Move } from './parking.ts'

/** Stands on record where the last attempt says nothing. */
export const DELIVERED_TOO_OFTEN = 'delivered max_retry_count times without an acknowledgement'

type Written = Readonly<{ type: string; of: (move: Move) => unknown; /** what is written, where it is not the value */ sql?: string }>

const textOf = ({ view }: Move, start: number, end: number): string => view.buffer.toString('utf8', start, end)

/** What an insert writes, by column. */
const WRITTEN: Readonly<Record<string, Written>> = {
  history: { type: 'int', of: ({ view, index }) => view.position(index).history },
  lsn: { type: 'pg_lsn', of: ({ view, index }) => formatLsn(view.position(index).lsn) },
  idx: { type: 'int', of: ({ view, index }) => view.position(index).idx },
  part: { type: 'smallint', of: ({ view, index }) => view.position(index).part },
  record_offset: { type: 'bigint', of: ({ offset }) => offset },
  record_index: { type: 'int', of: ({ index }) => index },
  group_hash: { type: 'bigint', of: ({ view, index }) => view.group(index) },
  record_key: { type: 'text', of: (move) => textOf(move, move.view.keyStart(move.index), move.view.keyEnd(move.index)) },
  group_key: { type: 'text', of: (move) => textOf(move, move.view.groupKeyStart(move.index), move.view.groupKeyEnd(move.index)) },
  body: { type: 'bytea', of: ({ view, index }) => view.buffer.subarray(view.bodyStart(index), view.bodyEnd(index)) },
  action: { type: 'smallint', of: ({ view, index }) => view.action(index) },
  flags: { type: 'smallint', of: ({ view, index }) => view.flags(index) },
  relation: { type: 'bigint', of: ({ view, index }) => view.relation(index) },
  xid: { type: 'bigint', of: ({ view, index }) => view.xid(index) },
  commit_time: { type: 'timestamptz', of: ({ view, index }) => new Date(view.commitTimeUs(index) / 1000).toISOString() },
  state: { type: 'text', of: ({ kind }) => (kind === 'park' ? 'open' : 'discarded') },
  attempts: { type: 'int', of: ({ deliveries }) => deliveries },
  error: { type: 'text', of: ({ failed, kind }) => failed?.error ?? (kind === 'discard' ? DELIVERED_TOO_OFTEN : null) },
  attempt_log: { type: 'jsonb', of: ({ failed }) => JSON.stringify(failed ? [failed.record] : []) },
  next_try_at: { type: 'float8', of: ({ failed }) => failed?.retryInMs ?? null, sql: `now() + m.next_try_at * interval '1 ms'` },
}
const NAMES = Object.keys(WRITTEN)

/** The parts of an insert, with its parameters from $6 on: the columns, what is written, and the rows `m` that it is taken from. */
export const INSERTED = {
  columns: NAMES.join(', '),
  values: NAMES.map((name) => WRITTEN[name]?.sql ?? `m.${name}`).join(', '),
  rows: `unnest(${Object.values(WRITTEN).map(({ type }, i) => `$${6 + i}::${type}[]`)}) as m (${NAMES})`,
}
/** Gives the parameters of an insert of parked rows: a list for each column. */
export const insertedOf = (moves: readonly Move[]): unknown[] => Object.values(WRITTEN).map(({ of }) => moves.map(of))

const ACTIONS = new Map<unknown, ActionCode>(Object.values(ACTION).map((code) => [code, code]))

/** The columns that are read of a row whose message is wanted. */
export const MESSAGE_COLUMNS = {
  history: 'int',
  lsn: 'lsn',
  idx: 'int',
  part: readPart,
  group_hash: 'int',
  action: (value: unknown) => ACTIONS.get(value) ?? ACTION.read,
  flags: 'int',
  relation: 'int',
  xid: 'int',
  commit_time: 'time',
  record_key: 'text',
  group_key: 'text',
  body: 'bytes',
} as const

/** Reads the message of a whole row. */
export function toView(row: RowOf<typeof MESSAGE_COLUMNS>): ParkedMessage {
  const { history, lsn, idx, part, action, flags, relation, xid, body } = row
  return new ParkedMessage({
    position: { history, lsn, idx, part },
    group: row.group_hash,
    action,
    flags,
    relation,
    xid,
    commitTimeUs: row.commit_time.getTime() * 1000,
    key: Buffer.from(row.record_key),
    groupKey: Buffer.from(row.group_key),
    body,
  })
}

/** Reads a primary key that is written as a JSON array of texts. */
export const keyOf = (text: string): readonly (string | null)[] => JSON.parse(text) as (string | null)[] // the source has written it so
