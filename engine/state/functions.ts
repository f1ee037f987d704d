/** Functions as they are stored: named, unique in their account, attached to sinks by name. */
import { EngineError } from '../errors.ts'
import type { Destination } from './destinations.ts'
import type { SinkSettings } from './resources.ts'

export const FUNCTION_TYPES = ['path', 'transform', 'filter', 'routing', 'enrichment'] as const
export type FunctionType = (typeof FUNCTION_TYPES)[number]

export type FunctionInput = Readonly<{
  name: string
  type: FunctionType
  description: string | null
  /** of type routing: the type of destination that it routes to */
  sinkType: Destination['type'] | null
  /** as written; of type path: the path, of type enrichment: SQL */
  code: string
  /** JavaScript, a module with a default export; of type enrichment: SQL */
  compiled: string
  usesMetadata: boolean
}>
export type StoredFunction = FunctionInput & Readonly<{ id: string; accountId: string }>

/** Which types each field of a sink takes. */
const TAKES = { filter: ['filter'], transform: ['transform', 'path'], routing: ['routing'], enrichment: ['enrichment'] } as const
export type FunctionField = keyof typeof TAKES
export const FUNCTION_FIELDS = Object.keys(TAKES) as readonly FunctionField[]

/** @throws EngineError VALIDATION_FAILED: a field names a function that isn't there, or one that it doesn't take */
export function refuseMissingFunctions(
  sink: Pick<SinkSettings, FunctionField>,
  { type }: Pick<Destination, 'type'>,
  functions: readonly Pick<StoredFunction, 'name' | 'type' | 'sinkType'>[],
): void {
  for (const field of FUNCTION_FIELDS) {
    const name = sink[field]
    if (name === undefined || name === null) continue
    const found = functions.find((fn) => fn.name === name)
    const reason = !found
      ? `names the function "${name}", which does not exist`
      : !(TAKES[field] as readonly string[]).includes(found.type)
        ? `names "${name}", which is a function of type ${found.type}`
        : found.sinkType !== null && found.sinkType !== type
          ? `names "${name}", which routes to sinks of type ${found.sinkType}`
          : undefined
    if (reason) throw new EngineError('VALIDATION_FAILED', `${field} ${reason}`, { [field]: reason })
  }
}
