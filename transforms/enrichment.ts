/**
 * Enrichment: for each message of a batch a row that a query finds in the source by the message's primary key, as JSON.
 *
 *   keys of the batch, by table ─▶ one query a table, in a snapshot that shows their commits ─▶ rows, found again by their keys
 *
 * The query gets an array for each column of the primary key, in the alphabetical order of their names, and selects those
 * columns under their own names. A message whose key has no row gets null; a key with two rows fails its batch. Keys of
 * stream and rows are compared as Postgres prints them, under the same settings.
 */
import { EngineError } from '../engine/errors.ts'
import { MESSAGE_FLAG } from '../engine/log/pack.ts'
import type { ReadRows, Rows, SnapshotReader } from '../engine/wal/connection/snapshot-reader.ts'
import type { ValueType } from '../engine/wal/decode/value-type.ts'
import type { FunctionMessage } from './function-lines.ts'
import { rowPrinter } from './row-json.ts'
import type { FunctionFailure } from './sandbox/batch-outcome.ts'

/** Holds what enriches the messages of a batch, by their place in it. */
export type Enriched = Readonly<{
  /** JSON of each message's row; undefined: there is none */
  rows: readonly (Buffer | undefined)[]
  failures: ReadonlyMap<number, FunctionFailure>
}>
/** The values of a primary key, as Postgres prints them. */
type Key = readonly string[]
type Found = Readonly<{ given: readonly (readonly string[])[]; byKey: ReadonlyMap<string, Buffer> }>
/** Messages of one table, by the text of their key. @property xids transactions that made them, as far as they are known */
type Table = { readonly places: Map<string, number[]>; readonly keys: Key[]; readonly xids: Set<number> }

const KEY_KNOWN_MS = 60_000

/** Finds the rows that enrich the messages of one sink. */
export class Enricher {
  readonly #name: string
  readonly #sql: string
  readonly #reader: SnapshotReader
  readonly #columnsOf = new Map<number, Readonly<{ names: readonly string[]; at: number }>>()
  readonly #types = new Map<number, ValueType>()

  constructor({ name, sql, reader }: Readonly<{ name: string; sql: string; reader: SnapshotReader }>) {
    this.#name = name
    this.#sql = sql
    this.#reader = reader
  }

  /** Finds a row for each message. @throws EngineError SOURCE_UNREACHABLE …: nothing is known of any message */
  async enrich(messages: readonly FunctionMessage[]): Promise<Enriched> {
    const rows: (Buffer | undefined)[] = messages.map(() => undefined)
    const failures = new Map<number, FunctionFailure>()
    for (const [relation, table] of tablesOf(messages))
      try {
        const { byKey } = await this.rowsOf(relation, table.keys, table.xids)
        for (const [key, places] of table.places) for (const i of places) rows[i] = byKey.get(key)
      } catch (error) {
        if (!(error instanceof EngineError) || error.code !== 'ENRICHMENT_FAILED') throw error
        this.#columnsOf.delete(relation)
        const failure = { code: error.code, name: this.#name, kind: 'enrichment', text: error.message } as const
        for (const places of table.places.values()) for (const i of places) failures.set(i, failure)
      }
    return { rows, failures }
  }

  /**
   * Runs the query for some keys of a table.
   * @param relation oid of the table @param commits that have to be visible
   * @returns rows by the JSON text of their keys, and what the query was given
   * @throws EngineError ENRICHMENT_FAILED: what is wrong with the query, or what Postgres said
   */
  rowsOf(relation: number, keys: readonly Key[], commits: ReadonlySet<number>): Promise<Found> {
    return this.#reader.read(commits, async (read) => {
      const columns = await this.#keyColumns(relation, read)
      const given = parameters(columns, keys)
      return { given, byKey: await this.#byKey(await read(this.#sql, given), columns, read) }
    })
  }

  /** Names of the primary key's columns, in the order of the key. */
  async #keyColumns(relation: number, read: ReadRows): Promise<readonly string[]> {
    const known = this.#columnsOf.get(relation)
    if (known && performance.now() < known.at + KEY_KNOWN_MS) return known.names
    const { rows } = await read(
      `select a.attname::text from pg_catalog.pg_index i
       join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = any ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
       where i.indrelid = $1::pg_catalog.oid and i.indisprimary order by a.attnum`,
      [String(relation)],
    )
    const names = rows.flatMap(([name]) => (name ? [name] : []))
    if (names.length === 0) throw failed('the table has no primary key, or is gone: nothing says which row belongs to a message')
    this.#columnsOf.set(relation, { names, at: performance.now() })
    return names
  }

  async #byKey({ fields, rows }: Rows, columns: readonly string[], read: ReadRows): Promise<ReadonlyMap<string, Buffer>> {
    const names = fields.map(({ name }) => name)
    const twice = names.find((name, at) => names.indexOf(name) !== at)
    if (twice !== undefined) throw failed(`the query selects two columns named "${twice}": give one of them another name`)
    const places = columns.map((column) => names.indexOf(column))
    const missing = columns.filter((_, k) => places[k] === -1)
    if (missing.length > 0) throw failed(`the query does not select "${missing.join('", "')}" of the primary key`)
    const print = await rowPrinter(fields, read, this.#types)
    const found = new Map<string, Buffer>()
    for (const values of rows) {
      const key = JSON.stringify(places.map((at) => values[at]))
      if (found.has(key)) throw failed('the query gives more than one row for a primary key')
      found.set(key, print(values))
    }
    return found
  }
}

/** Groups messages by their table and key. A message with null in its key is left out: no row can be found by it. */
function tablesOf(messages: readonly FunctionMessage[]): ReadonlyMap<number, Table> {
  const tables = new Map<number, Table>()
  for (const [i, { view, place }] of messages.entries()) {
    if ((view.flags(place) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.discarded)) !== 0) continue
    const key: readonly (string | null)[] = JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place)))
    if (!key.every((value) => value !== null)) continue
    const relation = view.relation(place)
    const table = tables.get(relation) ?? { places: new Map<string, number[]>(), keys: [], xids: new Set<number>() }
    tables.set(relation, table)
    const xid = view.xid(place)
    if (xid !== 0) table.xids.add(xid)
    const text = JSON.stringify(key)
    const known = table.places.get(text)
    if (known) known.push(i)
    else {
      table.places.set(text, [i])
      table.keys.push(key)
    }
  }
  return tables
}

/** Makes the parameters of the query: an array for each column, in the alphabetical order of the columns' names. @throws EngineError ENRICHMENT_FAILED */
function parameters(columns: readonly string[], keys: readonly Key[]): string[][] {
  if (keys.some((key) => key.length !== columns.length))
    throw failed(`the primary key is ${columns.join(', ')} by now, and was another when the row was changed`)
  return columns
    .map((name, k) => ({ name, k }))
    .toSorted((a, b) => (a.name < b.name ? -1 : 1))
    .map(({ k }) => keys.map((key) => key[k] ?? ''))
}

const failed = (text: string) => new EngineError('ENRICHMENT_FAILED', text)
