/**
 * The share of the last ten seconds in which a sink had messages ready that waited for their destination: a client to
 * ask, acknowledgements below max_ack_pending, a free sending. Looked at four times a second, because what is ready is a
 * question and not an event; near 0 the destination keeps up, near 100 it never does.
 */
import { BusyShare } from '../../engine/busy-share.ts'

const EVERY_MS = 250

/** One timer looks at all sinks of the process that may have something ready, perhaps hundreds. */
const looked = new Set<ReadyShare>()
let timer: NodeJS.Timeout | undefined

/** Measures how much of the time messages wait for their destination. */
export class ReadyShare implements Disposable {
  readonly #share = new BusyShare(performance.now())
  readonly #isReady: () => boolean
  #last = 0

  constructor(isReady: () => boolean) {
    this.#isReady = isReady
  }

  /** Something may be ready that was not: it is looked at from now on, until nothing is. */
  ring(): void {
    if (looked.has(this)) return
    this.#last = performance.now()
    looked.add(this)
    timer ??= setInterval(lookAtAll, EVERY_MS).unref()
  }

  /** @returns whether something is ready */
  look(now: number): boolean {
    const isReady = this.#isReady()
    if (isReady) this.#share.add(this.#last, now)
    this.#last = now
    return isReady
  }

  get percent(): number {
    return this.#share.percent(performance.now())
  }

  [Symbol.dispose](): void {
    looked.delete(this)
  }
}

function lookAtAll(): void {
  const now = performance.now()
  for (const share of looked) if (!share.look(now)) looked.delete(share)
  if (looked.size > 0) return
  clearInterval(timer)
  timer = undefined
}
