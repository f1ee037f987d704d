/** A growing buffer that messages are rendered into: bytes in, bytes out, no string per value. */

/** A native copy costs about 50 ns however short it is; below this a loop is faster, and for whole words even up to there. */
const NATIVE_COPY_FROM_BYTES = 24
const NATIVE_APPEND_FROM_BYTES = 4 * 1024
/** Compiled code copies a BigInt64 as the machine's word, without a BigInt (measured: 11 ns a literal, 18 by words of four bytes). */
const WORD_BYTES = 8
/** One great message must not weigh for ever: a buffer that has grown beyond this is given back. */
const KEPT_BYTES = 4 * 1024 * 1024

/** Says that what is written takes more room than it may. */
export class WriterFull extends Error {
  override readonly name = 'WriterFull'
}

/** Memory that bytes are written into. */
export class ByteWriter {
  buffer: Buffer
  /** views the memory of `buffer`: writing whole words is five times as fast as one byte after the other */
  words: DataView
  length = 0
  readonly #capacity: number
  readonly #limit: number

  /** @param limit of the room that it may take: beyond it `WriterFull` is thrown */
  constructor(capacity = 64 * 1024, limit = Infinity) {
    this.#capacity = capacity
    this.#limit = limit
    this.buffer = Buffer.allocUnsafeSlow(capacity)
    this.words = viewOf(this.buffer)
  }

  /** Makes room for `bytes` more, so that a caller may write to `buffer` directly and add to `length`. */
  reserve(bytes: number): void {
    const needed = this.length + bytes
    if (needed <= this.buffer.length) return
    if (needed > this.#limit) throw new WriterFull(`${needed} bytes, of ${this.#limit}`)
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, this.buffer.length * 2))
    this.buffer.copy(grown, 0, 0, this.length)
    this.buffer = grown
    this.words = viewOf(grown)
  }

  /** Appends text of characters below 0x80: JSON punctuation, digits. For what is written often use a Literal. */
  ascii(text: string): void {
    this.reserve(text.length)
    this.length += this.buffer.write(text, this.length, 'latin1')
  }

  copy(source: Uint8Array, start = 0, end = source.length): void {
    const size = end - start
    this.reserve(size)
    if (size < NATIVE_COPY_FROM_BYTES) {
      const { buffer, length } = this
      for (let i = 0; i < size; i++) buffer[length + i] = source[start + i] as number
    } else {
      this.buffer.set(start === 0 && end === source.length ? source : source.subarray(start, end), this.length)
    }
    this.length += size
  }

  /** Appends bytes fixed beforehand. */
  literal(literal: Literal): void {
    const { words: from, paddedLength: size } = literal
    this.reserve(size)
    const to = this.words
    const at = this.length
    for (let i = 0; i < size; i += WORD_BYTES) to.setBigInt64(at + i, from.getBigInt64(i, true), true)
    this.length = at + literal.length // the padding is overwritten by what follows
  }

  /** Appends what another writer holds, or a part of it. */
  append(other: ByteWriter, start = 0, end = other.length): void {
    const size = end - start
    if (size >= NATIVE_APPEND_FROM_BYTES) return this.copy(other.buffer, start, end)
    this.reserve(size + WORD_BYTES)
    other.reserve(WORD_BYTES)
    const from = other.words
    const to = this.words
    const at = this.length
    for (let i = 0; i < size; i += WORD_BYTES) to.setBigInt64(at + i, from.getBigInt64(start + i, true), true)
    this.length = at + size
  }

  byte(value: number): void {
    this.reserve(1)
    this.buffer[this.length++] = value
  }

  /** Appends the decimal digits of an integer from 0 to 2^53. */
  digits(value: number): void {
    this.reserve(16)
    let size = 1
    for (let rest = value; rest >= 10; rest = Math.floor(rest / 10)) size++
    let at = (this.length += size)
    let rest = value
    do {
      const tens = Math.floor(rest / 10)
      this.buffer[--at] = 0x30 + (rest - tens * 10)
      rest = tens
    } while (rest > 0)
  }

  /** Empties the writer and keeps its memory, unless that is a lot. */
  reset(): void {
    this.length = 0
    if (this.buffer.length <= KEPT_BYTES) return
    this.buffer = Buffer.allocUnsafeSlow(this.#capacity)
    this.words = viewOf(this.buffer)
  }

  /** The written bytes; valid until the next write. */
  view(): Buffer {
    return this.buffer.subarray(0, this.length)
  }
}

/** Holds bytes that are written again and again, in whole words, so that they are copied eight at a time. */
export class Literal {
  readonly words: DataView
  readonly length: number
  /** bytes of `words`, which is slow to ask */
  readonly paddedLength: number

  constructor(text: string | Uint8Array) {
    const bytes = typeof text === 'string' ? Buffer.from(text) : text
    const padded = new Uint8Array(Math.ceil(bytes.length / WORD_BYTES) * WORD_BYTES)
    padded.set(bytes)
    this.words = viewOf(padded)
    this.length = bytes.length
    this.paddedLength = padded.length
  }
}

/** Views bytes as a DataView. */
export const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
