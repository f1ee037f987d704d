/** JSON as the tests compare it: every digit of a whole number kept, the order of keys without meaning. */

export type Json = null | boolean | number | bigint | string | readonly Json[] | { readonly [name: string]: Json }
export type Row = Readonly<Record<string, Json>>

// TypeScript's library does not know the third argument of a reviver yet
type Parse = (text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown) => unknown

/** Whole numbers beyond ±2^53 become bigint, so that a lost digit shows. */
export function parseExact(text: string): unknown {
  return (JSON.parse as Parse)(text, (_, value, { source }) =>
    typeof value === 'number' && !Number.isSafeInteger(value) && source !== undefined && /^-?\d+$/.test(source) ? BigInt(source) : value,
  )
}

/** Two values have the same text exactly when they are the same JSON. */
export function canonical(value: Json | undefined): string {
  if (value === undefined) return 'absent'
  if (typeof value === 'bigint') return value.toString()
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const fields = value as { readonly [name: string]: Json }
  const names = Object.keys(fields).sort()
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(fields[name])}`).join(',')}}`
}
