/** What does not fit its schema, in words: for each wrong field one reason, without repeating its value. Nothing here does I/O. */
import type { ErrorObject } from 'ajv'
import { NAME_FORM } from './state/resources.ts'

/** `field` is a path with dots, such as "slot.name" or "tables.0.name". */
export type Reason = readonly [field: string, reason: string]

/** A choice fails with one error for each alternative: they become one reason. */
export function reasonsOf(errors: readonly ErrorObject[]): Reason[] {
  const choices = new Set(errors.filter(({ keyword }) => keyword === 'anyOf').map(({ instancePath }) => instancePath))
  const alternatives = new Map<string, string[]>()
  const reasons: Reason[] = []
  for (const error of errors) {
    if (error.keyword === 'anyOf') continue
    const [field, reason] = reasonOf(error)
    if (!choices.has(error.instancePath)) reasons.push([field, reason])
    else alternatives.set(field, [...(alternatives.get(field) ?? []), reason])
  }
  for (const [field, ways] of alternatives) {
    if (reasons.some(([deeper]) => deeper.startsWith(`${field}.`))) continue // one alternative nearly fits: its own reason says more
    reasons.push([field, oneOf([...new Set(ways)])])
  }
  return reasons
}

const MUST_BE = 'must be '

function oneOf(ways: readonly string[]): string {
  if (!ways.every((way) => way.startsWith(MUST_BE))) return ways.map((way, i) => (i === 0 ? way : way.replace(/^must /, ''))).join(' or ')
  const values = ways.map((way) => way.slice(MUST_BE.length)).flatMap((value) => (value === 'boolean' ? ['true', 'false'] : [value]))
  const last = values.pop()
  return MUST_BE + (values.length > 0 ? `${values.join(', ')} or ${last}` : last)
}

function reasonOf({ instancePath, params, keyword, message }: ErrorObject): Reason {
  const field = instancePath.slice(1).replaceAll('/', '.')
  const { additionalProperty, missingProperty, allowedValue } = params as Readonly<Record<string, unknown>>
  const inner = additionalProperty ?? missingProperty
  if (typeof inner === 'string') {
    const path = field === '' ? inner : `${field}.${inner}`
    return [path.slice(0, 120), keyword === 'required' ? 'is missing' : 'is not a known field']
  }
  if (keyword === 'const') return [field.slice(0, 120), MUST_BE + JSON.stringify(allowedValue)]
  if (keyword === 'pattern' && params['pattern'] === NAME_FORM.pattern)
    return [field.slice(0, 120), `may have only ${NAME_FORM.description}`]
  if (keyword === 'minItems') return [field.slice(0, 120), 'must have at least one item']
  return [field.slice(0, 120), message ?? 'is wrong']
}
