/** Asks every ten seconds how much log a slot makes its server keep, in the process that has the source, so that no scrape waits for it. */
import { Rounds } from '../../engine/bell.ts'
import type { SlotLag } from '../../engine/status.ts'

const EVERY_MS = 10_000

/** Asks how much log a slot makes its server keep, every ten seconds, and at once after a ring. */
export class SlotWatch extends Rounds {
  readonly #ask: () => Promise<SlotLag> | undefined
  /** as it was last answered; undefined: it isn't known */
  lag: SlotLag | undefined
  /** why the last question has no answer */
  error: unknown

  /** @param ask undefined: it is not this process's to ask */
  constructor(ask: () => Promise<SlotLag> | undefined) {
    super()
    this.#ask = ask
  }

  protected override async round(): Promise<number> {
    this.lag = await this.#ask()
    this.error = undefined
    return EVERY_MS
  }

  protected override failed(error: unknown): number {
    this.lag = undefined
    this.error = error
    return EVERY_MS
  }
}
