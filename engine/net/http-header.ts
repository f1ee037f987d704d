/** Decides which headers a user may have sent along with a request. */
import { validateHeaderName, validateHeaderValue } from './http.ts'

const MAX_BYTES = 8_192
/** They are the connection's own, name another host than the one that was checked, or sign what is sent. */
// prettier-ignore
const FORBIDDEN = new Set([
  'connection', 'content-length', 'expect', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade',
  'host', 'proxy-authorization', 'proxy-connection',
  'webhook-id', 'webhook-signature', 'webhook-timestamp',
])
/** At most so many headers of a user are sent along with a request. */
export const MAX_HEADERS = 100

/** Tells whether a user may have a header sent along. */
export function isHeader(name: string, value: string): boolean {
  if (Buffer.byteLength(name) + Buffer.byteLength(value) > MAX_BYTES || FORBIDDEN.has(name.toLowerCase())) return false
  try {
    validateHeaderName(name)
    validateHeaderValue(name, value)
    return true
  } catch {
    return false
  }
}
