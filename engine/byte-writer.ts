/** A growing buffer that messages are rendered into: bytes in, bytes out, no string per value. */
export class ByteWriter {
  buffer: Buffer
  length = 0

  constructor(capacity = 64 * 1024) {
    this.buffer = Buffer.allocUnsafeSlow(capacity)
  }

  /** Makes room for `bytes` more, so that a caller may write to `buffer` directly and add to `length`. */
  reserve(bytes: number): void {
    const needed = this.length + bytes
    if (needed <= this.buffer.length) return
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, this.buffer.length * 2))
    this.buffer.copy(grown, 0, 0, this.length)
    this.buffer = grown
  }

  /** Appends text of characters below 0x80: JSON punctuation, digits, precomputed prefixes. */
  ascii(text: string): void {
    this.reserve(text.length)
    this.length += this.buffer.write(text, this.length, 'latin1')
  }

  copy(source: Uint8Array, start = 0, end = source.length): void {
    this.reserve(end - start)
    this.buffer.set(start === 0 && end === source.length ? source : source.subarray(start, end), this.length)
    this.length += end - start
  }

  byte(value: number): void {
    this.reserve(1)
    this.buffer[this.length++] = value
  }

  /** Empties the writer and keeps its memory. */
  reset(): void {
    this.length = 0
  }

  /** The written bytes; valid until the next write. */
  view(): Buffer {
    return this.buffer.subarray(0, this.length)
  }
}
