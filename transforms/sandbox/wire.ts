/**
 * What the engine and a sandbox say to each other: over one pipe a thread, and one for the process itself. A frame is
 *
 *   header length u32 · body length u32 · header, JSON in UTF-8 · body
 *
 * little-endian. Messages travel in bodies, as bytes; a header has a few fields for a whole batch. A thread answers each
 * request before it reads the next one; each byte to the process itself asks for one more thread.
 */
import type { BuildFailure, FunctionKind } from './isolate.ts'

/** To the sandbox. */
export type Request =
  /** Code that calls name by its key; the body is its text. */
  | Readonly<{ type: 'define'; key: string; file: string; kind: FunctionKind }>
  | Readonly<{ type: 'forget'; key: string }>
  /** Builds a function and says what is wrong with it; the body is its text, TypeScript or JavaScript. */
  | Readonly<{ type: 'check'; call: number; file: string; kind: FunctionKind }>
  /**
   * Runs functions one after the other on messages; the body is their lines: `{…}` and MESSAGE_END each. The answer is of
   * fewer messages once it has maxBytes, of each function.
   */
  | Readonly<{ type: 'run'; call: number; keys: readonly string[]; count: number; tail: string; maxBytes: number }>

/** From the sandbox. */
export type Response =
  /** A thread takes requests. */
  | Readonly<{ type: 'ready' }>
  /** the body is the JavaScript to keep */
  | Readonly<{ type: 'checked'; call: number; failure?: BuildFailure }>
  | RunResponse
  /** The process ends itself: the only thing that it says. */
  | Readonly<{ type: 'killed'; reason: 'time' | 'memory' }>

export type RunResponse = Readonly<{
  type: 'ran'
  call: number
  /** how many messages, from the first */
  done: number
  /** of each function, µs */
  tookUs: readonly number[]
  failures: readonly MessageFailure[]
  /** what was printed: message, function, texts */
  logs: readonly (readonly [message: number, step: number, texts: readonly string[]])[]
  /**
   * The body: for each function that gives results, in their order, where the result of each message begins and ends in
   * its text (u32 × count, u32 × count), then a state for each message (u8 × count), then those texts.
   */
  textBytes: readonly number[]
  /** resident size of the sandbox, bytes */
  resident: number
}>

/** Ends each message on its way in: the record separator of RFC 7464, which no JSON text can hold, so that nothing has to be escaped. */
export const MESSAGE_END = 0x1e

/** Where in the sandbox a message stands after the call; left: nobody has asked about it yet, for the results before it are enough for once. */
export const STATE = { kept: 0, dropped: 1, failed: 2, left: 3 } as const

export type MessageFailure = Readonly<{
  message: number
  step: number
  code: 'FUNCTION_FAILED' | 'FUNCTION_TIMEOUT' | 'FUNCTION_MEMORY' | 'FUNCTION_INVALID'
  /** such as `TypeError: …`, as the function threw it */
  text: string
  line?: number
  column?: number
}>

/** The two lengths. */
export const PREFIX_BYTES = 8
/** What one frame may have: a few answers of the largest size. */
export const MAX_FRAME_BYTES = 256 * 1024 * 1024

/** @returns what to write, in order; bodies aren't copied */
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
  readonly #allocate: (header: Header, bytes: number) => Body
  readonly #onFrame: (header: Header, body: Body) => void
  readonly #prefix = Buffer.alloc(PREFIX_BYTES)
  #headerText: Buffer = EMPTY
  #header: Header | undefined
  #body: Uint8Array = EMPTY
  #bodyBytes = 0
  /** bytes of the frame that are here */
  #at = 0

  constructor(allocate: (header: Header, bytes: number) => Body, onFrame: (header: Header, body: Body) => void) {
    this.#allocate = allocate
    this.#onFrame = onFrame
  }

  /** @throws RangeError: this is no frame */
  push(chunk: Uint8Array): void {
    for (let from = 0; from < chunk.length;) from += this.#fill(chunk, from)
  }

  #fill(chunk: Uint8Array, from: number): number {
    const bodyAt = PREFIX_BYTES + this.#headerText.length
    const [part, at] =
      this.#at < PREFIX_BYTES
        ? [this.#prefix, this.#at]
        : this.#header === undefined
          ? [this.#headerText, this.#at - PREFIX_BYTES]
          : [this.#body, this.#at - bodyAt]
    const taken = Math.min(part.length - at, chunk.length - from)
    part.set(chunk.subarray(from, from + taken), at)
    this.#at += taken
    if (this.#at === PREFIX_BYTES) this.#begin()
    else if (this.#header === undefined && this.#at === bodyAt) {
      this.#header = JSON.parse(this.#headerText.toString()) as Header
      this.#body = this.#allocate(this.#header, this.#bodyBytes)
    }
    if (this.#header !== undefined && this.#at === bodyAt + this.#bodyBytes) this.#end()
    return taken
  }

  #begin(): void {
    const headerBytes = this.#prefix.readUInt32LE(0)
    this.#bodyBytes = this.#prefix.readUInt32LE(4)
    if (headerBytes + this.#bodyBytes > MAX_FRAME_BYTES) throw new RangeError(`a frame of ${headerBytes + this.#bodyBytes} bytes`)
    this.#headerText = Buffer.allocUnsafe(headerBytes)
  }

  #end(): void {
    const header = this.#header as Header
    const body = this.#body as Body
    this.#at = 0
    this.#header = undefined
    this.#headerText = EMPTY
    this.#body = EMPTY
    this.#onFrame(header, body)
  }
}
const EMPTY = Buffer.alloc(0)
