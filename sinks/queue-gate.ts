/**
 * Who may have something in a queue where neighbours can spoil each other: many at once, or one alone. First come, first
 * served, so that who wants to be alone isn't kept waiting for ever, nor are those behind.
 */
type Waiter = { readonly isAlone: boolean; readonly enter: () => void }

/** Lets many into a queue, or one alone. */
export class QueueGate {
  #shared = 0
  #isAlone = false
  #waiting: Waiter[] = []

  /** @returns how to leave, once; undefined: the signal was aborted first */
  async enter(isAlone: boolean, signal: AbortSignal): Promise<(() => void) | undefined> {
    if (signal.aborted) return undefined
    const entered = Promise.withResolvers<boolean>()
    const waiter: Waiter = { isAlone, enter: () => entered.resolve(true) }
    const onAbort = () => {
      if (!this.#waiting.includes(waiter)) return // it has just entered
      this.#waiting = this.#waiting.filter((one) => one !== waiter)
      entered.resolve(false)
      this.#admit()
    }
    signal.addEventListener('abort', onAbort, { once: true })
    this.#waiting.push(waiter)
    this.#admit()
    const isIn = await entered.promise
    signal.removeEventListener('abort', onAbort)
    return isIn ? () => this.#leave(isAlone) : undefined
  }

  #leave(isAlone: boolean): void {
    if (isAlone) this.#isAlone = false
    else this.#shared--
    this.#admit()
  }

  #admit(): void {
    for (;;) {
      const [next] = this.#waiting
      if (!next || this.#isAlone || (next.isAlone && this.#shared > 0)) return
      this.#waiting.shift()
      if (next.isAlone) this.#isAlone = true
      else this.#shared++
      next.enter()
    }
  }
}
