/** A table of the source as a backfill reads it: which rows and columns, in which order, and by which key it goes on. */
import { escapeIdentifier, escapeLiteral } from 'pg'
import { EngineError } from '../errors.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { describeByMessage, describeRelation, needsLookup } from '../wal/decode/catalog.ts'
import { Relation, type RelationMessage, type ReplicaIdentity } from '../wal/decode/relation.ts'

/** A column that rows are ordered by. @property index among the columns that are read */
type OrderColumn = Readonly<{ name: string; type: string; index: number }>

/** A table as pages are read from it. */
export type SourceTable = Readonly<{
  relation: Relation
  /** the same text for as long as nothing of this has changed */
  print: string
  /** what rows come from, as SQL */
  from: string
  /** conditions of the publication, and of the user, as SQL */
  conditions: readonly string[]
  order: readonly OrderColumn[]
  /** an estimate */
  rows: number
}>

/** What a backfill asks for of its table. */
export type TableAsked = Readonly<{ table: string; sortColumn: string | null; startPosition: string | null; condition: string | null }>

const COLUMNS = {
  oid: 'int',
  kind: 'text',
  identity: (value: unknown) => value as ReplicaIdentity,
  rows: 'number',
  name: 'text',
  type: 'int',
  typeName: 'text',
  /** its place in the primary key, from 0 */
  keyPlace: 'int?',
  inIdentity: 'boolean',
  published: 'boolean',
  filter: 'text?',
} as const

/**
 * Describes a table as it is now, and locks it against changes of its definition until the transaction ends.
 * @param query within a transaction, on a session with the pinned settings; the same transaction reads the page
 * @throws EngineError BACKFILL_REFUSED: it can't be read so
 */
export async function describeSource(query: Query, publication: string, asked: TableAsked): Promise<SourceTable> {
  const dot = asked.table.indexOf('.')
  const [schema, table] = [asked.table.slice(0, dot), asked.table.slice(dot + 1)]
  const name = `${escapeIdentifier(schema)}.${escapeIdentifier(table)}`
  const columns = rowsOf(
    COLUMNS,
    await query(
      `select c.oid::pg_catalog.int8 as oid, c.relkind::text as kind, c.relreplident::text as identity, c.reltuples::float8 as rows, a.attname::text as name,
         a.atttypid::pg_catalog.int8 as type, pg_catalog.format_type(a.atttypid, -1) as "typeName",
         pg_catalog.array_position((k.indkey::pg_catalog.int2[])[0:k.indnkeyatts - 1], a.attnum) as "keyPlace",
         case c.relreplident when 'f' then true when 'd' then coalesce(a.attnum = any (k.indkey), false)
           when 'i' then exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisreplident and a.attnum = any (i.indkey)) else false end as "inIdentity",
         coalesce(a.attname = any (p.attnames), false) as published, p.rowfilter as filter
       from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
       join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
       left join pg_catalog.pg_index k on k.indrelid = c.oid and k.indisprimary
       left join pg_catalog.pg_publication_tables p on p.pubname = $3 and p.schemaname = n.nspname and p.tablename = c.relname
       where n.nspname = $1 and c.relname = $2 order by a.attnum`,
      [schema, table, publication],
    ),
  )
  const [first] = columns
  if (!first) throw refused(asked, 'there is no such table in the source database')
  const read = columns.filter(({ published }) => published)
  if (read.length === 0) throw refused(asked, `it is not in the publication "${publication}"`)
  const message: RelationMessage = {
    oid: first.oid,
    schema,
    table,
    replicaIdentity: first.identity,
    columns: read.map(({ name, type, inIdentity }) => ({ name, typeOid: type, typmod: -1, key: inIdentity })),
  }
  const relation = new Relation(message, needsLookup(message) ? await describeRelation(query, message) : describeByMessage(message))
  if (relation.key.length === 0) throw refused(asked, 'it has no primary key, or one that is not published')
  const orderOf = (index: number): OrderColumn => ({ name: read[index]?.name ?? '', type: read[index]?.typeName ?? '', index })
  const sorted = asked.sortColumn === null ? [] : relation.columnIndexes([asked.sortColumn])
  if (asked.sortColumn !== null && sorted.length === 0) throw refused(asked, `it has no column "${asked.sortColumn}"`)
  const placeOf = (index: number) => read[index]?.keyPlace ?? 0
  const key = relation.key.toSorted((a, b) => placeOf(a) - placeOf(b)) // as its index has them
  const order = [...new Set([...sorted, ...key])].map(orderOf)
  const [lead] = order
  const start =
    asked.sortColumn !== null && asked.startPosition !== null && lead
      ? [`t.${escapeIdentifier(lead.name)} >= ${literal(asked.startPosition, lead.type)}`]
      : []
  return {
    relation,
    print: JSON.stringify([columns, order]),
    from: `${first.kind === 'p' ? '' : 'only '}${name} t`,
    conditions: [
      ...(first.filter === undefined ? [] : [first.filter]),
      ...start,
      ...(asked.condition === null ? [] : [`${asked.condition}\n`]),
    ],
    order,
    rows: Math.max(0, first.rows),
  }
}

/** The rows of a page as `COPY` is to read them. @param after the key that the page before ended with */
export function pageQuery({ relation, from, conditions, order }: SourceTable, after: readonly string[] | null, limit: number): string {
  const columns = relation.message.columns.map(({ name }) => `t.${escapeIdentifier(name)}`).join(', ')
  const names = order.map(({ name }) => `t.${escapeIdentifier(name)}`).join(', ')
  const behind = after ? [`(${names}) > (${order.map(({ type }, i) => literal(after[i] ?? '', type)).join(', ')})`] : []
  const where = [...conditions.map((condition) => `(${condition})`), ...behind]
  return `select ${columns} from ${from}${where.length > 0 ? ` where ${where.join(' and ')}` : ''} order by ${names} limit ${limit}`
}

/** The rows of some keys, as `COPY` is to read them. @param keys of the primary key's columns, in their order */
export function rowsQuery({ relation, from, conditions, order }: SourceTable, keys: readonly (readonly string[])[]): string {
  const columns = relation.message.columns.map(({ name }) => `t.${escapeIdentifier(name)}`).join(', ')
  const key = relation.key.flatMap((index) => order.filter((column) => column.index === index))
  const wanted = keys.map((values) => `(${key.map(({ type }, i) => literal(values[i] ?? '', type)).join(', ')})`)
  const where = [
    ...conditions.map((condition) => `(${condition})`),
    `(${key.map(({ name }) => `t.${escapeIdentifier(name)}`).join(', ')}) in (${wanted.join(', ')})`,
  ]
  return `select ${columns} from ${from} where ${where.join(' and ')}`
}

const literal = (text: string, type: string): string => `${escapeLiteral(text)}::${type}`

const refused = ({ table }: TableAsked, why: string): EngineError =>
  new EngineError('BACKFILL_REFUSED', `${table} can't be backfilled: ${why}`, { table })
