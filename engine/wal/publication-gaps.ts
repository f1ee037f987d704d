/**
 * Finds what sinks ask for and their source's publication leaves out: such a table streams nothing, without a word from
 * Postgres. Said by table, with the SQL that mends it.
 */
import { escapeIdentifier } from 'pg'
import { type SourceFilter, takesTable } from '../state/source-filter.ts'
import { qualified } from '../postgres/table-name.ts'
import { INTERNAL_SCHEMA } from './routing/routing.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'

/** Tells what a sink asks for and does not get. */
export type PublicationGap = Readonly<{
  code: 'table_not_published' | 'nothing_published'
  message: string
}>
type Asking = Readonly<{ id: string; source: SourceFilter }>
type Publication = Readonly<{ name: string; allTables: boolean; viaRoot: boolean; tables: readonly string[] }>
type Unpublished = Readonly<{
  name: string
  sql: string
  isRoot: boolean
  isUnlogged: boolean
  root: string | undefined
  hasLeaves: boolean
}>

/**
 * Finds what sinks ask for and the publication leaves out.
 * @param query of the source's database
 * @returns by the sink's id; those without a gap have none. A publication that doesn't exist is told elsewhere
 */
export async function publicationGaps(
  query: Query,
  publication: string,
  sinks: readonly Asking[],
): Promise<ReadonlyMap<string, readonly PublicationGap[]>> {
  const published = await readPublication(query, publication)
  if (!published) return new Map()
  const tables = new Set(published.tables)
  const named = new Set(sinks.flatMap(({ source }) => namedBy(source)).filter((name) => !tables.has(name)))
  const unpublished = new Map((await readTables(query, [...named], published.tables)).map((table) => [table.name, table]))
  const streams = [...tables].map((name) => ({ name, schema: name.slice(0, name.indexOf('.')) }))
  return new Map(
    sinks.flatMap(({ id, source }): [string, PublicationGap[]][] => {
      const gaps = namedBy(source).flatMap((name): PublicationGap[] => {
        const table = unpublished.get(name)
        return table ? [{ code: 'table_not_published', message: reasonFor(table, published) }] : []
      })
      const isEmpty = !streams.some(({ name, schema }) => takesTable(source, schema, name))
      if (gaps.length === 0 && isEmpty) gaps.push({ code: 'nothing_published', message: nothingFor(published) })
      return gaps.length > 0 ? [[id, gaps]] : []
    }),
  )
}

/** Tables that a sink names and does not exclude again. */
const namedBy = (source: SourceFilter): string[] =>
  (source.include_tables ?? []).map(qualified).filter((name) => takesTable(source, name.slice(0, name.indexOf('.')), name))

async function readPublication(query: Query, name: string): Promise<Publication | undefined> {
  const rows = await query(
    `select pubname as name, puballtables as "allTables", pubviaroot as "viaRoot",
       (select coalesce(json_agg(schemaname || '.' || tablename), '[]') from pg_publication_tables
        where pubname = p.pubname and schemaname <> $2) as tables
     from pg_publication p where pubname = $1`,
    [name, INTERNAL_SCHEMA],
  )
  return rowsOf({ name: 'text', allTables: 'boolean', viaRoot: 'boolean', tables: 'texts' }, rows)[0]
}

/** Those of the names that are there: what isn't is told as such, elsewhere. */
async function readTables(query: Query, names: readonly string[], published: readonly string[]): Promise<readonly Unpublished[]> {
  if (names.length === 0) return []
  const rows = await query(
    `select n.nspname || '.' || c.relname as name, format('%I.%I', n.nspname, c.relname) as sql,
       c.relkind = 'p' as "isRoot", c.relpersistence = 'u' as "isUnlogged",
       (select a.name from (select rn.nspname || '.' || r.relname as name from pg_partition_ancestors(c.oid) x
          join pg_class r on r.oid = x.relid join pg_namespace rn on rn.oid = r.relnamespace where r.oid <> c.oid) a
        where a.name = any ($2) limit 1) as root,
       exists (select from pg_partition_tree(c.oid) t join pg_class l on l.oid = t.relid join pg_namespace ln on ln.oid = l.relnamespace
         where ln.nspname || '.' || l.relname = any ($2)) as "hasLeaves"
     from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p') and n.nspname || '.' || c.relname = any ($1)`,
    [names, published],
  )
  return rowsOf({ name: 'text', sql: 'text', isRoot: 'boolean', isUnlogged: 'boolean', root: 'text?', hasLeaves: 'boolean' }, rows)
}

function reasonFor(
  { name, sql, isRoot, isUnlogged, root, hasLeaves }: Unpublished,
  { name: publication, allTables, viaRoot }: Publication,
): string {
  const quoted = escapeIdentifier(publication)
  if (isUnlogged) return `the table ${name} is unlogged, so its changes can't be streamed. Run: alter table ${sql} set logged;`
  if (root !== undefined && viaRoot)
    return `the table ${name} is a partition, and its changes come as those of ${root}: name that one instead of it`
  if (isRoot && hasLeaves && !viaRoot)
    return `the changes of the partitioned table ${name} come as those of its partitions. Run: alter publication ${quoted} set (publish_via_partition_root = true);`
  const where = `the table ${name} is not in the publication ${quoted}, so nothing of it comes.`
  return allTables
    ? `${where} The publication is for all tables; this one can't be streamed`
    : `${where} Run: alter publication ${quoted} add table ${sql};`
}

const nothingFor = ({ name }: Publication): string =>
  `no table of the publication ${escapeIdentifier(name)} is one that this sink takes, so nothing comes`
