/** From what users ask for to backfills that can be stored: which tables, and whether their source can read them so. */
import { publishedTables, refusedBySource, type AskedSource } from '../../engine/backfill/asked-tables.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import { MAX_TIMEOUT_MS, type BackfillSettings, type InitialBackfill } from '../../engine/state/backfills.ts'
import type { Database } from '../../engine/state/resources.ts'
import type { SourceFilter } from '../../engine/state/source-filter.ts'
import type { AskedBackfills } from './backfill-form.ts'
import { invalid } from './form.ts'

/** Says of a database what it takes to ask it. */
export const askedSourceOf = ({ connection, slot }: Pick<Database, 'connection' | 'slot'>): AskedSource => ({
  connection,
  publication: slot.publication,
})

/**
 * Gives a backfill for each table that is asked for. Of "all" those that the publication has at this moment.
 * @throws EngineError VALIDATION_FAILED: the source refuses one, in its own words; SOURCE_UNREACHABLE …: it can't be asked
 */
export async function wantedBackfills(
  source: AskedSource,
  filter: SourceFilter,
  { tables, isList, reading }: AskedBackfills,
): Promise<readonly BackfillSettings[]> {
  const wanted = (tables === 'all' ? await publishedTables(source, filter) : tables).map((table) => ({ ...reading, table }))
  if (wanted.length === 0) throw invalid([['tables', 'are none: the publication has no table that the sink takes']])
  // of "all" one that can't be read fails by itself, and the others go on
  if (tables !== 'all' || reading.where !== null || reading.sort_column !== null)
    await refuseUnreadable(source, wanted, (part) => (part === 'table' && isList ? 'tables' : part))
  return wanted
}

/** Gives the backfills that a new sink begins with. @throws EngineError VALIDATION_FAILED, SOURCE_UNREACHABLE … */
export async function firstBackfills(
  source: AskedSource,
  filter: SourceFilter,
  initial: InitialBackfill,
): Promise<readonly BackfillSettings[]> {
  if (initial === 'all') return (await publishedTables(source, filter)).map((table) => ({ table, max_timeout_ms: MAX_TIMEOUT_MS }))
  await refuseUnreadable(source, initial, (part, i) => `initial_backfill.${i}.${part}`)
  return initial
}

async function refuseUnreadable(
  source: AskedSource,
  wanted: readonly BackfillSettings[],
  fieldOf: (part: string, i: number) => string,
): Promise<void> {
  const asked = wanted.map(({ table, sort_column, start_position, where }) => ({
    table,
    sortColumn: sort_column ?? null,
    startPosition: start_position === null || start_position === undefined ? null : String(start_position),
    condition: where ?? null,
  }))
  const refused = await refusedBySource(source, asked)
  const told = ({ reason }: Readonly<{ reason: string }>, table = '') =>
    wanted.length > 1 && !reason.startsWith(table) ? `${reason} (of ${table})` : reason
  const reasons = refused.flatMap((one, i): Reason[] => (one ? [[fieldOf(one.part, i), told(one, wanted[i]?.table)]] : []))
  if (reasons.length > 0) throw invalid(reasons)
}
