/**
 * Rows of a table as messages of a backfill would have them, without a place in the stream: for who compares them with what a
 * destination has. Each page is read in a transaction of its own, and says up to where in the write-ahead log it shows everything.
 */
import { PackBuilder } from '../log/pack-builder.ts'
import { ACTION, Pack } from '../log/pack.ts'
import { parseLsn, type Lsn } from '../lsn.ts'
import { PART } from '../position.ts'
import { EngineError } from '../errors.ts'
import type { Connection } from '../postgres/client-config.ts'
import { rowOf, rowsOf } from '../postgres/rows.ts'
import type { OwnStream } from '../wal/change-packer.ts'
import { ChangeWriter } from '../wal/decode/change-writer.ts'
import type { Relation } from '../wal/decode/relation.ts'
import { pageQuery, rowsQuery, whereOf, type After } from './page-query.ts'
import { PageRows } from './page-rows.ts'
import { PageSession } from './page-session.ts'
import { describeSource, type SourceTable } from './source-table.ts'

/** What rows are read of. */
export type RowsAsked = Readonly<{
  connection: Connection
  publication: string
  /** schema.table */
  table: string
  timestampFormat: OwnStream['target']['timestampFormat']
  maxMessageBytes: number
}>

/**
 * Some rows of a table.
 * @property pack undefined: there are none
 * @property keys of the rows, each the values of `keyColumns`
 * @property table its oid
 * @property next where the next page begins; null: these were the last
 * @property lsn every commit up to there is seen
 */
export type RowPage = Readonly<{
  pack: Pack | undefined
  keys: readonly (readonly string[])[]
  keyColumns: readonly string[]
  table: number
  next: After
  lsn: Lsn
}>

/** Gives the values of a key by the names of their columns. */
export const keyByColumn = (columns: readonly string[], key: readonly string[]): Readonly<Record<string, string>> =>
  Object.fromEntries(columns.map((column, i) => [column, key[i] ?? '']))

const QUERY_MS = 30_000
/** A page of large rows has fewer of them. */
const MAX_PAGE_BYTES = 32 * 1024 * 1024
/** They stand nowhere: all at one place, so that a row that is read twice is the same bytes. */
const NO_PLACE = { history: 0, term: 0, routing: 0 } as const
const BACKFILL = '00000000-0000-0000-0000-000000000000'

/** Reads the page behind a place. @throws EngineError BACKFILL_REFUSED: the table has no key, …; SOURCE_UNREACHABLE, … */
export const readPage = (asked: RowsAsked, after: After, limit: number): Promise<RowPage> =>
  onTable(asked, async (session, table) => readRows(session, table, asked, pageQuery(table, after, limit), limit))

/** Reads the rows of some keys; those that are not there are left out. */
export const readKeys = (asked: RowsAsked, keys: readonly (readonly string[])[]): Promise<RowPage> =>
  onTable(asked, async (session, table) => readRows(session, table, asked, rowsQuery(table, keys), Infinity))

/** Reads about so many rows, from all over the table. */
export const readSample = (asked: RowsAsked, count: number): Promise<RowPage> =>
  onTable(asked, async (session, table) => {
    const { rows } = await session.query('select greatest(reltuples, 0)::float8 as rows from pg_catalog.pg_class where oid = $1', [
      table.relation.oid,
    ])
    const about = Number(rows[0]?.['rows'])
    const percent = about > count * 4 ? Math.min(100, (200 * count) / about) : 100
    for (let share = percent; ; share = Math.min(100, share * 4)) {
      const sampled = pageQuery({ ...table, from: `${table.from} tablesample bernoulli (${share})` }, null, count * 4)
      const page = await readRows(session, table, asked, `select * from (${sampled}) t order by pg_catalog.random() limit ${count}`, count)
      if (page.next !== null || share === 100) return page // else they are fewer than asked for: the server remembers another number of rows
    }
  })

/** Counts the rows that are published. */
export const countRows = (asked: RowsAsked): Promise<Readonly<{ rows: number; lsn: Lsn }>> =>
  onTable(asked, async (session, table) => {
    const found = await session.query(`select pg_catalog.count(*)::float8 as rows from ${table.from}${whereOf(table)}`)
    return { rows: rowOf({ rows: 'number' }, found.rows[0]).rows, lsn: await placeOf(session) }
  })

async function onTable<T>(asked: RowsAsked, work: (session: PageSession, table: SourceTable) => Promise<T>): Promise<T> {
  const session = await PageSession.open(asked.connection, 'tailrace verify', QUERY_MS)
  try {
    await session.query('begin isolation level repeatable read read only')
    const table = await describeSource(session.query, asked.publication, {
      table: asked.table,
      sortColumn: null,
      startPosition: null,
      condition: null,
    })
    if (table.order.length === 0)
      throw new EngineError('BACKFILL_REFUSED', `${asked.table} has no key that its rows could be found by again`, { table: asked.table })
    return await work(session, table)
  } finally {
    session.close()
  }
}

/** What the log has up to here was committed before, or is not seen: the snapshot is older. */
async function placeOf(session: PageSession): Promise<Lsn> {
  const found = await session.query(
    `select case when pg_catalog.pg_is_in_recovery() then pg_catalog.pg_last_wal_replay_lsn() else pg_catalog.pg_current_wal_lsn() end::text as lsn`,
  )
  const [row] = rowsOf({ lsn: 'text' }, found)
  return parseLsn(row?.lsn ?? '')
}

async function readRows(session: PageSession, table: SourceTable, asked: RowsAsked, select: string, limit: number): Promise<RowPage> {
  const { relation, order, identityColumns } = table
  const rows = new PageRows({ backfill: BACKFILL, table, stream: streamFor(relation, asked), maxMessageBytes: asked.maxMessageBytes })
  const columns = order.map(({ name }) => relation.message.columns.findIndex((column) => column.name === name))
  const keys: string[][] = []
  let last: readonly string[] | null = null
  let isCut = false
  await session.copy(
    select,
    (bytes, view, from, to) => {
      if ((isCut ||= rows.bytes > MAX_PAGE_BYTES && limit !== Infinity)) return true
      const { row } = rows.add(bytes, view, from, to)
      keys.push(identityColumns.map(({ index }) => row.text(index) ?? ''))
      last = columns.map((column) => row.text(column) ?? '')
      return true
    },
    async () => undefined,
  )
  const lsn = await placeOf(session)
  const keyColumns = identityColumns.map(({ name }) => name)
  return { pack: packOf(rows), keys, keyColumns, table: relation.oid, next: !isCut && rows.count < limit ? null : last, lsn }
}

function streamFor(relation: Relation, { timestampFormat }: RowsAsked): OwnStream {
  const target = {
    ...{ topic: '', partitions: 1, actions: 0, grouping: true, groupColumns: undefined, splitsKeyChanges: false },
    timestampFormat,
    only: undefined,
  }
  return { target, groupColumns: relation.key, hasOwnGroup: false, actions: 0, isShed: () => false }
}

function packOf(rows: PageRows): Pack | undefined {
  if (rows.count === 0) return undefined
  const builder = new PackBuilder(NO_PLACE)
  const writer = new ChangeWriter()
  writer.beginTransaction(0n, 0, 0)
  builder.begin(0n, 0, 0)
  for (let n = 0; n < rows.count; n++) {
    const row = rows.row(n, n)
    builder.bodies.append(row.bytes, row.start, row.place)
    writer.writePlace(builder.bodies, 0)
    builder.bodies.append(row.bytes, row.place, row.end)
    builder.add(n, PART.row, ACTION.read, row.relation, row.flags, row.group, row.keyLength, row.groupKeyLength)
  }
  return Pack.decode(builder.encode())
}
