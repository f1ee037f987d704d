/** Asks every ten seconds how a slot stands at its server, in the process that has the source, so that no scrape waits for it. */
import { Rounds } from '../../engine/bell.ts'
import type { SlotState } from '../../engine/status.ts'

const EVERY_MS = 10_000
/** The rate at which a slot nears its end is that of so long. */
const RATE_OVER_MS = 300_000

type Asked = Omit<SlotState, 'secondsUntilLost'>
type Sample = Readonly<{ at: number; safeWalBytes: number }>

/** Asks how a slot stands, every ten seconds, and at once after a ring. */
export class SlotWatch extends Rounds {
  readonly #ask: () => Promise<Asked> | undefined
  #samples: readonly Sample[] = []
  /** as it was last answered; undefined: it isn't known */
  state: SlotState | undefined
  /** why the last question has no answer */
  error: unknown

  /** @param ask undefined: it is not this process's to ask */
  constructor(ask: () => Promise<Asked> | undefined) {
    super()
    this.#ask = ask
  }

  protected override async round(): Promise<number> {
    const state = await this.#ask()
    this.state = state && { ...state, secondsUntilLost: this.#secondsUntilLost(state) }
    this.error = undefined
    return EVERY_MS
  }

  protected override failed(error: unknown): number {
    this.state = undefined
    this.error = error
    return EVERY_MS
  }

  #secondsUntilLost({ safeWalBytes }: Asked): number | null {
    const at = performance.now()
    const former = safeWalBytes === null ? [] : this.#samples.filter((sample) => at - sample.at <= RATE_OVER_MS)
    this.#samples = safeWalBytes === null ? [] : [...former, { at, safeWalBytes }]
    return secondsLeft(this.#samples)
  }
}

/** How long what is left lasts at the rate of some samples, oldest first; null: it does not become less. */
export function secondsLeft(samples: readonly Sample[]): number | null {
  const [first, last] = [samples[0], samples.at(-1)]
  if (!first || !last || last.at <= first.at) return null
  const bytesPerSecond = (first.safeWalBytes - last.safeWalBytes) / ((last.at - first.at) / 1000)
  return bytesPerSecond > 0 ? Math.max(0, last.safeWalBytes / bytesPerSecond) : null
}
