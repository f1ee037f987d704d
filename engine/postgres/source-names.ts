/**
 * Whether the schemas, tables and columns that a sink names are there in its source. A name that was misspelt would make a
 * sink that gets nothing, or groups by nothing, without a word. Asked when a sink is made or changed; a source that is away
 * can't be asked, and then its sinks are taken as they are.
 */
import { Client } from 'pg'
import { EngineError } from '../errors.ts'
import type { Connection, SinkSettings } from '../state/resources.ts'
import { qualified } from '../state/table-name.ts'
import { clientConfig } from './client-config.ts'

/** `field` is that of the sink, for errors; `column` belongs to the table. */
export type SourceName = Readonly<{ field: string; kind: 'schema' | 'table'; name: string; column?: string }>

/** Someone waits for the answer, and can do without it. */
const LIMIT_MS = 3_000

/** Every name of a sink, tables in full. */
export function namesOf({ source, tables }: Pick<SinkSettings, 'source' | 'tables'>): readonly SourceName[] {
  const names: SourceName[] = []
  for (const field of ['include_schemas', 'exclude_schemas'] as const)
    for (const name of source[field] ?? []) names.push({ field: `source.${field}`, kind: 'schema', name })
  for (const field of ['include_tables', 'exclude_tables'] as const)
    for (const name of source[field] ?? []) names.push({ field: `source.${field}`, kind: 'table', name: qualified(name) })
  for (const { name, group_column_names: columns } of tables) {
    const table = { field: 'tables', kind: 'table', name: qualified(name) } as const
    names.push(table, ...(columns ?? []).map((column) => ({ ...table, column })))
  }
  return names
}

const keyOf = (name: SourceName): string => JSON.stringify([name.kind, name.name, name.column])

/** Those that the sink did not have before: what has gone since is no mistake of the one who sends it back. */
export function newNames(names: readonly SourceName[], before: Parameters<typeof namesOf>[0] | undefined): readonly SourceName[] {
  const known = new Set(before ? namesOf(before).map(keyOf) : [])
  return names.filter((name) => !known.has(keyOf(name)))
}

/** @returns those that are not there; of a table that isn't, not its columns too. None when the source can't be asked */
export async function missingNames(connection: Connection, names: readonly SourceName[]): Promise<readonly SourceName[]> {
  if (names.length === 0) return []
  const client = new Client({
    ...clientConfig(connection, 'tailrace set-up'),
    connectionTimeoutMillis: LIMIT_MS,
    query_timeout: LIMIT_MS,
  })
  client.on('error', () => {})
  try {
    await client.connect()
    const schemas = await client.query<{ name: string }>('select nspname::text as name from pg_namespace where nspname = any ($1)', [
      names.filter(({ kind }) => kind === 'schema').map(({ name }) => name),
    ])
    const tables = await client.query<{ name: string; columns: string[] }>(
      `select n.nspname || '.' || c.relname as name,
         array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns
       from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where c.relkind in ('r', 'p') and n.nspname || '.' || c.relname = any ($1)`,
      [names.filter(({ kind }) => kind === 'table').map(({ name }) => name)],
    )
    const there = new Set(schemas.rows.map(({ name }) => name))
    const columns = new Map(tables.rows.map((table) => [table.name, new Set(table.columns)]))
    return names.filter(({ kind, name, column }) => {
      if (kind === 'schema') return !there.has(name)
      const found = columns.get(name)
      return column === undefined ? !found : found !== undefined && !found.has(column)
    })
  } catch {
    return []
  } finally {
    await client.end().catch(() => undefined)
  }
}

export const reasonOf = ({ kind, name, column }: SourceName): string =>
  column === undefined
    ? `names the ${kind} ${name.slice(0, 200)}, which the source database does not have`
    : `names the column ${column.slice(0, 100)}, which ${name.slice(0, 200)} does not have`

/** @throws EngineError VALIDATION_FAILED: a reason for each field, all at once */
export function refuseMissing(missing: readonly SourceName[]): void {
  if (missing.length === 0) return
  const reasons: Record<string, string> = {}
  for (const name of missing) {
    const former = reasons[name.field]
    reasons[name.field] = former === undefined ? reasonOf(name) : `${former} and ${reasonOf(name)}`
  }
  const text = missing.map((name) => `${name.field} ${reasonOf(name)}`).join('; ')
  throw new EngineError('VALIDATION_FAILED', `Validation failed: ${text.slice(0, 500)}.`, reasons)
}
