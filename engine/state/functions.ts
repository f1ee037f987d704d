/** Functions as they are stored: named, unique in their account, attached to sinks by name. */
import type { Reason } from '../schema-reasons.ts'
import type { Destination } from './destinations.ts'
import { FUNCTION_FIELDS, kindOfType, type FunctionKind, type FunctionType } from './function-kinds.ts'
import type { Sink, SinkSettings } from './resources.ts'

/** Holds a function as it is to be stored: built, so that it can be run as it is. */
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
/** Holds a function as it is stored. */
export type StoredFunction = FunctionInput & Readonly<{ id: string; accountId: string }>

/** Says why a sink can't have the functions that it names: the first field with one that isn't there, or that it doesn't take. */
export function unfitFunction(
  sink: Pick<SinkSettings, FunctionKind> & Readonly<{ destination: Pick<Destination, 'type'> }>,
  functions: readonly Pick<StoredFunction, 'name' | 'type' | 'sinkType'>[],
): Reason | undefined {
  for (const field of FUNCTION_FIELDS) {
    const name = sink[field]
    if (name === undefined || name === null) continue
    const found = functions.find((fn) => fn.name === name)
    if (!found) return [field, `names the function "${name}", which does not exist`]
    if (kindOfType(found.type) !== field) return [field, `names "${name}", which is a function of type ${found.type}`]
    if (found.sinkType !== null && found.sinkType !== sink.destination.type)
      return [field, `names "${name}", which routes to sinks of type ${found.sinkType}`]
  }
  return undefined
}

/** For each list of sinks those that have a function, by account and name: a list of functions asks for all of them. */
const USERS = new WeakMap<readonly Sink[], ReadonlyMap<string, readonly Sink[]>>()

/** Gives the sinks that have a function. @param sinks a list that does not change any more */
export function usersOf({ accountId, name }: Pick<StoredFunction, 'accountId' | 'name'>, sinks: readonly Sink[]): readonly Sink[] {
  let users = USERS.get(sinks)
  if (!users) USERS.set(sinks, (users = usersByFunction(sinks)))
  return users.get(`${accountId} ${name}`) ?? []
}

function usersByFunction(sinks: readonly Sink[]): ReadonlyMap<string, readonly Sink[]> {
  const users = new Map<string, Sink[]>()
  for (const sink of sinks)
    for (const name of new Set(FUNCTION_FIELDS.flatMap((field) => sink[field] ?? []))) {
      const key = `${sink.accountId} ${name}`
      const others = users.get(key)
      if (others) others.push(sink)
      else users.set(key, [sink])
    }
  return users
}
