/**
 * The one rule of what may leave the process in a log line or an error answer: names, positions, sizes and codes may;
 * secrets and row values may not. `redact` turns any value into a plain one that JSON can print; `redactText` cleans a
 * text. Everything that is logged goes through here, so no caller has to remember it. Nothing here does I/O.
 *
 * The rule:
 *  1. a value under a key that names a secret is replaced, whatever it is;
 *  2. a value under a key that holds rows (record, detail of a Postgres error, query parameters, bodies) is replaced;
 *  3. in any text, the user part of a URL, `Bearer x`, and `password=x` and its kin are replaced;
 *  4. of an error only known fields are taken, its stack without the message, and its causes by the same rule;
 *  5. bytes are never printed, only their number; texts, lists and depth have a bound.
 */
import { codeOf } from './errors.ts'
import { formatLsn } from './lsn.ts'

const REDACTED = '[redacted]'
const SECRET_KEY =
  /pass(?:word|wd|phrase)?$|pwd|token|authorization|secret|api[_-]?key|cookie|credential|private[_-]?key|vault[_-]?key|access[_-]?key|signature/i
const ROW_KEY =
  /^(?:detail|where|internalquery|internal_query|records?|changes|rows?|values?|params|parameters|body|payload|old|new|ack_?ids|record_pks|group_?key)$/i
/** `password=x`, `"token": "x"`, also inside a JSON text that was escaped once more; names that end in "token" are all of that kind */
const ASSIGNMENT =
  /(\b(?:pass(?:word|wd|phrase)?|pwd|secret(?:_key_base)?|authorization|api[_-]?key|(?:vault|access|private)[_-]?key)|token)(\\*["']?\s*[=:]\s*)(\\*"[^"]*"|'[^']*'|[^\s&,;'"}\])]+)/gi
/** what may be a URL, whole */
const WORD = /[^\s"'<>]+/g
const URL_START = /(?<=[a-z0-9+.-])(?<!\bfile):\/\//i
const AUTH_SCHEME = /\b(Bearer|Basic)\s+[\w+/=.~-]+/gi

const MAX_DEPTH = 8
const MAX_ITEMS = 100
const MAX_TEXT = 8_192
/** The fields of an error that say what failed and where; everything else stays out (Postgres puts row values in `detail`). */
// prettier-ignore
const ERROR_FIELDS = [
  'code', 'errno', 'syscall', 'address', 'port', 'status', 'statusCode',
  'severity', 'schema', 'table', 'column', 'dataType', 'constraint', 'routine',
] as const
/** SQLSTATE classes whose message quotes a value: data exceptions, and what a user's own function raises. */
const MESSAGE_HOLDS_VALUES = /^(?:22|P0)...$/

/** Cleans a text. @returns the text without credentials, at most MAX_TEXT characters */
export function redactText(text: string): string {
  const bounded = text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}… (${text.length} characters)` : text
  return bounded
    .replace(AUTH_SCHEME, `$1 ${REDACTED}`)
    .replace(WORD, withoutUser)
    .replace(ASSIGNMENT, (whole, name: string, sign: string, value: string) =>
      // the header's value keeps its scheme: "authorization: Bearer [redacted]"
      /^(?:bearer|basic)$/i.test(value) || value === REDACTED.slice(0, -1) ? whole : `${name}${sign}${REDACTED}`,
    )
}

/** Of a URL the user and the password go, up to the last "@": a password may hold "/" and "@". */
function withoutUser(word: string): string {
  const end = word.lastIndexOf('@')
  const start = end < 0 ? null : URL_START.exec(word)
  if (!start || start.index + start[0].length > end) return word
  return `${word.slice(0, start.index + start[0].length)}${REDACTED}${word.slice(end)}`
}

/** Cleans a value. @returns a plain value by the rule above; never throws, whatever the value does */
export function redact(value: unknown): unknown {
  return plain(value, 0, new Set())
}

/** Gives what may be said of an error: `{type, message, code, …, stack, cause}`. */
export function redactError(error: Error): Record<string, unknown> {
  return plainError(error, 0, new Set())
}

function plain(value: unknown, depth: number, above: Set<object>): unknown {
  switch (typeof value) {
    case 'string':
      return redactText(value)
    case 'number':
    case 'boolean':
    case 'undefined':
      return value
    case 'bigint':
      return value.toString()
    case 'object':
      break
    default:
      return `[${typeof value}]`
  }
  if (value === null) return null
  if (above.has(value)) return '[circular]'
  if (depth >= MAX_DEPTH) return '[deep]'
  above.add(value)
  try {
    return plainObject(value, depth, above)
  } catch {
    return '[unreadable]' // a getter or proxy that throws
  } finally {
    above.delete(value)
  }
}

function plainObject(value: object, depth: number, above: Set<object>): unknown {
  if (value instanceof Error) return plainError(value, depth, above)
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return `[${value.byteLength} bytes]`
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? '[invalid date]' : value.toISOString()
  if (value instanceof URL) return redactText(value.href)
  if (value instanceof Set) return plainList([...value.values()], depth, above)
  if (Array.isArray(value)) return plainList(value, depth, above)
  if (isPosition(value)) return `${value.history}:${formatLsn(value.lsn)}:${value.idx}.${value.part}`
  const entries = value instanceof Map ? [...value.entries()] : Object.entries(value)
  const out: Record<string, unknown> = {}
  for (const [name, item] of entries.slice(0, MAX_ITEMS)) {
    const key = redactText(String(name))
    if (item === undefined || typeof item === 'function') continue
    out[key] = mustHide(key, item) ? REDACTED : key === 'lsn' && typeof item === 'bigint' ? formatLsn(item) : plain(item, depth + 1, above)
  }
  if (entries.length > MAX_ITEMS) out['…'] = `${entries.length - MAX_ITEMS} more`
  return out
}

/** Counts and switches are no secrets: `tokens: 3`, `rows: 500`, `password: true` stay; a number under `password` doesn't. */
function mustHide(key: string, item: unknown): boolean {
  if (item === null || typeof item === 'boolean') return false
  if (typeof item === 'number' && /(?:s|count|bytes|_ms)$/i.test(key)) return false
  return SECRET_KEY.test(key) || ROW_KEY.test(key)
}

function plainList(items: readonly unknown[], depth: number, above: Set<object>): unknown[] {
  const out = items.slice(0, MAX_ITEMS).map((item) => plain(item, depth + 1, above))
  if (items.length > MAX_ITEMS) out.push(`… ${items.length - MAX_ITEMS} more`)
  return out
}

function plainError(error: Error, depth: number, above: Set<object>): Record<string, unknown> {
  const fieldOf = (name: string): unknown => Reflect.get(error, name)
  const sqlState = typeof fieldOf('severity') === 'string' ? codeOf(error) : undefined
  const out: Record<string, unknown> = {
    type: error.name,
    message: sqlState && MESSAGE_HOLDS_VALUES.test(sqlState) ? `${REDACTED} (SQLSTATE ${sqlState})` : redactText(String(error.message)),
  }
  for (const field of ERROR_FIELDS) {
    const value = fieldOf(field)
    if (typeof value === 'string' || typeof value === 'number') out[field] = plain(value, depth + 1, above)
  }
  const context = fieldOf('context')
  if (context !== undefined) out['context'] = plain(context, depth + 1, above)
  if (typeof error.stack === 'string') out['stack'] = framesOf(error.stack, String(error.message))
  if (error.cause !== undefined) out['cause'] = plain(error.cause, depth + 1, above)
  if (error instanceof AggregateError) out['errors'] = plainList(error.errors, depth + 1, above)
  return out
}

/** The stack begins with the message, which may hold values; its frames don't. */
const framesOf = (stack: string, message: string): string =>
  stack
    .slice(message === '' ? 0 : stack.indexOf(message) + message.length)
    .split('\n')
    .filter((line) => /^\s+at /.test(line))
    .slice(0, 30)
    .join('\n')

type PositionLike = { history: number; lsn: bigint; idx: number; part: number }
const isPosition = (value: object): value is PositionLike =>
  'history' in value && 'lsn' in value && typeof value.lsn === 'bigint' && 'idx' in value && 'part' in value
