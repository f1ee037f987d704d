/**
 * Whether to read from Postgres: a bound on bytes in flight, the gate of the sinks, and waits for a look-up all stop
 * reading; it goes on when none does. Each stop has a cause that health can show (docs/rules.md, rules 50 and 51).
 */

type FlowOptions = Readonly<{
  gate: ReadingGate
  /** reading stops above this and goes on below half of it; what frees it is the append, which never waits for reading */
  maxBytesInFlight: number
  /** raw bytes gathered, being appended, or held back */
  bytesInFlight: () => number
  pause: () => void
  resume: () => void
}>

/** Pauses the reading of one source, and lets it go on. */
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

  /** Tells how long reading has stood still, in ms; 0: it goes on. */
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

/**
 * Stops reading from Postgres for whoever can't take more: that one holds the gate, and reading from Postgres stops until nobody
 * does. Each holder says why, so that health can name the cause (docs/rules.md, rule 51).
 */
export class ReadingGate {
  readonly #holders = new Map<symbol, string>()
  readonly #listeners = new Set<() => void>()

  /** Stops reading, for a cause that people are told. @returns lets go again; calling it twice does nothing */
  hold(cause: string): () => void {
    const holder = Symbol(cause)
    this.#holders.set(holder, cause)
    if (this.#holders.size === 1) this.#notify()
    return () => {
      if (this.#holders.delete(holder) && this.#holders.size === 0) this.#notify()
    }
  }

  get closed(): boolean {
    return this.#holders.size > 0
  }

  /** Why reading waits, each cause once. */
  get causes(): readonly string[] {
    return [...new Set(this.#holders.values())]
  }

  /** Calls back when the gate closes and when it opens. @returns ends the subscription */
  watch(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  #notify(): void {
    for (const listener of this.#listeners) listener()
  }
}
