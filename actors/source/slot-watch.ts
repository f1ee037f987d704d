/** What a slot makes its server keep, asked every ten seconds by whoever has the source, so that a scrape waits for nobody. */
import type { SlotLag } from '../../engine/wal/connection/slot.ts'

const EVERY_MS = 10_000

export class SlotWatch implements Disposable {
  readonly #ask: () => Promise<SlotLag> | undefined
  #timer: NodeJS.Timeout | undefined
  #lag: SlotLag | undefined
  #error: unknown
  #asking = false
  #ended = false

  /** @param ask undefined: it is not this process's to ask */
  constructor(ask: () => Promise<SlotLag> | undefined) {
    this.#ask = ask
  }

  /** As it was last answered; undefined: it isn't known. */
  get lag(): SlotLag | undefined {
    return this.#lag
  }

  /** Why the last question has no answer. */
  get error(): unknown {
    return this.#error
  }

  /** Asks now, and then by the clock. */
  async look(): Promise<void> {
    if (this.#asking || this.#ended) return
    clearTimeout(this.#timer)
    this.#asking = true
    try {
      this.#lag = await this.#ask()
      this.#error = undefined
    } catch (error) {
      this.#lag = undefined
      this.#error = error
    } finally {
      this.#asking = false
    }
    if (!this.#ended) this.#timer = setTimeout(() => void this.look(), EVERY_MS).unref()
  }

  [Symbol.dispose](): void {
    this.#ended = true
    clearTimeout(this.#timer)
  }
}
