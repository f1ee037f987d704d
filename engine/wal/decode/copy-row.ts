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
  let column = 0
  let from = start
  let to = start
  const last = end - 1
  if (count === 0) return
  for (let p = start; ;) {
    const byte = bytes[p] as number
    if (byte === TAB || p === last) {
      if (column === count) throw malformed(`a row of COPY has more than ${count} columns`, p)
      kind[column] = KIND.text
      if (to < from) kind[column] = KIND.null
      starts[column] = from
      ends[column] = to
      column++
      if (p === last) break
      from = to = ++p
    } else if (byte !== BACKSLASH) {
      if (to !== p) bytes[to] = byte
      to++
      p++
    } else {
      const letter = bytes[p + 1] as number
      p += 2
      if (letter === NULL) to = from - 1
      else bytes[to++] = ESCAPED[letter] ?? letter
    }
  }
  if (column !== count) throw malformed(`a row of COPY has ${column} columns instead of ${count}`, start)
}
