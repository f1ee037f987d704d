/** Finds out whether bytes of JSON may hold integers that don't fit a JavaScript number, without reading them all. */

/** From so many digits on an integer may be beyond 2^53. */
const DIGITS = 16

/** @returns false: no integer has 16 digits or more. True may be said of digits inside a text, too. */
export function mayHoldLongIntegers(json: Uint8Array): boolean {
  // digits that many in a row have one at a multiple of that many
  for (let at = DIGITS - 1; at < json.length; at += DIGITS) {
    if (!isDigit(json[at])) continue
    let start = at
    while (isDigit(json[start - 1])) start--
    let end = at + 1
    while (isDigit(json[end])) end++
    if (end - start < DIGITS) continue
    if (BEFORE_VALUE.has(json[json[start - 1] === MINUS ? start - 2 : start - 1])) return true
  }
  return false
}

const MINUS = 0x2d
/** what stands before a value: colon, comma, bracket, white space, or nothing */
const BEFORE_VALUE: ReadonlySet<number | undefined> = new Set([...Buffer.from(':,[ \t\r\n'), undefined])
const isDigit = (byte: number | undefined): boolean => byte !== undefined && byte >= 0x30 && byte <= 0x39
