/** Memory for lines on their way to functions, used again: of a fresh buffer that large the kernel has to bring every page. */

/** Buffers come in multiples of this, so that one fits where another was. */
const STEP_BYTES = 256 * 1024
const MAX_KEPT_BYTES = 1024 * 1024
const MAX_KEPT = 16

export class LineMemory {
  readonly #free: Buffer[] = []

  /** @returns at least so many bytes, of any content */
  take(bytes: number): Buffer {
    const at = this.#free.findIndex(({ length }) => length >= bytes)
    if (at >= 0) return this.#free.splice(at, 1)[0] as Buffer
    return Buffer.allocUnsafeSlow(Math.ceil(bytes / STEP_BYTES) * STEP_BYTES)
  }

  /** Nobody looks at it any more. */
  give(memory: Buffer): void {
    if (memory.length <= MAX_KEPT_BYTES && this.#free.length < MAX_KEPT) this.#free.push(memory)
  }
}
