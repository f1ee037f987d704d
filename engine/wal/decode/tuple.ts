/**
 * One row as it stands in a pgoutput message: for each column a kind, and for text where its bytes lie. A Tuple is
 * scratch that is filled again for each row, so that a row costs no object; the bytes are never copied here.
 */
import { EngineError } from '../../errors.ts'
import type { Chunk } from './chunk.ts'

/** The numbers for what a row has in a column. */
export const KIND = { null: 0, unchanged: 1, text: 2 } as const

const CODE = { null: 0x6e /* n */, unchanged: 0x75 /* u */, text: 0x74 /* t */ } as const

/** Holds one row by the offsets of its values. */
export class Tuple {
  count = 0
  /** how many columns are TOASTed values that were not sent */
  unchanged = 0
  kind = new Uint8Array(64)
  /** offsets into `bytes`; of use for text only */
  start = new Int32Array(64)
  end = new Int32Array(64)
  bytes: DataView = EMPTY

  clear(): void {
    this.count = 0
    this.unchanged = 0
  }

  /** A value as a string: for tests and rare paths. */
  text(column: number): string | null {
    if (column >= this.count || this.kind[column] !== KIND.text) return null
    const { bytes } = this
    const start = this.start[column] as number
    return Buffer.from(bytes.buffer, bytes.byteOffset + start, (this.end[column] as number) - start).toString('utf8')
  }

  grow(count: number): void {
    this.kind = new Uint8Array(count)
    this.start = new Int32Array(count)
    this.end = new Int32Array(count)
  }
}

const EMPTY: DataView = new DataView(new ArrayBuffer(0))

/**
 * Reads one TupleData: int16 column count; per column a kind byte, and for text an int32 length in bytes and that many
 * bytes. Big-endian. Protocol 1, option `binary` off.
 * @param chunk one whole pgoutput message; what `tuple` says is valid as long as its bytes are
 * @param at offset of the column count in the chunk
 * @returns the offset after the tuple
 * @throws EngineError MESSAGE_MALFORMED: an unknown kind, or a length that leaves the message
 * @see PostgreSQL manual, "Logical Replication Message Formats"
 */
export function readTuple(chunk: Chunk, at: number, tuple: Tuple): number {
  const { memory: bytes, start: base, end: limit } = chunk
  let p = base + at
  if (at < 0 || p + 2 > limit) throw malformed('a row is cut short', at)
  const count = bytes.getInt16(p)
  p += 2
  if (count < 0 || p + count > limit) throw malformed('a row has more columns than bytes', at)
  if (count > tuple.kind.length) tuple.grow(count)
  const { kind, start, end } = tuple
  tuple.bytes = bytes
  tuple.count = count
  let unchanged = 0
  for (let i = 0; i < count; i++) {
    if (p >= limit) throw malformed('a row is cut short', p - base)
    const code = bytes.getUint8(p++)
    if (code === CODE.text) {
      if (p + 4 > limit) throw malformed('a row is cut short', p - base)
      const size = bytes.getInt32(p)
      p += 4
      if (size < 0 || size > limit - p) throw malformed('the length of a value leaves the message', p - base)
      kind[i] = KIND.text
      start[i] = p
      p += size
      end[i] = p
    } else if (code === CODE.null) {
      kind[i] = KIND.null
    } else if (code === CODE.unchanged) {
      kind[i] = KIND.unchanged
      unchanged++
    } else throw malformed(`a value of kind ${code}`, p - base - 1) // binary values (98) are never asked for
  }
  tuple.unchanged = unchanged
  return p - base
}

/** Finds the offset after a tuple, without keeping anything of it. */
export function skipTuple(chunk: Chunk, at: number): number {
  const { memory: bytes, start: base, end: limit } = chunk
  let p = base + at
  if (p + 2 > limit) throw malformed('a row is cut short', at)
  let left = bytes.getInt16(p)
  p += 2
  if (left < 0) throw malformed('a row has less than no columns', at)
  for (; left > 0; left--) {
    if (p >= limit) throw malformed('a row is cut short', p - base)
    const code = bytes.getUint8(p++)
    if (code === CODE.null || code === CODE.unchanged) continue
    if (code !== CODE.text) throw malformed(`a value of kind ${code}`, p - base - 1)
    if (p + 4 > limit) throw malformed('a row is cut short', p - base)
    const size = bytes.getInt32(p)
    p += 4
    if (size < 0 || size > limit - p) throw malformed('the length of a value leaves the message', p - base)
    p += size
  }
  return p - base
}

/** Counts the bytes of all values of a row that were sent. */
export function textBytes({ count, kind, start, end }: Tuple): number {
  let bytes = 0
  for (let i = 0; i < count; i++) if (kind[i] === KIND.text) bytes += (end[i] as number) - (start[i] as number)
  return bytes
}

/** Tells whether two text values have the same bytes. */
export function sameText(a: Tuple, i: number, b: Tuple, j: number): boolean {
  let p = a.start[i] as number
  let q = b.start[j] as number
  const end = a.end[i] as number
  if (end - p !== (b.end[j] as number) - q) return false
  const left = a.bytes
  const right = b.bytes
  for (; p + 4 <= end; p += 4, q += 4) if (left.getInt32(p) !== right.getInt32(q)) return false
  for (; p < end; p++, q++) if (left.getUint8(p) !== right.getUint8(q)) return false
  return true
}

/** Makes the error that says that bytes are no message. */
export const malformed = (what: string, offset: number): EngineError =>
  new EngineError('MESSAGE_MALFORMED', `a replication message can't be read: ${what}, at byte ${offset}`, { offset })
