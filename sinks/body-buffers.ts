/**
 * Memory of request bodies, used again: each is about a megabyte, and what is allocated anew for each weighs so much that the
 * collector looks through everything every few dozen requests. A body is given back only when its answer proves that the
 * server has read it to the end; any other is left to the collector.
 */
const STEP_BYTES = 64 * 1024
/** A larger one is rare, and not kept. */
const MAX_KEPT_BYTES = 2 * 1024 * 1024
const MAX_KEPT = 4

export class BodyBuffers {
  readonly #free: ArrayBuffer[] = []

  /** @returns so many bytes, whatever they hold */
  take(bytes: number): Buffer {
    const at = this.#free.findIndex(({ byteLength }) => byteLength >= bytes)
    const [found = new ArrayBuffer(Math.ceil(bytes / STEP_BYTES) * STEP_BYTES)] = at < 0 ? [] : this.#free.splice(at, 1)
    return Buffer.from(found, 0, bytes)
  }

  /** @param body nobody has it any more */
  giveBack(body: Buffer): void {
    const memory = body.buffer as ArrayBuffer
    if (memory.byteLength > MAX_KEPT_BYTES) return
    if (this.#free.length === MAX_KEPT) this.#free.shift() // perhaps they have become too small
    this.#free.push(memory)
  }
}
