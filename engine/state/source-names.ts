/**
 * Whether the schemas, tables and columns that a sink names are there in its source. A name that was misspelt would make a
 * sink that gets nothing, or groups by nothing, without a word. Asked when a sink is made or changed; a source that is away
 * can't be asked, and then its sinks are taken as they are.
 */
import { Client, Pool } from 'pg'
import { EngineError } from '../errors.ts'
import type { SinkSettings } from './resources.ts'
import { rowsOf } from '../postgres/rows.ts'
import { qualified } from '../postgres/table-name.ts'
import type { Query } from '../postgres/query.ts'
import { accountClient, type Connection } from '../postgres/client-config.ts'

/**
 * `field` is that of the sink, for errors; `column` belongs to the table. `ofOldRow`: Postgres must tell the column of old
 * rows too, deleted and changed ones: it has to be in the table's replica identity.
 */
export type SourceName = Readonly<{ field: string; kind: 'schema' | 'table'; name: string; column?: string; ofOldRow?: boolean }>
/** There is such a column, but not of old rows. */
type Missing<T extends SourceName = SourceName> = T & Readonly<{ isOutsideIdentity?: boolean }>

/** Someone waits for the answer, and can do without it. */
const LIMIT_MS = 3_000
/** To open a session takes many times what is asked on it, and edits often come one after the other: so long it waits for another one. */
const REST_MS = 5_000
const MAX_SESSIONS = 4

const settingsOf = (connection: Connection) => ({
  ...accountClient(connection, 'tailrace set-up'),
  connectionTimeoutMillis: LIMIT_MS,
  query_timeout: LIMIT_MS,
})

/**
 * Lists every name of a table or column that a sink has, tables in full.
 * @param isKeyed it keeps one document per key: a delete must be in the group of the row's other changes (docs/rules.md, rule 24)
 */
export function namesOf({ source, tables }: Pick<SinkSettings, 'source' | 'tables'>, isKeyed = false): readonly SourceName[] {
  const names: SourceName[] = []
  for (const field of ['include_schemas', 'exclude_schemas'] as const)
    for (const name of source[field] ?? []) names.push({ field: `source.${field}`, kind: 'schema', name })
  for (const field of ['include_tables', 'exclude_tables'] as const)
    for (const name of source[field] ?? []) names.push({ field: `source.${field}`, kind: 'table', name: qualified(name) })
  for (const { name, group_column_names: columns } of tables) {
    const table = { field: 'tables', kind: 'table', name: qualified(name) } as const
    names.push(table, ...(columns ?? []).map((column) => ({ ...table, column, ofOldRow: isKeyed })))
  }
  return names
}

const keyOf = (name: SourceName): string => JSON.stringify([name.kind, name.name, name.column])

/** Tells whether a name is there, and Postgres doesn't tell its column of old rows, by which the sink groups. */
export const isOutsideIdentity = ({ isOutsideIdentity: isOutside = false }: Missing): boolean => isOutside

/** Keeps the names that the sink did not have before: what has gone since is no mistake of the one who sends it back. */
export function newNames<T extends SourceName>(names: readonly T[], before: Parameters<typeof namesOf>[0] | undefined): readonly T[] {
  const known = new Set(before ? namesOf(before).map(keyOf) : [])
  return names.filter((name) => !known.has(keyOf(name)))
}

/**
 * Keeps the names that are looked at when a sink is edited: the new ones, and of a sink that goes on those that the order of its
 * messages hangs on.
 */
export const namesToCheck = (
  names: readonly SourceName[],
  before: Parameters<typeof namesOf>[0] & Pick<SinkSettings, 'status'>,
  status: SinkSettings['status'],
): readonly SourceName[] =>
  before.status !== 'active' && status === 'active'
    ? [...newNames(names, before).filter(({ ofOldRow }) => !ofOldRow), ...names.filter(({ ofOldRow }) => ofOldRow)]
    : newNames(names, before)

/**
 * Asks the source which of the names are not there; of a table that isn't, its columns are left out. None when the source can't be
 * asked.
 */
export async function missingNames<T extends SourceName>(connection: Connection, names: readonly T[]): Promise<readonly Missing<T>[]> {
  if (names.length === 0) return []
  const client = new Client(settingsOf(connection))
  client.on('error', () => {})
  try {
    await client.connect()
    return await missingOf((sql, params) => client.query<Record<string, unknown>>(sql, params && [...params]), names)
  } catch {
    return []
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** Asks sources as `missingNames` does, on sessions that rest for some seconds, because edits often come one after the other. */
export class NameChecks {
  /** by the connection as it is stored: another one has sessions of its own */
  readonly #pools = new WeakMap<Connection, Pool>()

  async missing<T extends SourceName>(connection: Connection, names: readonly T[]): Promise<readonly Missing<T>[]> {
    if (names.length === 0) return []
    const pool = this.#poolOf(connection)
    return missingOf((sql, params) => pool.query<Record<string, unknown>>(sql, params && [...params]), names).catch(() => [])
  }

  #poolOf(connection: Connection): Pool {
    const known = this.#pools.get(connection)
    if (known) return known
    const pool = new Pool({ ...settingsOf(connection), max: MAX_SESSIONS, idleTimeoutMillis: REST_MS, allowExitOnIdle: true })
    pool.on('error', () => undefined) // the next question opens another session
    this.#pools.set(connection, pool)
    return pool
  }
}

/** Asks which of the names are not there; of a table that isn't, its columns are left out. @param query of the source */
export async function missingOf<T extends SourceName>(query: Query, names: readonly T[]): Promise<readonly Missing<T>[]> {
  if (names.length === 0) return []
  const named = (wanted: SourceName['kind']) => [...new Set(names.flatMap(({ kind, name }) => (kind === wanted ? [name] : [])))]
  const [schemaNames, tableNames] = [named('schema'), named('table')]
  const none = { rows: [] }
  const schemas =
    schemaNames.length > 0 ? await query('select nspname::text as name from pg_namespace where nspname = any ($1)', [schemaNames]) : none
  const tables =
    tableNames.length === 0
      ? none
      : await query(
          `select n.nspname || '.' || c.relname as name,
         array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) as columns,
         array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           and (c.relreplident = 'f' or exists (select from pg_index i where i.indrelid = c.oid and a.attnum = any (i.indkey)
             and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end))) as identity
       from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where c.relkind in ('r', 'p') and n.nspname || '.' || c.relname = any ($1)`,
          [tableNames],
        )
  const there = new Set(rowsOf({ name: 'text' }, schemas).map(({ name }) => name))
  const columns = { name: 'text', columns: 'texts', identity: 'texts' } as const
  const known = new Map(rowsOf(columns, tables).map((table) => [table.name, table]))
  return names.flatMap((one): Missing<T>[] => {
    const { kind, name, column, ofOldRow = false } = one
    if (kind === 'schema') return there.has(name) ? [] : [one]
    const table = known.get(name)
    if (column === undefined || !table) return column === undefined && !table ? [one] : []
    if (!table.columns.includes(column)) return [one]
    return ofOldRow && !table.identity.includes(column) ? [{ ...one, isOutsideIdentity: true }] : []
  })
}

/** Says what is wrong with a name, as the rest of a sentence about the field that has it. */
export function reasonOf({ kind, name, column, isOutsideIdentity = false }: Missing): string {
  if (isOutsideIdentity)
    return `groups by the column ${column?.slice(0, 100)}, which is not in the replica identity of ${name.slice(0, 200)}: Postgres does not send it for deleted rows, so deletes would be in other groups. Remedy: alter table ${name.slice(0, 200)} replica identity full`
  return column === undefined
    ? `names the ${kind} ${name.slice(0, 200)}, which the source database does not have`
    : `names the column ${column.slice(0, 100)}, which ${name.slice(0, 200)} does not have`
}

/** Refuses names that are not there. @throws EngineError VALIDATION_FAILED: a reason for each field, all at once */
export function refuseMissing(missing: readonly Missing[]): void {
  if (missing.length === 0) return
  const reasons: Record<string, string> = {}
  for (const name of missing) {
    const former = reasons[name.field]
    reasons[name.field] = former === undefined ? reasonOf(name) : `${former} and ${reasonOf(name)}`
  }
  const text = missing.map((name) => `${name.field} ${reasonOf(name)}`).join('; ')
  throw new EngineError('VALIDATION_FAILED', `Validation failed: ${text.slice(0, 500)}.`, reasons)
}
