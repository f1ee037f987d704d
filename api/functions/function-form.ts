/** What a function is in requests and in the configuration file: the fields that depend on its type. Nothing here does I/O. */
import { EngineError } from '../../engine/errors.ts'
import type { FunctionType } from '../../engine/state/functions.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import { kindOf, unknownType } from '../sinks/destination-form.ts'
import { isObject } from '../http/form.ts'

const ROUTED = [...PUSH_TYPES.values()].filter(({ routing }) => routing).map(({ type }) => type)

/** @param given as it came, in any spelling @throws EngineError VALIDATION_FAILED: sinks of this type aren't routed */
export function sinkTypeOf(given: string | null | undefined): string | null {
  if (given === undefined || given === null) return null
  const kind = kindOf({ type: given })
  if (kind !== undefined && ROUTED.includes(kind)) return kind
  const can = `functions route to ${ROUTED.join(', ')}`
  throw wrong('sink_type', kind === undefined ? unknownType(given, can) : `must be one of ${ROUTED.join(', ')}`)
}

/** Older files have the fields below `transform` or `function`, and the type "function" for a transform. */
export function flatFunction(form: unknown): unknown {
  if (!isObject(form)) return form
  const { transform, function: inner = transform, ...own } = form
  const flat = isObject(inner) && (transform === undefined || form['function'] === undefined) ? { ...own, ...inner } : form
  return flat['type'] === 'function' ? { ...flat, type: 'transform' } : flat
}

/** @throws EngineError VALIDATION_FAILED: of path and code the type needs one */
export function codeOf(type: FunctionType, { code, path }: { code?: string | undefined; path?: string | undefined }): string {
  const [field, given, other] = type === 'path' ? (['path', path, code] as const) : (['code', code, path] as const)
  if (given !== undefined && other === undefined) return given
  throw wrong(field, given === undefined ? 'is missing' : 'is what this type has, and nothing beside it')
}

const wrong = (field: string, reason: string) => new EngineError('VALIDATION_FAILED', `${field} ${reason}`, { [field]: reason })
