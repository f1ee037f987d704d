/**
 * The share of the last ten seconds in which a sink had messages ready that waited for their destination: a client to
 * ask, acknowledgements below max_ack_pending, a free sending. Looked at four times a second, because what is ready is a
 * question and not an event; near 0 the destination keeps up, near 100 it never does.
 */
import { BusyShare } from '../../engine/busy-share.ts'

const EVERY_MS = 250

export class ReadyShare implements Disposable {
  readonly #share = new BusyShare(performance.now())
  readonly #timer: NodeJS.Timeout

  constructor(isReady: () => boolean) {
    let last = performance.now()
    this.#timer = setInterval(() => {
      const now = performance.now()
      if (isReady()) this.#share.add(last, now)
      last = now
    }, EVERY_MS).unref()
  }

  get percent(): number {
    return this.#share.percent(performance.now())
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }
}
