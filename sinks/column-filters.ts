/**
 * Filters by columns: which changes of a table a change retention keeps. A change is kept when all of them hold for its row, of a
 * delete the old one. Null is equal to nothing: only "!=", "not in" and "is null" hold for it. Nothing here does I/O.
 */
import { Type, type Static } from 'typebox'
import { isObject } from '../engine/json.ts'

const Operator = Type.Union([
  Type.Literal('='),
  Type.Literal('!='),
  Type.Literal('>'),
  Type.Literal('<'),
  Type.Literal('>='),
  Type.Literal('<='),
  Type.Literal('in'),
  Type.Literal('not in'),
  Type.Literal('is null'),
  Type.Literal('is not null'),
])
const FieldType = Type.Union(
  [
    Type.Literal('string'),
    Type.Literal('cistring'),
    Type.Literal('number'),
    Type.Literal('boolean'),
    Type.Literal('datetime'),
    Type.Literal('list'),
    Type.Null(),
  ],
  { description: 'how the two are compared; absent: as comparison_value is written. cistring: whatever the case' },
)

/** The schema of a filter by a column. */
export const ColumnFilter = Type.Object(
  {
    column_name: Type.String({ minLength: 1, maxLength: 63, description: 'of the source table' }),
    operator: Operator,
    comparison_value: Type.Optional(Type.Unknown({ description: 'what the column is compared with; of in and not in a list' })),
    field_path: Type.Optional(
      Type.Union([Type.String({ pattern: '^[^.]+(?:\\.[^.]+)*$' }), Type.Null()], {
        description: 'place in a jsonb column, such as address.city',
      }),
    ),
    field_type: Type.Optional(FieldType),
  },
  { additionalProperties: false },
)
/** Says which changes are kept, by one column. */
export type ColumnFilter = Static<typeof ColumnFilter>

/** Says what is wrong with a filter that its schema can't tell; undefined: nothing. */
export function wrongFilter({ operator, comparison_value: value, field_type: type }: ColumnFilter): string | undefined {
  if (operator === 'is null' || operator === 'is not null') return undefined
  if (value === undefined || value === null) return `needs a comparison_value: operator is "${operator}"`
  if (operator === 'in' || operator === 'not in')
    return Array.isArray(value) ? undefined : `needs a list as comparison_value: operator is "${operator}"`
  if (typeof value === 'object') return 'has a comparison_value that is neither a text, a number nor true or false'
  if (type === 'list') return `can't compare lists by "${operator}": take "in" or "not in"`
  if (type === 'number' && decimalOf(value) === undefined) return 'has a comparison_value that is no number'
  if (type === 'datetime' && microsecondsOf(value) === undefined)
    return 'has a comparison_value that is no date and time, such as 2025-02-03T04:05:06Z'
  return undefined
}

/** Tells whether a row passes all filters. @param record as parsed without loss */
export const passes = (record: Readonly<Record<string, unknown>>, filters: readonly ColumnFilter[]): boolean =>
  filters.every((filter) => holds(valueAt(record[filter.column_name], filter.field_path), filter))

function valueAt(value: unknown, path: string | null | undefined): unknown {
  let at = value
  for (const name of path?.split('.') ?? [])
    at = isObject(at) && Object.hasOwn(at, name) ? at[name] : Array.isArray(at) ? at[Number(name)] : undefined
  return at ?? null
}

function holds(value: unknown, { operator, comparison_value: wanted, field_type: type }: ColumnFilter): boolean {
  if (operator === 'is null') return value === null
  if (operator === 'is not null') return value !== null
  const list = Array.isArray(wanted) ? wanted : [wanted]
  if (operator === 'in' || operator === 'not in') {
    const isIn = value !== null && list.some((one) => compared(value, one, type === 'list' ? undefined : type) === 0)
    return isIn === (operator === 'in')
  }
  if (value === null) return operator === '!='
  const order = compared(value, wanted, type)
  if (operator === '!=') return order !== 0
  if (order === undefined) return false
  if (operator === '=') return order === 0
  if (operator === '>') return order > 0
  if (operator === '<') return order < 0
  return operator === '>=' ? order >= 0 : order <= 0
}

/** @returns below 0, 0 or above 0 as `value` is below, equal to or above `wanted`; undefined: they can't be compared */
function compared(value: unknown, wanted: unknown, type: ColumnFilter['field_type']): number | undefined {
  const how = type ?? (typeof wanted === 'boolean' ? 'boolean' : isNumber(wanted) ? 'number' : 'string')
  if (how === 'number') return orderOf(decimalOf(value), decimalOf(wanted), compareDecimals)
  if (how === 'datetime') return orderOf(microsecondsOf(value), microsecondsOf(wanted), (a, b) => (a < b ? -1 : a > b ? 1 : 0))
  const [a, b] = [textOf(value), textOf(wanted)]
  const [left, right] = how === 'cistring' ? [a.toLowerCase(), b.toLowerCase()] : [a, b]
  return left < right ? -1 : left > right ? 1 : 0
}

const orderOf = <T>(a: T | undefined, b: T | undefined, compare: (a: T, b: T) => number): number | undefined =>
  a === undefined || b === undefined ? undefined : compare(a, b)

/** Integers beyond ±2^53 come as `JSON.rawJSON`. */
const isNumber = (value: unknown): boolean =>
  typeof value === 'number' || (typeof value === 'object' && value !== null && 'rawJSON' in value)
const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

/** A number with all its digits: `digits` × 10^-scale. */
type Decimal = Readonly<{ digits: bigint; scale: number }>

/** @returns undefined: it is no finite number */
function decimalOf(value: unknown): Decimal | undefined {
  if (typeof value !== 'string' && !isNumber(value)) return undefined
  const [, sign = '', whole = '', fraction = '', exponent = '0'] =
    /^([+-]?)(\d*)(?:\.(\d*))?(?:e([+-]?\d{1,4}))?$/i.exec(textOf(value).trim()) ?? []
  if (whole === '' && fraction === '') return undefined
  const scale = fraction.length - Number(exponent)
  const digits = BigInt(`${whole}${fraction}`) * (sign === '-' ? -1n : 1n)
  return scale < 0 ? { digits: digits * 10n ** BigInt(-scale), scale: 0 } : { digits, scale }
}

function compareDecimals(a: Decimal, b: Decimal): number {
  const scale = Math.max(a.scale, b.scale)
  const [left, right] = [a, b].map((one) => one.digits * 10n ** BigInt(scale - one.scale)) as [bigint, bigint]
  return left < right ? -1 : left > right ? 1 : 0
}

const DATE_TIME = /^(\d{4,}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(?:\.(\d{1,9}))?)?\s*(Z|[+-]\d{2}(?::?\d{2})?)?$/i

/** A date, or a date and time; without a zone it is taken as UTC. @returns undefined: it is none */
function microsecondsOf(value: unknown): bigint | undefined {
  if (typeof value !== 'string') return undefined
  const [, date, time = '00:00:00', fraction = '', zone = 'Z'] = DATE_TIME.exec(value.trim()) ?? []
  if (date === undefined) return undefined
  const [, sign = '+', hours = '00', minutes = '00'] = /^([+-])(\d{2}):?(\d{2})?$/.exec(zone) ?? []
  const ms = Date.parse(
    `${date}T${time.length === 5 ? `${time}:00` : time}${zone.toUpperCase() === 'Z' ? 'Z' : `${sign}${hours}:${minutes}`}`,
  )
  return Number.isNaN(ms) ? undefined : BigInt(ms) * 1000n + BigInt(fraction.padEnd(6, '0').slice(0, 6))
}
