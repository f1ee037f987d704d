/** The tables of a source as a user wants to see them before and while sinks take them. */
import type { Query } from '../postgres/query.ts'
import { oneOf, rowsOf } from '../postgres/rows.ts'
import { INTERNAL_SCHEMA } from './routing/routing.ts'

const IDENTITIES = ['default', 'full', 'index', 'nothing'] as const

/** A table of a source, with what decides how its changes come. */
export type SourceTable = Readonly<{
  schema: string
  name: string
  /** schema and name as they stand in SQL */
  sql: string
  isPartitioned: boolean
  /** the table that it is a partition of, at the top */
  partitionRoot: string | undefined
  /** its changes come, under its own name */
  isPublished: boolean
  /** the table under whose name its changes come; undefined: they come under its own, or not at all */
  publishedAs: string | undefined
  /** in the order of the table; empty: it has none */
  primaryKey: readonly string[]
  replicaIdentity: (typeof IDENTITIES)[number]
  /** columns that Postgres sends of a deleted or changed row */
  identityColumns: readonly string[]
  /** the user of the source sees only some of its rows, and backfills read no others */
  isRowSecured: boolean
  isUnlogged: boolean
  mayRead: boolean
}>

const TABLE = {
  schema: 'text',
  name: 'text',
  sql: 'text',
  isPartitioned: 'boolean',
  partitionRoot: 'text?',
  isPublished: 'boolean',
  publishedAs: 'text?',
  primaryKey: 'texts',
  replicaIdentity: oneOf(...IDENTITIES),
  identityColumns: 'texts',
  isRowSecured: 'boolean',
  isUnlogged: 'boolean',
  mayRead: 'boolean',
} as const

/** Lists the tables of a source, by schema and name. @param query of the source's database */
export async function sourceTables(query: Query, publication: string): Promise<readonly SourceTable[]> {
  const columnsOf = (condition: string) =>
    `array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and (${condition}) order by a.attnum)`
  const inIndex = (which: string) => `exists (select from pg_index i where i.indrelid = c.oid and a.attnum = any (i.indkey) and ${which})`
  const rows = await query(
    `with published as materialized (
       select schemaname::text as schema, tablename::text as name from pg_publication_tables where pubname = $1)
     select n.nspname::text as schema, c.relname::text as name, format('%I.%I', n.nspname, c.relname) as sql, c.relkind = 'p' as "isPartitioned", r.root as "partitionRoot",
       p.name is not null as "isPublished",
       (select a.schema || '.' || a.name from published a where p.name is null and a.schema || '.' || a.name = any (r.ancestors) limit 1) as "publishedAs",
       ${columnsOf(inIndex('i.indisprimary'))} as "primaryKey",
       case c.relreplident when 'd' then 'default' when 'f' then 'full' when 'i' then 'index' else 'nothing' end as "replicaIdentity",
       ${columnsOf(`c.relreplident = 'f' or ${inIndex(`case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end`)}`)} as "identityColumns",
       row_security_active(c.oid) as "isRowSecured", c.relpersistence = 'u' as "isUnlogged", has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') as "mayRead"
     from pg_class c join pg_namespace n on n.oid = c.relnamespace
     left join published p on p.schema = n.nspname and p.name = c.relname
     left join lateral (
       select array_agg(an.nspname || '.' || ac.relname) as ancestors,
         max(an.nspname || '.' || ac.relname) filter (where not ac.relispartition) as root
       from pg_partition_ancestors(c.oid) x join pg_class ac on ac.oid = x.relid join pg_namespace an on an.oid = ac.relnamespace
       where c.relispartition and ac.oid <> c.oid) r on true
     where c.relkind in ('r', 'p') and c.relpersistence <> 't' and n.nspname not in ('pg_catalog', 'information_schema', $2)
       and n.nspname not like 'pg\\_toast%'
     order by 1, 2`,
    [publication, INTERNAL_SCHEMA],
  )
  return rowsOf(TABLE, rows)
}
