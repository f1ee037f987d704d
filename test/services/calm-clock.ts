/**
 * Measures what is promised to be done "within five seconds", on machines that do other things besides. Time counts as far as
 * the machine had a core to spare: what is late then is late for want of anything but the machine. Of all other time counts the
 * share of a core that each gets of those that want one, a third at the most: what takes three times as long as it may is too slow
 * wherever fewer than three want each core, and what takes ten times as long is everywhere.
 */
import { readFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg } from 'node:os'

/** A look that comes later than this was held up, and what held it up held up the others too. */
const SLOT_MS = 100
const LATE_MS = SLOT_MS * 1.5
const CORES = availableParallelism()
const MOST_SHARE = 1 / 3
const LEAST_SHARE = 1 / 10

/** Two clocks of what counts: time with a core to spare, and the share of all time. */
export type Moment = Readonly<{ wallMs: number; spareMs: number; shareMs: number }>

export class CalmClock implements Disposable {
  #wallMs = performance.now()
  #idleMs = idleOfAll()
  #spareMs = 0
  #shareMs = 0
  readonly #timer = setInterval(() => this.now(), SLOT_MS).unref()

  now(): Moment {
    const [wallMs, idleMs] = [performance.now(), idleOfAll()]
    const slotMs = wallMs - this.#wallMs
    // the idle time of all cores together: one of them is enough
    if (slotMs > 0) this.#spareMs += Math.min(slotMs, LATE_MS, Math.max(0, idleMs - this.#idleMs))
    this.#shareMs += slotMs * shareOfCore(wantingCores(), CORES)
    this.#wallMs = wallMs
    this.#idleMs = idleMs
    return { wallMs, spareMs: this.#spareMs, shareMs: this.#shareMs }
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
  return Math.round(Math.max(to.shareMs - from.shareMs, to.spareMs - from.spareMs))
}

/** @returns milliseconds of the work that count */
export async function calmMs(work: () => Promise<unknown>): Promise<number> {
  using clock = new CalmClock()
  const at = clock.now()
  await work()
  return clock.since(at)
}

/** @returns what one of those that want a core gets of it, as far as that counts */
export const shareOfCore = (wanting: number, cores: number): number =>
  Math.max(LEAST_SHARE, Math.min(MOST_SHARE, cores / Math.max(1, wanting)))

/** How many threads run or wait for a core at this moment; where the system doesn't say, over the last minute. */
function wantingCores(): number {
  try {
    return Number(readFileSync('/proc/loadavg', 'utf8').split(/[ /]/)[3])
  } catch {
    return loadavg()[0] ?? 1
  }
}

const idleOfAll = (): number => cpus().reduce((sum, { times }) => sum + times.idle, 0)
