/**
 * The wire form of a destination: checked by the schema of its kind, printed without its secrets.
 * An update may leave out what stays, and may send back secrets as they were shown. Nothing here does I/O.
 */
import { Type, type TSchema } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { secretFields, type Destination, type DestinationSchemas } from '../../engine/state/destinations.ts'
import { reasonsOf, type Reason } from '../../engine/schema-reasons.ts'
import { AnyDestination, DESTINATIONS, STORED_DESTINATIONS } from '../../sinks/destination-types.ts'
import { isUnsupported } from '../../sinks/unsupported-types.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { obfuscated, secretsMeant } from './secret-form.ts'

/** Spellings of a type that are taken in. */
const ALIASES: Readonly<Record<string, string>> = {
  stream: 'sequin_stream',
  tailrace_stream: 'sequin_stream',
  http_push: 'webhook',
  redis: 'redis_stream',
}
const options = { useDefaults: true, keywords: ['secret'] }
const checks = new Map([...STORED_DESTINATIONS].map(([kind, schema]) => [kind, schemaCheck(schema, options)]))

/** The name of a type of destination in programs: `redis_stream` is `RedisStreamDestination`. */
const titleOf = (type: string): string => `${type.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase())}Destination`

/** The schema of a destination in a request: what it leaves out has a default, or stays. */
export const DestinationIn = Type.Union(
  [...DESTINATIONS].map(([type, schema]) => Type.Partial(schema, { title: `${titleOf(type)}Input` })),
  { title: 'DestinationInput' },
)

/** The schema of a destination as it is shown: of a secret there is not enough to have the form that a request needs. */
export const DestinationOut = Type.Unsafe<Destination>(
  JSON.parse(JSON.stringify(AnyDestination), (_, schema: unknown) => {
    const { secret, type, description, properties } = fieldsOf(schema)
    if (secret === true && type === 'string') return { type, description }
    const kind = fieldsOf(fieldsOf(properties)['type'])['const']
    return typeof kind === 'string' ? { ...fieldsOf(schema), title: titleOf(kind) } : schema
  }) as TSchema, // JSON of a schema is one
)

/** Finds the kind of destination that a form names, however it is spelt; undefined: none of those that are taken. */
export function kindOf(form: unknown, taken: DestinationSchemas = DESTINATIONS): string | undefined {
  const type = fieldsOf(form)['type']
  if (typeof type !== 'string') return undefined
  const kind = Object.hasOwn(ALIASES, type) ? ALIASES[type] : type
  return kind !== undefined && taken.has(kind) ? kind : undefined
}

/** Says why a type of destination can't be taken. @param can those that can, whoever has them */
export function unknownType(type: unknown, can: string): string {
  if (type === undefined) return `is missing: ${can}`
  if (typeof type !== 'string') return `must be a text: ${can}`
  return `is "${type.slice(0, 60)}", which is ${isUnsupported({ type }) ? 'not supported yet' : 'no type of destination'}: ${can}`
}

/**
 * Makes a destination of what a user says. @param form as it came @param sink that it is for: what the form leaves out of its
 * `destination`, as it is stored, stays; secrets may be given as those of `known` are shown; `taken`: the types that it may have
 * @returns the destination with its defaults, as far as it can be told, and what is wrong with it
 */
export function destinationOf(
  form: unknown,
  {
    name,
    destination: before,
    known = before,
    taken = DESTINATIONS,
  }: Readonly<{ name: unknown; destination?: Destination; known?: Destination | undefined; taken?: DestinationSchemas | undefined }>,
): Readonly<{ destination?: Destination; reasons: readonly Reason[] }> {
  if (form === undefined) return { reasons: [['destination', 'is missing']] }
  if (!isObject(form)) return { reasons: [['destination', 'must be an object']] }
  const kind = kindOf(form, taken) ?? (form['type'] === undefined || form['type'] === before?.type ? before?.type : undefined)
  if (kind === undefined) {
    const can = `${typeof name === 'string' ? `the sink "${name.slice(0, 60)}"` : 'a sink'} can have ${[...DESTINATIONS.keys()].join(', ')}`
    return { reasons: [['destination.type', unknownType(form['type'], can)]] }
  }
  if (before && kind !== before.type) return { reasons: [['destination.type', 'cannot be changed']] }
  const given: Record<string, unknown> = Object.fromEntries(
    Object.entries({ ...before, ...form, type: kind }).filter(([, value]) => value !== null),
  )
  const reasons: Reason[] = []
  const secrets = known?.type === kind ? known : undefined
  for (const field of secretFields(STORED_DESTINATIONS, kind))
    given[field] = secretsMeant(given[field], secrets?.[field], (reason) => reasons.push([field, reason]))
  for (const [field, value] of Object.entries(given)) if (value === undefined) delete given[field]
  const check = checks.get(kind)
  if (!check?.(given))
    reasons.push(...reasonsOf(check?.errors ?? []).filter(([field]) => !reasons.some(([told]) => field.startsWith(told))))
  return {
    destination: { ...given, type: kind },
    reasons: reasons.map(([field, reason]) => [field === '' ? 'destination' : `destination.${field}`, reason]),
  }
}

/** Shows a destination: without what is not set, and of secrets only enough to know them. @param secret shows one */
export function destinationOut(destination: Destination, secret: (text: string) => string = obfuscated): Record<string, unknown> {
  const hidden = new Set(secretFields(STORED_DESTINATIONS, destination.type))
  const shown = (value: unknown): unknown => {
    if (typeof value === 'string') return secret(value)
    if (Array.isArray(value)) return value.map(shown)
    return isObject(value) ? Object.fromEntries(Object.entries(value).map(([name, part]) => [name, shown(part)])) : value
  }
  return Object.fromEntries(
    Object.entries(destination)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => [name, hidden.has(name) ? shown(value) : value]),
  )
}
