/**
 * What the engine and a sandbox say to each other: over one pipe a thread, and one for the process itself. A frame is
 *
 *   header length u32 · body length u32 · header, JSON in UTF-8 · body
 *
 * little-endian. Messages travel in bodies, as bytes; a header has a few fields for a whole batch. A thread answers each
 * request before it reads the next one; each byte to the process itself asks for one more thread.
 */
import type { SandboxKind } from '../../engine/state/function-kinds.ts'
import type { Response } from './response.ts'

/** To the sandbox. */
export type Request =
  /** Code that calls name by its key; the body is its text. */
  | Readonly<{ type: 'define'; key: string; file: string; kind: SandboxKind }>
  | Readonly<{ type: 'forget'; key: string }>
  /** Builds a function and says what is wrong with it; the body is its text, TypeScript or JavaScript. */
  | Readonly<{ type: 'check'; call: number; file: string; kind: SandboxKind }>
  /**
   * Runs functions one after the other on messages; the body is their lines: `{…}` and MESSAGE_END each. The answer is of
   * fewer messages once it has maxBytes, of each function.
   */
  | Readonly<{ type: 'run'; call: number; keys: readonly string[]; count: number; tail: string; maxBytes: number }>

/** Ends each message on its way in: the record separator of RFC 7464, which no JSON text can hold, so that nothing has to be escaped. */
export const MESSAGE_END = 0x1e

/** Where in the sandbox a message stands after the call; left: nobody has asked about it yet, for the results before it are enough for once. */
export const STATE = { kept: 0, dropped: 1, failed: 2, left: 3 } as const

/** The bytes of the two lengths that a frame begins with. */
export const PREFIX_BYTES = 8
/** The most bytes of a frame: a few answers of the largest size. */
export const MAX_FRAME_BYTES = 256 * 1024 * 1024

/** Makes a frame. @returns what to write, in order; bodies aren't copied */
export function frame(header: Request | Response, body: readonly Uint8Array[] = []): Uint8Array[] {
  const text = Buffer.from(JSON.stringify(header))
  const prefix = Buffer.allocUnsafe(PREFIX_BYTES)
  prefix.writeUInt32LE(text.length, 0)
  prefix.writeUInt32LE(
    body.reduce((sum, part) => sum + part.byteLength, 0),
    4,
  )
  return [prefix, text, ...body]
}

/** Cuts a stream of bytes into frames. Each body is read into memory of its own. */
export class FrameReader<Header, Body extends Uint8Array> {
  readonly #read: (text: string) => Header
  readonly #allocate: (header: Header, bytes: number) => Body
  readonly #onFrame: (header: Header, body: Body) => void
  readonly #prefix = Buffer.alloc(PREFIX_BYTES)
  #headerText: Buffer = EMPTY
  #frame: { header: Header; body: Body } | undefined
  #bodyBytes = 0
  /** bytes of the frame that are here */
  #at = 0

  /** @param read makes a header of its text; throws where it is none @param allocate memory for a body */
  constructor(
    read: (text: string) => Header,
    allocate: (header: Header, bytes: number) => Body,
    onFrame: (header: Header, body: Body) => void,
  ) {
    this.#read = read
    this.#allocate = allocate
    this.#onFrame = onFrame
  }

  /** Takes some bytes. @throws Error: they are no frame */
  push(chunk: Uint8Array): void {
    for (let from = 0; from < chunk.length;) from += this.#fill(chunk, from)
  }

  #fill(chunk: Uint8Array, from: number): number {
    const bodyAt = PREFIX_BYTES + this.#headerText.length
    const [part, at] =
      this.#at < PREFIX_BYTES
        ? [this.#prefix, this.#at]
        : this.#frame
          ? [this.#frame.body, this.#at - bodyAt]
          : [this.#headerText, this.#at - PREFIX_BYTES]
    const taken = Math.min(part.length - at, chunk.length - from)
    part.set(chunk.subarray(from, from + taken), at)
    this.#at += taken
    if (this.#at === PREFIX_BYTES) this.#begin()
    else if (!this.#frame && this.#at === bodyAt) {
      const header = this.#read(this.#headerText.toString())
      this.#frame = { header, body: this.#allocate(header, this.#bodyBytes) }
    }
    if (this.#frame && this.#at === bodyAt + this.#bodyBytes) this.#end(this.#frame)
    return taken
  }

  #begin(): void {
    const headerBytes = this.#prefix.readUInt32LE(0)
    this.#bodyBytes = this.#prefix.readUInt32LE(4)
    if (headerBytes + this.#bodyBytes > MAX_FRAME_BYTES) throw new RangeError(`a frame of ${headerBytes + this.#bodyBytes} bytes`)
    this.#headerText = Buffer.allocUnsafe(headerBytes)
  }

  #end({ header, body }: { header: Header; body: Body }): void {
    this.#at = 0
    this.#frame = undefined
    this.#headerText = EMPTY
    this.#onFrame(header, body)
  }
}
const EMPTY = Buffer.alloc(0)
