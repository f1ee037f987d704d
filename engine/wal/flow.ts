/**
 * Whether to read from Postgres: a bound on bytes in flight, the gate of the sinks, and waits for a look-up all stop
 * reading; it goes on when none does. Each stop has a cause that health can show (invariants 12, 13).
 */
import type { ReadingGate } from './gate.ts'

type FlowOptions = Readonly<{
  gate: ReadingGate
  /** reading stops above this and goes on below half of it; what frees it is the append, which never waits for reading */
  maxBytesInFlight: number
  /** raw bytes gathered, being appended, or held back */
  bytesInFlight: () => number
  pause: () => void
  resume: () => void
}>

export class Flow {
  readonly #options: FlowOptions
  readonly #unwatch: () => void
  #isFull = false
  #waitingFor: string | undefined
  #isPaused = false
  #pausedAt = 0
  #ended = false

  constructor(options: FlowOptions) {
    this.#options = options
    this.#unwatch = options.gate.watch(() => this.check())
    if (options.gate.closed) this.check()
  }

  /** Why reading stands still; empty: it doesn't. */
  get causes(): readonly string[] {
    const causes: string[] = [...this.#options.gate.causes]
    if (this.#isFull) causes.push(`the log is slower than Postgres (${this.#options.bytesInFlight()} bytes in flight)`)
    if (this.#waitingFor !== undefined) causes.push(this.#waitingFor)
    return causes
  }

  get isPaused(): boolean {
    return this.#isPaused
  }

  /** How long reading has stood still, ms; 0: it doesn't. */
  get pausedMs(): number {
    return this.#isPaused ? performance.now() - this.#pausedAt : 0
  }

  /** Decoding waits for `cause`; undefined: no longer. */
  waitFor(cause: string | undefined): void {
    this.#waitingFor = cause
    this.check()
  }

  /** Call when bytes in flight changed by much. */
  check(): void {
    if (this.#ended) return
    const { gate, maxBytesInFlight, bytesInFlight } = this.#options
    const bytes = bytesInFlight()
    if (bytes > maxBytesInFlight) this.#isFull = true
    else if (bytes <= maxBytesInFlight / 2) this.#isFull = false
    const shouldPause = this.#isFull || gate.closed || this.#waitingFor !== undefined
    if (shouldPause === this.#isPaused) return
    this.#isPaused = shouldPause
    if (shouldPause) {
      this.#pausedAt = performance.now()
      this.#options.pause()
    } else this.#options.resume()
  }

  end(): void {
    this.#ended = true
    this.#unwatch()
  }
}
