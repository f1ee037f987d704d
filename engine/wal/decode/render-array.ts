/**
 * Postgres arrays, `{1,NULL,"a \"b\""}` or with bounds `[2:3]={1,2}`, to nested JSON arrays. Elements are rendered by
 * their own type; only an unquoted NULL is null. A text that doesn't read as an array is written as a string.
 */
import { writeString } from './json-string.ts'
import type { Render } from './value-type.ts'

const OPEN = 0x7b /* { */
const CLOSE = 0x7d /* } */
const QUOTE = 0x22
const BACKSLASH = 0x5c
/** Postgres' own limit */
const MAX_DIMENSIONS = 6
/** A larger scratch is given back after use. */
const KEPT_SCRATCH_BYTES = 1 << 20

/** Makes the renderer of an array type. @param delimiter one ASCII character: ',' for all built-in types but box, which has ';' */
export function arrayRenderer(renderElement: Render, delimiter: string): Render {
  const delimiterByte = delimiter.charCodeAt(0)
  let scratch = new DataView(new ArrayBuffer(256)) // quoted elements without their backslashes

  return (out, text, start, end) => {
    const from = out.length
    let depth = 0
    let isValueDue = true // after an opening brace or a delimiter
    let isFirst = false // right after an opening brace
    let p = boundsEnd(text, start, end)
    while (p < end) {
      const byte = text.getUint8(p)
      if (byte === CLOSE) {
        if (depth === 0 || (isValueDue && !isFirst)) break
        out.byte(0x5d /* ] */)
        p++
        isValueDue = isFirst = false
        if (--depth === 0) break
      } else if (byte === delimiterByte) {
        if (isValueDue || depth === 0) break
        out.byte(0x2c /* , */)
        p++
        isValueDue = true
        isFirst = false
      } else if (!isValueDue) {
        break
      } else if (byte === OPEN) {
        if (depth === MAX_DIMENSIONS) break
        out.byte(0x5b /* [ */)
        p++
        depth++
        isFirst = true
      } else if (depth === 0) {
        break
      } else {
        isValueDue = isFirst = false
        const isQuoted = byte === QUOTE
        const first = isQuoted ? p + 1 : p
        let hasBackslash = false
        for (p = first; p < end; p++) {
          const next = text.getUint8(p)
          if (next === BACKSLASH) {
            hasBackslash = true
            p++
          } else if (isQuoted ? next === QUOTE : next === delimiterByte || next === CLOSE || next === OPEN || next === QUOTE) break
        }
        if (p >= end) break // its end is missing
        if (hasBackslash) {
          if (scratch.byteLength < p - first) scratch = new DataView(new ArrayBuffer(2 * (p - first)))
          renderElement(out, scratch, 0, unescape(text, first, p, scratch))
          if (scratch.byteLength > KEPT_SCRATCH_BYTES) scratch = new DataView(new ArrayBuffer(256))
        } else if (!isQuoted && isNull(text, first, p)) {
          out.ascii('null')
        } else {
          renderElement(out, text, first, p)
        }
        if (isQuoted) p++
      }
    }
    if (p === end && depth === 0 && out.length > from) return
    out.length = from
    writeString(out, text, start, end)
  }
}

/** @returns where the braces begin: behind `[2:3][-1:0]=`, if that is there */
function boundsEnd(text: DataView, start: number, end: number): number {
  if (start >= end || text.getUint8(start) !== 0x5b /* [ */) return start
  for (let p = start + 1; p < end; p++) {
    const byte = text.getUint8(p)
    if (byte === 0x3d /* = */) return p + 1
    if (byte === OPEN || byte === QUOTE) return start
  }
  return start
}

function isNull(text: DataView, start: number, end: number): boolean {
  return end - start === 4 && (text.getInt32(start) & ~0x20202020) === 0x4e554c4c
}

/** Copies without backslashes. @returns the length of what was written to `to` */
function unescape(text: DataView, start: number, end: number, to: DataView): number {
  let size = 0
  for (let p = start; p < end; p++) {
    let byte = text.getUint8(p)
    if (byte === BACKSLASH && p + 1 < end) byte = text.getUint8(++p)
    to.setUint8(size++, byte)
  }
  return size
}
