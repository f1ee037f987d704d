/**
 * Slows whoever tries tokens or passwords that are wrong. Some tries a minute are answered as they come, for anybody errs; the answers to further
 * ones come one after the other, a second apart, until a minute has passed without any. The log has one line a minute for each who
 * tries, with how often: never what was tried. What is right is never slowed here. Memory is bounded: beyond so many who try, the
 * others are taken for one.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from '../../engine/logger.ts'

const MINUTE_MS = 60_000
const APART_MS = 1_000
const LONGEST_MS = 10_000
const MAX_KNOWN = 10_000

type Tries = {
  /** in this minute */
  count: number
  since: number
  /** when the next answer may go out */
  next: number
  /** that no line of the log has told yet */
  untold: number
  toldAt: number
}

/** Counts wrong tries by who makes them, and says how long the answer to one waits. */
export class WrongTries implements Disposable {
  readonly #logger: Pick<Logger, 'warn'>
  readonly #what: string
  readonly #free: number
  readonly #clock: () => number
  readonly #of = new Map<string, Tries>()
  readonly #stopped = new AbortController()
  readonly #sweep: NodeJS.Timeout

  /** @param what as the log says it @param free tries of a minute that are not slowed @param clock monotonic milliseconds */
  constructor(
    logger: Pick<Logger, 'warn'>,
    { what, free, clock = () => performance.now() }: Readonly<{ what: string; free: number; clock?: () => number }>,
  ) {
    this.#logger = logger
    this.#what = what
    this.#free = free
    this.#clock = clock
    this.#sweep = setInterval(() => this.sweep(), MINUTE_MS / 4).unref()
  }

  /** How many are known who try. */
  get size(): number {
    return this.#of.size
  }

  /** Somebody has tried what is wrong. @param by such as an address @returns how long its answer should wait, in milliseconds */
  add(by: string): number {
    const now = this.#clock()
    const key = this.#of.has(by) || this.#of.size < MAX_KNOWN ? by : 'others'
    const tries = this.#of.get(key) ?? { count: 0, since: now, next: now, untold: 0, toldAt: -Infinity }
    this.#of.set(key, tries)
    if (now - tries.since >= MINUTE_MS && tries.next <= now) Object.assign(tries, { count: 0, since: now })
    tries.count++
    tries.untold++
    this.#tell(key, tries, now)
    if (tries.count <= this.#free) return 0
    tries.next = Math.min(Math.max(tries.next, now) + APART_MS, now + LONGEST_MS)
    return tries.next - now
  }

  /** Waits before a try is looked at, if whoever makes it has tried too often: for what costs much to look at. */
  async before(by: string): Promise<void> {
    const { count = 0, next = 0 } = this.#of.get(by) ?? {}
    const ms = count > this.#free ? Math.min(next - this.#clock(), LONGEST_MS) : 0
    if (ms > 0) await sleep(ms, undefined, { signal: this.#stopped.signal }).catch(() => undefined)
  }

  /** Counts a wrong try, and waits as long as its answer should; not longer than until the end of the service. */
  async slow(by: string): Promise<void> {
    const ms = this.add(by)
    if (ms > 0) await sleep(ms, undefined, { signal: this.#stopped.signal }).catch(() => undefined)
  }

  /** Tells what was not told yet, and forgets who has not tried for a minute. */
  sweep(): void {
    const now = this.#clock()
    for (const [key, tries] of this.#of) {
      this.#tell(key, tries, now)
      if (tries.untold === 0 && now - Math.max(tries.toldAt, tries.since, tries.next) >= MINUTE_MS) this.#of.delete(key)
    }
  }

  [Symbol.dispose](): void {
    clearInterval(this.#sweep)
    this.#stopped.abort()
  }

  #tell(key: string, tries: Tries, now: number): void {
    if (tries.untold === 0 || now - tries.toldAt < MINUTE_MS) return
    this.#logger.warn({ from: key, tries: tries.untold }, this.#what)
    tries.untold = 0
    tries.toldAt = now
  }
}
