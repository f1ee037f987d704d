/** JSON as it is read here: with all digits of its integers, for what is only sent on, and looked at before it is believed. */

declare global {
  /** Declares the parts of "JSON.parse source text access" that Node has and the compiler's library doesn't know yet. */
  interface JSON {
    parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown
    rawJSON(text: string): unknown
    isRawJSON(value: unknown): boolean
  }
}

const MANY_DIGITS = /[0-9]{16}/

/** Parses a text as JSON.parse does, but makes of integers beyond ±2^53 what JSON.stringify writes with all their digits. */
export function parseExact(text: string): unknown {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text)
  return JSON.parse(text, (_, value, { source = '' }) =>
    typeof value === 'number' && !Number.isSafeInteger(value) && /^-?[0-9]+$/.test(source) ? JSON.rawJSON(source) : value,
  )
}

/** Tells whether a parsed value is an object with named members: no list, nor null. */
export const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Reads a value that came from outside as named fields: one that is no object, or is a list, has none. Nothing is copied. */
export const fieldsOf = (value: unknown): Readonly<Record<string, unknown>> => (isObject(value) ? value : {})

/** Reads a value that came from outside as a list of objects; what is none is left out. */
export const objectsOf = (value: unknown): readonly Readonly<Record<string, unknown>>[] =>
  Array.isArray(value) ? value.filter(isObject) : []
