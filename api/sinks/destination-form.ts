/**
 * The wire form of a destination (contract 4 to 6, 9.2): checked by the schema of its kind, printed without its secrets.
 * An update may leave out what stays, and may send back secrets as they were shown. Nothing here does I/O.
 */
import { Type } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { DESTINATIONS, secretFields, type Destination, type DestinationKind } from '../../engine/state/destinations.ts'
import { isObject, reasonsOf, type Reason } from '../schema-reasons.ts'
import { obfuscated, secretsMeant } from './secret-form.ts'

/** Spellings of a type that are taken in. */
const ALIASES: Readonly<Record<string, DestinationKind>> = {
  stream: 'sequin_stream',
  tailrace_stream: 'sequin_stream',
  http_push: 'webhook',
}
const options = { useDefaults: true, keywords: ['secret'] }
const checks = new Map(Object.entries(DESTINATIONS).map(([kind, schema]) => [kind, schemaCheck(schema, options)]))

/** What a request may say: what it leaves out has a default, or stays. */
export const DestinationIn = Type.Union(Object.values(DESTINATIONS).map((schema) => Type.Partial(schema)))

/** The kind that a form names, whichever way it is spelt; undefined: none that is known. */
export function kindOf(form: unknown): DestinationKind | undefined {
  const type = isObject(form) ? form['type'] : undefined
  if (typeof type !== 'string') return undefined
  return Object.hasOwn(ALIASES, type) ? ALIASES[type] : Object.hasOwn(DESTINATIONS, type) ? (type as DestinationKind) : undefined
}

/**
 * @param form as it came
 * @param before as it is stored: what the form leaves out stays
 * @returns the destination with its defaults, and what is wrong with it
 */
export function destinationOf(form: unknown, before?: Destination): Readonly<{ destination: Destination; reasons: readonly Reason[] }> {
  const nothing = { destination: form as Destination }
  if (form === undefined) return { ...nothing, reasons: [['destination', 'is missing']] }
  if (!isObject(form)) return { ...nothing, reasons: [['destination', 'must be an object']] }
  const kind = kindOf(form) ?? (form['type'] === undefined ? before?.type : undefined)
  if (kind === undefined) return { ...nothing, reasons: [['destination.type', `must be one of ${Object.keys(DESTINATIONS).join(', ')}`]] }
  if (before && kind !== before.type) return { ...nothing, reasons: [['destination.type', 'cannot be changed']] }
  const given: Record<string, unknown> = Object.fromEntries(
    Object.entries({ ...before, ...form, type: kind }).filter(([, value]) => value !== null),
  )
  const reasons: Reason[] = []
  const known: Readonly<Record<string, unknown>> = before ?? {}
  for (const name of secretFields(kind)) given[name] = secretsMeant(given[name], known[name], (reason) => reasons.push([name, reason]))
  for (const [name, value] of Object.entries(given)) if (value === undefined) delete given[name]
  const check = checks.get(kind)
  if (!check?.(given))
    reasons.push(...reasonsOf(check?.errors ?? []).filter(([field]) => !reasons.some(([told]) => field.startsWith(told))))
  return {
    destination: given as Destination,
    reasons: reasons.map(([field, reason]) => [field === '' ? 'destination' : `destination.${field}`, reason]),
  }
}

/** As it is shown: without what is not set, and of secrets only enough to know them. @param secret shows one */
export function destinationOut(destination: Destination, secret: (text: string) => string = obfuscated): Record<string, unknown> {
  const hidden = new Set(secretFields(destination.type))
  const shown = (value: unknown): unknown => (typeof value === 'string' ? secret(value) : Array.isArray(value) ? value.map(shown) : value)
  return Object.fromEntries(
    Object.entries(destination)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => [name, hidden.has(name) ? shown(value) : value]),
  )
}
