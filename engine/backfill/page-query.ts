/** The SQL of pages. Operators are named with their schema, so that a page ends where the next one begins, whatever else a database has. */
import { escapeIdentifier } from 'pg'
import { literal, type KeyColumn, type SourceTable } from './source-table.ts'

/** Where a page begins: behind values of its order; or, of a table that is read as it lies, behind a place in its file, up to a block. */
export type After = readonly string[] | null

/** The rows of a page as `COPY` is to read them, ahead of the columns its place, if it is read by that. @param after what the page before ended with */
export function pageQuery(table: SourceTable, after: After, limit: number): string {
  const { order } = table
  if (order.length === 0) return placesQuery(table, after, limit)
  const columns = columnsOf(table)
  if (!after) return ordered(table, columns, [], limit)
  if (new Set(order.map(({ more }) => more)).size === 1) {
    const behind = `(${namesOf(order)}) ${order[0]?.more} (${order.map((column, i) => valueOf(column, after[i])).join(', ')})`
    return ordered(table, columns, [behind], limit)
  }
  // operators of several schemas can't stand in one comparison of rows: those of the same beginning first, then those behind
  const branches = order.map((last, i) => {
    const same = order.slice(0, i).map((column, n) => `t.${escapeIdentifier(column.name)} ${column.equal} ${valueOf(column, after[n])}`)
    return `(${ordered(table, columns, [...same, `t.${escapeIdentifier(last.name)} ${last.more} ${valueOf(last, after[i])}`], limit)})`
  })
  return `select * from (${branches.toReversed().join(' union all ')}) t limit ${limit}`
}

/** The rows of some keys of the table's identity, as `COPY` is to read them. */
export function rowsQuery(table: SourceTable, keys: readonly (readonly string[])[]): string {
  const { identityColumns } = table
  const wanted = keys.map((values) => `(${identityColumns.map((column, i) => valueOf(column, values[i])).join(', ')})`)
  const same = identityColumns.map(({ name, equal }, i) => `t.${escapeIdentifier(name)} ${equal} k.k${i}`)
  const where = `exists (select from (values ${wanted.join(', ')}) k(${identityColumns.map((_, i) => `k${i}`).join(', ')}) where ${same.join(' and ')})`
  return `select ${placed(table)}${columnsOf(table)} from ${table.from}${whereOf(table, [where])}`
}

/** The rows of some places in a table's file, as `COPY` is to read them. */
export function rowsAtQuery(table: SourceTable, places: readonly string[]): string {
  const there = `t.ctid operator(pg_catalog.=) any ('{${places.map((place) => `"${place}"`).join(',')}}'::pg_catalog.tid[])`
  return `select ${placed(table)}${columnsOf(table)} from ${table.from}${whereOf(table, [there])}`
}

function placesQuery(table: SourceTable, after: After, limit: number): string {
  const end = `t.ctid operator(pg_catalog.<) '(${endOf(table, after)},0)'::pg_catalog.tid`
  const begin = after ? [`t.ctid operator(pg_catalog.>) '${after[0]}'::pg_catalog.tid`] : []
  return `select ${placed(table)}${columnsOf(table)} from ${table.from}${whereOf(table, [...begin, end])} limit ${limit}`
}

/** The block up to which a table is read that is read as it lies: what is written behind it since has been streamed. */
export const endOf = ({ blocks }: SourceTable, after: After): string => after?.[1] ?? String(blocks)

const placed = ({ order }: SourceTable): string => (order.length === 0 ? 't.ctid, ' : '')

const ordered = (table: SourceTable, columns: string, more: readonly string[], limit: number): string =>
  `select ${columns} from ${table.from}${whereOf(table, more)} order by ${namesOf(table.order)} limit ${limit}`

const columnsOf = ({ relation }: SourceTable): string => namesOf(relation.message.columns)

const namesOf = (columns: readonly Readonly<{ name: string }>[]): string =>
  columns.map(({ name }) => `t.${escapeIdentifier(name)}`).join(', ')

const valueOf = ({ type }: KeyColumn, text = ''): string => literal(text, type)

/** The condition of a query that reads rows of a table. */
export function whereOf({ conditions }: Pick<SourceTable, 'conditions'>, more: readonly string[] = []): string {
  const all = [...conditions.map((condition) => `(${condition})`), ...more]
  return all.length > 0 ? ` where ${all.join(' and ')}` : ''
}
