/**
 * Says in words what does not fit its schema: for each wrong field one reason, of what it takes and of what kind or size it is,
 * without repeating its value. Nothing here does I/O.
 */
import type { ErrorObject } from 'ajv'
import { fieldsOf } from './json.ts'
import { DURATION_PATTERN } from './duration.ts'
import { NAME_FORM } from './resource-name.ts'

/** Says why a field doesn't fit. `field` is a path with dots, such as "slot.name" or "tables.0.name". */
export type Reason = readonly [field: string, reason: string]

/** Says of errors what is wrong with each field. A choice fails with one error for each alternative: they become one reason. */
export function reasonsOf(errors: readonly ErrorObject[]): Reason[] {
  const choices = new Set(errors.filter(({ keyword }) => keyword === 'anyOf').map(({ instancePath }) => instancePath))
  const alternatives = new Map<string, Misfit[]>()
  const reasons: Reason[] = []
  for (const error of errors) {
    if (error.keyword === 'anyOf') continue
    const misfit = misfitOf(error)
    const { field } = misfit
    if (!choices.has(error.instancePath)) reasons.push([field, reasonFor([misfit])])
    else alternatives.set(field, [...(alternatives.get(field) ?? []), misfit])
  }
  for (const [field, ways] of alternatives) {
    if (reasons.some(([deeper]) => deeper.startsWith(`${field}.`))) continue // one alternative nearly fits: its own reason says more
    reasons.push([field, reasonFor(ways)])
  }
  return reasons
}

/** @property takes in words @property got of what kind or size it is; absent: that says nothing */
type Misfit = Readonly<{ field: string; takes: string; got?: string | undefined }>
type Words = Readonly<{ takes: string; got?: string | undefined }>

function reasonFor(ways: readonly Misfit[]): string {
  const got = new Set(ways.map((way) => way.got))
  const [only] = got
  return `${oneOf([...new Set(ways.map(({ takes }) => takes))])}${got.size === 1 && only !== undefined ? `, got ${only}` : ''}`
}

const MUST_BE = 'must be '
const BOOLEAN = 'true or false'

function oneOf(ways: readonly string[]): string {
  const [first = ''] = ways
  if (ways.length === 1) return first
  if (!ways.every((way) => way.startsWith(MUST_BE))) return ways.map((way, i) => (i === 0 ? way : way.replace(/^must /, ''))).join(' or ')
  const values = ways.map((way) => way.slice(MUST_BE.length)).flatMap((value) => (value === BOOLEAN ? ['true', 'false'] : [value]))
  return `${MUST_BE}${listed(values)}`
}

const listed = (values: readonly string[]): string =>
  values.length < 2 ? values.join('') : `${values.slice(0, -1).join(', ')} or ${values.at(-1)}`

const listedValues = (values: unknown): string => listed(Array.isArray(values) ? values.map((value) => JSON.stringify(value)) : [])

/** Longest name of a field that is repeated. */
const MAX_FIELD = 120

function misfitOf(error: ErrorObject): Misfit {
  const { instancePath, params, keyword } = error
  const field = instancePath.slice(1).replaceAll('/', '.')
  const inner: unknown = params['additionalProperty'] ?? params['missingProperty']
  const path = typeof inner !== 'string' ? field : field === '' ? inner : `${field}.${inner}`
  const words = Object.hasOwn(WORDS, keyword) ? WORDS[keyword]?.(error) : undefined
  return { field: path.slice(0, MAX_FIELD), ...(words ?? { takes: 'has a form that is not allowed' }) }
}

/** For each keyword of our schemas, what it asks for. */
const WORDS: Readonly<Record<string, (error: ErrorObject) => Words>> = {
  required: () => ({ takes: 'is missing' }),
  additionalProperties: () => ({ takes: 'is not a known field' }),
  type: ({ params, data }) => ({ takes: MUST_BE + (KINDS[String(params['type'])] ?? String(params['type'])), got: kindOf(data) }),
  const: ({ params }) => ({ takes: MUST_BE + JSON.stringify(params['allowedValue']) }),
  enum: ({ params }) => ({ takes: MUST_BE + listedValues(params['allowedValues']) }),
  not: ({ schema }) => ({ takes: `must not be ${listedValues(fieldsOf(schema)['enum'])}` }),
  minLength: (error) => atLeast(error, 'character'),
  maxLength: (error) => atMost(error, 'character'),
  minItems: (error) => atLeast(error, 'item'),
  maxItems: (error) => atMost(error, 'item'),
  minProperties: (error) => atLeast(error, 'entry'),
  maxProperties: (error) => atMost(error, 'entry'),
  minimum: ({ params, data }) => ({ takes: `${MUST_BE}at least ${params['limit']}`, got: String(data) }),
  maximum: ({ params, data }) => ({ takes: `${MUST_BE}at most ${params['limit']}`, got: String(data) }),
  uniqueItems: () => ({ takes: 'must not name anything twice' }),
  pattern: ({ params, parentSchema }) => {
    const known = PATTERNS[String(params['pattern'])]
    if (known !== undefined) return { takes: known }
    const { description } = fieldsOf(parentSchema)
    return { takes: typeof description === 'string' ? `must have the form: ${description}` : 'has a form that is not allowed' }
  },
}

const KINDS: Readonly<Record<string, string>> = {
  string: 'a text',
  integer: 'a whole number',
  number: 'a number',
  boolean: BOOLEAN,
  object: 'an object',
  array: 'a list',
  null: 'null',
}
/** The rule behind a regular expression, in words, where the name of its field does not say it. */
const PATTERNS: Readonly<Record<string, string>> = {
  [NAME_FORM.pattern]: `may have only ${NAME_FORM.description}`,
  [DURATION_PATTERN]: `${MUST_BE}a duration such as 90s, 30m, 1h or 7d`,
}

function kindOf(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'an object'
  return typeof value === 'string' ? 'a text' : typeof value === 'number' ? 'a number' : String(value)
}

function atLeast({ params, data }: ErrorObject, unit: string): Words {
  return { takes: `must have at least ${counted(Number(params['limit']), unit)}`, got: String(sizeOf(data)) }
}

function atMost({ params, data }: ErrorObject, unit: string): Words {
  return { takes: `must have at most ${counted(Number(params['limit']), unit)}`, got: String(sizeOf(data)) }
}

const counted = (count: number, unit: string): string => {
  if (count === 1) return `one ${unit}`
  return `${count} ${unit.endsWith('y') ? `${unit.slice(0, -1)}ies` : `${unit}s`}`
}

/** Characters as people count them, items or entries. */
function sizeOf(value: unknown): number {
  if (typeof value === 'string') return [...value].length
  return Array.isArray(value) ? value.length : Object.keys(fieldsOf(value)).length
}
