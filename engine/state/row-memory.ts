/**
 * Rows of some tables as they were decoded last: who reads them again fetches and decodes only those that have been written since.
 * One statement says whether anything has, and what: most readings find nothing new, for each edit reads all of it several times.
 * A row that was not written since is the same object as before, so who compares rows need not look into it.
 *
 * A version of a row is named by who wrote it, where it lies, and when: a transaction may write a row twice, and a database that
 * was put back may give a transaction's number twice. The print is the sum of all versions, so that who remembers them can tell
 * whether what was written since is all that has changed; where it is not (a row is gone, or a database was put back), all are asked for.
 */
import type { Row } from '../postgres/query.ts'
import type { StateQuery } from './store.ts'

/**
 * SQL for the version of a row, a number of 64 bits: texts of 500 rows took four times as long to make and to compare.
 * @param table its name in the statement. @param also columns of other tables that are decoded with it
 */
export const versionOf = (table: string, { writtenAt = 'updated_at', also = [] as readonly string[] } = {}): string =>
  `hash_record_extended((${[...['id', 'xmin', 'ctid', writtenAt].map((column) => `${table}.${column}`), ...also].join(', ')}), 0)`

type Versioned = Readonly<{ id: string; version: string }>
type Entry = Versioned & Readonly<{ kind: string; name: string }>
type Found = Entry & Readonly<{ print: string; horizon: string }>

type RememberedTable<R, T> = Readonly<{
  /** Gives `id`, `name` and `version` of each row, and as `writer` the transaction that wrote it. */
  versions: string
  /** Gives whole rows with their version: those whose ids are in $1. */
  rows: string
  decode: (row: R & Versioned) => T
}>

/** @property print differs whenever the rows do */
type Remembered<T> = Readonly<{ print: string; rows: { readonly [K in keyof T]: readonly T[K][] } }>

/** by id, ordered by name */
type Known = ReadonlyMap<string, Entry & Readonly<{ decoded: unknown }>>

/** @property horizon the oldest transaction that had not ended when it was read */
type Memory<T> = Readonly<{ known: ReadonlyMap<string, Known>; horizon: string; remembered: Remembered<T> }>

export class RowMemory<T extends Record<string, unknown>> {
  readonly #tables: ReadonlyMap<string, RememberedTable<Row, unknown>>
  readonly #print: string
  readonly #all: string
  readonly #since: string
  /** by id: those that were written here and have not been read since */
  readonly #written = new Map<string, Versioned & Readonly<{ decoded: unknown }>>()
  #memory: Memory<T> | undefined

  /** @param tables by the name that their rows get here; each decodes what its own statement gives */
  constructor(tables: { readonly [K in keyof T & string]: RememberedTable<never, T[K]> }) {
    this.#tables = new Map(Object.entries(tables) as unknown as [string, RememberedTable<Row, unknown>][])
    const all = [...this.#tables].map(
      ([kind, { versions }]) => `select '${kind}' as kind, id, name, version, writer from (${versions}) ${kind}`,
    )
    const state = `with entry as materialized (${all.join(' union all ')}),
      state as (select coalesce(sum(version), 0)::text as print, pg_snapshot_xmin(pg_current_snapshot())::xid as horizon from entry)`
    const found = `select state.print, state.horizon, entry.kind, entry.id, entry.name, entry.version from state left join entry`
    this.#print = `${state} select print from state`
    this.#all = `${state} ${found} on true order by entry.kind, entry.name`
    this.#since = `${state} ${found} on state.print <> $1 and age(entry.writer) <= age($2::xid)`
  }

  /** Says what `read` would give, without reading it. */
  async print(query: StateQuery): Promise<string> {
    const { rows } = await query<{ print: string }>(this.#print)
    return rows[0]?.print ?? ''
  }

  /** @param row as the statement that wrote it gave it back: who reads next need not fetch it */
  wrote(kind: keyof T & string, row: Versioned): void {
    const table = this.#tables.get(kind)
    if (table) this.#written.set(row.id, { id: row.id, version: row.version, decoded: table.decode(row) })
  }

  /**
   * A transaction that had read what is remembered and then wrote one row of it has been committed: what there is now is known without
   * being read. What others have committed meanwhile the next reading finds.
   * @param print of what it read. @returns undefined: something else was read since, or the row is another, so it is to be read
   */
  committed(kind: keyof T & string, id: string, print: string): Remembered<T> | undefined {
    const memory = this.#memory
    const known = memory?.known.get(kind)
    const before = known?.get(id)
    const written = this.#written.get(id)
    if (!memory || !known || !before || !written || memory.remembered.print !== print) return undefined
    this.#written.delete(id)
    const now = new Map(known).set(id, { ...before, ...written }) // in its place
    const rows = { ...memory.remembered.rows, [kind]: [...now.values()].map(({ decoded }) => decoded) }
    const remembered = { print: String(BigInt(print) - BigInt(before.version) + BigInt(written.version)), rows }
    this.#memory = { known: new Map(memory.known).set(kind, now), horizon: memory.horizon, remembered }
    return remembered
  }

  /** @returns all rows, by name. Those that are as they were are the same objects as before; when all are, so is what is returned. */
  async read(query: StateQuery): Promise<Remembered<T>> {
    const memory = this.#memory
    if (memory) {
      const { rows } = await query<Found>(this.#since, [memory.remembered.print, memory.horizon])
      const [first] = rows
      if (first?.print === memory.remembered.print) return memory.remembered
      const entries = withWritten(memory.known, rows)
      if (entries) return this.#remember(query, entries, first)
    }
    const { rows } = await query<Found>(this.#all)
    return this.#remember(query, rows, rows[0])
  }

  /** @param entries what there is, by name */
  async #remember(query: StateQuery, entries: readonly Entry[], { print = '', horizon = '' }: Partial<Found> = {}): Promise<Remembered<T>> {
    const before = this.#memory?.known
    const byKind = Map.groupBy(entries, ({ kind }) => kind)
    const known = new Map<string, Known>()
    for (const [kind, table] of this.#tables)
      known.set(kind, await this.#readTable(query, table, byKind.get(kind) ?? [], before?.get(kind)))
    this.#written.clear()
    const rows = Object.fromEntries([...known].map(([kind, those]) => [kind, [...those.values()].map(({ decoded }) => decoded)]))
    const remembered = { print, rows: rows as unknown as Remembered<T>['rows'] }
    this.#memory = { known, horizon, remembered }
    return remembered
  }

  async #readTable(
    query: StateQuery,
    table: RememberedTable<Row, unknown>,
    entries: readonly Entry[],
    before: Known = new Map(),
  ): Promise<Known> {
    const decodedOnce = ({ id, version }: Entry) => [before.get(id), this.#written.get(id)].find((row) => row?.version === version)
    const unknown = entries.filter((entry) => !decodedOnce(entry)).map(({ id }) => id)
    const fetched = unknown.length > 0 ? (await query<Row & Versioned>(table.rows, [unknown])).rows : []
    const decoded = new Map(fetched.map((row) => [row.id, { version: row.version, decoded: table.decode(row) }]))
    return new Map(
      entries.flatMap(({ id, kind, name, ...entry }) => {
        const row = decodedOnce({ id, kind, name, ...entry }) ?? decoded.get(id)
        return row ? [[id, { id, kind, name, version: row.version, decoded: row.decoded }] as const] : [] // else it was deleted meanwhile
      }),
    )
  }
}

/** @returns all rows as they are now; undefined: there is one that is new, or gone, or goes by another name, or an older one came back */
function withWritten(known: Memory<unknown>['known'], found: readonly Found[]): readonly Entry[] | undefined {
  if (found.some(({ kind, id, name }) => known.get(kind)?.get(id)?.name !== name)) return undefined
  const written = new Map(found.map((entry) => [entry.id, entry]))
  const entries = [...known.values()].flatMap((rows) => [...rows.values()]).map((entry) => written.get(entry.id) ?? entry)
  const sum = entries.reduce((all, { version }) => all + BigInt(version), 0n)
  return String(sum) === found[0]?.print ? entries : undefined
}
