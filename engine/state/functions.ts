/** Functions as they are stored: named, unique in their account, attached to sinks by name. */
import { EngineError } from '../errors.ts'
import type { SinkSettings } from './resources.ts'

export const FUNCTION_TYPES = ['path', 'transform', 'filter'] as const
export type FunctionType = (typeof FUNCTION_TYPES)[number]

export type FunctionInput = Readonly<{
  name: string
  type: FunctionType
  description: string | null
  /** as written; of type path: the path */
  code: string
  /** JavaScript, a module with a default export */
  compiled: string
  usesMetadata: boolean
}>
export type StoredFunction = FunctionInput & Readonly<{ id: string; accountId: string }>

/** Which types each field of a sink takes. */
const TAKES = { filter: ['filter'], transform: ['transform', 'path'] } as const

/** @throws EngineError VALIDATION_FAILED: a field names a function that isn't there, or of a type it doesn't take */
export function refuseMissingFunctions(
  sink: Pick<SinkSettings, keyof typeof TAKES>,
  functions: readonly Pick<StoredFunction, 'name' | 'type'>[],
): void {
  for (const field of ['filter', 'transform'] as const) {
    const name = sink[field]
    if (name === undefined || name === null) continue
    const found = functions.find((fn) => fn.name === name)
    const reason = !found
      ? `names the function "${name}", which does not exist`
      : (TAKES[field] as readonly string[]).includes(found.type)
        ? undefined
        : `names "${name}", which is a function of type ${found.type}`
    if (reason) throw new EngineError('VALIDATION_FAILED', `${field} ${reason}`, { [field]: reason })
  }
}
