/**
 * Measures what is promised to be done "within five seconds", on machines that do other things besides. Time counts as far as
 * the machine had a core to spare: what is late then is late for want of anything but the machine. A third of the time by the
 * wall counts in any case, so what takes three times as long as it may is too slow on the busiest machine as well.
 */
import { cpus } from 'node:os'

/** A look that comes later than this was held up, and what held it up held up the others too. */
const SLOT_MS = 100
const LATE_MS = SLOT_MS * 1.5
const LEAST_SHARE = 1 / 3

export type Moment = Readonly<{ wallMs: number; spareMs: number }>

export class CalmClock implements Disposable {
  #wallMs = performance.now()
  #idleMs = idleOfAll()
  #spareMs = 0
  readonly #timer = setInterval(() => this.now(), SLOT_MS).unref()

  now(): Moment {
    const [wallMs, idleMs] = [performance.now(), idleOfAll()]
    const slotMs = wallMs - this.#wallMs
    // the idle time of all cores together: one of them is enough
    if (slotMs > 0) this.#spareMs += Math.min(slotMs, LATE_MS, Math.max(0, idleMs - this.#idleMs))
    this.#wallMs = wallMs
    this.#idleMs = idleMs
    return { wallMs, spareMs: this.#spareMs }
  }

  /** @returns milliseconds since then that count */
  since(at: Moment): number {
    return msBetween(at, this.now())
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }
}

/** @returns milliseconds that count */
export function msBetween(from: Moment, to: Moment): number {
  return Math.round(Math.max((to.wallMs - from.wallMs) * LEAST_SHARE, to.spareMs - from.spareMs))
}

/** @returns milliseconds of the work that count */
export async function calmMs(work: () => Promise<unknown>): Promise<number> {
  using clock = new CalmClock()
  const at = clock.now()
  await work()
  return clock.since(at)
}

const idleOfAll = (): number => cpus().reduce((sum, { times }) => sum + times.idle, 0)
