/** The isolates that one thread keeps, by the key of their function. Those used longest ago go when all together pass the thread's share. */
import { FunctionIsolate, type Host, type Source } from './isolate.ts'

/** A function as calls name it. */
export type KeyedSource = Source & Readonly<{ key: string }>

/** Keeps the isolates of a thread. */
export class Isolates {
  readonly host: Host
  readonly #maxBytes: () => number
  /** in the order of their use */
  readonly #kept = new Map<string, { isolate: FunctionIsolate; bytes: number }>()

  /** @param maxBytes of all of them */
  constructor(host: Host, maxBytes: () => number) {
    this.host = host
    this.#maxBytes = maxBytes
  }

  /** Gives the isolate of a function, and builds it when it isn't there. @throws NotBuilt */
  of(source: KeyedSource): FunctionIsolate {
    const { key } = source
    const known = this.#kept.get(key)
    this.#kept.delete(key)
    if (known && !known.isolate.engine.isDisposed) {
      this.#kept.set(key, known)
      return known.isolate
    }
    const isolate = new FunctionIsolate(source, this.host)
    this.#kept.set(key, { isolate, bytes: 0 })
    return isolate
  }

  /** Throws away the isolate of a function that is not needed any more. */
  drop(key: string): void {
    this.#kept.get(key)?.isolate.dispose()
    this.#kept.delete(key)
  }

  /** Throws away what was used longest ago until the rest fits; what was used last stays. @param used just now: others are as they were */
  evict(used: readonly KeyedSource[]): void {
    for (const { key } of used) {
      const kept = this.#kept.get(key)
      if (kept && !kept.isolate.engine.isDisposed) kept.bytes = kept.isolate.bytes
    }
    let total = 0
    for (const { bytes } of this.#kept.values()) total += bytes
    const maxBytes = this.#maxBytes()
    for (const [key, { bytes }] of this.#kept) {
      if (total <= maxBytes || this.#kept.size === 1) return
      this.drop(key)
      total -= bytes
    }
  }
}
