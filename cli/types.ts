/** `tailrace types DATABASE`: writes the types of a database's rows, for editors in which functions are written. */
import { Client } from 'pg'
import { EngineError } from '../engine/errors.ts'
import { clientConfig } from '../engine/postgres/client-config.ts'
import { toSourceError } from '../engine/wal/connection/source-error.ts'
import { rowTypes, type CatalogType, type TableColumn } from '../transforms/row-types.ts'
import { print, printJson } from './command.ts'
import { databaseArgument } from './database-argument.ts'
import { writeText } from './text-file.ts'

type Options = Readonly<{ schema?: string; output?: string; json?: boolean }>

/** Writes the types to a file or to the terminal. @throws EngineError ARGUMENT_INVALID, SOURCE_UNREACHABLE, SOURCE_REFUSED */
export async function types(database: string, { schema, output, json = false }: Options): Promise<void> {
  const text = await typesOf(database, schema)
  const tables = text.split('\nexport type Deleted').length - 1
  if (output === undefined) return json ? printJson({ tables, types: text }) : void process.stdout.write(text)
  writeText(output, text)
  if (json) printJson({ tables, file: output })
  else print(`${output}: types of ${tables} tables`)
}

async function typesOf(database: string, schema: string | undefined): Promise<string> {
  const { name, connection } = await databaseArgument(database)
  const client = new Client(clientConfig(connection, 'tailrace types'))
  try {
    await client.connect()
    const columns = await client.query<TableColumn>(
      `select n.nspname::text as schema, c.relname::text as table, a.attname::text as column, a.atttypid::int8::float8 as type, a.attnotnull as "notNull",
         leaves.are_full or coalesce(a.attnum = any (identity.columns), false) as "isKey",
         not leaves.are_full and a.attstorage <> 'p' as "isToastable", a.attgenerated <> '' as "isGenerated"
       from pg_catalog.pg_class c
       join pg_catalog.pg_namespace n on n.oid = c.relnamespace
       join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
       cross join lateral ( -- of a partitioned table its partitions say what is told of their rows
         select coalesce(pg_catalog.bool_and(l.relreplident = 'f'), false) as are_full,
           coalesce(pg_catalog.bool_and(l.relreplident in ('d', 'f')), true) as are_by_key
         from pg_catalog.pg_class l
         where l.oid = c.oid and c.relkind = 'r'
           or c.relkind = 'p' and l.relkind = 'r' and l.oid in (select t.relid from pg_catalog.pg_partition_tree(c.oid) t where t.isleaf)
       ) leaves
       left join lateral (
         select (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1] as columns from pg_catalog.pg_index i
         where i.indrelid = c.oid
           and (leaves.are_by_key and i.indisprimary or c.relkind = 'r' and c.relreplident = 'i' and i.indisreplident)
       ) identity on true
       where c.relkind in ('r', 'p') and not c.relispartition and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
         and ($1::text is null or n.nspname = $1)
       order by 1, 2, a.attnum`,
      [schema ?? null],
    )
    const found = await client.query<CatalogType & { oid: number }>(
      `with recursive used as (
         select t.oid, t.typbasetype, t.typelem from pg_catalog.pg_type t where t.oid = any ($1::pg_catalog.oid[])
         union
         select t.oid, t.typbasetype, t.typelem from pg_catalog.pg_type t join used u on t.oid = u.typbasetype or t.oid = u.typelem
       )
       select t.oid::int8::float8 as oid, t.typtype::text as kind, t.typname::text as name, t.typbasetype::int8::float8 as base,
         coalesce(e.oid, 0)::int8::float8 as element,
         array(select l.enumlabel::text from pg_catalog.pg_enum l where l.enumtypid = t.oid order by l.enumsortorder) as labels
       from used join pg_catalog.pg_type t using (oid)
       left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid`,
      [[...new Set(columns.rows.map(({ type }) => type))]],
    )
    if (columns.rows.length === 0) throw new EngineError('ARGUMENT_INVALID', `there are no tables in ${schema ?? 'the database'}`)
    return rowTypes(name, columns.rows, new Map(found.rows.map((type) => [type.oid, type])))
  } catch (error) {
    throw toSourceError(error, 'connecting')
  } finally {
    await client.end()
  }
}
