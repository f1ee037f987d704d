/**
 * How Postgres is going to read pages, as it says itself before the first one: a page that reads or sorts a whole large table for
 * a few of its rows would do so again for each page, and is refused with the index that mends it.
 */
import { escapeIdentifier } from 'pg'
import { EngineError } from '../errors.ts'
import { fieldsOf } from '../json.ts'
import type { Query } from '../postgres/query.ts'
import { rowOf } from '../postgres/rows.ts'
import { pageQuery, whereOf } from './page-query.ts'
import { refused, type SourceTable, type TableAsked } from './source-table.ts'

/** A table of more rows is large. */
const LARGE_ROWS = 100_000
/** Rows of a table of fewer bytes are counted: what Postgres guesses of small tables is far off. */
const SMALL_BYTES = 4 * 1024 * 1024
const PAGE_ROWS = 1_000

type Planner = Readonly<{
  query: Query
  /** Has the server plan a single statement, without running it. */
  plan: (select: string) => Promise<unknown>
}>
type PlanNode = Readonly<{ type: string; rows: number; below: readonly PlanNode[] }>

/**
 * Looks how Postgres would read the first page. @param table as it is read by what is asked for
 * @throws EngineError BACKFILL_REFUSED: each page would read or sort a large table
 */
export async function refuseHeavyPages({ plan }: Pick<Planner, 'plan'>, table: SourceTable, asked: TableAsked): Promise<void> {
  if ((asked.sortColumn === null && asked.condition === null) || table.order.length === 0) return
  if (nodeOf(await plan(`select from ${table.from}`)).rows <= LARGE_ROWS) return
  if (isHeavy(nodeOf(await plan(pageQuery(table, null, PAGE_ROWS)))))
    throw refused(asked, `each of its pages would read or sort the whole table; run: ${indexFor(table, asked)}`)
}

/** Says about how many rows there are to read. */
export async function estimateRows({ query, plan }: Planner, table: SourceTable): Promise<number> {
  const { rows } = await query(
    `select coalesce(sum(pg_relation_size(l.relid)), pg_relation_size($1::oid))::int8 as bytes from pg_partition_tree($1::oid) l where l.isleaf`,
    [String(table.relation.oid)],
  )
  if (rowOf({ bytes: 'int' }, rows[0]).bytes > SMALL_BYTES) return nodeOf(await plan(`select from ${table.from}${whereOf(table)}`)).rows
  const counted = await query(`select count(*)::int8 as rows from ${table.from}${whereOf(table)}`)
  return rowOf({ rows: 'int' }, counted.rows[0]).rows
}

/** An incremental sort sorts rows of the same beginning only. */
const isHeavy = ({ type, below }: PlanNode): boolean =>
  type === 'Seq Scan' || (type === 'Sort' && below.some(({ rows }) => rows > LARGE_ROWS)) || below.some(isHeavy)

function indexFor({ relation, order }: SourceTable, { sortColumn, condition }: TableAsked): string {
  const { schema, table } = relation.message
  const columns = order.map(({ name }) => escapeIdentifier(name)).join(', ')
  const where = condition === null ? '' : ` where ${condition.trim()}`
  const by = sortColumn === null ? 'condition' : 'order'
  return `create index concurrently on ${escapeIdentifier(schema)}.${escapeIdentifier(table)} (${columns})${where}; (or another that its ${by} can use)`
}

/** Reads a plan as EXPLAIN gives it in JSON. */
function nodeOf(explained: unknown): PlanNode {
  const [first] = Array.isArray(explained) ? (explained as readonly unknown[]) : []
  const plan = fieldsOf(first)['Plan']
  if (plan === undefined) throw new EngineError('INTERNAL', 'PostgreSQL explained no plan')
  return toNode(plan)
}

function toNode(plan: unknown): PlanNode {
  const { 'Node Type': type, 'Plan Rows': rows, Plans: below } = fieldsOf(plan)
  return { type: String(type), rows: Number(rows), below: Array.isArray(below) ? below.map(toNode) : [] }
}
