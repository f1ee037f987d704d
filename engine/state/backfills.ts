/**
 * Backfills in the state database: jobs that read the existing rows of a table into a sink. Those that run, and those that are
 * paused, stand with their sink too, so that every process knows of them, and the sink has a stream of its own for as long
 * as there are any (docs/rules.md, rule 47).
 */
import { Type, type Static } from 'typebox'
import { EngineError } from '../errors.ts'
import { formatLsn, type Lsn } from '../lsn.ts'
import type { Query, Row } from '../postgres/query.ts'
import { oneOf, rowOf, rowsOf } from '../postgres/rows.ts'
import { ask } from './asking.ts'

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

/** A backfill that has not ended, as its sink knows it. */
export type RunningBackfill = Readonly<{
  id: string
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
  /** where its mark stands */
  history: number
  lsn: string
  processed: number
  ingested: number
  /** when it was saved, in ISO 8601; absent: by a former version */
  at?: string
}>

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
      `select ${SELECTED} from tailrace.backfill b where b.sink_id::text = any ($1) and b.state in ('active', 'paused')
       order by b.inserted_at desc, b.id desc`,
      [sinkIds],
    ),
  )
}

/** One backfill of a sink; undefined: it has none of that id. */
export async function backfillOf(query: Query, sinkId: string, id: string): Promise<Backfill | undefined> {
  const found = await ask(
    query,
    `select ${SELECTED} from tailrace.backfill b where b.sink_id = $1::text::uuid and b.id::text = lower($2)`,
    [sinkId, id],
  )
  return decode(found)[0]
}

/** Stores a new backfill. @throws EngineError VALIDATION_FAILED: the sink has one of the table that has not ended */
export async function addBackfill(
  query: Query,
  sinkId: string,
  { table, sort_column, start_position, where, max_timeout_ms }: BackfillSettings,
): Promise<Backfill> {
  const { rows } = await ask(
    query,
    `insert into tailrace.backfill as b (sink_id, table_name, state, sort_column, start_position, condition, max_timeout_ms)
     values ($1::text::uuid, $2, 'active', $3, $4, $5, $6)
     on conflict (sink_id, table_name) where state in ('active', 'paused') do nothing returning ${SELECTED}`,
    [
      sinkId,
      table,
      sort_column ?? null,
      start_position === null || start_position === undefined ? null : String(start_position),
      where ?? null,
      max_timeout_ms,
    ],
  )
  if (rows.length === 0) throw alreadyActive(table, 'table')
  return decode({ rows })[0] as Backfill
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
     where b.id::text = lower($1) and not exists (
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

/** Writes to its sink which backfills of it have not ended, so that every process hears of it. @returns them */
export async function shareBackfills(query: Query, sinkId: string): Promise<readonly RunningBackfill[]> {
  const { rows } = await ask(
    query,
    `update tailrace.sink s set updated_at = clock_timestamp(), backfills = coalesce((
       select jsonb_agg(jsonb_build_object('id', b.id, 'state', b.state, 'table', b.table_name, 'sortColumn', b.sort_column,
         'startPosition', b.start_position, 'condition', b.condition, 'maxTimeoutMs', b.max_timeout_ms) order by b.inserted_at, b.id)
       from tailrace.backfill b where b.sink_id = s.id and b.state in ('active', 'paused')), '[]')
     where s.id = $1::text::uuid returning s.backfills`,
    [sinkId],
  )
  return rowOf({ backfills: document<readonly RunningBackfill[]>() }, rows[0]).backfills
}

/** Forgets a backfill that has ended. */
export async function removeBackfill(query: Query, id: string): Promise<void> {
  await ask(query, 'delete from tailrace.backfill where id::text = $1', [id])
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
     update tailrace.backfill b set updated_at = clock_timestamp(), rows_processed_count = $5, rows_ingested_count = $6,
       pages = case when jsonb_array_length(pages) >= ${MAX_PAGES} then pages - 0 else pages end || jsonb_build_array(
         $4::jsonb || jsonb_build_object('at', clock_timestamp()))
     from owner where b.id::text = $3 and b.state in ('active', 'paused') returning b.id`,
    [databaseId, term, id, JSON.stringify({ ...page, lsn: formatLsn(page.lsn) }), page.processed, page.ingested],
  )
  return rows.length > 0
}

/** SQL that lets backfills begin anew; it is given `from` and `where`. */
export const BEGIN_ANEW = `update tailrace.backfill b set pages = '[]', rows_processed_count = 0, rows_ingested_count = 0, updated_at = clock_timestamp()`
/** SQL: a backfill `b` has not ended. */
export const UNENDED = `b.state in ('active', 'paused')`

/** Lets the backfills of a sink that have not ended begin anew: it has missed changes of rows that they have read. */
export async function beginAnew(query: Query, sinkId: string): Promise<void> {
  await ask(query, `${BEGIN_ANEW} where b.sink_id = $1::text::uuid and ${UNENDED}`, [sinkId])
}

/** Says about how many rows a backfill will read. */
export async function saveInitialCount(query: Query, id: string, rows: number): Promise<void> {
  await ask(query, 'update tailrace.backfill set rows_initial_count = $2 where id::text = $1', [id, Math.max(0, Math.round(rows))])
}
