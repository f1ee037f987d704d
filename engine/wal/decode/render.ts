/**
 * From a value as Postgres prints it (under the pinned settings, ../connection/source-client.ts) to JSON, as docs/messages.md
 * says. Streamed rows and rows that are looked up have the same renderer. All digits of a number go through as they are. A value
 * that doesn't read as its type stays its text, as a JSON string: so NaN and infinity.
 */
import type { ByteWriter } from '../../byte-writer.ts'
import { writeString } from './json-string.ts'
import { arrayRenderer } from './render-array.ts'
import {
  renderInterval,
  renderTime,
  renderTimestamp,
  renderTimestampMicros,
  renderTimestamptz,
  renderTimestamptzMicros,
} from './render-time.ts'
import type { Render, ScalarType, ValueType } from './value-type.ts'

/** Says how a stream writes timestamps. */
export type TimestampFormat = 'iso8601' | 'unix_microsecond'

const MINUS = 0x2d
const PLUS = 0x2b
const DOT = 0x2e
const COMMA = 0x2c
const T = 0x74
const F = 0x66

const renderText: Render = writeString

const renderBoolean: Render = (out, text, start, end) => {
  const byte = end - start === 1 ? text.getUint8(start) : 0
  if (byte === T) out.ascii('true')
  else if (byte === F) out.ascii('false')
  else writeString(out, text, start, end)
}

/** Integers and floats: the digits as they are, when they are a JSON number; NaN and Infinity as strings. */
const renderNumber: Render = (out, text, start, end) => {
  if (numberEnd(text, start, end) === end) copyBytes(out, text, start, end)
  else writeString(out, text, start, end)
}

/**
 * json and jsonb, in place. Postgres has checked them, so their bytes are copied; control characters can only stand
 * between tokens (inside a JSON string they are escaped) and become spaces, so that a message never has a line break in it.
 */
const renderJson: Render = (out, text, start, end) => {
  out.reserve(end - start)
  const { buffer, words } = out
  let o = out.length
  let i = start
  while (i < end) {
    for (const last = end - 4; i <= last; i += 4, o += 4) {
      const word = text.getInt32(i, true)
      if (((word - 0x20202020) & ~word & 0x80808080) !== 0) break
      words.setInt32(o, word, true)
    }
    for (const until = i + 4 < end ? i + 4 : end; i < until; i++) {
      const byte = text.getUint8(i)
      buffer[o++] = byte < 0x20 ? 0x20 : byte
    }
  }
  out.length = o
}

/** pgvector's `[1,2.5,3e-05]`: already a JSON array, if all its elements are numbers */
const renderVector: Render = (out, text, start, end) => {
  if (end - start < 3 || text.getUint8(start) !== 0x5b /* [ */ || text.getUint8(end - 1) !== 0x5d /* ] */)
    return writeString(out, text, start, end)
  let at = start
  do {
    at = numberEnd(text, at + 1, end - 1)
    if (at < 0) return writeString(out, text, start, end)
  } while (at < end - 1 && text.getUint8(at) === COMMA)
  if (at === end - 1) copyBytes(out, text, start, end)
  else writeString(out, text, start, end)
}

const SCALARS: Readonly<Record<ScalarType, Render>> = {
  text: renderText,
  boolean: renderBoolean,
  integer: renderNumber,
  float: renderNumber,
  time: renderTime,
  timestamp: renderTimestamp,
  timestamptz: renderTimestamptz,
  interval: renderInterval,
  json: renderJson,
  vector: renderVector,
}

/** The function that writes values of a type as JSON. */
export function rendererOf(type: ValueType, format: TimestampFormat): Render {
  if (typeof type === 'object') return arrayRenderer(rendererOf(type.array, format), type.delimiter)
  if (format === 'unix_microsecond') {
    if (type === 'timestamp') return renderTimestampMicros
    if (type === 'timestamptz') return renderTimestamptzMicros
  }
  return SCALARS[type] ?? renderText // a kind that a newer version saved
}

/** @returns where a JSON number that begins at `at` ends, or -1: none does */
function numberEnd(text: DataView, at: number, end: number): number {
  let p = at
  if (p < end && text.getUint8(p) === MINUS) p++
  const integer = p
  p = digitsEnd(text, p, end)
  if (p === integer || (p > integer + 1 && text.getUint8(integer) === 0x30)) return -1
  if (p < end && text.getUint8(p) === DOT) {
    const fraction = ++p
    p = digitsEnd(text, p, end)
    if (p === fraction) return -1
  }
  if (p < end && (text.getUint8(p) | 0x20) === 0x65 /* e */) {
    p++
    if (p < end && (text.getUint8(p) === PLUS || text.getUint8(p) === MINUS)) p++
    const exponent = p
    p = digitsEnd(text, p, end)
    if (p === exponent) return -1
  }
  return p
}

function digitsEnd(text: DataView, at: number, end: number): number {
  let p = at
  while (p < end) {
    const byte = text.getUint8(p)
    if (byte < 0x30 || byte > 0x39) break
    p++
  }
  return p
}

function copyBytes(out: ByteWriter, text: DataView, start: number, end: number): void {
  out.reserve(end - start)
  const { buffer, words } = out
  let o = out.length
  let i = start
  for (const last = end - 4; i <= last; i += 4, o += 4) words.setInt32(o, text.getInt32(i))
  while (i < end) buffer[o++] = text.getUint8(i++)
  out.length = o
}
