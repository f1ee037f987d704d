/**
 * The bound of a sink's unacknowledged backlog. A sink that is full holds the gate of its source, with its name as the
 * cause, until it has drained to nine tenths; what frees it is the trim behind the clients' acks, which needs nothing
 * that the gate stops.
 */
import type { ReadingGate } from '../engine/wal/gate.ts'

export type BacklogOf = Readonly<{ sinkId: string; name: string; maxBytes: number; gate: ReadingGate; bytes: () => Promise<number> }>

const EVERY_MS = 200
const RELEASE_AT = 0.9
const MB = 1024 * 1024

export class BacklogGuard implements Disposable {
  readonly #sinks: () => readonly BacklogOf[]
  readonly #holds = new Map<string, { gate: ReadingGate; release: () => void }>()
  readonly #failed: (error: unknown) => void
  #timer: NodeJS.Timeout | undefined

  /** @param sinks those that are bound, at the moment of the call */
  constructor(sinks: () => readonly BacklogOf[], failed: (error: unknown) => void) {
    this.#sinks = sinks
    this.#failed = failed
    this.#timer = setTimeout(() => void this.#look(), EVERY_MS)
  }

  /** Looks at every backlog once. */
  async check(): Promise<void> {
    const sinks = this.#sinks()
    for (const [id, hold] of this.#holds) {
      // deleted, no longer bound, or its source was started anew with another gate
      if (!sinks.some(({ sinkId, gate }) => sinkId === id && gate === hold.gate)) this.#release(id)
    }
    for (const { sinkId, name, maxBytes, gate, bytes } of sinks) {
      const size = await bytes()
      const held = this.#holds.has(sinkId)
      if (!held && size >= maxBytes) {
        const cause = `the backlog of sink "${name}" is full (${Math.round(size / MB)} of ${Math.round(maxBytes / MB)} MB)`
        this.#holds.set(sinkId, { gate, release: gate.hold(cause) })
      } else if (held && size < maxBytes * RELEASE_AT) this.#release(sinkId)
    }
  }

  /** Whether the sink holds back its source. */
  isFull(sinkId: string): boolean {
    return this.#holds.has(sinkId)
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    for (const id of this.#holds.keys()) this.#release(id)
  }

  async #look(): Promise<void> {
    try {
      await this.check()
    } catch (error) {
      this.#failed(error)
    }
    this.#timer &&= setTimeout(() => void this.#look(), EVERY_MS)
  }

  #release(id: string): void {
    this.#holds.get(id)?.release()
    this.#holds.delete(id)
  }
}
