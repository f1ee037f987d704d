/** Trims the streams now and then, while this process has the lease of their database (engine/dispatch/stream-trim.ts). */
import { setTimeout as delay } from 'node:timers/promises'
import { StreamTrim } from '../engine/dispatch/stream-trim.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Query } from '../engine/wal/connection/slot.ts'

const EVERY_MS = 1_000

export class StreamTrimming implements Disposable {
  readonly #trim: StreamTrim
  readonly #logger: Logger
  readonly #ended = new AbortController()
  #isFailing = false

  /** @param query of the state database. @param holder names this process there */
  constructor({ logger, ...options }: Readonly<{ query: Query; log: Log; holder: string; logger: Logger }>) {
    this.#trim = new StreamTrim(options)
    this.#logger = logger
  }

  start(): void {
    void this.#run()
  }

  [Symbol.dispose](): void {
    this.#ended.abort()
  }

  async #run(): Promise<void> {
    const { signal } = this.#ended
    while (!signal.aborted) {
      try {
        await this.#trim.run()
        this.#isFailing = false
      } catch (err) {
        if (!this.#isFailing && !signal.aborted) this.#logger.warn({ err }, 'streams could not be trimmed; it is tried again')
        this.#isFailing = true
      }
      await delay(EVERY_MS, undefined, { signal, ref: false }).catch(() => undefined)
    }
  }
}
