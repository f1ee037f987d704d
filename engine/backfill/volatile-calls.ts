/**
 * Keeps functions out of a user's condition that could change something: the settings of the session, which pages are rendered by, a
 * sequence, a slot, a lock that stays. Postgres calls them volatile. They also answer otherwise when a row is read again.
 */
import { escapeIdentifier } from 'pg'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { refused, type TableAsked } from './source-table.ts'

/** A name ahead of a bracket, with its schema if that is said. Of what stands in a text or a comment too much is found. */
const CALL = /(?<![\w$\u0080-\uffff])(?:("[^"]+"|[\w$\u0080-\uffff]+)\s*\.\s*)?("[^"]+"|[\w$\u0080-\uffff]+)\s*\(/g

const VOLATILE_QUERY = `select n.nspname::text as schema, p.proname::text as name, pg_get_function_identity_arguments(p.oid) as arguments
  from unnest($1::text[], $2::text[]) w(schema, name) join pg_proc p on p.proname = w.name join pg_namespace n on n.oid = p.pronamespace
  where p.provolatile = 'v' and case when w.schema is null then pg_function_is_visible(p.oid) else n.nspname = w.schema end
  order by n.nspname, p.proname limit 1`

/**
 * Looks which functions a condition calls. @param query with the search path that it will be read with
 * @throws EngineError BACKFILL_REFUSED: one of them is volatile
 */
export async function refuseVolatileCalls(query: Query, asked: TableAsked): Promise<void> {
  const calls = [...(asked.condition ?? '').matchAll(CALL)]
  if (calls.length === 0) return
  const names = (part: 1 | 2) => calls.map((call) => nameOf(call[part]))
  const [found] = rowsOf({ schema: 'text', name: 'text', arguments: 'text' }, await query(VOLATILE_QUERY, [names(1), names(2)]))
  if (!found) return
  const { schema, name, arguments: of } = found
  const remedy =
    schema === 'pg_catalog'
      ? 'use one that is stable or immutable'
      : `if it only reads, run: alter function ${escapeIdentifier(schema)}.${escapeIdentifier(name)}(${of}) stable;`
  throw refused(
    asked,
    `its condition calls ${schema}.${name}, which is volatile: it may change something, or answer otherwise when a row is read again; ${remedy}`,
  )
}

/** The name that Postgres looks for. */
function nameOf(word: string | undefined): string | null {
  if (word === undefined) return null
  return word.startsWith('"') ? word.slice(1, -1) : word.toLowerCase()
}
