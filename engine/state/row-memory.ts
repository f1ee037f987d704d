/**
 * Rows of a table as they were decoded last: who reads a table again fetches and decodes only the rows that have been written
 * since, for each edit reads all sinks three times. What is the same object as before needs no comparison either.
 *
 * A version of a row is named by who wrote it, where it lies, and when: a transaction may write a row twice, and a database that
 * was put back may give a transaction's number twice.
 */
import type { Query } from './store.ts'

/** SQL for the version of a row. @param table its name in the statement; it has `updated_at` */
export const versionOf = (table: string): string => `concat_ws(' ', ${table}.xmin, ${table}.ctid, ${table}.updated_at)`

export type RowMemoryOptions<R, T> = Readonly<{
  /** Gives `id` and `version` of each row, in the order that is wanted. */
  versions: string
  /** Gives whole rows with their version: those whose ids are in $1. */
  rows: string
  decode: (row: R) => T
}>

type Versioned = Readonly<{ id: string; version: string }>

export class RowMemory<R extends Record<string, unknown>, T> {
  readonly #options: RowMemoryOptions<R, T>
  #known: ReadonlyMap<string, Readonly<{ version: string; decoded: T }>> = new Map()

  constructor(options: RowMemoryOptions<R, T>) {
    this.#options = options
  }

  /** @returns all rows. Those that are as they were are the same objects as before. */
  async read(query: Query): Promise<readonly T[]> {
    const { versions, rows, decode } = this.#options
    const known = this.#known
    const now = new Map<string, Readonly<{ version: string; decoded: T }>>()
    const found = await query<Versioned>(versions)
    const unknown = found.rows.filter(({ id, version }) => known.get(id)?.version !== version).map(({ id }) => id)
    const fetched = new Map<string, R & Versioned>()
    if (unknown.length > 0) for (const row of (await query<R & Versioned>(rows, [unknown])).rows) fetched.set(row.id, row)
    for (const { id, version } of found.rows) {
      const before = known.get(id)
      if (before?.version === version) {
        now.set(id, before)
        continue
      }
      const row = fetched.get(id)
      if (row) now.set(id, { version: row.version, decoded: decode(row) }) // else it was deleted meanwhile
    }
    this.#known = now
    return [...now.values()].map(({ decoded }) => decoded)
  }
}
