/** Wakes the one loop that waits on it. A ring before the wait is not lost; many count as one. */
export class Bell {
  #rung = false
  #wake: (() => void) | undefined

  ring(): void {
    this.#rung = true
    this.#wake?.()
  }

  /** Settles at the next ring, when the time is over, or when the signal is aborted. */
  async wait(signal: AbortSignal, timeoutMs = Infinity): Promise<void> {
    if (!this.#rung && !signal.aborted) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#wake = resolve
      signal.addEventListener('abort', resolve as () => void, { once: true })
      const timer = timeoutMs === Infinity ? undefined : setTimeout(resolve, timeoutMs)
      try {
        await promise
      } finally {
        clearTimeout(timer)
        signal.removeEventListener('abort', resolve as () => void)
        this.#wake = undefined
      }
    }
    this.#rung = false
  }
}
