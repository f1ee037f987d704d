/**
 * Asks the catalogue what the stream doesn't say about a table: its primary key, and what its types are. The
 * catalogue shows today's state while the stream may be in the past, so the stream is believed where it is exact, and
 * what is gone from the catalogue by now makes a warning, never a failure.
 */
import type { RelationColumn, RelationMessage } from './pgoutput.ts'
import type { RelationDescription, RelationWarning } from './relation.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { FIXED_TYPES, type ScalarType, type ValueType } from './value-type.ts'

/**
 * Tells whether describing the table needs the catalogue: for a type whose oid isn't fixed, or for its primary key. The key
 * flags of the message are the replica identity, which is the primary key under the default identity only (all columns
 * under FULL); under the default without flags there may still be a deferrable one.
 */
export function needsLookup(message: RelationMessage): boolean {
  return (
    message.replicaIdentity !== 'd' ||
    message.columns.some((column) => !FIXED_TYPES.has(column.typeOid)) ||
    !message.columns.some((column) => column.key)
  )
}

/** The description of a table that needs no look-up. */
export function describeByMessage(message: RelationMessage): RelationDescription {
  return describe(message, flagged(message), {}, [])
}

/**
 * Describes a table by its message and the catalogue. @param query on an ordinary connection to the source's database @throws what
 * the query throws; a table or type that is gone is no error
 */
export async function describeRelation(query: Query, message: RelationMessage): Promise<RelationDescription> {
  const warnings: RelationWarning[] = []
  const types = await lookUpTypes(query, message, warnings)
  const key =
    message.replicaIdentity === 'd' && message.columns.some((column) => column.key)
      ? flagged(message)
      : await lookUpKey(query, message, warnings)
  return describe(message, key, types, warnings)
}

function describe(
  message: RelationMessage,
  key: readonly string[],
  types: Readonly<Record<string, ValueType>>,
  warnings: readonly RelationWarning[],
): RelationDescription {
  const table = nameOf(message)
  const more: RelationWarning[] = []
  if (key.length === 0 && warnings.every((warning) => warning.code === 'type_dropped')) {
    more.push({
      code: 'no_primary_key',
      message: `${table} has no primary key: its changes form one group, and search sinks have no id for it`,
    })
  }
  const outside = message.columns.filter((column) => key.includes(column.name) && !column.key).map((column) => column.name)
  if (message.replicaIdentity === 'i' && outside.length > 0) {
    more.push({
      code: 'key_outside_identity',
      message: `the replica identity of ${table} is an index without ${outside.join(', ')} of its primary key: changes of the key and deletes can't be followed. Remedy: alter table ${table} replica identity default`,
    })
  }
  return { key, types, warnings: [...warnings, ...more] }
}

const flagged = (message: RelationMessage): string[] => message.columns.filter((column) => column.key).map((column) => column.name)
const nameOf = (message: RelationMessage): string => `${message.schema}.${message.table}`

type CatalogColumn = Readonly<{ name: string; typeOid: number; inKey: boolean }>

/** @returns the primary key's columns under the names of the message */
async function lookUpKey(query: Query, message: RelationMessage, warnings: RelationWarning[]): Promise<string[]> {
  const rows = await query(
    `select a.attname::text as name, a.atttypid::pg_catalog.int8 as "typeOid", k.columns is not null and a.attnum = any (k.columns) as "inKey"
     from pg_catalog.pg_attribute a
     left join lateral (
       select (i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1] as columns -- behind these stand columns that are only INCLUDEd
       from pg_catalog.pg_index i where i.indrelid = a.attrelid and i.indisprimary
     ) k on true
     where a.attrelid = $1::pg_catalog.oid and a.attnum > 0 and not a.attisdropped
     order by a.attnum`,
    [String(message.oid)],
  )
  const table = nameOf(message)
  const catalog = rowsOf({ name: 'text', typeOid: 'int', inKey: 'boolean' }, rows)
  if (catalog.length === 0) {
    // under FULL every column is flagged: a key of all columns would make every update a change of the key
    warnings.push({ code: 'table_dropped', message: `${table} no longer exists: what its primary key was can't be said` })
    return message.replicaIdentity === 'i' ? flagged(message) : []
  }
  const key = catalog.flatMap((column, ordinal) => (column.inKey ? [nameInMessage(message, catalog, column, ordinal)] : []))
  const found = key.filter((name) => name !== undefined)
  if (found.length === key.length) return found
  // a part of the key would take different rows for one
  warnings.push({ code: 'key_not_published', message: `the primary key of ${table} is not among its published columns` })
  return []
}

/** By name; a column that was renamed since, by its place, when its type and its neighbours' number agree. */
function nameInMessage(
  message: RelationMessage,
  catalog: readonly CatalogColumn[],
  column: CatalogColumn,
  ordinal: number,
): string | undefined {
  if (message.columns.some((other) => other.name === column.name)) return column.name
  const candidate: RelationColumn | undefined = message.columns[ordinal]
  if (!candidate || catalog.length !== message.columns.length || candidate.typeOid !== column.typeOid) return undefined
  return catalog.some((other) => other.name === candidate.name) ? undefined : candidate.name
}

/** Types with a rendering of their own that no fixed oid tells: by name, of base types only. */
const BY_NAME: ReadonlyMap<string, ScalarType> = new Map([['vector', 'vector']])
const MAX_DEPTH = 32

type CatalogType = Readonly<{ name: string; kind: string; base: number; element: number; delimiter: string }>

async function lookUpTypes(query: Query, message: RelationMessage, warnings: RelationWarning[]): Promise<Record<string, ValueType>> {
  const wanted = [...new Set(message.columns.map((column) => column.typeOid))].filter((oid) => !FIXED_TYPES.has(oid))
  const types = await typesOf(query, wanted)
  for (const oid of wanted) {
    if (types[oid] !== undefined) continue
    const columns = message.columns.filter((column) => column.typeOid === oid).map((column) => column.name)
    warnings.push({
      code: 'type_dropped',
      message: `the type of ${nameOf(message)} (${columns.join(', ')}) no longer exists: its values are sent as text`,
    })
  }
  return Object.fromEntries(wanted.map((oid) => [oid, types[oid] ?? 'text']))
}

/** Looks up types whose oid isn't fixed, by their oids; one that is gone isn't among them. */
export async function typesOf(query: Query, wanted: readonly number[]): Promise<Readonly<Record<string, ValueType>>> {
  if (wanted.length === 0) return {}
  const rows = await query(
    `with recursive used as (
       select t.oid, t.typbasetype, t.typelem from pg_catalog.pg_type t where t.oid = any ($1::pg_catalog.oid[])
       union
       select t.oid, t.typbasetype, t.typelem from pg_catalog.pg_type t join used u on t.oid = u.typbasetype or t.oid = u.typelem
     )
     select t.oid::pg_catalog.int8 as oid, t.typname::text as name, t.typtype::text as kind, t.typbasetype::pg_catalog.int8 as base,
            coalesce(e.oid, 0)::pg_catalog.int8 as element, coalesce(e.typdelim::text, '') as delimiter
     from used join pg_catalog.pg_type t using (oid)
     left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid -- point, name and others have elements and are no arrays`,
    [`{${wanted.join(',')}}`],
  )
  const types = rowsOf({ oid: 'int', name: 'text', kind: 'text', base: 'int', element: 'int', delimiter: 'text' }, rows)
  const found = new Map(types.map(({ oid, ...type }): [number, CatalogType] => [oid, type]))
  return Object.fromEntries(wanted.filter((oid) => found.has(oid)).map((oid) => [oid, resolve(oid, found, 0)]))
}

function resolve(oid: number, types: ReadonlyMap<number, CatalogType>, depth: number): ValueType {
  const fixed = FIXED_TYPES.get(oid)
  if (fixed !== undefined) return fixed
  const type = types.get(oid)
  if (!type || depth === MAX_DEPTH) return 'text'
  if (type.kind === 'd') return resolve(type.base, types, depth + 1)
  if (type.element !== 0) return { array: resolve(type.element, types, depth + 1), delimiter: type.delimiter }
  return (type.kind === 'b' && BY_NAME.get(type.name)) || 'text'
}
