/** The form of a function in requests and in the configuration file: the fields that depend on its type. Nothing here does I/O. */
import { Type } from 'typebox'
import { errorText, fieldRefused } from '../../engine/errors.ts'
import { Name } from '../../engine/resource-name.ts'
import { FUNCTION_TYPES, type FunctionType } from '../../engine/state/function-kinds.ts'
import { NOUN_OF } from '../../engine/state/resource-store.ts'
import type { Destination } from '../../engine/state/destinations.ts'
import { FILE_DESTINATIONS, PUSH_TYPES } from '../../sinks/destination-types.ts'
import type { RouteTrial } from '../../transforms/trial.ts'
import { isUnsupported } from '../../sinks/unsupported-types.ts'
import { kindOf, unknownType } from './destination-form.ts'
import type { Written } from '../../transforms/compile.ts'
import { checker, readOnly, type ResourceForm } from './form.ts'
import { isObject } from '../../engine/json.ts'

const text = (description: string) => Type.String({ minLength: 1, description })
/** The schema of an entry of `functions`. */
export const FunctionForm = Type.Object(
  {
    name: Type.String({ ...Name, not: { enum: ['none', 'null', 'nil'] } }),
    type: Type.Union(FUNCTION_TYPES.map((type) => Type.Literal(type))),
    description: Type.Optional(Type.String()),
    code: Type.Optional(text('the function, JavaScript or TypeScript')),
    file: Type.Optional(text('file that holds it, beside this one')),
    path: Type.Optional(text('of type path: such as record.id')),
    sink_type: Type.Optional(text('of type routing: type of the sinks that it routes to')),
    ...readOnly('used_by', 'warnings'),
  },
  { additionalProperties: false },
)

const check = checker(FunctionForm)

/** A function of a file. @property file that its code stands in, as the document names it */
export type FunctionEntry = Written & Readonly<{ file?: string | undefined }>

const ROUTED = [...PUSH_TYPES.values()].filter(({ routing }) => routing).map(({ type }) => type)

/**
 * Reads the type of sink that a routing function is for. @param given as it came, in any spelling @throws EngineError
 * VALIDATION_FAILED: sinks of this type aren't routed
 */
export function sinkTypeOf(given: string | null | undefined): string | null {
  if (given === undefined || given === null) return null
  const kind = kindOf({ type: given })
  if (kind !== undefined && ROUTED.includes(kind)) return kind
  const can = `functions route to ${ROUTED.join(', ')}`
  throw fieldRefused('sink_type', kind === undefined ? unknownType(given, can) : `must be one of ${ROUTED.join(', ')}`)
}

/** Describes how functions stand in a file. */
export const FUNCTION: ResourceForm<'function', FunctionEntry> = {
  section: 'functions',
  noun: NOUN_OF.function,
  schema: FunctionForm,
  flat: flatFunction,
  read: (entry, { textOf }) => {
    const { name, type, description = null, code, file, path, sink_type } = check(entry)
    const kept = kindOf({ type: sink_type }, FILE_DESTINATIONS)
    const sinkType = kept !== undefined && isUnsupported({ type: kept }) ? kept : sinkTypeOf(sink_type) // as its sinks are kept
    if (type === 'routing' && sinkType === null)
      throw fieldRefused('sink_type', 'is missing: give the type of the sinks that the function routes to')
    if (type !== 'routing' && sink_type !== undefined) throw fieldRefused('sink_type', 'is only for functions of type routing')
    if (type === 'path') {
      if (path === undefined) throw fieldRefused('path', 'is missing: give it as in path: record.id')
      return { name, type, description, sinkType, code: path }
    }
    if (path !== undefined) throw fieldRefused('path', 'is only for functions of type path')
    if ((code === undefined) === (file === undefined)) throw fieldRefused('code', 'or file must be given, and only one of the two')
    if (file === undefined) return { name, type, description, sinkType, code: code ?? '' }
    if (!textOf) throw fieldRefused('file', 'can be given only in a configuration file on disk: give code instead')
    try {
      return { name, type, description, sinkType, code: textOf(file), file }
    } catch (error) {
      throw fieldRefused('file', `${file} can't be read: ${errorText(error)}`)
    }
  },
  entry: ({ name, type, description, sinkType, code }) => ({
    name,
    type,
    ...(description !== null && { description }),
    ...(sinkType !== null && { sink_type: sinkType }),
    ...(type === 'path' ? { path: code } : { code }),
  }),
}

/**
 * Brings a function of an older file, whose fields stand below `transform` or `function`, and whose transforms have the type
 * "function", to the form of today.
 */
export function flatFunction(form: unknown): unknown {
  if (!isObject(form)) return form
  const { transform, function: inner = transform, ...own } = form
  const flat = isObject(inner) && (transform === undefined || form['function'] === undefined) ? { ...own, ...inner } : form
  return flat['type'] === 'function' ? { ...flat, type: 'transform' } : flat
}

/** Gives the code of a function, or its path, whichever its type needs. @throws EngineError VALIDATION_FAILED: that one is missing */
export function codeIn(type: FunctionType, { code, path }: { code?: string | undefined; path?: string | undefined }): string {
  const [field, given, other] = type === 'path' ? (['path', path, code] as const) : (['code', code, path] as const)
  if (given !== undefined && other === undefined) return given
  throw fieldRefused(field, given === undefined ? 'is missing' : 'must be given alone: code and path exclude each other')
}

/**
 * Makes a function that says what a routing function's result comes to. @param destination of the sink that it is tried for;
 * absent: of none, and a target that is missing may yet come
 */
export function routeTrial(sinkType: string | null | undefined, destination?: Destination): RouteTrial | undefined {
  const { routing } = PUSH_TYPES.get(sinkType ?? '') ?? {}
  if (!routing) return undefined
  return (said, message) => {
    const { route, reason } = routing.read(said, destination)
    return reason === undefined ? { routing: routing.effective(route, destination, message) } : { reason }
  }
}
