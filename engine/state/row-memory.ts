/**
 * Keeps the rows of some tables as they were decoded last: another reading fetches and decodes only those that were written since.
 * One statement says whether there are any, and which: most readings find none, because each edit reads all rows several times.
 * A row that was not written since is the same object as before, so rows can be compared without a look into them.
 *
 * A version of a row is named by who wrote it, where it lies, and when: a transaction may write a row twice, and a database that
 * was put back may give a transaction's number twice. The print is the sum of all versions, so that who remembers them can tell
 * whether what was written since is all that has changed; where it is not (a row is gone, or a database was put back), all are asked for.
 */
import type { Query, Row } from '../postgres/query.ts'
import { rowOf, rowsOf } from '../postgres/rows.ts'

/**
 * Gives, in SQL, the version of a row, a number of 64 bits: texts of 500 rows took four times as long to make and to compare.
 * @param table its name in the statement. @param also columns of other tables that are decoded with it
 */
export const versionOf = (
  table: string,
  { writtenAt = 'updated_at', also = [] }: Readonly<{ writtenAt?: string; also?: readonly string[] }> = {},
): string =>
  `hash_record_extended((${[...['id', 'xmin', 'ctid', writtenAt].map((column) => `${table}.${column}`), ...also].join(', ')}), 0)`

type Versioned = Readonly<{ id: string; version: string }>
type Entry = Versioned & Readonly<{ kind: string; name: string }>
/** What there is as a whole, and rows of it. */
type Found = Readonly<{ print: string; horizon: string; entries: readonly Entry[] }>

const STATE = { print: 'text', horizon: 'text', id: 'text?' } as const
const ENTRY = { kind: 'text', id: 'text', name: 'text', version: 'text' } as const
const VERSIONED = { id: 'text', version: 'text' } as const
const NAMED = { ...VERSIONED, name: 'text' } as const

type RememberedTable<T> = Readonly<{
  /** Gives `id`, `name` and `version` of each row, and as `writer` the transaction that wrote it. */
  versions: string
  /** Gives whole rows with their version: those whose ids are in $1. */
  rows: string
  decode: (row: Row) => T
}>

/** @property print differs whenever the rows do */
type Remembered<T> = Readonly<{ print: string; rows: { readonly [K in keyof T]: readonly T[K][] } }>

type DecodedRow = Entry & Readonly<{ decoded: unknown }>
/** by id, ordered by name, as its bytes are */
type Known = ReadonlyMap<string, DecodedRow>

/** @property horizon the oldest transaction that had not ended when it was read */
type Memory<T> = Readonly<{ known: ReadonlyMap<string, Known>; horizon: string; remembered: Remembered<T> }>

/** Remembers the decoded rows of some tables, so that reading them again costs only what was written since. */
export class RowMemory<T extends Record<string, unknown>> {
  readonly #tables: ReadonlyMap<string, RememberedTable<unknown>>
  readonly #print: string
  readonly #all: string
  readonly #since: string
  /** by id: those that were written here and have not been read since */
  readonly #written = new Map<string, DecodedRow>()
  #memory: Memory<T> | undefined

  /** @param tables by the name that their rows get here; each decodes what its own statement gives */
  constructor(tables: { readonly [K in keyof T & string]: RememberedTable<T[K]> }) {
    this.#tables = new Map(Object.entries<RememberedTable<unknown>>(tables))
    const all = [...this.#tables].map(
      ([kind, { versions }]) => `select '${kind}' as kind, id, name, version, writer from (${versions}) ${kind}`,
    )
    const state = `with entry as materialized (${all.join(' union all ')}),
      state as (select coalesce(sum(version), 0)::text as print, pg_snapshot_xmin(pg_current_snapshot())::xid as horizon from entry)`
    const found = `select state.print, state.horizon, entry.kind, entry.id, entry.name, entry.version from state left join entry`
    this.#print = `${state} select print from state`
    this.#all = `${state} ${found} on true order by entry.kind, entry.name collate "C"`
    this.#since = `${state} ${found} on state.print <> $1 and age(entry.writer) <= age($2::xid)`
  }

  /** Says what `read` would give, without reading it. */
  async print(query: Query): Promise<string> {
    const { rows } = await query(this.#print)
    return rowOf({ print: 'text' }, rows[0]).print
  }

  /** Takes in a row that was written here, so that the next reading need not fetch it. @param row as its statement gave it back */
  wrote(kind: keyof T & string, row: Row): void {
    const table = this.#tables.get(kind)
    const { id, name, version } = rowOf(NAMED, row)
    if (table) this.#written.set(id, { kind, id, name, version, decoded: table.decode(row) })
  }

  /**
   * A transaction that had read what is remembered and then wrote one row of it, which may be a new one, has been committed: what there
   * is now is known without being read. What others have committed meanwhile the next reading finds.
   * @param print of what it read. @returns undefined: something else was read since, or the row is another, so it is to be read
   */
  committed(kind: keyof T & string, id: string, print: string): Remembered<T> | undefined {
    const written = this.#written.get(id)
    const after = written && this.#with(kind, written, print)
    if (after) this.#written.delete(id)
    return after
  }

  /**
   * A transaction that had read what is remembered and then deleted one row of it, and none beside it, has been committed, as `committed`
   * has it.
   */
  removed(kind: keyof T & string, id: string, print: string): Remembered<T> | undefined {
    return this.#with(kind, { id }, print)
  }

  /** @param row as it is now; its id alone: there is none any more */
  #with(kind: keyof T & string, row: DecodedRow | Readonly<{ id: string }>, print: string): Remembered<T> | undefined {
    const memory = this.#memory
    const known = memory?.known.get(kind)
    if (!memory || !known || memory.remembered.print !== print) return undefined
    const before = known.get(row.id)
    const isThere = 'version' in row
    if (!before && !isThere) return undefined
    const others = [...known.values()].filter(({ id }) => id !== row.id)
    const place = isThere ? others.findIndex(({ name }) => name > row.name) : -1
    const entries = isThere ? others.toSpliced(place < 0 ? others.length : place, 0, row) : others
    const rows = { ...memory.remembered.rows, [kind]: entries.map(({ decoded }) => decoded) }
    const sum = BigInt(print) - BigInt(before?.version ?? 0) + BigInt(isThere ? row.version : 0)
    const remembered = { print: String(sum), rows }
    const now = new Map(entries.map((entry) => [entry.id, entry]))
    this.#memory = { known: new Map(memory.known).set(kind, now), horizon: memory.horizon, remembered }
    return remembered
  }

  /** Reads all rows, by name. An unchanged row is the same object as before; when all are, so is the whole that is returned. */
  async read(query: Query): Promise<Remembered<T>> {
    const memory = this.#memory
    if (memory) {
      const since = await this.#find(query, this.#since, [memory.remembered.print, memory.horizon])
      if (since.print === memory.remembered.print) return memory.remembered
      const entries = withWritten(memory.known, since)
      if (entries) return this.#remember(query, { ...since, entries })
    }
    return this.#remember(query, await this.#find(query, this.#all, []))
  }

  async #find(query: Query, sql: string, params: readonly unknown[]): Promise<Found> {
    const { rows } = await query(sql, params)
    const { print, horizon, id } = rowOf(STATE, rows[0])
    return { print, horizon, entries: id === undefined ? [] : rowsOf(ENTRY, { rows }) } // without an entry it has one row all the same
  }

  /** @param found all that there is, by name */
  async #remember(query: Query, { print, horizon, entries }: Found): Promise<Remembered<T>> {
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

  async #readTable(query: Query, table: RememberedTable<unknown>, entries: readonly Entry[], before: Known = new Map()): Promise<Known> {
    const decodedOnce = ({ id, version }: Entry) => [before.get(id), this.#written.get(id)].find((row) => row?.version === version)
    const unknown = entries.filter((entry) => !decodedOnce(entry)).map(({ id }) => id)
    const fetched = unknown.length > 0 ? (await query(table.rows, [unknown])).rows : []
    const decoded = new Map(fetched.map((row) => [rowOf(VERSIONED, row).id, { ...rowOf(VERSIONED, row), decoded: table.decode(row) }]))
    return new Map(
      entries.flatMap(({ id, kind, name, ...entry }) => {
        const row = decodedOnce({ id, kind, name, ...entry }) ?? decoded.get(id)
        return row ? [[id, { id, kind, name, version: row.version, decoded: row.decoded }] as const] : [] // else it was deleted meanwhile
      }),
    )
  }
}

/** @returns all rows as they are now; undefined: there is one that is new, or gone, or goes by another name, or an older one came back */
function withWritten(known: Memory<unknown>['known'], { print, entries: found }: Found): readonly Entry[] | undefined {
  if (found.length === 0 || found.some(({ kind, id, name }) => known.get(kind)?.get(id)?.name !== name)) return undefined
  const written = new Map(found.map((entry) => [entry.id, entry]))
  const entries = [...known.values()].flatMap((rows) => [...rows.values()]).map((entry) => written.get(entry.id) ?? entry)
  const sum = entries.reduce((all, { version }) => all + BigInt(version), 0n)
  return String(sum) === print ? entries : undefined
}
