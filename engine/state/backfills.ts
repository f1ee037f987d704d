/**
 * Backfills in the state database: jobs that read the existing rows of a table into a sink. Every process knows those that run, and those
 * that are paused, and the sink has a stream of its own for as long as there are any (docs/rules.md, rule 47).
 */
import { Type, type Static } from 'typebox'
import { EngineError } from '../errors.ts'
import { formatLsn, parseLsn, type Lsn } from '../lsn.ts'
import type { Query, Row } from '../postgres/query.ts'
import { oneOf, rowOf, rowsOf } from '../postgres/rows.ts'
import { ask } from './asking.ts'
import type { FollowedTable } from './moved-rows.ts'

/** The states of a backfill. `completed` and `cancelled` are never left. */
export const BACKFILL_STATES = ['active', 'paused', 'completed', 'failed', 'cancelled'] as const
/** The state of a backfill. */
export type BackfillState = (typeof BACKFILL_STATES)[number]

/** A query of a backfill that says nothing of it takes no longer. */
export const MAX_TIMEOUT_MS = 5_000

/** What a backfill reads, and how. */
export const BackfillSettings = Type.Object(
  {
    table: Type.String({ description: 'schema.table; without a schema: public' }),
    sort_column: Type.Optional(
      Type.Union([Type.String({ minLength: 1 }), Type.Null()], {
        description: 'reads a part of the table: rows from start_position on, in the order of this column, which needs an index',
      }),
    ),
    start_position: Type.Optional(
      Type.Union([Type.String(), Type.Number(), Type.Null()], { description: 'the lowest value of sort_column that is read' }),
    ),
    where: Type.Optional(
      Type.Union([Type.String({ minLength: 1, maxLength: 10_000 }), Type.Null()], {
        description: 'SQL: only rows that fulfil it are read, such as "tenant_id = 7"',
      }),
    ),
    max_timeout_ms: Type.Integer({
      minimum: 1,
      maximum: 600_000,
      default: MAX_TIMEOUT_MS,
      description: 'a query of the source takes no longer: pages are made so small',
    }),
  },
  { additionalProperties: false },
)
/** What a backfill reads, and how. */
export type BackfillSettings = Static<typeof BackfillSettings>
/** The backfills that a new sink begins with: of all tables that are published and that it takes, or these. */
export type InitialBackfill = 'all' | readonly BackfillSettings[]

/** A backfill that has not ended, as every process knows it: what of it does not change while it runs. */
export type RunningBackfill = Readonly<{
  id: string
  sinkId: string
  state: 'active' | 'paused'
  /** in full */
  table: string
  sortColumn: string | null
  startPosition: string | null
  condition: string | null
  maxTimeoutMs: number
}>

/** A page that is durable in the log: the next one begins behind its last key. */
export type DurablePage = Readonly<{
  /** the values that the rows are ordered by, of the last row; null: the table has been read to its end */
  after: readonly string[] | null
  /** what these values mean: of a table that is ordered by something else by now, nothing */
  orderedBy?: string | undefined
  /** how it is known which rows move to where pages have been; absent: it is not */
  follows?: FollowedTable | undefined
  /** where its mark stands */
  history: number
  lsn: string
  processed: number
  ingested: number
  /** when it was saved, in ISO 8601; absent: by a former version */
  at?: string
}>

/** The newest page that never ceased to have happened. @param isOfPast whether a place is of the past that the server has */
export const lastPage = (pages: readonly DurablePage[], isOfPast: (history: number, lsn: Lsn) => boolean): DurablePage | undefined =>
  pages.findLast(({ history, lsn }) => isOfPast(history, parseLsn(lsn)))

/** A backfill as stored. */
export type Backfill = Readonly<{
  id: string
  sinkId: string
  state: BackfillState
  table: string
  sortColumn: string | undefined
  startPosition: string | undefined
  condition: string | undefined
  maxTimeoutMs: number
  /** the newest that are durable, oldest first */
  pages: readonly DurablePage[]
  /** an estimate; undefined: not counted yet */
  rowsInitial: number | undefined
  /** rows that were read */
  rowsProcessed: number
  /** rows that were written to the sink's stream: those that no newer change made needless */
  rowsIngested: number
  error: Readonly<{ code: string; message: string }> | undefined
  insertedAt: Date
  updatedAt: Date
  completedAt: Date | undefined
  canceledAt: Date | undefined
  failedAt: Date | undefined
  /** when it was like this, by the clock of the state database */
  asOf: Date
}>

const MAX_PAGES = 16
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
/** SQL: a backfill `b` has not ended. */
export const UNENDED = `b.state in ('active', 'paused')`

const document =
  <T>() =>
  (value: unknown): T =>
    value as T // as this file has written it
const COLUMNS = {
  id: 'text',
  sinkId: 'text',
  state: oneOf(...BACKFILL_STATES),
  table: 'text',
  sortColumn: 'text?',
  startPosition: 'text?',
  condition: 'text?',
  maxTimeoutMs: 'int',
  pages: document<readonly DurablePage[]>(),
  rowsInitial: 'int?',
  rowsProcessed: 'int',
  rowsIngested: 'int',
  error: (value: unknown) => document<Backfill['error'] | null>()(value) ?? undefined,
  insertedAt: 'time',
  updatedAt: 'time',
  completedAt: 'time?',
  canceledAt: 'time?',
  failedAt: 'time?',
  asOf: 'time',
} as const
const SELECTED = `b.id, b.sink_id as "sinkId", b.state, b.table_name as "table", b.sort_column as "sortColumn", b.start_position as "startPosition",
  b.condition, b.max_timeout_ms as "maxTimeoutMs", b.pages, b.rows_initial_count as "rowsInitial", b.rows_processed_count as "rowsProcessed",
  b.rows_ingested_count as "rowsIngested", b.error, b.inserted_at as "insertedAt", b.updated_at as "updatedAt", b.completed_at as "completedAt",
  b.canceled_at as "canceledAt", b.failed_at as "failedAt",
  clock_timestamp() as "asOf"`

const RUNNING_VERSION = 'hash_record_extended((b.id, b.state), 0)'
/** How those that have not ended are found and read, each by a version that changes with its state alone (row-memory.ts). */
export const RUNNING = {
  versions: `select b.id, to_char(b.inserted_at at time zone 'utc', 'YYYYMMDDHH24MISSUS') as name, ${RUNNING_VERSION} as version, b.xmin as writer
    from backfill b where ${UNENDED}`,
  rows: `select ${SELECTED}, ${RUNNING_VERSION} as version from backfill b where b.id = any ($1) and ${UNENDED}`,
  decode: (row: Row): RunningBackfill => {
    const { id, sinkId, state, table, sortColumn = null, startPosition = null, condition = null, maxTimeoutMs } = rowOf(COLUMNS, row)
    return { id, sinkId, state: state === 'paused' ? state : 'active', table, sortColumn, startPosition, condition, maxTimeoutMs }
  },
} as const

const decode = (rows: Readonly<{ rows: readonly Row[] }>): Backfill[] => rowsOf(COLUMNS, rows)

/** The backfills of a sink, newest first. */
export async function backfillsOf(query: Query, sinkId: string): Promise<readonly Backfill[]> {
  return decode(
    await ask(
      query,
      `select ${SELECTED} from tailrace.backfill b where b.sink_id = $1::text::uuid order by b.inserted_at desc, b.id desc`,
      [sinkId],
    ),
  )
}

/** The backfills of some sinks that have not ended, newest first. */
export async function unendedBackfills(query: Query, sinkIds: readonly string[]): Promise<readonly Backfill[]> {
  return decode(
    await ask(
      query,
      `select ${SELECTED} from tailrace.backfill b where b.sink_id = any ($1::text[]::uuid[]) and ${UNENDED}
       order by b.inserted_at desc, b.id desc`,
      [sinkIds],
    ),
  )
}

/** One backfill of a sink; undefined: it has none of that id. */
export async function backfillOf(query: Query, sinkId: string, id: string): Promise<Backfill | undefined> {
  if (!UUID.test(id)) return undefined
  const sql = `select ${SELECTED} from tailrace.backfill b where b.sink_id = $1::text::uuid and b.id = $2::text::uuid`
  return decode(await ask(query, sql, [sinkId, id]))[0]
}

/** Stores new backfills. @returns them, in their order. @throws EngineError VALIDATION_FAILED: the sink has one of a table that has not ended */
export async function addBackfills(query: Query, sinkId: string, settings: readonly BackfillSettings[]): Promise<readonly Backfill[]> {
  const asked = settings.map(({ start_position: start, ...rest }) => ({ ...rest, start_position: start ?? null }))
  const { rows } = await ask(
    query,
    `insert into tailrace.backfill as b (sink_id, table_name, state, sort_column, start_position, condition, max_timeout_ms)
     select $1::text::uuid, a."table", 'active', a.sort_column, a.start_position, a."where", a.max_timeout_ms
     from rows from (jsonb_to_recordset($2::jsonb) as ("table" text, sort_column text, start_position text, "where" text, max_timeout_ms int))
       with ordinality a order by a.ordinality
     on conflict (sink_id, table_name) where state in ('active', 'paused') do nothing returning ${SELECTED}`,
    [sinkId, JSON.stringify(asked)],
  )
  const added = new Map(decode({ rows }).map((backfill) => [backfill.table, backfill]))
  return settings.map(({ table }) => {
    const backfill = added.get(table)
    if (!backfill) throw alreadyActive(table, 'table')
    added.delete(table) // one that is asked for twice is active from the first time on
    return backfill
  })
}

const ENDED_AT: Readonly<Partial<Record<BackfillState, string>>> = {
  completed: 'completed_at',
  cancelled: 'canceled_at',
}
const NEXT: Readonly<Record<BackfillState, readonly BackfillState[]>> = {
  active: ['paused', 'completed', 'failed', 'cancelled'],
  paused: ['active', 'failed', 'cancelled'],
  completed: [],
  failed: ['active'], // what it failed for is mended: it goes on behind its last durable page
  cancelled: [],
}

/** Moves a backfill to another state. @throws EngineError VALIDATION_FAILED: it can't get there. @returns undefined: there is none */
export async function moveBackfill(
  query: Query,
  sinkId: string,
  id: string,
  { state, error }: Readonly<{ state: BackfillState; error?: Backfill['error'] }>,
): Promise<Backfill | undefined> {
  const before = await backfillOf(query, sinkId, id)
  if (!before || before.state === state) return before
  if (!NEXT[before.state].includes(state))
    throw new EngineError('VALIDATION_FAILED', `a backfill that is ${before.state} can't become ${state}`, {
      state: `can't go from ${before.state} to ${state}`,
    })
  const ended = ENDED_AT[state]
  const { rows } = await ask(
    query,
    `update tailrace.backfill b set state = $2, error = $3::jsonb, updated_at = clock_timestamp(), failed_at = ${state === 'failed' ? 'clock_timestamp()' : 'null'}${ended ? `, ${ended} = clock_timestamp()` : ''}
     where b.id = $1::text::uuid and not exists (
       select from tailrace.backfill o where o.sink_id = b.sink_id and o.table_name = b.table_name and o.id <> b.id
         and o.state in ('active', 'paused') and b.state = 'failed')
     returning ${SELECTED}`,
    [id, state, error ? JSON.stringify(error) : null],
  )
  if (rows.length === 0) throw alreadyActive(before.table, 'state')
  return decode({ rows })[0]
}

const alreadyActive = (table: string, field: 'table' | 'state'): EngineError =>
  new EngineError('VALIDATION_FAILED', `a backfill of ${table} is already active`, {
    [field]: field === 'table' ? 'has a backfill that is already active' : 'another backfill of the table is already active',
  })

/** How a backfill that was read has ended. */
export type BackfillEnd = Readonly<{ sinkId: string; id: string; state: 'completed' | 'failed'; error?: Backfill['error'] }>

/** Ends backfills that were read. @returns the ids of those that have ended by it: others were paused, have ended or are gone */
export async function endBackfills(query: Query, ends: readonly BackfillEnd[]): Promise<ReadonlySet<string>> {
  const ended = await ask(
    query,
    `update tailrace.backfill b set state = e.state, error = e.error, updated_at = clock_timestamp(),
       completed_at = case e.state when 'completed' then clock_timestamp() end, failed_at = case e.state when 'failed' then clock_timestamp() end
     from jsonb_to_recordset($1::jsonb) as e("sinkId" uuid, id uuid, state text, error jsonb)
     where b.id = e.id and b.sink_id = e."sinkId" and (b.state = 'active' or (b.state = 'paused' and e.state = 'failed'))
     returning b.id`,
    [JSON.stringify(ends)],
  )
  return new Set(rowsOf({ id: 'text' }, ended).map(({ id }) => id))
}

/** Those of some sinks that have a backfill which has not ended. */
export async function sinksWithBackfills(query: Query, sinkIds: readonly string[]): Promise<ReadonlySet<string>> {
  const found = await ask(
    query,
    `select s.id from unnest($1::text[]::uuid[]) s(id) where exists (select from tailrace.backfill b where b.sink_id = s.id and ${UNENDED})`,
    [sinkIds],
  )
  return new Set(rowsOf({ id: 'text' }, found).map(({ id }) => id))
}

/** Forgets a backfill. */
export async function removeBackfill(query: Query, id: string): Promise<void> {
  await ask(query, 'delete from tailrace.backfill where id = $1::text::uuid', [id])
}

/**
 * Says how far a backfill is, as the owner of its source: what was read before is not read again.
 * @param term of the source's owner. @returns false: another owner is at work, or the backfill has ended
 */
export async function saveDurablePage(
  query: Query,
  { databaseId, term }: Readonly<{ databaseId: string; term: number }>,
  id: string,
  page: Omit<DurablePage, 'lsn' | 'at'> & Readonly<{ lsn: Lsn }>,
): Promise<boolean> {
  const { rows } = await ask(
    query,
    `with owner as (select from tailrace.term where kind = 'source' and key = $1::text and term = $2::bigint for share)
, saved as (
       update tailrace.backfill b set updated_at = clock_timestamp(), rows_processed_count = $5, rows_ingested_count = $6,
         pages = case when jsonb_array_length(pages) >= ${MAX_PAGES} then pages - 0 else pages end || jsonb_build_array(
           $4::jsonb || jsonb_build_object('at', clock_timestamp()))
       from owner where b.id = $3::text::uuid and ${UNENDED} returning b.id, b.pages
     ), forgotten as (
       delete from tailrace.backfill_moved_row m using saved
       where m.backfill_id = saved.id and m.lsn <= (select min((p ->> 'lsn')::pg_lsn) from jsonb_array_elements(saved.pages) p)
     )
     select id from saved`,
    [databaseId, term, id, JSON.stringify({ ...page, lsn: formatLsn(page.lsn) }), page.processed, page.ingested],
  )
  return rows.length > 0
}

/** Says of backfills that have not read anything that their tables are empty, as the owner of their source. @returns those of which it is said */
export async function saveEmpty(
  query: Query,
  { databaseId, term }: Readonly<{ databaseId: string; term: number }>,
  { ids, position }: Readonly<{ ids: readonly string[]; position: Readonly<{ history: number; lsn: Lsn }> }>,
): Promise<ReadonlySet<string>> {
  const page = { after: null, history: position.history, lsn: formatLsn(position.lsn), processed: 0, ingested: 0 }
  const saved = await ask(
    query,
    `with owner as (select from tailrace.term where kind = 'source' and key = $1::text and term = $2::bigint for share)
     update tailrace.backfill b set updated_at = clock_timestamp(), rows_initial_count = 0,
       pages = jsonb_build_array($4::jsonb || jsonb_build_object('at', clock_timestamp()))
     from owner where b.id = any ($3::text[]::uuid[]) and b.pages = '[]' and ${UNENDED} returning b.id`,
    [databaseId, term, ids, JSON.stringify(page)],
  )
  return new Set(rowsOf({ id: 'text' }, saved).map(({ id }) => id))
}

/** SQL that lets backfills begin anew; it is given `from` and `where`. */
export const BEGIN_ANEW = `update tailrace.backfill b set pages = '[]', rows_processed_count = 0, rows_ingested_count = 0, updated_at = clock_timestamp()`

/** Lets the backfills of a sink that have not ended begin anew: it has missed changes of rows that they have read. */
export async function beginAnew(query: Query, sinkId: string): Promise<void> {
  await ask(query, `${BEGIN_ANEW} where b.sink_id = $1::text::uuid and ${UNENDED}`, [sinkId])
}

/** Says about how many rows a backfill will read. */
export async function saveInitialCount(query: Query, id: string, rows: number): Promise<void> {
  await ask(query, 'update tailrace.backfill set rows_initial_count = $2 where id = $1::text::uuid', [id, Math.max(0, Math.round(rows))])
}
