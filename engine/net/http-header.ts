/** Which headers a user may have sent along with a request. */
import { validateHeaderName, validateHeaderValue } from 'node:http'

const MAX_BYTES = 8_192
/** They are the connection's own. */
const FORBIDDEN = new Set(['connection', 'content-length', 'expect', 'keep-alive', 'transfer-encoding', 'upgrade'])
export const MAX_HEADERS = 100

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
