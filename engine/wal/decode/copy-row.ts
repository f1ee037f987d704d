/**
 * One row of `COPY … TO STDOUT` in its text form: values between tabs, `\N` for null, a line feed at the end, and a backslash ahead of
 * what would otherwise read as one of these. The values are those of pgoutput, so a row reads into the same Tuple and renders alike.
 * @see PostgreSQL manual, "COPY", "Text Format"
 */
import { KIND, malformed, type Tuple } from './tuple.ts'

const TAB = 0x09
const LINE_FEED = 0x0a
const BACKSLASH = 0x5c
const NULL = 0x4e // N

/** What a letter behind a backslash stands for; any other byte stands for itself. Postgres writes no octal or hexadecimal ones. */
const ESCAPED: Readonly<Record<number, number>> = { 0x62: 0x08, 0x66: 0x0c, 0x6e: 0x0a, 0x72: 0x0d, 0x74: 0x09, 0x76: 0x0b }

/**
 * Reads a row. Values with escapes are made plain where they stand, so the bytes are changed.
 * @param bytes hold the row from `start` to `end`, its line feed included; `tuple` is valid as long as they are
 * @param view of the same memory as `bytes`, from its first byte
 * @param count columns that the row must have
 * @throws EngineError MESSAGE_MALFORMED: it has more or fewer columns, or no line feed
 */
export function readCopyRow(bytes: Uint8Array, view: DataView, start: number, end: number, tuple: Tuple, count: number): void {
  if (count > tuple.kind.length) tuple.grow(count)
  if (bytes[end - 1] !== LINE_FEED) throw malformed('a row of COPY does not end with a line feed', end - 1)
  const { kind, start: starts, end: ends } = tuple
  tuple.bytes = view
  tuple.count = count
  tuple.unchanged = 0
  const last = end - 1
  if (count === 0) return
  let column = 0
  let from = start // of the value
  let to = start // where it goes on when it is plain
  for (let p = start; ;) {
    const stop = specialFrom(view, p, last)
    if (to === p) to = stop
    else if (stop > p) {
      bytes.copyWithin(to, p, stop)
      to += stop - p
    }
    p = stop
    if (p < last && bytes[p] === BACKSLASH) {
      const letter = bytes[p + 1] as number
      p += 2
      if (letter === NULL) to = from - 1
      else bytes[to++] = ESCAPED[letter] ?? letter
      continue
    }
    if (column === count) throw malformed(`a row of COPY has more than ${count} columns`, p)
    kind[column] = to < from ? KIND.null : KIND.text
    starts[column] = from
    ends[column] = to
    column++
    if (p === last) break
    from = to = ++p
  }
  if (column !== count) throw malformed(`a row of COPY has ${column} columns instead of ${count}`, start)
}

/** Finds the next tab or backslash, four bytes at a time. @returns where it is, or `last` */
function specialFrom(view: DataView, from: number, last: number): number {
  let p = from
  for (; p + 4 <= last; p += 4) {
    const word = view.getInt32(p, true)
    const tab = word ^ 0x09090909
    const backslash = word ^ 0x5c5c5c5c
    // the lowest bit that is set is of a byte that is one; those above it may be set by its borrow
    const found = (((tab - 0x01010101) & ~tab) | ((backslash - 0x01010101) & ~backslash)) & 0x80808080
    if (found !== 0) return p + ((31 - Math.clz32(found & -found)) >> 3)
  }
  while (p < last) {
    const byte = view.getUint8(p)
    if (byte === TAB || byte === BACKSLASH) break
    p++
  }
  return p
}
