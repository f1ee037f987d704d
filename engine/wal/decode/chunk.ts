/**
 * One pgoutput message where it lies in memory, big-endian. One object may stand for one message after another, so that a message of
 * the stream costs none (measured: a Buffer for each was a tenth of all memory that a drain took); it is valid during the call.
 */
const EMPTY = new DataView(new ArrayBuffer(0))

/** Reads one pgoutput message in memory. */
export class Chunk {
  memory: DataView = EMPTY
  /** in `memory`; offsets of the methods count from here */
  start = 0
  end = 0
  #bytes: Uint8Array | undefined

  static of(bytes: Uint8Array): Chunk {
    return new Chunk().set(bytes, 0, bytes.length)
  }

  /** Stands for the bytes from `start` to `end` from now on. */
  set(bytes: Uint8Array, start: number, end: number): this {
    // chunks of one read share their memory
    if (bytes !== this.#bytes) this.memory = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
    this.#bytes = bytes
    this.start = start
    this.end = end
    return this
  }

  get length(): number {
    return this.end - this.start
  }

  uint8(at: number): number {
    return this.memory.getUint8(this.start + at)
  }
  int16(at: number): number {
    return this.memory.getInt16(this.start + at)
  }
  int32(at: number): number {
    return this.memory.getInt32(this.start + at)
  }
  uint32(at: number): number {
    return this.memory.getUint32(this.start + at)
  }
  uint64(at: number): bigint {
    return this.memory.getBigUint64(this.start + at)
  }

  /** A view of some of its bytes. */
  bytes(from = 0, to = this.length): Buffer {
    const { buffer, byteOffset } = this.memory
    return Buffer.from(buffer as ArrayBuffer, byteOffset + this.start + from, to - from)
  }

  /** A copy in memory of its own. */
  copy(): Chunk {
    return Chunk.of(Buffer.from(this.bytes()))
  }
}
