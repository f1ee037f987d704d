/**
 * Back-pressure with a name: whoever cannot take more holds the gate, and reading from Postgres stops until nobody
 * does. Each holder says why, so that health can name the cause (correctness, invariant 13).
 */
export class ReadingGate {
  readonly #holders = new Map<symbol, string>()
  readonly #listeners = new Set<() => void>()

  /** @returns lets go again; calling it twice does nothing */
  hold(cause: string): () => void {
    const holder = Symbol(cause)
    this.#holders.set(holder, cause)
    if (this.#holders.size === 1) this.#tell()
    return () => {
      if (this.#holders.delete(holder) && this.#holders.size === 0) this.#tell()
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

  #tell(): void {
    for (const listener of this.#listeners) listener()
  }
}
