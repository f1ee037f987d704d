/** JSON whose integers keep all their digits: beyond ±2^53 they become a BigInt, as `tailrace types` says of bigint columns. */

const MANY_DIGITS = /[0-9]{16}/
/** A text is one token, so that digits inside it are left alone. */
const TEXT_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*/g
const INTEGER = /^-?[0-9]+$/
/** Stands in front of digits that wait to become a BigInt: random, so that no text of a row begins with it. */
const MARK = `${crypto.randomUUID()}:`

/** Parses a text as JSON.parse does, but for integers that a number can't hold. Not every runtime tells a reviver the digits. */
export function parseExact(text: string): unknown {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text)
  const marked = text.replace(TEXT_OR_NUMBER, (token) =>
    INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  )
  if (marked === text) return JSON.parse(text)
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === 'string' && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  )
}
