/**
 * Which pages of other origins may read what the API answers, in a browser: none, unless the settings name their origins, or `*` for any. They
 * ask with a token of their own. Sessions are for our own pages alone, so no page of another origin may send cookies.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'

const ANY = '*'
const METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE'
const HEADERS = 'authorization, content-type, traceparent, tracestate'
const EXPOSED = 'retry-after'
const PREFLIGHT_SECONDS = '600'

/** Answers what browsers ask before and with requests of other origins. */
export class Cors {
  readonly #named: ReadonlySet<string>
  readonly #hasAny: boolean

  /** @param origins such as "https://shop.example", or "*" */
  constructor(origins: readonly string[]) {
    this.#named = new Set(origins.filter((origin) => origin !== ANY))
    this.#hasAny = origins.includes(ANY)
  }

  /**
   * Says in the headers of the answer who may read it. @returns true: a browser only asks whether it may send a request, and the headers
   * are the whole answer
   */
  allow({ method, headers }: Pick<FastifyRequest, 'method' | 'headers'>, reply: Pick<FastifyReply, 'header'>): boolean {
    const { origin } = headers
    if (this.#named.size > 0) reply.header('vary', 'origin')
    if (origin === undefined) return false
    if (this.#named.has(origin)) reply.header('access-control-allow-origin', origin)
    else if (this.#hasAny) reply.header('access-control-allow-origin', ANY)
    else return false
    if (method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) {
      reply.header('access-control-expose-headers', EXPOSED)
      return false
    }
    reply.header('access-control-allow-methods', METHODS).header('access-control-allow-headers', HEADERS)
    reply.header('access-control-max-age', PREFLIGHT_SECONDS)
    return true
  }
}
