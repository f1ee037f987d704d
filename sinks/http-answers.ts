/** What answers of any HTTP server say, whatever it is a server of. */
import type { HttpAnswer } from '../engine/net/http-pool.ts'

/** Statuses by which a server, or what stands before it, says that it can't serve at the moment. */
export const UNAVAILABLE = new Set([408, 425, 502, 503, 504, 521, 522, 523, 524, 529])

/** @returns the object or list that the body is; undefined: it is neither */
export function jsonOf({ body }: HttpAnswer): unknown {
  try {
    const value: unknown = JSON.parse(body.toString('utf8'))
    return typeof value === 'object' && value !== null ? value : undefined
  } catch {
    return undefined
  }
}
