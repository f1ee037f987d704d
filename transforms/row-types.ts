/** TypeScript types of rows as functions see them, from what the catalogue says of tables. Text only: nothing here does I/O. */
import { FIXED_TYPES } from '../engine/wal/value-type.ts'

export type CatalogType = Readonly<{
  /** pg_type.typtype */
  kind: string
  name: string
  /** of a domain, what it is over; else 0 */
  base: number
  /** of an array, its elements'; else 0 */
  element: number
  /** of an enum */
  labels: readonly string[]
}>
export type TableColumn = Readonly<{ schema: string; table: string; column: string; type: number; notNull: boolean }>

/** 64 bits: a number up to ±2^53, beyond that a BigInt. */
const LONG = new Set([20, 5069])
const MAX_DEPTH = 32
const WORD = /^[A-Za-z_$][\w$]*$/

/**
 * @param columns in the order of their tables
 * @param types by oid, with all that they are made of
 * @returns a module with a type for each table, named after it
 */
export function rowTypes(database: string, columns: readonly TableColumn[], types: ReadonlyMap<number, CatalogType>): string {
  const tables = Map.groupBy(columns, ({ schema, table }) => `${schema}.${table}`)
  const names = new Set<string>()
  const parts = [...tables].map(([title, those]) => {
    const [{ schema, table }] = those as [TableColumn, ...TableColumn[]]
    const name = unused(pascal(schema === 'public' ? table : `${schema}_${table}`), names)
    const lines = those.map(({ column, type, notNull }) => {
      const value = typeOf(type, types, 0)
      return `  ${WORD.test(column) ? column : JSON.stringify(column)}: ${notNull ? value : orNull(value)}`
    })
    return `/** ${title.replaceAll('*/', '* /')} */\nexport type ${name} = {\n${lines.join('\n')}\n}\n`
  })
  return `// Rows of ${JSON.stringify(database)} as functions see them, written by "tailrace types": run it again when tables change.
// Of a deleted row only the key is told, unless its table has replica identity full; the rest is null then.

${parts.join('\n')}`
}

function typeOf(oid: number, types: ReadonlyMap<number, CatalogType>, depth: number): string {
  const type = types.get(oid)
  if (LONG.has(oid)) return 'number | bigint'
  if (type && depth < MAX_DEPTH) {
    if (type.kind === 'd') return typeOf(type.base, types, depth + 1)
    if (type.element !== 0) return `(${orNull(typeOf(type.element, types, depth + 1))})[]`
    if (type.kind === 'e' && type.labels.length > 0) return type.labels.map((label) => JSON.stringify(label)).join(' | ')
    if (type.kind === 'b' && type.name === 'vector') return 'number[]'
  }
  switch (FIXED_TYPES.get(oid)) {
    case 'boolean':
      return 'boolean'
    case 'integer':
      return 'number'
    case 'float':
      return `number | 'NaN' | 'Infinity' | '-Infinity'`
    case 'json':
      return 'any'
    case 'interval':
      return '{ months: number; days: number; microseconds: number }'
    default:
      return 'string'
  }
}

const orNull = (type: string) => (type === 'any' ? type : `${type} | null`)

function pascal(text: string): string {
  const words = text.split(/[^A-Za-z0-9]+/).filter((word) => word !== '')
  const name = words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('')
  return /^[A-Za-z]/.test(name) ? name : `Table${name}`
}

function unused(name: string, taken: Set<string>): string {
  let free = name
  for (let n = 2; taken.has(free); n++) free = `${name}${n}`
  taken.add(free)
  return free
}
