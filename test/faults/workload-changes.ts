/** The single changes of a workload: each runs one statement and enters what it did into its open transaction. */
import type { Client } from 'pg'
import { parseExact, type Json, type Row } from './json.ts'
import type { Random } from './random.ts'
import { textKey, type Key, type OpenTransaction, type Rows } from './workload-model.ts'
import { TABLES, type Table } from './workload-tables.ts'

export type Writer = Readonly<{
  client: Client
  transaction: OpenTransaction
  rows: Rows
  random: Random
  /** a number no other version of any row has */
  nextStamp: () => number
}>

/** A row this long is certainly kept outside the line, where an update may leave it. */
const BULK_LENGTH = 3_000

const KEYS: Readonly<Record<Table['name'], (random: Random) => Key>> = {
  account: (random) => [random.int(1, 40)],
  document: (random) => [random.int(1, 25)],
  archive: (random) => [random.int(1, 25)],
  item: (random) => [random.pick(['north', 'a:b', "o'x"]), random.int(1, 9)],
  member: (random) => [random.int(1, 9), random.pick(['north', 'ü', ''])],
  aside: (random) => [random.int(1, 20)],
}

/** Values of the columns besides key and stamp, as text Postgres reads. */
const VALUES: Readonly<Record<Table['name'], Readonly<Record<string, (random: Random) => string | null>>>> = {
  account: {
    name: (random) => random.text(random.int(0, 20)),
    big: (random) =>
      random.chance(0.2) ? null : `${random.int(1, 9)}${random.int(100_000_000, 999_999_999)}${random.int(10_000_000, 99_999_999)}`,
    amount: (random) => `${random.int(-999_999, 999_999)}.${random.int(10, 99)}00`,
    at: (random) =>
      random.chance(0.2)
        ? null
        : `2025-0${random.int(1, 9)}-1${random.int(0, 9)} 0${random.int(0, 9)}:15:30.${random.int(100_000, 999_999)}+02`,
    flag: (random) => random.pick(['t', 'f', null]),
    ratio: (random) => `${random.next()}`,
  },
  document: {
    name: (random) => random.text(random.int(1, 30)),
    body: (random) => random.text(random.chance(0.6) ? random.int(BULK_LENGTH, 9_000) : random.int(0, 100)),
    facts: (random) => JSON.stringify({ a: random.int(0, 9), 'b"\\ü': [null, true, random.text(5)], c: {} }),
    bytes: (random) => `\\x${Buffer.from(random.text(random.int(0, 20))).toString('hex')}`,
  },
  archive: {
    name: (random) => random.text(random.int(1, 30)),
    body: (random) => (random.chance(0.1) ? null : random.text(random.chance(0.6) ? random.int(BULK_LENGTH, 9_000) : random.int(0, 100))),
    facts: (random) => (random.chance(0.2) ? null : `[1, {"n": "${random.text(3)}"}]`),
    amount: (random) => `${random.int(0, 999)}.${random.int(1, 9)}`,
  },
  item: {
    name: (random) => random.text(random.int(1, 10)),
    tags: (random) => random.pick(['{}', '{a,NULL,"b c"}', `{${random.text(4)}}`, null]),
  },
  member: {
    name: (random) => random.text(random.int(1, 10)),
    joined: (random) => `2024-02-29 23:59:${random.int(10, 59)}+00`,
  },
  aside: { name: (random) => random.text(5) },
}

const keyOf = (table: Table, row: Row): string[] => table.keyColumns.map((column) => String(row[column]))
const where = (table: Table, from: number): string => table.keyColumns.map((column, at) => `t.${column} = $${at + from}`).join(' and ')
const rowsOf = (result: { rows: { row: string }[] }): Row[] => result.rows.map(({ row }) => parseExact(row) as Row)

/** A table and one of its keys that satisfies the wish, or undefined after a few tries. */
function choose(writer: Writer, wish: 'absent' | 'present', tables: readonly Table[] = TABLES): [Table, Key] | undefined {
  for (let tries = 0; tries < 8; tries++) {
    const table = writer.random.pick(tables)
    const key = KEYS[table.name]!(writer.random)
    if (!writer.rows.isFree(table, key, writer.transaction)) continue
    if ((writer.rows.get(table, key, writer.transaction) !== undefined) === (wish === 'present')) return [table, key]
  }
  return undefined
}

export async function insertRow(writer: Writer, given?: readonly [Table, Key]): Promise<void> {
  const chosen = given ?? choose(writer, 'absent')
  if (!chosen) return
  const [table, key] = chosen
  const { client, transaction, rows, random } = writer
  const values = Object.entries(VALUES[table.name]!)
  const columns = [...table.keyColumns, 'stamp', ...values.map(([column]) => column)]
  const parameters = [...key, writer.nextStamp(), ...values.map(([, make]) => make(random))]
  rows.hold(table, key, transaction)
  const sql = `insert into ${table.name} as t (${columns.join(', ')}) values (${columns.map((_, at) => `$${at + 1}`).join(', ')}) returning ${table.rendering}::text as row`
  const [record] = rowsOf(await client.query<{ row: string }>(sql, parameters))
  if (!record) throw new Error(`no row came of ${sql}`)
  transaction.record(table, { action: 'insert', key: textKey(key), record, changes: null, unchanged: [] }, [[key, record]])
}

export async function updateRow(writer: Writer, options: { move: boolean }): Promise<void> {
  const chosen = choose(writer, 'present')
  if (!chosen) return
  const [table, key] = chosen
  const target = options.move ? choose(writer, 'absent', [table])?.[1] : key
  if (!target) return
  const { client, transaction, rows, random } = writer
  const before = rows.get(table, key, transaction)!
  const touched = Object.entries(VALUES[table.name]!).filter(([column]) => random.chance(column === table.bulkColumn ? 0.25 : 0.5))
  const set = [...(options.move ? table.keyColumns : []), 'stamp', ...touched.map(([column]) => column)]
  const parameters = [...(options.move ? target : []), writer.nextStamp(), ...touched.map(([, make]) => make(random))]
  rows.hold(table, key, transaction)
  rows.hold(table, target, transaction)
  const sql =
    `update ${table.name} as t set ${set.map((column, at) => `${column} = $${at + 1}`).join(', ')} ` +
    `where ${where(table, parameters.length + 1)} returning ${table.rendering}::text as row`
  const [record] = rowsOf(await client.query<{ row: string }>(sql, [...parameters, ...key]))
  if (!record) throw new Error(`no row came of ${sql}`)
  enterUpdate(writer, { table, key, target, before, record, touched: new Set(set) })
}

type Updated = Readonly<{ table: Table; key: Key; target: Key; before: Row; record: Row; touched: ReadonlySet<string> }>

function enterUpdate({ transaction }: Writer, { table, key, target, before, record, touched }: Updated): void {
  const moved = key !== target
  const differing = Object.keys(record).filter((column) => JSON.stringify(exact(before[column])) !== JSON.stringify(exact(record[column])))
  const shown = table.full ? differing : differing.filter((column) => moved && table.keyColumns.includes(column))
  const bulk = table.bulkColumn
  const left = bulk !== undefined && !touched.has(bulk) && !table.full && String(record[bulk] ?? '').length >= BULK_LENGTH
  transaction.record(
    table,
    {
      action: 'update',
      key: textKey(target),
      ...(moved ? { oldKey: textKey(key) } : {}),
      record,
      changes: pick(before, shown),
      ...(moved && !table.full ? { mayRepeat: pick(before, table.keyColumns) } : {}),
      unchanged: left ? [bulk] : [],
    },
    moved
      ? [
          [key, null],
          [target, record],
        ]
      : [[target, record]],
  )
}

export async function deleteRow(writer: Writer): Promise<void> {
  const chosen = choose(writer, 'present')
  if (!chosen) return
  const [table, key] = chosen
  const { client, transaction, rows } = writer
  const before = rows.get(table, key, transaction)!
  rows.hold(table, key, transaction)
  const { rowCount } = await client.query(`delete from ${table.name} as t where ${where(table, 1)}`, [...key])
  if (rowCount !== 1) throw new Error(`${rowCount} rows of ${table.name} deleted`)
  transaction.record(table, { action: 'delete', key: textKey(key), record: deletedRow(table, before), changes: null, unchanged: [] }, [
    [key, null],
  ])
}

const deletedRow = (table: Table, before: Row): Row =>
  table.full
    ? before
    : Object.fromEntries(Object.entries(before).map(([column, value]) => [column, table.keyColumns.includes(column) ? value : null]))

const ACCOUNT: Table = TABLES[0]

export async function insertMany(writer: Writer, ids: readonly number[]): Promise<void> {
  const { client, transaction, rows, random } = writer
  for (const id of ids) rows.hold(ACCOUNT, [id], transaction)
  const result = await client.query<{ row: string }>(
    `insert into account as t (id, stamp, name) select * from unnest($1::bigint[], $2::bigint[], $3::text[]) returning ${ACCOUNT.rendering}::text as row`,
    [ids, ids.map(() => writer.nextStamp()), ids.map(() => random.text(10))],
  )
  for (const record of rowsOf(result)) {
    const key = keyOf(ACCOUNT, record)
    transaction.record(ACCOUNT, { action: 'insert', key, record, changes: null, unchanged: [] }, [[key, record]])
  }
}

/** @returns whether there was anything to do */
export async function changeMany(writer: Writer, ids: readonly number[], action: 'update' | 'delete'): Promise<boolean> {
  const { client, transaction, rows } = writer
  const present = ids.filter((id) => rows.isFree(ACCOUNT, [id], transaction) && rows.get(ACCOUNT, [id], transaction))
  if (present.length === 0) return false
  const before = new Map(present.map((id) => [String(id), rows.get(ACCOUNT, [id], transaction)!]))
  for (const id of present) rows.hold(ACCOUNT, [id], transaction)
  const result =
    action === 'delete'
      ? await client.query<{ row: string }>(
          `delete from account as t where id = any($1::bigint[]) returning ${ACCOUNT.rendering}::text as row`,
          [present],
        )
      : await client.query<{ row: string }>(
          `update account as t set stamp = new.stamp from unnest($1::bigint[], $2::bigint[]) as new (id, stamp)
           where t.id = new.id returning ${ACCOUNT.rendering}::text as row`,
          [present, present.map(() => writer.nextStamp())],
        )
  for (const row of rowsOf(result)) {
    const key = keyOf(ACCOUNT, row)
    const old = before.get(key[0]!)!
    if (action === 'delete')
      transaction.record(ACCOUNT, { action, key, record: deletedRow(ACCOUNT, old), changes: null, unchanged: [] }, [[key, null]])
    else enterUpdate(writer, { table: ACCOUNT, key, target: key, before: old, record: row, touched: new Set(['stamp']) })
  }
  return true
}

/** Attaches JSON to the changes that follow, or takes it away. */
export async function annotate(writer: Writer): Promise<void> {
  const { client, transaction, random } = writer
  const annotations: Json = random.chance(0.8) ? { by: random.text(4), at: random.int(0, 1_000) } : null
  const [prefix, content] = annotations === null ? ['clear', ''] : ['set', JSON.stringify(annotations)]
  await client.query('select pg_logical_emit_message(true, $1, $2)', [`sequin:transaction_annotations.${prefix}`, content])
  transaction.message(annotations)
}

const pick = (row: Row, columns: readonly string[]): Row => Object.fromEntries(columns.map((column) => [column, row[column]!]))
const exact = (value: Json | undefined): unknown => (typeof value === 'bigint' ? `${value}n` : value)
