/** Writes TypeScript types of rows as functions see them, from what the catalogue says of tables. Nothing here does I/O. */
import { FIXED_TYPES } from '../engine/wal/decode/value-type.ts'

/** A type as the catalogue has it. */
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
/** A column as the catalogue has it, and what the stream tells of it. */
export type TableColumn = Readonly<{
  schema: string
  table: string
  column: string
  type: number
  notNull: boolean
  /** told of deleted rows: of the replica identity */
  isKey: boolean
  /** it may be told as UNCHANGED of an update: its values can be TOASTed, and old ones aren't told whole */
  isToastable: boolean
  /** Postgres makes its values, and tells them only when its publication says so */
  isGenerated: boolean
}>

/** 64 bits: a number up to ±2^53, beyond that a BigInt. */
const LONG = new Set([20, 5069])
const MAX_DEPTH = 32
const UNCHANGED = `'unchanged_toast'`
/** types that have every text among their values */
const TEXTS = /^(?:string|any)$/
const WORD = /^[A-Za-z_$][\w$]*$/

/**
 * Writes the types of the rows of tables.
 * @param columns in the order of their tables
 * @param types by oid, with all that they are made of
 * @returns a module with two types for each table: of its rows, named after it, and of its deleted rows
 */
export function rowTypes(database: string, columns: readonly TableColumn[], types: ReadonlyMap<number, CatalogType>): string {
  const tables = Map.groupBy(columns, ({ schema, table }) => `${schema}.${table}`)
  const names = new Set<string>()
  const parts = [...tables].map(([title, those]) => {
    const [{ schema = '', table = '' } = {}] = those
    const name = unused(pascal(schema === 'public' ? table : `${schema}_${table}`), names)
    const deleted = unused(`Deleted${name}`, names)
    const listed = (value: (column: TableColumn) => string) =>
      those.map((one) => `  ${WORD.test(one.column) ? one.column : JSON.stringify(one.column)}${one.isGenerated ? '?' : ''}: ${value(one)}\n`).join('') // prettier-ignore
    const whole = (one: TableColumn) => {
      const value = typeOf(one.type, types, 0)
      const sent = one.isToastable && !TEXTS.test(value) ? `${value} | ${UNCHANGED}` : value
      return one.notNull ? sent : orNull(sent)
    }
    const left = (one: TableColumn) => (one.isKey ? whole(one) : 'null')
    const same = those.every(({ isKey }) => isKey)
    return `/** ${title.replaceAll('*/', '* /')} */
export type ${name} = {\n${listed(whole)}}
export type ${deleted} = ${same ? name : `{\n${listed(left)}}`}
`
  })
  return `// Rows of ${JSON.stringify(database)} as functions see them, written by "tailrace types": run it again when tables change.
// Transform<Row, DeletedRow>: of a deleted row only the key is told, or all of it if its table has replica identity full.
// "unchanged_toast" stands for a large value that an update left alone, but for sinks that keep documents, which fetch it.

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
