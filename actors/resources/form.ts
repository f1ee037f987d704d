/**
 * Forms, as requests and the configuration file bring them: what is taken as absent, and what one is refused for. Nothing here does
 * I/O.
 */
import { Type, type Static, type TSchema } from 'typebox'
import { EngineError } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { schemaCheck } from '../../engine/schema-check.ts'
import { reasonsOf, type Reason } from '../../engine/schema-reasons.ts'

/**
 * What an answer or an export has beside what is set, here or where a file comes from: taken in and left out, so that it can be
 * sent back.
 */
const READ_ONLY = ['id', 'account_id', 'inserted_at', 'updated_at', 'health'] as const

/** Gives the schema of fields that a form may have and that have no effect. @param others that only this kind of resource has */
export const readOnly = (...others: readonly string[]) =>
  Object.fromEntries(
    [...READ_ONLY, ...others].map((name) => [name, Type.Optional(Type.Unknown({ description: 'of answers; without effect' }))]),
  )

/**
 * Leaves out the fields of a form that are null, for null is the same as absent, but for those whose schema gives null a meaning, such
 * as `max_retry_count`. What the schema doesn't know stays, to be refused.
 */
export function withoutNulls(schema: unknown, form: unknown): unknown {
  if (Array.isArray(form)) {
    const items = fieldsOf(schema)['items']
    return hasFields(items) ? form.map((item) => withoutNulls(items, item)) : form
  }
  if (!isObject(form) || !hasFields(schema)) return form
  const { properties } = schema
  return Object.fromEntries(
    Object.entries(form).flatMap(([name, value]) => {
      const field = Object.hasOwn(properties, name) ? properties[name] : undefined
      if (field === undefined) return [[name, value]]
      return value === null && !takesNull(field) ? [] : [[name, withoutNulls(field, value)]]
    }),
  )
}

const hasFields = (schema: unknown): schema is Readonly<{ properties: Readonly<Record<string, unknown>> }> =>
  isObject(schema) && isObject(schema['properties'])

function takesNull(schema: unknown): boolean {
  const { anyOf, type } = fieldsOf(schema)
  return Array.isArray(anyOf) ? anyOf.some(takesNull) : type === undefined || type === 'null'
}

const MAX_SUMMARY = 500

/** Makes the error VALIDATION_FAILED, which tells all reasons at once; its context has those of each field. */
export function invalid(reasons: readonly Reason[]): EngineError {
  const byField: Record<string, string> = Object.create(null)
  for (const [field, reason] of reasons) byField[field] = byField[field] === undefined ? reason : `${byField[field]} and ${reason}`
  const told = reasons.map((words) => words.join(' ')).join('; ')
  return new EngineError('VALIDATION_FAILED', `Validation failed: ${told.slice(0, MAX_SUMMARY)}.`, byField)
}

/** Makes a function that checks a form by a schema. It throws VALIDATION_FAILED with a reason for each wrong field. */
export function checker<S extends TSchema>(schema: S): (form: unknown) => Static<S> {
  const check = schemaCheck(schema)
  return (form) => {
    if (check(form)) return form
    throw invalid(reasonsOf(check.errors ?? []))
  }
}
