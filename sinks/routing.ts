/**
 * Routing: what a function may say of where and how a message goes, for each kind of destination. A result is checked before
 * it is sent by; a key that is left out means the target in the sink's settings, else what is built in.
 */
import type { TObject } from 'typebox'
import { schemaCheck, type SchemaCheck } from '../engine/schema-check.ts'
import { reasonsOf, type Reason } from '../engine/schema-reasons.ts'
import type { Destination } from '../engine/state/destinations.ts'

/** A route that was read and checked. */
type Route = Readonly<Record<string, unknown>>
type RouteRead = Readonly<{ route: Route; reason?: undefined }> | Readonly<{ route?: undefined; reason: string }>
/** Of a message what a built-in target may depend on. */
export type RoutedMessage = Readonly<{ action: string; database: string; schema: string; table: string }>

type RoutingOptions = Readonly<{
  /** of what a function returns: each key may be left out, no other is known; the description of one with a pattern says what it asks for */
  result: TObject
  /** keys that are taken in any case, and the case they are sent in */
  cases?: Readonly<Record<string, 'upper' | 'lower'>>
  /** Rules across keys, and targets that nobody names. @param destination absent: of no sink yet @returns why not; undefined: it may go */
  refused?(route: Route, destination: Destination | undefined): string | undefined
  /** All keys as they take effect for one message, for people to look at. */
  effective: (route: Route, destination: Destination | undefined, message: RoutedMessage) => Route
}>

/** of a value, characters of its JSON */
const MAX_SHOWN = 80

/** What a routing function may say for one type of destination: reads it, refuses what can't be sent by, and shows what it comes to. */
export class DestinationRouting {
  readonly #options: RoutingOptions
  readonly #check: SchemaCheck
  /** Shows all keys as they take effect for one message. */
  readonly effective: RoutingOptions['effective']

  constructor(options: RoutingOptions) {
    this.#options = options
    this.#check = schemaCheck(options.result)
    this.effective = options.effective
  }

  /** @param said an object of JSON @param destination of the sink; absent: of none yet */
  read(said: Readonly<Record<string, unknown>>, destination?: Destination): RouteRead {
    const { cases = {}, refused } = this.#options
    const route: Record<string, unknown> = Object.fromEntries(Object.entries(said).sort(([a], [b]) => (a < b ? -1 : 1)))
    for (const [key, name] of Object.entries(cases)) {
      const value = route[key]
      if (typeof value === 'string') route[key] = name === 'upper' ? value.toUpperCase() : value.toLowerCase()
    }
    if (!this.#check(route)) {
      const reasons = reasonsOf(this.#check.errors ?? [])
      return { reason: reasons.map((reason) => this.#inWords(reason, route)).join('; ') }
    }
    const reason = refused?.(route, destination)
    return reason === undefined ? { route } : { reason }
  }

  #inWords([key, reason]: Reason, route: Route): string {
    const { result } = this.#options
    const value = route[key]
    if (value !== undefined && !Object.hasOwn(result.properties, key))
      return `${key} ${reason}: known are ${Object.keys(result.properties).join(', ')}`
    const shown = value === undefined || typeof value === 'object' ? '' : ` (it is ${JSON.stringify(value).slice(0, MAX_SHOWN)})`
    return `${key}${key && ' '}${reason}${shown}`
  }
}
