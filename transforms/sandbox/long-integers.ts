/**
 * Integers that don't fit a JavaScript number, quoted while they are still bytes: behind a mark, in strings that the
 * runtime makes BigInts of. JSON.parse would round them, and looking for them inside an isolate costs more than parsing.
 */
import { MESSAGE_END } from './wire.ts'

/**
 * @property bytes a copy, with `"mark12345678901234567"` in the place of each
 * @property keys where they stand: members of the objects of a message, such as its record, of these names; undefined:
 *   some stand deeper
 */
type Quoted = Readonly<{ bytes: Buffer; keys: readonly string[] | undefined }>

/** 2^53, and its digits: from so many on an integer may be beyond it. */
const SAFE = Buffer.from('9007199254740992')
const DIGITS = SAFE.length
/** More names than that are not worth telling. */
const MAX_KEYS = 20

/**
 * Quotes the integers of messages that a number can't hold.
 * @param json messages, MESSAGE_END behind each
 * @param mark what nobody else can write: ASCII without quotes and backslashes
 * @returns undefined: there are none
 */
export function quoteLongIntegers(json: Buffer, mark: Buffer): Quoted | undefined {
  let candidate = candidateFrom(json, 0)
  if (candidate < 0) return undefined
  const copy = new Copy(json, mark)
  while (candidate >= 0) {
    // in a text digits mean nothing, so their message is read from its start
    candidate = candidateFrom(json, readMessage(json, json.lastIndexOf(MESSAGE_END, candidate) + 1, copy))
  }
  return copy.end()
}

/** Looks for a long integer without reading all the bytes. @returns a place in 16 digits or more that may be an integer, the first from one on; -1: there are none */
function candidateFrom(json: Buffer, from: number): number {
  const last = json.length
  // digits that many in a row have one at a multiple of that many
  for (let at = from + DIGITS - 1; at < last; at += DIGITS) {
    if (!isDigit(json[at])) continue
    let start = at
    while (start > 0 && isDigit(json[start - 1])) start--
    let end = at + 1
    while (end < last && isDigit(json[end])) end++
    if (end - start < DIGITS) continue
    if (mayBeginAt(json[json[start - 1] === MINUS ? start - 2 : start - 1])) return at
  }
  return -1
}

/** Reads a message and quotes its long integers in the copy. @returns its end */
function readMessage(json: Buffer, from: number, copy: Copy): number {
  let depth = 0
  let keyStart = 0 // of the last text
  let keyEnd = 0
  let p = from
  for (; p < json.length;) {
    const byte = json[p] ?? 0
    if (byte === QUOTE) {
      keyStart = ++p
      for (let inside = json[p]; inside !== QUOTE; inside = json[p]) {
        if (inside === undefined) return p
        p += inside === BACKSLASH ? 2 : 1
      }
      keyEnd = p++
    } else if (isDigit(byte)) {
      const start = p++
      let isInteger = true
      for (; ; p++) {
        const next = json[p] ?? 0
        if (isDigit(next)) continue
        if (next !== POINT && next !== PLUS && next !== MINUS && (next | 0x20) !== EXPONENT) break
        isInteger = false
      }
      if (isInteger && isLong(json, start, p)) {
        const isMember = depth === 2 && json[json[start - 1] === MINUS ? start - 2 : start - 1] === COLON
        copy.quote(json[start - 1] === MINUS ? start - 1 : start, p, isMember ? json.toString('latin1', keyStart, keyEnd) : undefined)
      }
    } else {
      if (byte === MESSAGE_END) return p
      if (byte === OPEN_OBJECT || byte === OPEN_LIST) depth++
      else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) depth--
      p++
    }
  }
  return p
}

/** Tells whether an integer is beyond ±2^53. @param start its first digit */
function isLong(json: Buffer, start: number, end: number): boolean {
  if (end - start !== DIGITS) return end - start > DIGITS
  for (let i = 0; i < DIGITS; i++) {
    const difference = (json[start + i] ?? 0) - (SAFE[i] ?? 0)
    if (difference !== 0) return difference > 0
  }
  return false
}

class Copy {
  readonly #json: Buffer
  readonly #mark: Buffer
  readonly #bytes: Buffer
  readonly #keys = new Set<string>()
  #isDeeper = false
  /** read, and written */
  #from = 0
  #to = 0

  constructor(json: Buffer, mark: Buffer) {
    this.#json = json
    this.#mark = mark
    this.#bytes = Buffer.allocUnsafeSlow(json.length + Math.ceil(json.length / DIGITS) * (mark.length + 2))
  }

  /** @param key of the member that the integer is, as it is written; undefined: it stands elsewhere */
  quote(start: number, end: number, key: string | undefined): void {
    const bytes = this.#bytes
    const mark = this.#mark
    let to = this.#to + this.#json.copy(bytes, this.#to, this.#from, start)
    bytes[to++] = QUOTE
    for (let i = 0; i < mark.length; i++) bytes[to++] = mark[i] ?? 0
    for (let i = start; i < end; i++) bytes[to++] = this.#json[i] ?? 0
    bytes[to++] = QUOTE
    this.#to = to
    this.#from = end
    if (key === undefined || /[^ -[\]-~]/.test(key) || this.#keys.size > MAX_KEYS) this.#isDeeper = true
    else this.#keys.add(key)
  }

  /** @returns undefined: nothing was quoted */
  end(): Quoted | undefined {
    if (this.#from === 0) return undefined
    const length = this.#to + this.#json.copy(this.#bytes, this.#to, this.#from)
    return { bytes: this.#bytes.subarray(0, length), keys: this.#isDeeper ? undefined : [...this.#keys] }
  }
}

const QUOTE = 0x22
const PLUS = 0x2b
const COMMA = 0x2c
const MINUS = 0x2d
const POINT = 0x2e
const COLON = 0x3a
const OPEN_LIST = 0x5b
const BACKSLASH = 0x5c
const CLOSE_LIST = 0x5d
const EXPONENT = 0x65
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d
const isDigit = (byte = 0): boolean => byte >= 0x30 && byte <= 0x39
/** What stands before a value: colon, comma, bracket, white space, or nothing. */
const mayBeginAt = (byte: number | undefined): boolean =>
  byte === undefined || byte === COLON || byte === COMMA || byte === OPEN_LIST || byte <= 0x20
