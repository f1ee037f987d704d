/**
 * Tells a client why its request failed: with status and body from the table of errors (engine/errors.ts), in the shapes
 * that docs/pull-api.md shows. An error of ours speaks for itself; any other is an internal one, of which the client learns
 * nothing. Nothing here does I/O.
 */
import { EngineError, ERRORS, type ErrorCode } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { redactText } from '../../engine/redaction.ts'

/** The body of an answer to a request that failed. */
export type ErrorBody = Readonly<{
  summary: string
  code: ErrorCode
  /** what to do about it, as docs/errors.md has it */
  remedy: string
  /** of a request that its token may not make: what the token lacks */
  required_scope?: unknown
  /** unparsable bodies and unknown routes only, for clients of the original */
  errors?: Readonly<{ detail: string }>
  /** refused resources only: field → reasons, nested as the resource is */
  validation_errors?: ValidationErrors
}>
type ValidationErrors = { [field: string]: readonly string[] | ValidationErrors }
type ErrorAnswer = Readonly<{ status: number; body: ErrorBody }>

/** The body that answers a request for a route that doesn't exist. */
export const ROUTE_NOT_FOUND_BODY: ErrorBody = {
  summary: ERRORS.ROUTE_NOT_FOUND.meaning,
  code: 'ROUTE_NOT_FOUND',
  remedy: ERRORS.ROUTE_NOT_FOUND.remedy,
  errors: { detail: 'Not Found' },
}

/** Codes of the HTTP framework and of Node's parser, by what they mean to a client. */
const FOREIGN_CODES: Readonly<Record<string, ErrorCode>> = {
  FST_ERR_CTP_BODY_TOO_LARGE: 'BODY_TOO_LARGE',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'REQUEST_UNPARSABLE',
  FST_ERR_MAX_PARAM_LENGTH: 'NOT_FOUND', // no name is that long
  HPE_HEADER_OVERFLOW: 'HEADERS_TOO_LARGE',
  ERR_HTTP_REQUEST_TIMEOUT: 'REQUEST_TOO_SLOW',
}

/** Makes an answer of whatever was thrown; a 5xx carries nothing of the error but its code. */
export function answerTo(error: unknown): ErrorAnswer {
  if (!(error instanceof EngineError)) return foreign(error)
  const { code } = error
  const { status, meaning, remedy } = ERRORS[code]
  if (status >= 500) return { status, body: { summary: `${meaning} ${remedy}`, code, remedy } }
  const summary = redactText(error.message)
  if (code === 'VALIDATION_FAILED') return { status, body: { summary, code, remedy, validation_errors: nested(error.context) } }
  if (code === 'REQUEST_UNPARSABLE') return { status, body: { summary, code, remedy, errors: { detail: 'Bad Request' } } }
  if (code === 'SCOPE_MISSING') return { status, body: { summary, code, remedy, ...error.context } }
  return { status, body: { summary, code, remedy } }
}

/** Makes an answer of an error that isn't ours: one that says 4xx is the client's, any other is internal. */
function foreign(error: unknown): ErrorAnswer {
  const { code: foreignCode, statusCode } = fieldsOf(error)
  const code =
    FOREIGN_CODES[String(foreignCode)] ??
    (typeof statusCode === 'number' && statusCode >= 400 && statusCode < 500 ? 'REQUEST_INVALID' : 'INTERNAL')
  return answerTo(new EngineError(code, ERRORS[code].meaning))
}

/** Makes the whole answer to a client that broke HTTP itself: it is written as it is, and the connection ends. */
export function rawAnswerTo(error: unknown): string {
  const code = FOREIGN_CODES[String(isObject(error) ? error['code'] : '')] ?? 'REQUEST_INVALID'
  const { status, meaning, remedy } = ERRORS[code]
  const body = JSON.stringify({
    summary: code === 'REQUEST_INVALID' ? 'The request is not valid HTTP.' : meaning,
    code,
    remedy,
  } satisfies ErrorBody)
  const headers = ['content-type: application/json; charset=utf-8', `content-length: ${Buffer.byteLength(body)}`, 'connection: close']
  return [`HTTP/1.1 ${status} ${REASONS[status] ?? 'Bad Request'}`, ...headers, '', body].join('\r\n')
}
const REASONS: Readonly<Record<number, string>> = { 408: 'Request Timeout', 431: 'Request Header Fields Too Large' }

/** Tells whoever starts the process why it can't listen. */
export function portUnavailable(variable: string, host: string, port: number, cause: unknown): EngineError {
  const reason = typeof cause === 'object' && cause !== null && 'code' in cause ? String(cause.code) : 'unknown'
  const isHost = reason === 'EADDRNOTAVAIL' || reason === 'ENOTFOUND' || reason === 'EAI_AGAIN'
  const what = isHost
    ? 'this machine has no such address; SERVER_HOST names another one, such as 127.0.0.1 or 0.0.0.0'
    : `${variable} sets another port`
  return new EngineError(
    'PORT_UNAVAILABLE',
    `cannot listen on ${host}:${port} (${reason}): ${what}`,
    { variable: isHost ? 'SERVER_HOST' : variable, host, port, reason },
    { cause },
  )
}

/** The context of VALIDATION_FAILED has paths such as `source.include_tables`; the answer nests them. */
function nested(context: Readonly<Record<string, unknown>>): ValidationErrors {
  const empty = (): ValidationErrors => Object.create(null)
  const root = empty()
  for (const [path, reason] of Object.entries(context)) {
    const names = path.split('.')
    const last = names.pop() ?? ''
    let at = root
    for (const name of names) {
      const below = at[name]
      at = below !== undefined && !isReasons(below) ? below : (at[name] = empty())
    }
    at[last] = [redactText(String(reason))]
  }
  return root
}
const isReasons = (value: readonly string[] | ValidationErrors): value is readonly string[] => Array.isArray(value)
