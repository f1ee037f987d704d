/**
 * Memory of large bodies, of answers, requests and batches of functions, used again for later ones. Such a body takes up to a
 * megabyte, outside of V8's heap: made anew for each, it would be collected every few hundred milliseconds, and each collection
 * marks the whole heap for it (measured: a fifth of all CPU of a drain); and memory that is new to the process is dear to touch.
 * Whoever takes memory gives it back when nobody can read it any more, or leaves it to the garbage collector: both are safe, giving
 * back early is not.
 *
 * What is too large to be kept is freed at once. Left to the collector it would be there for as long as there is little else to collect,
 * which is when few and large messages come: then several times as much memory is dead as is in use.
 */

/** A smaller body is not worth it. */
const FROM_BYTES = 16 * 1024
/** Bodies differ a little in size: rounded up, small ones less, they fit each other's memory. */
const STEP_BYTES = 256 * 1024
const SMALL_STEP_BYTES = 64 * 1024
/** Memory of a body larger than this is not kept: one great body must not weigh for ever. */
const LARGEST_BYTES = 4 * 1024 * 1024
const KEPT_BYTES = 8 * 1024 * 1024

/** Frees memory that nobody reads any more, without waiting for the garbage collector. Whoever has it finds it empty. */
export function free(memory: ArrayBuffer): void {
  memory.transferToFixedLength(0)
}

/**
 * Memory of its own pages, which go back to the system when it is freed: in the allocator's heap large memory of many sizes leaves gaps,
 * and the process as large as it ever was. Only a buffer that may change its length has such pages; this one never does.
 */
export function pagesOf(bytes: number): ArrayBuffer {
  return new ArrayBuffer(bytes, { maxByteLength: bytes })
}

/** Keeps memory that was given back. */
export class BodyMemory {
  /** the last given back is taken first: the processor may still have it at hand */
  readonly #free: ArrayBuffer[] = []
  #freeBytes = 0

  get freeBytes(): number {
    return this.#freeBytes
  }

  /** Memory with anything in it. */
  take(bytes: number): Buffer {
    if (bytes > LARGEST_BYTES) return Buffer.from(pagesOf(bytes), 0, bytes)
    if (bytes < FROM_BYTES) return Buffer.allocUnsafe(bytes)
    const i = this.#free.findLastIndex(({ byteLength }) => byteLength >= bytes)
    const [memory] = i < 0 ? [] : this.#free.splice(i, 1)
    const step = bytes < STEP_BYTES ? SMALL_STEP_BYTES : STEP_BYTES
    if (!memory) return Buffer.allocUnsafeSlow(Math.ceil(bytes / step) * step).subarray(0, bytes)
    this.#freeBytes -= memory.byteLength
    return Buffer.from(memory, 0, bytes)
  }

  /** Gives back what `take` gave, at most once: its bytes may change from now on. */
  give({ buffer, length }: Buffer): void {
    if (length < FROM_BYTES || !(buffer instanceof ArrayBuffer)) return
    if (length > LARGEST_BYTES) return free(buffer)
    this.#free.push(buffer)
    this.#freeBytes += buffer.byteLength
    while (this.#freeBytes > KEPT_BYTES) this.#freeBytes -= this.#free.shift()?.byteLength ?? 0 // perhaps it has become too small
  }
}

/** The memory for bodies of this process: what one sink gives back another one may take. */
export const bodyMemory = new BodyMemory()
