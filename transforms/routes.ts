/** What routing functions said in one batch, read and checked: the same route is the same object, so that messages with it go together. */
import { isObject, parseExact } from '../engine/json.ts'
import type { BatchOutcome } from './sandbox/batch-outcome.ts'
import { STATE } from './sandbox/wire.ts'

/** A route: what a routing function says, by name. */
export type RouteFields = Readonly<Record<string, unknown>>
/** Checks what a function returned: a route to send by, or the reason why it is none. */
export type ReadRoute = (
  said: RouteFields,
) => Readonly<{ route: RouteFields; reason?: undefined }> | Readonly<{ route?: undefined; reason: string }>

type CheckedRoute = ReturnType<ReadRoute>

/** Reads the routes of one batch. */
export class RouteMemory {
  readonly #read: ReadRoute
  readonly #byText = new Map<string, CheckedRoute>()
  readonly #byForm = new Map<string, CheckedRoute>()

  constructor(read: ReadRoute) {
    this.#read = read
  }

  /**
   * Reads the routes of a batch. A message whose route can't be used fails.
   * @returns the route of each message that is kept; undefined: no routing function ran
   */
  of(outcome: BatchOutcome): readonly (RouteFields | undefined)[] | undefined {
    const step = outcome.stepOf('routing')
    if (step === undefined) return undefined
    return Array.from({ length: outcome.count }, (_, i) => {
      if (outcome.states[i] !== STATE.kept) return undefined
      const { route, reason } = this.#known(outcome.resultText(step, i))
      if (reason !== undefined) outcome.fail(i, step, { code: 'FUNCTION_FAILED', text: reason })
      return route
    })
  }

  #known(text: string): CheckedRoute {
    let known = this.#byText.get(text)
    if (known) return known
    const said = parseExact(text)
    known = this.#read(isObject(said) ? said : {})
    if (known.route) {
      const form = JSON.stringify(known.route)
      const same = this.#byForm.get(form)
      if (same) known = same
      else this.#byForm.set(form, known)
    }
    this.#byText.set(text, known)
    return known
  }
}
