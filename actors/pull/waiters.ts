/**
 * The receives of a sink that wait for messages, first come first served. A wait ends by messages, by its time, or by
 * its client going away; in the last two cases nothing is taken.
 */
import { EngineError } from '../../engine/errors.ts'

type Waiter<T> = Readonly<{ take: () => T | undefined; end: (taken: T | undefined) => void }>
type Wait<T> = Readonly<{
  waitMs: number
  signal: AbortSignal
  /** takes what is there for this waiter; undefined: nothing yet */
  take: () => T | undefined
}>

/** Lets receives wait for messages, in their order. */
export class Waiters<T> {
  readonly #waiting = new Set<Waiter<T>>()
  #counted = 0

  get count(): number {
    return this.#waiting.size
  }

  /**
   * Counts one that is going to wait, perhaps several times.
   * @param max how many may wait at once; undefined: its client is counted elsewhere
   * @throws EngineError TOO_MANY_WAITING
   */
  enter(max: number | undefined): Disposable {
    if (max === undefined) return { [Symbol.dispose]: () => undefined }
    if (this.#counted >= max)
      throw new EngineError('TOO_MANY_WAITING', `${max} receive requests already wait for messages of this sink (max_waiting)`, { max })
    this.#counted++
    return { [Symbol.dispose]: () => void this.#counted-- }
  }

  /** @returns what was taken; undefined: the time is over, the client has gone, or all were ended */
  wait({ waitMs, signal, take }: Wait<T>): Promise<T | undefined> {
    const { promise, resolve } = Promise.withResolvers<T | undefined>()
    const giveUp = () => waiter.end(undefined)
    const timer = setTimeout(giveUp, waitMs)
    const waiter: Waiter<T> = {
      take,
      end: (taken) => {
        if (!this.#waiting.delete(waiter)) return
        clearTimeout(timer)
        signal.removeEventListener('abort', giveUp)
        resolve(taken)
      },
    }
    this.#waiting.add(waiter)
    signal.addEventListener('abort', giveUp)
    if (signal.aborted) giveUp()
    return promise
  }

  /** Something may be there: serves in turn until the first one that finds nothing. */
  serve(): void {
    for (const waiter of this.#waiting) {
      const taken = waiter.take()
      if (taken === undefined) return
      waiter.end(taken)
    }
  }

  endAll(): void {
    for (const waiter of this.#waiting) waiter.end(undefined)
  }
}
