/** JSON with the digits that it came with: what no JavaScript number holds stays as it is written, and is printed so. */

const { rawJSON } = JSON as typeof JSON & { rawJSON: (text: string) => unknown }

/**
 * As JSON.parse, but a number that would be printed in another way (9007199254740993, 1.50, 1e400) becomes a raw JSON
 * value: opaque to code, and its digits again in JSON.stringify.
 * @throws SyntaxError
 */
export function parseExact(text: string): unknown {
  return JSON.parse(text, ((_key: string, value: unknown, { source }: { source?: string }) =>
    typeof value === 'number' && source !== undefined && String(value) !== source ? rawJSON(source) : value) as Reviver)
}
type Reviver = (this: unknown, key: string, value: unknown) => unknown
