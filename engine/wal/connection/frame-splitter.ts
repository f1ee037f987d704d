/**
 * Cuts a stream of bytes into the frames of Postgres' protocol: a tag of one byte, a length of four that counts itself and
 * the body. A frame that lies in one chunk is not copied; one that chunks cut is put together in a buffer of its own.
 * @see PostgreSQL manual, "Message Formats"
 */
import { EngineError } from '../../errors.ts'

const HEADER_BYTES = 5
const USUAL_BYTES = 64 * 1024
/** The server builds a message in one buffer (MaxAllocSize, below 1 GiB); the length counts itself. */
const MAX_LENGTH = 0x3fff_ffff + 4

/** Gets one whole frame, or the part of it that concerns the reader; the bytes are valid during the call. */
export type OnFrame = (bytes: Buffer, start: number, end: number) => void

export class FrameSplitter {
  static readonly HEADER_BYTES = HEADER_BYTES
  readonly #onFrame: OnFrame
  /** the beginning of a frame that goes on in the next chunk */
  #begun = Buffer.allocUnsafeSlow(USUAL_BYTES)
  #length = 0

  constructor(onFrame: OnFrame) {
    this.#onFrame = onFrame
  }

  /** @throws EngineError MESSAGE_MALFORMED: a length below four or above 1 GiB; and what `onFrame` throws */
  push(chunk: Buffer): void {
    let at = this.#length > 0 ? this.#complete(chunk) : 0
    while (chunk.length - at >= HEADER_BYTES) {
      const end = at + frameBytes(chunk, at)
      if (end > chunk.length) break
      const start = at
      at = end
      this.#onFrame(chunk, start, end)
    }
    if (at < chunk.length) this.#keep(chunk, at, chunk.length)
  }

  /** Takes what the begun frame lacks. @returns how many bytes of the chunk that is */
  #complete(chunk: Buffer): number {
    let used = 0
    if (this.#length < HEADER_BYTES) {
      used = Math.min(HEADER_BYTES - this.#length, chunk.length)
      this.#keep(chunk, 0, used)
      if (this.#length < HEADER_BYTES) return used
    }
    const bytes = frameBytes(this.#begun, 0)
    const from = used
    used = Math.min(from + bytes - this.#length, chunk.length)
    this.#keep(chunk, from, used)
    if (this.#length < bytes) return used
    const frame = this.#begun
    this.#length = 0
    if (bytes > USUAL_BYTES) this.#begun = Buffer.allocUnsafeSlow(USUAL_BYTES) // one great row must not weigh for ever
    this.#onFrame(frame, 0, bytes)
    return used
  }

  #keep(chunk: Buffer, from: number, to: number): void {
    const length = this.#length + to - from
    if (length > this.#begun.length) {
      // at once, or a great row would be moved again with each chunk of it
      const needed = this.#length >= HEADER_BYTES ? frameBytes(this.#begun, 0) : length
      const grown = Buffer.allocUnsafeSlow(Math.max(needed, length))
      this.#begun.copy(grown, 0, 0, this.#length)
      this.#begun = grown
    }
    chunk.copy(this.#begun, this.#length, from, to)
    this.#length = length
  }
}

function frameBytes(bytes: Buffer, at: number): number {
  const length = bytes.readUInt32BE(at + 1)
  if (length < 4 || length > MAX_LENGTH)
    throw new EngineError('MESSAGE_MALFORMED', `a frame of the server says that it has ${length} bytes`)
  return length + 1
}
