/**
 * Rows of some tables as they were decoded last: who reads them again fetches and decodes only those that have been written since.
 * One statement says whether anything has, and what: most readings find nothing new, for each edit reads all of it several times.
 * A row that was not written since is the same object as before, so who compares rows need not look into it.
 *
 * A version of a row is named by who wrote it, where it lies, and when: a transaction may write a row twice, and a database that
 * was put back may give a transaction's number twice.
 */
import type { Query } from './store.ts'

/**
 * SQL for the version of a row; the time in it is a number, for as text it takes a third of the statement.
 * @param table its name in the statement. @param writtenAt its column that says when it was written
 */
export const versionOf = (table: string, writtenAt = 'updated_at'): string =>
  `concat_ws(' ', ${table}.xmin, ${table}.ctid, date_part('epoch', ${table}.${writtenAt}))`

type Row = Record<string, unknown>
type Versioned = Readonly<{ id: string; version: string }>

export type RememberedTable<R, T> = Readonly<{
  /** Gives `id`, `name` and `version` of each row. */
  versions: string
  /** Gives whole rows with their version: those whose ids are in $1. */
  rows: string
  decode: (row: R & Versioned) => T
}>

/** @property print differs whenever the rows do */
export type Remembered<T> = Readonly<{ print: string; rows: { readonly [K in keyof T]: readonly T[K][] } }>

/** by id, ordered by name */
type Known = ReadonlyMap<string, Readonly<{ version: string; decoded: unknown }>>

export class RowMemory<T extends Record<string, unknown>> {
  readonly #tables: readonly (readonly [string, RememberedTable<Row, unknown>])[]
  readonly #print: string
  readonly #changed: string
  #known: ReadonlyMap<string, Known> = new Map()
  #remembered: Remembered<T> | undefined

  /** @param tables by the name that their rows get here; each decodes what its own statement gives */
  constructor(tables: { readonly [K in keyof T & string]: RememberedTable<never, T[K]> }) {
    this.#tables = Object.entries(tables) as unknown as readonly (readonly [string, RememberedTable<Row, unknown>])[]
    const all = this.#tables.map(([table, { versions }]) => `select '${table}' as kind, id, name, version from (${versions}) ${table}`)
    const state = `with entry as materialized (${all.join(' union all ')}),
      state as (select coalesce(md5(string_agg(concat_ws(' ', id, version), ' ' order by id)), 'none') as print from entry)`
    this.#print = `${state} select print from state`
    this.#changed = `${state} select state.print, entry.kind, entry.id, entry.version from state left join entry on state.print <> $1::text
      order by entry.kind, entry.name`
  }

  /** Says what `read` would give, without reading it. */
  async print(query: Query): Promise<string> {
    const { rows } = await query<{ print: string }>(this.#print)
    return rows[0]?.print ?? ''
  }

  /** @returns all rows, by name. Those that are as they were are the same objects as before; when all are, so is what is returned. */
  async read(query: Query): Promise<Remembered<T>> {
    const [known, remembered] = [this.#known, this.#remembered]
    const found = await query<{ print: string; kind: string } & Versioned>(this.#changed, [remembered?.print ?? ''])
    const print = found.rows[0]?.print ?? ''
    if (remembered?.print === print) return remembered
    const byTable = Map.groupBy(found.rows, ({ kind }) => kind)
    const now = new Map<string, Known>()
    for (const [name, table] of this.#tables) now.set(name, await readTable(query, table, byTable.get(name) ?? [], known.get(name)))
    const rows = Object.fromEntries([...now].map(([name, entries]) => [name, [...entries.values()].map(({ decoded }) => decoded)]))
    this.#known = now
    return (this.#remembered = { print, rows: rows as unknown as Remembered<T>['rows'] })
  }
}

async function readTable(
  query: Query,
  { rows, decode }: RememberedTable<Row, unknown>,
  found: readonly Versioned[],
  known: Known = new Map(),
): Promise<Known> {
  const unknown = found.filter(({ id, version }) => known.get(id)?.version !== version).map(({ id }) => id)
  const fetched = new Map<string, Row & Versioned>()
  if (unknown.length > 0) for (const row of (await query<Row & Versioned>(rows, [unknown])).rows) fetched.set(row.id, row)
  const now = new Map<string, Readonly<{ version: string; decoded: unknown }>>()
  for (const { id, version } of found) {
    const before = known.get(id)
    if (before?.version === version) {
      now.set(id, before)
      continue
    }
    const row = fetched.get(id)
    if (row) now.set(id, { version: row.version, decoded: decode(row) }) // else it was deleted meanwhile
  }
  return now
}
