/**
 * Renderers of times: Postgres' text under the pinned settings (DateStyle ISO, TimeZone UTC, IntervalStyle postgres) to
 * the JSON that docs/messages.md tells. What doesn't read as expected (infinity, years BC or beyond 9999) stays Postgres' text as a
 * string; a renderer writes nothing before it is sure.
 */
import type { ByteWriter } from '../../byte-writer.ts'
import { writeString } from './json-string.ts'
import type { Render } from './value-type.ts'

const ZERO = 0x30
const QUOTE = 0x22
const COLON = 0x3a
const DOT = 0x2e
const MINUS = 0x2d
const PLUS = 0x2b
const SPACE = 0x20

/** Writes a timestamp as ISO 8601: `2025-02-03 04:05:06.7` → `"2025-02-03T04:05:06.700000"`. */
export const renderTimestamp: Render = (out, text, start, end) => iso(out, text, start, end, 0)
/** Writes a timestamptz as ISO 8601: `2025-02-03 04:05:06.7+00` → `"2025-02-03T04:05:06.700000Z"`. */
export const renderTimestamptz: Render = (out, text, start, end) => iso(out, text, start, end, 3)
/** Writes a timestamp as µs since the Unix epoch, of all years; infinity stays text. */
export const renderTimestampMicros: Render = (out, text, start, end) => micros(out, text, start, end, false)
/** Writes a timestamptz as µs since the Unix epoch, of all years; infinity stays text. */
export const renderTimestamptzMicros: Render = (out, text, start, end) => micros(out, text, start, end, true)

/** `04:05:06.789+02` → `"04:05:06"`: fraction and offset are dropped, as docs/messages.md says */
export const renderTime: Render = (out, text, start, end) => {
  if (end - start < 8 || !isClock(text, start) || (end - start > 8 && !isTimeTail(text.getUint8(start + 8)))) {
    return writeString(out, text, start, end)
  }
  out.reserve(10)
  const { buffer, words } = out
  const at = out.length
  buffer[at] = QUOTE
  words.setInt32(at + 1, text.getInt32(start))
  words.setInt32(at + 5, text.getInt32(start + 4))
  buffer[at + 9] = QUOTE
  out.length = at + 10
}

const isTimeTail = (byte: number): boolean => byte === DOT || byte === PLUS || byte === MINUS

/** `hh:mm:ss` at `at`; eight bytes are there */
function isClock(text: DataView, at: number): boolean {
  return (text.getInt32(at) & ~0x0f0f000f) === 0x30303a30 && (text.getInt32(at + 4) & ~0x0f000f0f) === 0x303a3030
}

/** @param offset length of the zone's offset: 3 for "+00", which is all that is accepted, or 0 */
function iso(out: ByteWriter, text: DataView, start: number, end: number, offset: number): void {
  const fractionEnd = end - offset
  const fraction = fractionEnd - start - 20 // digits behind the point; -1: none
  if (fraction < -1 || fraction === 0 || fraction > 6 || !isDateTime(text, start)) return writeString(out, text, start, end)
  if (offset === 3 && !isUtc(text, fractionEnd)) return writeString(out, text, start, end)
  if (fraction > 0 && !isFraction(text, start + 19, fractionEnd)) return writeString(out, text, start, end)
  out.reserve(32)
  const { buffer, words } = out
  let at = out.length
  buffer[at++] = QUOTE
  words.setInt32(at, text.getInt32(start))
  words.setInt32(at + 4, text.getInt32(start + 4))
  words.setInt32(at + 8, (text.getInt32(start + 8) & ~0x0000ff00) | 0x5400) // the space becomes a T
  words.setInt32(at + 12, text.getInt32(start + 12))
  words.setInt32(at + 15, text.getInt32(start + 15))
  at += 19
  words.setInt32(at, 0x2e303030) // .000000
  words.setInt32(at + 3, 0x30303030)
  for (let i = 1; i <= fraction; i++) buffer[at + i] = text.getUint8(start + 19 + i)
  at += 7
  if (offset === 3) buffer[at++] = 0x5a /* Z */
  buffer[at++] = QUOTE
  out.length = at
}

/** `dddd-dd-dd dd:dd:dd` at `at`; nineteen bytes are there */
function isDateTime(text: DataView, at: number): boolean {
  return (
    (text.getInt32(at) & ~0x0f0f0f0f) === 0x30303030 &&
    (text.getInt32(at + 4) & ~0x000f0f00) === 0x2d30302d &&
    (text.getInt32(at + 8) & ~0x0f0f000f) === 0x30302030 &&
    (text.getInt32(at + 12) & ~0x0f000f0f) === 0x303a3030 &&
    (text.getInt32(at + 15) & ~0x0f000f0f) === 0x303a3030
  )
}

const isUtc = (text: DataView, at: number): boolean => text.getUint8(at) === PLUS && text.getInt16(at + 1) === 0x3030

function isFraction(text: DataView, at: number, end: number): boolean {
  if (text.getUint8(at) !== DOT) return false
  for (let i = at + 1; i < end; i++) if (!isDigit(text.getUint8(i))) return false
  return true
}

const isDigit = (byte: number): boolean => byte >= ZERO && byte <= 0x39

/** Where `digits` and its callers stand. Rendering is synchronous, so one place is enough. */
let p = 0

/** Reads digits from `p` on. @returns their value, -1: none, or more than fit */
function digits(text: DataView, end: number, most: number): number {
  const from = p
  let value = 0
  while (p < end && p - from <= most) {
    const byte = text.getUint8(p)
    if (!isDigit(byte)) break
    value = value * 10 + byte - ZERO
    p++
  }
  return p === from || p - from > most ? -1 : value
}

function skip(text: DataView, end: number, byte: number): boolean {
  if (p >= end || text.getUint8(p) !== byte) return false
  p++
  return true
}

/** Reads `.d{1,6}` when there is a point. @returns µs, -1: malformed */
function fractionMicros(text: DataView, end: number): number {
  if (!skip(text, end, DOT)) return 0
  const from = p
  let value = digits(text, end, 6)
  if (value < 0) return -1
  for (let i = p - from; i < 6; i++) value *= 10
  return value
}

function micros(out: ByteWriter, text: DataView, start: number, end: number, zoned: boolean): void {
  p = start
  let year = digits(text, end, 6)
  if (year < 0 || !skip(text, end, MINUS)) return writeString(out, text, start, end)
  const month = digits(text, end, 2)
  if (month < 1 || month > 12 || !skip(text, end, MINUS)) return writeString(out, text, start, end)
  const day = digits(text, end, 2)
  if (day < 1 || day > 31 || !skip(text, end, SPACE)) return writeString(out, text, start, end)
  const hours = digits(text, end, 2)
  if (hours < 0 || !skip(text, end, COLON)) return writeString(out, text, start, end)
  const minutes = digits(text, end, 2)
  if (minutes < 0 || !skip(text, end, COLON)) return writeString(out, text, start, end)
  const seconds = digits(text, end, 2)
  if (seconds < 0) return writeString(out, text, start, end)
  const fraction = fractionMicros(text, end)
  if (fraction < 0) return writeString(out, text, start, end)
  if (zoned) {
    if (p + 3 > end || !isUtc(text, p)) return writeString(out, text, start, end)
    p += 3
  }
  if (p + 3 === end && text.getUint8(p) === SPACE && text.getInt16(p + 1) === 0x4243 /* BC */) {
    year = 1 - year
    p = end
  }
  if (p !== end) return writeString(out, text, start, end)
  writeMicros(out, daysSinceEpoch(year, month, day) * 86_400 + hours * 3600 + minutes * 60 + seconds, fraction)
}

/** Days from 1970-01-01 in the proleptic Gregorian calendar. @see Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms" */
function daysSinceEpoch(year: number, month: number, day: number): number {
  const y = month <= 2 ? year - 1 : year // years begin in March, so that the leap day is the last
  const era = Math.floor(y / 400)
  const yearOfEra = y - era * 400
  const dayOfYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1
  const dayOfEra = yearOfEra * 365 + Math.floor(yearOfEra / 4) - Math.floor(yearOfEra / 100) + dayOfYear
  return era * 146_097 + dayOfEra - 719_468
}

/** Writes seconds · 10^6 + µs as an integer: in two parts, because the whole doesn't fit a number. @param us from 0 to 999,999 */
function writeMicros(out: ByteWriter, seconds: number, us: number): void {
  let whole = seconds
  let rest = us
  out.reserve(32)
  if (whole < 0) {
    whole = -whole
    if (rest > 0) {
      whole -= 1
      rest = 1_000_000 - rest
    }
    out.buffer[out.length++] = MINUS
  }
  if (whole === 0) return out.digits(rest)
  out.digits(whole)
  for (let scale = 100_000; scale >= 1; scale /= 10) out.buffer[out.length++] = ZERO + (Math.floor(rest / scale) % 10)
}

const UNIT = { year: 0x7965, month: 0x6d6f, day: 0x6461 } as const // by their first two letters: year(s), mon(s), day(s)

/** `1 year 2 mons -3 days +04:05:06.7` → `{"months":14,"days":-3,"microseconds":14706700000}` */
export const renderInterval: Render = (out, text, start, end) => {
  let months = 0
  let days = 0
  let seconds = 0
  let us = 0
  let isNegative = false
  p = start
  while (p < end) {
    if (p > start && !skip(text, end, SPACE)) return writeString(out, text, start, end)
    const sign = skip(text, end, MINUS) ? -1 : 1
    if (sign === 1) skip(text, end, PLUS)
    const amount = digits(text, end, 10) // hours go up to 2,562,047,788
    if (amount < 0) return writeString(out, text, start, end)
    if (skip(text, end, COLON)) {
      const minutes = digits(text, end, 2)
      if (minutes < 0 || !skip(text, end, COLON)) return writeString(out, text, start, end)
      const rest = digits(text, end, 2)
      us = rest < 0 ? -1 : fractionMicros(text, end)
      if (us < 0 || p !== end) return writeString(out, text, start, end)
      seconds = amount * 3600 + minutes * 60 + rest
      isNegative = sign < 0
      break
    }
    if (!skip(text, end, SPACE) || p + 3 > end) return writeString(out, text, start, end)
    const unit = text.getInt16(p)
    if (unit === UNIT.year) months += sign * amount * 12
    else if (unit === UNIT.month) months += sign * amount
    else if (unit === UNIT.day) days += sign * amount
    else return writeString(out, text, start, end)
    while (p < end && text.getUint8(p) > SPACE) p++
  }
  if (start === end) return writeString(out, text, start, end)
  out.ascii('{"months":')
  writeInteger(out, months)
  out.ascii(',"days":')
  writeInteger(out, days)
  out.ascii(',"microseconds":')
  if (isNegative && (seconds > 0 || us > 0)) out.byte(MINUS)
  writeMicros(out, seconds, us)
  out.byte(0x7d /* } */)
}

function writeInteger(out: ByteWriter, value: number): void {
  if (value < 0) out.byte(MINUS)
  out.digits(Math.abs(value))
}
