import { setTimeout as pause } from 'node:timers/promises'

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
      const wake = () => resolve()
      this.#wake = wake
      signal.addEventListener('abort', wake, { once: true })
      const timer = timeoutMs === Infinity ? undefined : setTimeout(wake, timeoutMs)
      try {
        await promise
      } finally {
        clearTimeout(timer)
        signal.removeEventListener('abort', wake)
        this.#wake = undefined
      }
    }
    this.#rung = false
  }
}

/**
 * Work that is done again and again, one round at a time, from its start until it is disposed of. A round is due when somebody rings,
 * and when the time is over that the round before it named. What waits for it keeps no process alive.
 */
export abstract class Rounds extends Bell implements Disposable {
  readonly #ended = new AbortController()
  protected readonly signal: AbortSignal = this.#ended.signal
  /** A ring waits until the round before it is over for so many milliseconds: rings that come in between share a round. */
  protected readonly restMs: number = 0
  #isFailing = false
  #running: Promise<void> = Promise.resolve()

  /** Begins with a round. */
  start(): void {
    this.#running = this.#run()
  }

  /** Settles when it has been disposed of and its last round is over. */
  get ended(): Promise<void> {
    return this.#running
  }

  [Symbol.dispose](): void {
    this.#ended.abort()
  }

  /** @returns after how many milliseconds the next one is due by itself */
  protected abstract round(): Promise<number>

  /** A round has failed. @param isFirst the one before it had not. @returns when it is tried again, in milliseconds */
  protected failed(error: unknown, _isFirst: boolean): number {
    throw error
  }

  async #run(): Promise<void> {
    while (!this.signal.aborted) {
      const timer = await this.#next()
      const rested = performance.now() + this.restMs
      await this.wait(this.signal)
      clearTimeout(timer)
      const leftMs = rested - performance.now()
      if (leftMs > 0) await pause(leftMs, undefined, { signal: this.signal, ref: false }).catch(() => undefined)
    }
  }

  async #next(): Promise<NodeJS.Timeout | undefined> {
    let waitMs: number
    try {
      waitMs = await this.round()
      this.#isFailing = false
    } catch (error) {
      if (this.signal.aborted) return undefined
      waitMs = this.failed(error, !this.#isFailing)
      this.#isFailing = true
    }
    return waitMs === Infinity ? undefined : setTimeout(() => this.ring(), waitMs).unref()
  }
}
