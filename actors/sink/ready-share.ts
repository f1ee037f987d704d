/**
 * The share of the last ten seconds in which a sink had messages ready that waited for their destination: a client to
 * ask, acknowledgements below max_ack_pending, a free sending. Looked at four times a second, because what is ready is a
 * question and not an event; near 0 the destination keeps up, near 100 it never does.
 */
import { BusyShare } from '../../engine/busy-share.ts'

const EVERY_MS = 250

/** Those of all sinks of the process, which may be hundreds, are looked at by one timer. */
const looked = new Set<ReadyShare>()
let timer: NodeJS.Timeout | undefined

export class ReadyShare implements Disposable {
  readonly #share = new BusyShare(performance.now())
  readonly #isReady: () => boolean
  #last = performance.now()

  constructor(isReady: () => boolean) {
    this.#isReady = isReady
    looked.add(this)
    timer ??= setInterval(() => {
      const now = performance.now()
      for (const share of looked) share.#look(now)
    }, EVERY_MS).unref()
  }

  #look(now: number): void {
    if (this.#isReady()) this.#share.add(this.#last, now)
    this.#last = now
  }

  get percent(): number {
    return this.#share.percent(performance.now())
  }

  [Symbol.dispose](): void {
    looked.delete(this)
    if (looked.size > 0) return
    clearInterval(timer)
    timer = undefined
  }
}
