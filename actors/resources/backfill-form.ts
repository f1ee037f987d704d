/**
 * The wire form of backfills: how one is printed, what is asked for to begin one, and what a new sink may say of its first ones.
 * Nothing here does I/O.
 */
import { Type } from 'typebox'
import { qualified } from '../../engine/postgres/table-name.ts'
import { schemaCheck } from '../../engine/schema-check.ts'
import { reasonsOf, type Reason } from '../../engine/schema-reasons.ts'
import { BACKFILL_STATES, BackfillSettings, MAX_TIMEOUT_MS, type Backfill, type InitialBackfill } from '../../engine/state/backfills.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { takesTable, type SourceFilter } from '../../engine/state/source-filter.ts'
import { checker, invalid, readOnly } from './form.ts'

const strict = { additionalProperties: false } as const
const MAX_TABLES = 10_000
const TableName = Type.String({
  minLength: 1,
  maxLength: 200,
  pattern: '^[^\\u0000]*$',
  description: 'schema.table; without a schema: public',
})
const { table: _table, ...how } = BackfillSettings.properties
const nullable = <T extends 'text' | 'number' | 'time'>(type: T, description?: string) =>
  Type.Union([type === 'number' ? Type.Number() : Type.String(type === 'time' ? { format: 'date-time' } : {}), Type.Null()], {
    ...(description !== undefined && { description }),
  })

/** The schema of a backfill in an answer. */
export const BackfillOut = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    sink_consumer: Type.String({ description: 'name of the sink' }),
    state: Type.Union(BACKFILL_STATES.map((state) => Type.Literal(state))),
    table: Type.String({ description: 'schema.table' }),
    sort_column: nullable('text'),
    start_position: nullable('text'),
    where: nullable('text'),
    max_timeout_ms: Type.Integer(),
    rows_initial_count: nullable('number', 'about how many rows there are; null: not known yet'),
    rows_processed_count: Type.Integer({ description: 'rows that were read' }),
    rows_ingested_count: Type.Integer({ description: 'rows that were written for the sink: those that no newer change made needless' }),
    rows_per_second: nullable('number', 'of its last pages; null where it does not run'),
    seconds_left: nullable('number', 'at that speed, about; null where that is not known'),
    waiting: nullable('text', 'why it stands still although it is active'),
    error: Type.Union([Type.Object({ code: Type.String(), message: Type.String() }), Type.Null()], { description: 'why it failed' }),
    inserted_at: Type.String({ format: 'date-time' }),
    updated_at: Type.String({ format: 'date-time' }),
    completed_at: nullable('time'),
    canceled_at: nullable('time'),
    failed_at: nullable('time'),
  },
  { title: 'Backfill' },
)

/** A backfill that is shown. @property waiting why it stands still although it is active, where that is known */
export type ShownBackfill = Backfill & Readonly<{ waiting?: string | undefined }>

/** Shows a backfill of a sink. */
export function backfillOut(backfill: ShownBackfill, sink: Pick<Sink, 'name' | 'status'>): Record<string, unknown> {
  const isOff = backfill.state === 'active' && sink.status === 'disabled'
  const waiting = isOff ? 'the sink is disabled' : backfill.waiting
  const perSecond = isOff ? undefined : speedOf(backfill)
  const left = (backfill.rowsInitial ?? 0) - backfill.rowsProcessed
  return {
    id: backfill.id,
    sink_consumer: sink.name,
    state: backfill.state,
    table: backfill.table,
    sort_column: backfill.sortColumn ?? null,
    start_position: backfill.startPosition ?? null,
    where: backfill.condition ?? null,
    max_timeout_ms: backfill.maxTimeoutMs,
    rows_initial_count: backfill.rowsInitial ?? null,
    rows_processed_count: backfill.rowsProcessed,
    rows_ingested_count: backfill.rowsIngested,
    rows_per_second: perSecond === undefined ? null : Math.round(perSecond),
    seconds_left: perSecond !== undefined && perSecond > 0 && left > 0 ? Math.ceil(left / perSecond) : null,
    waiting: waiting ?? null,
    error: backfill.error ?? null,
    inserted_at: backfill.insertedAt.toISOString(),
    updated_at: backfill.updatedAt.toISOString(),
    completed_at: backfill.completedAt?.toISOString() ?? null,
    canceled_at: backfill.canceledAt?.toISOString() ?? null,
    failed_at: backfill.failedAt?.toISOString() ?? null,
  }
}

/** Gives the rows a second of the pages that are known; one that stands still gets slower. @returns undefined: it does not run, or too little is known */
function speedOf({ state, pages, asOf }: Backfill): number | undefined {
  const timed = pages.filter(({ at }) => at !== undefined)
  const [first, last] = [timed[0], timed.at(-1)]
  if (state !== 'active' || !first || !last || first === last) return undefined
  const seconds = (asOf.getTime() - Date.parse(first.at ?? '')) / 1_000
  return seconds > 0 ? (last.processed - first.processed) / seconds : undefined
}

/** The schema of a request for backfills. */
export const BackfillIn = Type.Object(
  {
    table: Type.Optional(TableName),
    tables: Type.Optional(
      Type.Union([Type.Literal('all'), Type.Array(TableName, { minItems: 1, maxItems: MAX_TABLES })], {
        description: 'instead of table: several, or "all" that are published and that the sink takes. The answer is a list',
      }),
    ),
    state: Type.Optional(Type.Literal('active')),
    ...how,
    max_timeout_ms: Type.Optional(how.max_timeout_ms),
    ...readOnly(),
  },
  { ...strict, title: 'BackfillInput' },
)
/** The schema of a change of a backfill. */
export const BackfillPatch = Type.Object(
  { state: Type.Union(['active', 'paused', 'cancelled'].map((state) => Type.Literal(state))), ...readOnly() },
  { ...strict, title: 'BackfillChange' },
)
const checkIn = checker(BackfillIn)
const checkPatch = checker(BackfillPatch)

/** How rows are read, whatever their table. */
type Reading = Omit<BackfillSettings, 'table'>
/** Backfills that are asked for. @property isList they are answered as a list @property tables in full, each once */
export type AskedBackfills = Readonly<{ tables: readonly string[] | 'all'; isList: boolean; reading: Reading }>

/**
 * Reads what is asked for to begin backfills of a sink.
 * @throws EngineError VALIDATION_FAILED: a reason for each field; where no table is said and the sink takes several, what to send
 */
export function askedBackfills(body: unknown, { source }: Pick<Sink, 'source'>): AskedBackfills {
  const { table, tables, sort_column = null, start_position = null, where = null, max_timeout_ms = MAX_TIMEOUT_MS } = checkIn(body)
  const reasons: Reason[] = partReasons({ sort_column, start_position })
  if (table !== undefined && tables !== undefined) reasons.push(['tables', 'cannot be set beside table'])
  const [only, ...others] = source.include_tables ?? []
  const named = tables ?? (table !== undefined ? [table] : only !== undefined && others.length === 0 ? [only] : undefined)
  if (named === undefined)
    reasons.push([
      'table',
      'is missing: the sink takes more than one. Send {"table": "schema.table"}, or {"tables": ["schema.table", …]}, or {"tables": "all"}',
    ])
  const wanted = named === 'all' ? named : [...new Set((named ?? []).map(qualified))]
  const field = tables === undefined ? 'table' : 'tables'
  for (const name of wanted === 'all' ? [] : wanted) if (!isTaken(source, name)) reasons.push([field, outside(name)])
  if (reasons.length > 0) throw invalid(reasons)
  const reading = { sort_column, start_position, where, max_timeout_ms }
  return { tables: wanted, isList: tables !== undefined, reading }
}

/** Reads the state that a backfill is to get. @throws EngineError VALIDATION_FAILED */
export const wantedState = (body: unknown) => checkPatch(body).state as 'active' | 'paused' | 'cancelled' // as its schema says

function partReasons({ sort_column, start_position }: Pick<Reading, 'sort_column' | 'start_position'>): Reason[] {
  if ((sort_column ?? null) === null && (start_position ?? null) !== null)
    return [['sort_column', 'is missing: start_position is a value of it']]
  if ((sort_column ?? null) !== null && (start_position ?? null) === null)
    return [['start_position', 'is missing: it says where sort_column begins']]
  return []
}

const isTaken = (source: SourceFilter, table: string): boolean => takesTable(source, table.slice(0, table.indexOf('.')), table)
const outside = (table: string): string => `names ${table}, which the sink does not take: it is outside of its source`

const FirstBackfill = Type.Object(
  {
    table: TableName,
    type: Type.Optional(Type.Union([Type.Literal('full'), Type.Literal('partial'), Type.Null()])),
    sort_column: how.sort_column,
    start_position: how.start_position,
  },
  { ...strict, title: 'InitialBackfill' },
)
/** The schema of the backfills that a new sink begins with. */
export const InitialBackfillIn = Type.Union([Type.Boolean(), Type.Array(FirstBackfill, { maxItems: MAX_TABLES })], {
  description:
    'of a new sink: true reads the rows that are there, of every table that is published and that it takes; a list says of which tables, and from where on (type partial, with sort_column and start_position)',
})
const checkInitial = schemaCheck(Type.Object({ initial_backfill: InitialBackfillIn }))

/** Reads with which backfills a new sink begins. @returns undefined: with none */
export function initialBackfill(
  given: unknown,
  source: SourceFilter,
): Readonly<{ initial: InitialBackfill | undefined; reasons: readonly Reason[] }> {
  const form = { initial_backfill: given ?? false }
  if (!checkInitial(form)) return { initial: undefined, reasons: reasonsOf(checkInitial.errors ?? []) }
  const { initial_backfill: asked } = form
  if (typeof asked === 'boolean') return { initial: asked ? 'all' : undefined, reasons: [] }
  const reasons: Reason[] = []
  const seen = new Set<string>()
  const initial = asked.map(({ table: name, type, sort_column = null, start_position = null }, i): BackfillSettings => {
    const at = `initial_backfill.${i}`
    const table = qualified(name)
    if (!isTaken(source, table)) reasons.push([`${at}.table`, outside(table)])
    if (seen.has(table)) reasons.push([`${at}.table`, `names ${table} a second time`])
    seen.add(table)
    if (type === 'partial')
      for (const field of ['sort_column', 'start_position'] as const) {
        if ((field === 'sort_column' ? sort_column : start_position) === null)
          reasons.push([`${at}.${field}`, 'is missing: type is partial'])
      }
    else if (sort_column !== null || start_position !== null)
      reasons.push([`${at}.type`, 'must be "partial" beside sort_column and start_position'])
    return { table, sort_column, start_position, max_timeout_ms: MAX_TIMEOUT_MS }
  })
  return { initial: initial.length > 0 ? initial : undefined, reasons }
}

/** Says as a file does with which backfills a sink begins. */
export const initialForm = (initial: InitialBackfill): true | readonly object[] =>
  initial === 'all' ||
  initial.map(({ table, sort_column, start_position }) => ({
    table,
    ...(sort_column !== null && sort_column !== undefined && { type: 'partial', sort_column, start_position }),
  }))
