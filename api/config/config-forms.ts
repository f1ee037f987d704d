/** Parts of a configuration document against their forms: what is wrong is told at its field. */
import type { SchemaCheck } from '../../engine/schema-check.ts'
import { EngineError } from '../../engine/errors.ts'
import type { ConfigReader } from './config-reader.ts'
import { reasonsOf } from '../../engine/schema-reasons.ts'

/** @returns whether the form has the shape of its schema; tells what is wrong at its place */
export function fits(reader: ConfigReader, check: SchemaCheck, form: unknown, path: readonly (string | number)[]): boolean {
  if (check(form)) return true
  for (const [field, reason] of reasonsOf(check.errors ?? []))
    reader.wrong(reader.at(...path, ...placeOf(field)), `${field}${field && ' '}${reason}`)
  return false
}

/** In the file; a list is found by number. */
const placeOf = (field: string): (string | number)[] =>
  field === '' ? [] : field.split('.').map((part) => (/^\d+$/.test(part) ? Number(part) : part))

/** What a form is refused for stands at its fields. */
export function checked<T>(reader: ConfigReader, path: readonly [string, number], check: () => T): T | undefined {
  try {
    return check()
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    for (const [field, reason] of Object.entries(error.context)) reader.wrong(reader.at(...path, ...placeOf(field)), `${field} ${reason}`)
    return undefined
  }
}
