/**
 * A pipe to the engine, as a thread of a sandbox has it: that thread has nothing else to do, so it waits in the read itself,
 * and the kernel copies each batch to where it is worked on. Frames are those of `wire.ts`.
 */
import { readSync, writevSync } from 'node:fs'
import type { Response } from './response.ts'
import { frame, MAX_FRAME_BYTES, PREFIX_BYTES, type Request } from './wire.ts'

/** The buffer that is kept to read into; a larger frame gets memory of its own. */
const KEPT_BYTES = 1024 * 1024

/** @property body valid until the next is read */
export type Received = Readonly<{ header: Request; body: Buffer }>

/** The end of a pipe that a thread has. */
export class ThreadPipe {
  readonly #fd: number
  readonly #kept = Buffer.allocUnsafeSlow(KEPT_BYTES)
  #memory = this.#kept
  /** what has been read and not yet returned */
  #start = 0
  #end = 0

  /** @param fd blocking */
  constructor(fd: number) {
    this.#fd = fd
  }

  /** Waits for the next frame. @returns undefined: the engine has gone @throws RangeError: this is no frame */
  read(): Received | undefined {
    if (this.#start === this.#end) {
      this.#memory = this.#kept
      this.#start = this.#end = 0
    }
    if (!this.#fill(PREFIX_BYTES)) return undefined
    const headerBytes = this.#memory.readUInt32LE(this.#start)
    const bodyBytes = this.#memory.readUInt32LE(this.#start + 4)
    if (headerBytes + bodyBytes > MAX_FRAME_BYTES) throw new RangeError(`a frame of ${headerBytes + bodyBytes} bytes`)
    if (!this.#fill(PREFIX_BYTES + headerBytes + bodyBytes)) return undefined
    const bodyAt = this.#start + PREFIX_BYTES + headerBytes
    const header: Request = JSON.parse(this.#memory.toString('utf8', this.#start + PREFIX_BYTES, bodyAt)) // the engine's
    this.#start = bodyAt + bodyBytes
    return { header, body: this.#memory.subarray(bodyAt, this.#start) }
  }

  /** Writes a frame, and returns when all of it is in the kernel's hands. */
  write(header: Response, body: readonly Uint8Array[] = []): void {
    let left: readonly Uint8Array[] = frame(header, body)
    while (left.length > 0) {
      let written = writevSync(this.#fd, left)
      left = left.flatMap((part) => {
        const done = Math.min(written, part.length)
        written -= done
        return done === part.length ? [] : [part.subarray(done)]
      })
    }
  }

  /** Reads until so many bytes are there. @returns false: the pipe ended before that many bytes */
  #fill(bytes: number): boolean {
    if (this.#start + bytes > this.#memory.length) {
      const memory = bytes <= this.#kept.length ? this.#kept : Buffer.allocUnsafeSlow(bytes)
      this.#memory.copy(memory, 0, this.#start, this.#end)
      this.#memory = memory
      this.#end -= this.#start
      this.#start = 0
    }
    while (this.#end - this.#start < bytes) {
      const count = readSync(this.#fd, this.#memory, this.#end, this.#memory.length - this.#end, null)
      if (count === 0) return false
      this.#end += count
    }
    return true
  }
}
