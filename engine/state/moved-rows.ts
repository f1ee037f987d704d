/** Rows that moved to where their backfill had been (engine/backfill/moved-rows.ts), in the state database. */
import { formatLsn, type Lsn } from '../lsn.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { ask } from './asking.ts'

/**
 * A table of which it can be told which rows have moved.
 * @property columns of the key that tells which row a change is of
 * @property anyMoves every update may move a row: rows are not read in the order of that key alone
 */
export type FollowedTable = Readonly<{ relation: number; columns: readonly string[]; anyMoves: boolean }>

/** A row that has moved. @property key JSON; empty: more rows than are kept have moved up to there */
export type MovedRow = Readonly<{ backfill: string; lsn: Lsn; key: string }>

/** So many rows of a backfill are kept: where more have moved since a page, a run that goes on behind it begins anew instead. */
export const MAX_MOVED = 10_000

/** The backfills of a database that may go on behind a page that is durable, and their tables. */
export async function followedBackfills(
  query: Query,
  databaseId: string,
): Promise<readonly Readonly<{ id: string; sinkId: string; table: FollowedTable }>[]> {
  const found = await ask(
    query,
    `select b.id, b.sink_id as "sinkId", b.pages -> -1 -> 'follows' as "table" from tailrace.backfill b join tailrace.sink s on s.id = b.sink_id
     where s.database_id = $1::text::uuid and b.state in ('active', 'paused', 'failed')
       and b.pages -> -1 ->> 'after' is not null and jsonb_typeof(b.pages -> -1 -> 'follows') = 'object'`,
    [databaseId],
  )
  return rowsOf(
    { id: 'text', sinkId: 'text', table: (value: unknown) => value as FollowedTable /* as backfills.ts has written it */ },
    found,
  )
}

/** Stores rows that have moved. Those of backfills that are over or gone are left out. */
export async function saveMovedRows(query: Query, moved: readonly MovedRow[]): Promise<void> {
  await ask(
    query,
    `with asked as (
       select a.backfill, a.lsn, a.key from jsonb_to_recordset($1::jsonb) as a (backfill uuid, lsn pg_lsn, key text)
       where exists (select from tailrace.backfill b where b.id = a.backfill and b.state not in ('completed', 'cancelled'))
     ), too_many as (
       select a.backfill, max(a.lsn) as lsn from asked a group by a.backfill
       having bool_or(a.key = '') or count(*) + (select count(*) from tailrace.backfill_moved_row m where m.backfill_id = a.backfill) > ${MAX_MOVED}
     ), dropped as (
       delete from tailrace.backfill_moved_row m using too_many t where m.backfill_id = t.backfill and m.lsn <= t.lsn
     )
     insert into tailrace.backfill_moved_row (backfill_id, lsn, key)
     select a.backfill, a.lsn, a.key from asked a where a.backfill not in (select t.backfill from too_many t)
     union all select t.backfill, t.lsn, '' from too_many t`,
    [JSON.stringify(moved.map(({ backfill, lsn, key }) => ({ backfill, lsn: formatLsn(lsn), key })))],
  )
}

/** The keys of rows that have moved since a place. @returns 'too many': they are not known */
export async function movedSince(query: Query, backfill: string, lsn: string): Promise<readonly string[] | 'too many'> {
  const found = await ask(
    query,
    'select distinct key from tailrace.backfill_moved_row where backfill_id = $1::text::uuid and lsn > $2::pg_lsn',
    [backfill, lsn],
  )
  const keys = rowsOf({ key: 'text' }, found).map(({ key }) => key)
  return keys.includes('') ? 'too many' : keys
}
