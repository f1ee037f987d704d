/** JSON whose integers keep all their digits, for what is parsed here only to be sent on. */
const MANY_DIGITS = /[0-9]{16}/

/** @returns as JSON.parse does, but integers beyond ±2^53 as what JSON.stringify writes with its digits */
export function parseExact(text: string): unknown {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text)
  const { parse, rawJSON } = JSON as unknown as Raw
  return parse(text, (_, value, { source = '' }) =>
    typeof value === 'number' && !Number.isSafeInteger(value) && /^-?[0-9]+$/.test(source) ? rawJSON(source) : value,
  )
}
type Raw = Readonly<{
  parse: (text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown) => unknown
  rawJSON: (text: string) => unknown
}>
