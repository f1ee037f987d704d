/**
 * A table of the source as a backfill reads it: which rows and columns, in which order, by which key it goes on, and how the stream
 * tells which row a change is of. What can't be read so is refused with what to change.
 */
import { escapeIdentifier, escapeLiteral } from 'pg'
import { EngineError, errorText, type ErrorContext } from '../errors.ts'
import type { Query } from '../postgres/query.ts'
import { rowOf, rowsOf } from '../postgres/rows.ts'
import { sqlstateOf } from '../postgres/sqlstate.ts'
import { describeByMessage, describeRelation, needsLookup } from '../wal/decode/catalog.ts'
import { Relation, type RelationMessage, type ReplicaIdentity } from '../wal/decode/relation.ts'
import { INTERNAL_SCHEMA } from '../wal/routing/routing.ts'
import type { RowIdentity } from './windows.ts'

/**
 * A column that rows are ordered by, or found by. Its operators are those that `order by` and the index go by, with their schema:
 * what a search_path finds first may be another of the same name.
 * @property index among the columns that are read; @property type as SQL, of a domain the type below
 */
export type KeyColumn = Readonly<{ name: string; type: string; index: number; more: string; atLeast: string; equal: string }>

/** A table as pages are read from it. */
export type SourceTable = Readonly<{
  relation: Relation
  /** the same text for as long as nothing of this has changed */
  print: string
  /** what the values mean that a page ends with, and the keys of rows that have moved: of another text they mean nothing */
  orderedBy: string
  /** what rows come from, as SQL, under the name `t` */
  from: string
  /** conditions of the publication, and of the user, as SQL */
  conditions: readonly string[]
  /** none: rows are read as they lie in the table's file, block by block */
  order: readonly KeyColumn[]
  /** how changes of the stream tell which row they are of */
  identity: RowIdentity
  /** the columns of `identity`, if it is of columns */
  identityColumns: readonly KeyColumn[]
  /** how long its file is, in blocks; 0: it has none of its own */
  blocks: number
}>

/** The part of its table that a backfill reads. */
export type TableAsked = Readonly<{ table: string; sortColumn: string | null; startPosition: string | null; condition: string | null }>

const TABLE = {
  /** among those that are asked for, from 1 on */
  place: 'int',
  oid: 'int',
  kind: 'text',
  persistence: 'text',
  identity: (value: unknown) => value as ReplicaIdentity, // one of Postgres' four letters
  accessMethod: 'text',
  file: 'int',
  blocks: 'int',
  role: 'text',
  hidesRows: 'boolean',
  viaRoot: 'boolean',
  /** the table and the partitioned tables above it, as far as they are published, the nearest first */
  published: 'texts',
  filter: 'text?',
} as const

const COLUMNS = {
  relation: 'int',
  name: 'text',
  number: 'int',
  type: 'int',
  typeName: 'text',
  collation: 'int',
  isNotNull: 'boolean',
  mayRead: 'boolean',
  published: 'boolean',
  opclass: 'int',
  more: 'text?',
  atLeast: 'text?',
  equal: 'text?',
} as const

const INDEXES = {
  relation: 'int',
  isPrimary: 'boolean',
  isIdentity: 'boolean',
  /** numbers of its key columns, in its order */
  columns: 'texts',
  opclasses: 'texts',
  /** each ascending, by the collation of its column */
  isPlain: 'boolean',
} as const

type Column = ReturnType<typeof rowsOf<typeof COLUMNS>>[number]
type Index = ReturnType<typeof rowsOf<typeof INDEXES>>[number]
type Table = ReturnType<typeof rowOf<typeof TABLE>>

/** A user's condition may have better ways than the index of the key. */
const USER_SETTINGS = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort']
  .map((name) => `pg_catalog.set_config('${name}', 'on', true)`)
  .join(', ')

/** So many tables are described at once: each of their locks, and those of their indexes, takes a place in the server's memory. */
export const TABLES_AT_ONCE = 50

const NO_TABLE = new Set(['42P01', '3F000'])
const NO_RIGHT = '42501'

/**
 * Describes a table as it is now, and locks it against changes of its definition until the transaction ends.
 * @param query within a transaction, on a session with the pinned settings; the same transaction reads the page. When this throws, the
 *   transaction is over
 * @throws EngineError BACKFILL_REFUSED: it can't be read so
 */
export async function describeSource(query: Query, publication: string, asked: TableAsked): Promise<SourceTable> {
  const { path, planning, described } = await describeAll(query, publication, [asked])
  const [table] = described
  if (!table) throw new EngineError('INTERNAL', 'no table was described')
  if (table instanceof EngineError) throw table
  // names in values are as short as in the stream, and the user's SQL means what it means to the role of the source elsewhere too
  await query(
    `select ${asked.condition === null ? '' : `${USER_SETTINGS}, `}pg_catalog.set_config('search_path', $1, true),
      pg_catalog.set_config('plan_cache_mode', $2, true)`,
    [path === '' ? 'pg_catalog' : `pg_catalog, ${path}`, planning],
  )
  return table
}

/**
 * Describes tables, by as many queries as one, and locks them: fifty of them take little longer than two. The search_path stays pinned.
 * @param asked without conditions of users, and so few that their locks fit into the server's memory
 * @returns for each the table; or why it can't be read so
 * @throws what one of them fails with: that can be said when it is described alone
 */
export async function describeSources(
  query: Query,
  publication: string,
  asked: readonly TableAsked[],
): Promise<readonly (SourceTable | EngineError)[]> {
  return (await describeAll(query, publication, asked)).described
}

async function describeAll(query: Query, publication: string, asked: readonly TableAsked[]) {
  const names = asked.map(({ table }) => parts(table))
  const schemas = names.map(([schema]) => schema)
  const tables = names.map(([, name]) => name)
  const settings = await query(SETTINGS_QUERY, [schemas, tables])
  const { path, planning, version, kinds } = rowOf({ path: 'text', planning: 'text', version: 'int', kinds: 'texts' }, settings.rows[0])
  const isTable = (place: number) => kinds[place] === 'r' || kinds[place] === 'p'
  const found = asked.filter((_, place) => isTable(place))
  if (found.length > 0) await lock(query, found)
  const known =
    found.length > 0
      ? rowsOf(TABLE, await query(tableQuery(version), [schemas, tables, publication])).filter(({ place }) => isTable(place - 1))
      : []
  const byPlace = new Map(known.map((table) => [table.place - 1, table]))
  const oids = known.map(({ oid }) => String(oid))
  const ofTables = async <C extends typeof COLUMNS | typeof INDEXES>(form: C, sql: string, params: readonly unknown[]) =>
    Map.groupBy(rowsOf(form, oids.length > 0 ? await query(sql, params) : { rows: [] }), ({ relation }) => relation)
  const columns = await ofTables(COLUMNS, columnsQuery(version), [oids, publication])
  const indexes = await ofTables(INDEXES, INDEXES_QUERY, [oids])
  const described: (SourceTable | EngineError)[] = []
  for (const [place, one] of asked.entries()) {
    const table = byPlace.get(place)
    const { oid = 0 } = table ?? {}
    described.push(
      table
        ? await unlessRefused(
            describeOne(query, { asked: one, table, publication, columns: columns.get(oid) ?? [], indexes: indexes.get(oid) ?? [] }),
          )
        : refused(one, KINDS[kinds[place] ?? ''] ?? (kinds[place] === '' || isTable(place) ? NO_SUCH : 'it is no table')),
    )
  }
  return { path, planning, described }
}

async function unlessRefused<T>(work: Promise<T>): Promise<T | EngineError> {
  try {
    return await work
  } catch (error) {
    if (error instanceof EngineError && error.code === 'BACKFILL_REFUSED') return error
    throw error
  }
}

type Catalog = Readonly<{ asked: TableAsked; table: Table; publication: string; columns: readonly Column[]; indexes: readonly Index[] }>

/** Makes a table of what the catalogue says of it. */
async function describeOne(query: Query, { asked, table, publication, columns, indexes }: Catalog): Promise<SourceTable> {
  const [schema, name] = parts(asked.table)
  const quoted = quotedName(asked)
  refuseTable(table, asked, publication)
  const read = columns.filter(({ published }) => published)
  const hidden = read.filter(({ mayRead }) => !mayRead)
  if (read.length === 0) throw refused(asked, `the publication "${publication}" has none of its columns`)
  if (hidden.length > 0) throw refused(asked, `the role may not read ${namesOf(hidden)}; run: grant select on ${quoted} to ${table.role};`)
  const keys = new TableKeys(read, indexes)
  const message: RelationMessage = {
    oid: table.oid,
    schema,
    table: name,
    replicaIdentity: table.identity,
    columns: read.map((column) => ({
      ...{ name: column.name, typeOid: column.type, typmod: -1 },
      key: keys.isOfIdentity(column, table.identity),
    })),
  }
  const relation = new Relation(message, needsLookup(message) ? await describeRelation(query, message) : describeByMessage(message))
  const order = orderOf(keys, table, asked)
  const identityColumns = ((table.identity === 'i' && keys.ofIdentity()) || keys.ofPages() || []).toSorted((a, b) => a.index - b.index)
  const named = identityColumns.map((column) => column.name)
  const identity: RowIdentity = named.length > 0 ? { columns: named } : { rowsOf: read.map((column) => column.name) }
  const typeOf = ({ index }: KeyColumn) => [read[index]?.number, read[index]?.type, read[index]?.collation].join('.')
  const paged = keys.ofPages() ?? []
  const isByPages =
    paged.length === identityColumns.length && identityColumns.every(({ index }) => paged.some((column) => column.index === index))
  const conditions = conditionsOf(asked, order, table.filter)
  return {
    relation,
    print: JSON.stringify([table.oid, read, order, identity, conditions, order.length > 0 || table.blocks]),
    orderedBy:
      order.length > 0
        ? [table.oid, ...order.map(typeOf), ...(isByPages ? [] : ['by', ...identityColumns.map(typeOf)])].join()
        : `${table.oid},file ${table.file}`,
    from: `${table.kind === 'p' ? '' : 'only '}${quoted} t`,
    conditions,
    order,
    identity,
    identityColumns,
    blocks: table.blocks,
  }
}

/** Splits the name of a table at its first point: schemas have none. */
function parts(table: string): [schema: string, name: string] {
  const dot = table.indexOf('.')
  return [table.slice(0, dot), table.slice(dot + 1)]
}

function quotedName({ table }: Pick<TableAsked, 'table'>): string {
  const [schema, name] = parts(table)
  return `${escapeIdentifier(schema)}.${escapeIdentifier(name)}`
}

/** A query locks what it names, also for a role that may read some of the columns only, which `lock table` refuses. */
async function lock(query: Query, tables: readonly TableAsked[]): Promise<void> {
  try {
    await query(tables.map((table) => `select from only ${quotedName(table)} limit 0`).join('; '))
  } catch (error) {
    const [asked, another] = tables
    if (!asked || another) throw error
    const sqlstate = sqlstateOf(error) ?? ''
    if (NO_TABLE.has(sqlstate)) throw refused(asked, NO_SUCH)
    if (sqlstate !== NO_RIGHT) throw error
    await query('rollback')
    const { rows } = await query('select pg_catalog.quote_ident(current_user) as role')
    const { role } = rowOf({ role: 'text' }, rows[0])
    const [schema] = parts(asked.table)
    throw refused(
      asked,
      `${errorText(error)}; run: grant usage on schema ${escapeIdentifier(schema)} to ${role}; grant select on ${quotedName(asked)} to ${role};`,
    )
  }
}

/**
 * Nothing is pinned yet while this is read: so every operator of it is named. The queries behind it are prepared on their session, and
 * planned once for all tables: that takes longer than to run them.
 */
const SETTINGS_QUERY = `select pg_catalog.current_setting('search_path') as path, pg_catalog.current_setting('plan_cache_mode') as planning,
    pg_catalog.current_setting('server_version_num')::pg_catalog.int4 as version,
    array(
      select coalesce((select c.relkind::pg_catalog.text from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
        where n.nspname operator(pg_catalog.=) w.schema and c.relname operator(pg_catalog.=) w.name), '')
      from rows from (pg_catalog.unnest($1::pg_catalog.name[]), pg_catalog.unnest($2::pg_catalog.name[])) with ordinality w(schema, name, place)
      order by w.place
    ) as kinds,
    pg_catalog.set_config('search_path', 'pg_catalog', true) as pinned, pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true) as generic`

const NO_SUCH = 'there is no such table in the source database'
const KINDS: Readonly<Record<string, string>> = {
  v: 'it is a view, which has no rows of its own: backfill the tables that it reads',
  m: 'it is a materialised view, of which Postgres streams no changes: backfill the tables that it reads',
  f: 'it is a foreign table: its rows are in another server, to which a source of its own can be made',
}

function refuseTable(table: Table, asked: TableAsked, publication: string): void {
  const [schema, name] = parts(asked.table)
  const quoted = `${escapeIdentifier(schema)}.${escapeIdentifier(name)}`
  const into = escapeIdentifier(publication)
  if (schema === INTERNAL_SCHEMA) throw refused(asked, 'it is a table of Tailrace itself')
  if (/^pg_|^information_schema$/.test(schema)) throw refused(asked, 'it is a table of the system, of which Postgres streams no changes')
  if (table.persistence !== 'p')
    throw refused(asked, `Postgres streams no changes of it, for it is unlogged or temporary; run: alter table ${quoted} set logged;`)
  const [nearest] = table.published
  const top = table.published.at(-1)
  if (nearest === undefined || top === undefined)
    throw refused(asked, `it is not in the publication ${into}; run: alter publication ${into} add table ${quoted};`)
  if (table.viaRoot && top !== asked.table)
    throw refused(asked, `its changes come under the name of ${top}, of which it is a partition: backfill that table`)
  if (table.kind === 'p' && !table.viaRoot)
    throw refused(
      asked,
      `its changes come under the names of its partitions: backfill these; or run: alter publication ${into} set (publish_via_partition_root = true);`,
    )
  if (table.hidesRows)
    throw refused(
      asked,
      `its row-level security may hide rows from the role; run: alter role ${table.role} bypassrls; or create policy tailrace on ${quoted} for select to ${table.role} using (true);`,
    )
}

/** The keys of a table: which columns can say where to go on, and which row a change is of. */
class TableKeys {
  readonly #read: readonly Column[]
  readonly #indexes: readonly Index[]

  constructor(read: readonly Column[], indexes: readonly Index[]) {
    this.#read = read
    this.#indexes = indexes
  }

  /** Whether the stream flags a column as one of the replica identity. */
  isOfIdentity({ number }: Column, identity: ReplicaIdentity): boolean {
    if (identity === 'f') return true
    const flagged = this.#indexes.find(({ isPrimary, isIdentity }) => (identity === 'd' ? isPrimary : identity === 'i' && isIdentity))
    return flagged?.columns.includes(String(number)) ?? false
  }

  /** Columns that pages are ordered by: of the primary key, else of the replica identity, else of another unique index. Undefined: none will do. */
  ofPages(): readonly KeyColumn[] | undefined {
    const rank = ({ isPrimary, isIdentity }: Index) => (isPrimary ? 0 : isIdentity ? 1 : 2)
    for (const index of this.#indexes.toSorted((a, b) => rank(a) - rank(b))) {
      const columns = index.isPlain ? this.#columnsOf(index, true) : undefined
      if (columns) return columns
    }
    return undefined
  }

  /** Columns of the index that is the replica identity; undefined: there is none, or it is not published. */
  ofIdentity(): readonly KeyColumn[] | undefined {
    const index = this.#indexes.find(({ isIdentity }) => isIdentity)
    return index && this.#columnsOf(index, false)
  }

  /** A column by its name; undefined: there is none, or its type has no order. */
  named(name: string): KeyColumn | undefined {
    const column = this.#read.find((each) => each.name === name)
    return column && this.#keyColumn(column)
  }

  has(name: string): boolean {
    return this.#read.some((each) => each.name === name)
  }

  #columnsOf({ columns, opclasses }: Index, inOrder: boolean): readonly KeyColumn[] | undefined {
    const found = columns.map((number, i) => {
      const column = this.#read.find((each) => String(each.number) === number)
      if (!column?.isNotNull || (inOrder && String(column.opclass) !== opclasses[i])) return undefined
      return this.#keyColumn(column)
    })
    return found.every((column) => column !== undefined) ? found : undefined
  }

  #keyColumn(column: Column): KeyColumn | undefined {
    const { name, typeName: type, more, atLeast, equal } = column
    if (more === undefined || atLeast === undefined || equal === undefined) return undefined
    return { name, type, index: this.#read.indexOf(column), more, atLeast, equal }
  }
}

function orderOf(keys: TableKeys, { kind, accessMethod }: Table, asked: TableAsked): readonly KeyColumn[] {
  const key = keys.ofPages()
  const [schema, name] = parts(asked.table)
  const remedy = `give it a primary key, or a unique index of columns that are not null: alter table ${escapeIdentifier(schema)}.${escapeIdentifier(name)} add primary key (…);`
  if (asked.sortColumn !== null) {
    const sorted = keys.named(asked.sortColumn)
    if (!sorted)
      throw refused(
        asked,
        keys.has(asked.sortColumn) ? `the type of "${asked.sortColumn}" has no order` : `it has no column "${asked.sortColumn}"`,
      )
    if (!key) throw refused(asked, `rows of the same "${asked.sortColumn}" can't be told apart; ${remedy}`)
    return [sorted, ...key.filter(({ index }) => index !== sorted.index)]
  }
  if (!key && kind === 'p') throw refused(asked, `a partitioned table is read by a key; ${remedy}`)
  if (!key && accessMethod !== 'heap') throw refused(asked, `a table of the access method "${accessMethod}" is read by a key; ${remedy}`)
  return key ?? []
}

function conditionsOf(asked: TableAsked, order: readonly KeyColumn[], filter: string | undefined): readonly string[] {
  const conditions = filter === undefined ? [] : [filter]
  const [lead] = order
  if (asked.sortColumn !== null && lead) {
    const column = `t.${escapeIdentifier(lead.name)}`
    conditions.push(`${column} is not null`)
    if (asked.startPosition !== null) conditions.push(`${column} ${lead.atLeast} ${literal(asked.startPosition, lead.type)}`)
  }
  if (asked.condition !== null) conditions.push(`${asked.condition}\n`) // it may end with a comment
  return conditions
}

const namesOf = (columns: readonly Readonly<{ name: string }>[]) => columns.map(({ name }) => escapeIdentifier(name)).join(', ')

/** Version 14 has neither schemas in a publication nor lists of columns and filters of rows. */
const hasLists = (version: number) => version >= 150_000

/** A role is bound by a policy as by its own rights. */
const BINDS = "exists (select from unnest(y.polroles) r(oid) where r.oid = 0 or pg_has_role(current_user, r.oid, 'usage'))"

const tableQuery = (version: number): string =>
  `select w.place::int4 as place, c.oid::int8 as oid, c.relkind::text as kind, c.relpersistence::text as persistence, c.relreplident::text as identity,
     coalesce(am.amname::text, '') as "accessMethod", coalesce(pg_relation_filenode(c.oid), 0)::int8 as file,
     case when c.relkind = 'r' then pg_relation_size(c.oid) / current_setting('block_size')::int8 else 0 end as blocks,
     quote_ident(current_user) as role,
     row_security_active(c.oid) and not (
       exists (select from pg_policy y where y.polrelid = c.oid and y.polcmd in ('r', '*') and y.polpermissive and ${BINDS}
         and pg_get_expr(y.polqual, y.polrelid) = 'true')
       and not exists (select from pg_policy y where y.polrelid = c.oid and y.polcmd in ('r', '*') and not y.polpermissive and ${BINDS})
     ) as "hidesRows",
     coalesce(p.pubviaroot, false) as "viaRoot",
     array(
       select an.nspname || '.' || ac.relname
       from (select c.oid, 0 as n union all select x.relid, x.n from pg_partition_ancestors(c.oid) with ordinality x(relid, n) where x.relid <> c.oid) a
       join pg_class ac on ac.oid = a.oid join pg_namespace an on an.oid = ac.relnamespace
       where p.puballtables or exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = a.oid)
         ${hasLists(version) ? 'or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = ac.relnamespace)' : ''}
       order by a.n
     ) as published,
     ${hasLists(version) ? `(select pg_get_expr(r.prqual, r.prrelid) from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid and not ${IS_WHOLE})` : 'null'} as filter
   from rows from (unnest($1::name[]), unnest($2::name[])) with ordinality w(schema, name, place)
   join pg_namespace n on n.nspname = w.schema join pg_class c on c.relnamespace = n.oid and c.relname = w.name
   left join pg_am am on am.oid = c.relam left join pg_publication p on p.pubname = $3`

/** All rows and columns are published: by its schema, or with all tables. */
const IS_WHOLE =
  '(p.puballtables or exists (select from pg_publication_namespace s where s.pnpubid = p.oid and s.pnnspid = c.relnamespace))'

/** Polymorphic types of operator classes, by the kind of the type that they take. */
const POLYMORPHIC = `case b.typtype when 'e' then 'anyenum'::regtype when 'r' then 'anyrange'::regtype when 'm' then 'anymultirange'::regtype when 'c' then 'record'::regtype
  else case when exists (select from pg_type e where e.oid = b.typelem and e.typarray = b.oid) then 'anyarray'::regtype end end`

const columnsQuery = (version: number): string =>
  `select a.attrelid::int8 as relation, a.attname::text as name, a.attnum::int4 as number, a.atttypid::int8 as type, format_type(b.oid, -1) as "typeName", a.attcollation::int8 as collation,
     a.attnotnull and not exists (
       select from pg_constraint k where k.conrelid = a.attrelid and k.contype = 'n' and not k.convalidated and k.conkey[1] = a.attnum
     ) as "isNotNull",
     has_column_privilege(a.attrelid, a.attnum, 'select') as "mayRead", ${publishedColumn(version)} as published,
     coalesce(o.oid, 0)::int8 as opclass, op.more, op."atLeast", op.equal
   from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_publication p on p.pubname = $2
   cross join lateral (
     with recursive below(oid, base, kind) as (
       select y.oid, y.typbasetype, y.typtype from pg_type y where y.oid = a.atttypid
       union all select y.oid, y.typbasetype, y.typtype from below d join pg_type y on y.oid = d.base where d.kind = 'd'
     )
     select y.oid, y.typtype, y.typelem from below d join pg_type y on y.oid = d.oid where d.kind <> 'd'
   ) b
   left join lateral (
     select o.oid, o.opcfamily, o.opcintype from pg_opclass o join pg_am m on m.oid = o.opcmethod and m.amname = 'btree'
     join pg_type y on y.oid = o.opcintype
     where o.opcdefault and (o.opcintype = b.oid or o.opcintype = ${POLYMORPHIC}
       or exists (select from pg_cast k where k.castsource = b.oid and k.casttarget = o.opcintype and k.castmethod = 'b' and k.castcontext = 'i'))
     order by o.opcintype = b.oid desc, y.typispreferred desc limit 1
   ) o on true
   left join lateral (
     select max(x.sql) filter (where x.strategy = 5) as more, max(x.sql) filter (where x.strategy = 4) as "atLeast", max(x.sql) filter (where x.strategy = 3) as equal
     from (
       select f.amopstrategy as strategy, format('operator(%I.%s)', n.nspname, q.oprname) as sql
       from pg_amop f join pg_operator q on q.oid = f.amopopr join pg_namespace n on n.oid = q.oprnamespace
       where f.amopfamily = o.opcfamily and f.amoplefttype = o.opcintype and f.amoprighttype = o.opcintype and f.amopstrategy between 3 and 5
     ) x
   ) op on true
   where a.attrelid = any ($1::oid[]) and a.attnum > 0 and not a.attisdropped
   order by a.attrelid, a.attnum`

/** Before version 18 generated columns are never streamed. */
function publishedColumn(version: number): string {
  const all = version >= 180_000 ? `(a.attgenerated = '' or (a.attgenerated = 's' and p.pubgencols = 's'))` : `a.attgenerated = ''`
  if (!hasLists(version)) return all
  return `coalesce((select a.attnum = any (r.prattrs) from pg_publication_rel r
    where r.prpubid = p.oid and r.prrelid = a.attrelid and not ${IS_WHOLE} and r.prattrs is not null), ${all})`
}

/** The unique indexes that can be a key. A primary key that is deferrable can: what is visible has been checked. */
const INDEXES_QUERY = `select i.indrelid::int8 as relation, i.indisprimary as "isPrimary", i.indisreplident as "isIdentity",
    array(select k.number::text from unnest(i.indkey::int2[]) with ordinality k(number, place) where k.place <= i.indnkeyatts order by k.place) as columns,
    array(select k.class::text from unnest(i.indclass::oid[]) with ordinality k(class, place) where k.place <= i.indnkeyatts order by k.place) as opclasses,
    not exists (
      select from unnest(i.indkey::int2[], i.indoption::int2[], i.indcollation::oid[]) with ordinality k(number, way, collated, place)
      join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
      where k.place <= i.indnkeyatts and (k.way <> 0 or k.collated <> a.attcollation)
    ) as "isPlain"
  from pg_index i join pg_class x on x.oid = i.indexrelid join pg_am m on m.oid = x.relam and m.amname = 'btree'
  where i.indrelid = any ($1::oid[]) and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null and (i.indimmediate or i.indisprimary)
  order by x.relname`

/** A value as SQL. */
export const literal = (text: string, type: string): string => `${escapeLiteral(text)}::${type}`

/** Makes the error that says why a table can't be backfilled. */
export const refused = ({ table }: Pick<TableAsked, 'table'>, why: string, more: ErrorContext = {}): EngineError =>
  new EngineError('BACKFILL_REFUSED', `${table} can't be backfilled: ${why}`, { table, ...more })

/** SQLSTATE classes that no second try mends: a value that does not fit, wrong SQL, a missing feature, an error that a function raises. */
const OF_SQL = /^(0A|22|38|39|42|54|P0)/
/** The session only reads. */
const WRITES = '25006'

/** Says of a failed query of a backfill what is refused by it. @returns undefined: it may succeed when it is tried again */
export function refusalOf(error: unknown, { table, condition }: Pick<TableAsked, 'table' | 'condition'>): EngineError | undefined {
  const sqlstate = error instanceof EngineError ? undefined : sqlstateOf(error)
  if (sqlstate === undefined || !(OF_SQL.test(sqlstate) || (sqlstate === WRITES && condition !== null))) return undefined
  return refused({ table }, `PostgreSQL says: ${errorText(error)} (${sqlstate})`, { sqlstate })
}
