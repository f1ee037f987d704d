/**
 * Rows of a database as typed values. Who asks names the columns that it reads and what they hold, once; a value that is something
 * else fails there, and not further on as NaN or "undefined". A column of 64 bits comes from the driver as text, and so does
 * every column of a replication connection: both become what they stand for here. (A JSON schema can't say that.)
 */
import { EngineError } from '../errors.ts'
import { parseLsn, type Lsn } from '../lsn.ts'
import type { Row } from './query.ts'

/** What a column may hold. Each gives the value, or undefined: it is something else. */
const READERS = {
  text: (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined),
  /** of any width up to 2^53 */
  int: (value: unknown): number | undefined => (Number.isInteger(numberOf(value)) ? numberOf(value) : undefined),
  number: (value: unknown): number | undefined => numberOf(value),
  boolean: (value: unknown): boolean | undefined =>
    value === true || value === 't' ? true : value === false || value === 'f' ? false : undefined,
  lsn: (value: unknown): Lsn | undefined => (typeof value === 'string' ? parseLsn(value) : undefined),
  time: (value: unknown): Date | undefined => (value instanceof Date ? value : undefined),
  bytes: (value: unknown): Buffer | undefined => (Buffer.isBuffer(value) ? value : undefined),
  texts: (value: unknown): readonly string[] | undefined =>
    Array.isArray(value) && value.every((one) => typeof one === 'string') ? value : undefined,
}
type Held = keyof typeof READERS
const READER_OF = new Map<string, (value: unknown) => unknown>(Object.entries(READERS))

/** A column by what it holds, with a "?" where null becomes undefined; or a function that reads it, such as that of a JSON document. */
type Column = Held | `${Held}?` | ((value: unknown) => unknown)
type Columns = Readonly<Record<string, Column>>
type ValueOf<C> = C extends Held
  ? NonNullable<ReturnType<(typeof READERS)[C]>>
  : C extends `${infer H extends Held}?`
    ? ReturnType<(typeof READERS)[H]>
    : C extends (value: unknown) => infer T
      ? T
      : never
/** The type of a row that was read by a description of its columns. */
export type RowOf<C extends Columns> = { readonly [N in keyof C]: ValueOf<C[N]> }

/**
 * Reads the rows of an answer by a description of their columns: `rowsOf({ key: 'text', term: 'int', holder: 'text?' }, await query(…))`.
 * @throws EngineError INTERNAL: a column is absent, null, or holds something else; LSN_MALFORMED
 */
export function rowsOf<const C extends Columns>(columns: C, { rows }: Readonly<{ rows: readonly Row[] }>): RowOf<C>[] {
  const named = Object.entries(columns)
  return rows.map((row) => Object.fromEntries(named.map(([name, column]) => [name, read(name, column, row[name])])) as RowOf<C>) // each name has what its column says
}

/** Reads the one row of an answer as `rowsOf` does. @throws EngineError INTERNAL: the same, or there is none */
export function rowOf<const C extends Columns>(columns: C, row: Row | undefined): RowOf<C> {
  const [read] = rowsOf(columns, { rows: row ? [row] : [] })
  if (!read) throw new EngineError('INTERNAL', 'the database answered no row')
  return read
}

/** Reads a column that holds one of some texts. */
export const oneOf =
  <const T extends string>(...texts: readonly T[]) =>
  (value: unknown): T => {
    const found = texts.find((text) => text === value)
    if (found === undefined) throw new EngineError('INTERNAL', `the database answered none of ${texts.join(', ')}`)
    return found
  }

function read(name: string, column: Column, value: unknown): unknown {
  if (typeof column === 'function') return column(value)
  const isOptional = column.endsWith('?')
  if (isOptional && value === null) return undefined
  const known = READER_OF.get(isOptional ? column.slice(0, -1) : column)?.(value)
  if (known === undefined) throw new EngineError('INTERNAL', `the database answered no ${column} in the column ${name}`, { column: name })
  return known
}

function numberOf(value: unknown): number | undefined {
  const number = typeof value === 'string' && value !== '' ? Number(value) : value
  return typeof number === 'number' && !Number.isNaN(number) ? number : undefined
}
