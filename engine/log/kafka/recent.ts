/** Keeps answers that may be used again for a while: each is asked for once for all who come meanwhile, and again after a failure. */
export class Recent<T> {
  readonly #known = new Map<string, Readonly<{ answer: Promise<T>; askedAt: number }>>()

  /** @param maxAgeMs how old the answer may be */
  get(key: string, maxAgeMs: number, ask: () => Promise<T>): Promise<T> {
    const known = this.#known.get(key)
    if (known && performance.now() - known.askedAt <= maxAgeMs) return known.answer
    const asked = { answer: ask(), askedAt: performance.now() }
    this.#known.set(key, asked)
    asked.answer.catch(() => this.#known.get(key) === asked && this.#known.delete(key))
    return asked.answer
  }

  forget(key: string): void {
    this.#known.delete(key)
  }
}
