/**
 * Trims the streams now and then, while this process has the lease of their database (engine/dispatch/stream-trim.ts), and has
 * what holds that up copied meanwhile (engine/dispatch/stream-copies.ts).
 */
import { setTimeout as delay } from 'node:timers/promises'
import { StreamCopies, type StreamCopiesOptions } from '../engine/dispatch/stream-copies.ts'
import { StreamTrim } from '../engine/dispatch/stream-trim.ts'
import type { Logger } from '../engine/logger.ts'

const EVERY_MS = 1_000

type StreamTrimmingOptions = Omit<StreamCopiesOptions, 'copied' | 'failed'> &
  Readonly<{
    /** names this process in the state database */
    holder: string
    logger: Logger
    /** a generation needs its stream no more */
    copied: () => void
  }>

export class StreamTrimming implements Disposable {
  readonly #trim: StreamTrim
  readonly #copies: StreamCopies
  readonly #logger: Logger
  readonly #ended = new AbortController()
  #isFailing = false

  constructor({ logger, ...options }: StreamTrimmingOptions) {
    this.#trim = new StreamTrim(options)
    this.#copies = new StreamCopies({
      ...options,
      copied: (of) => {
        logger.info(of, 'what a sink has left to deliver of a stream has a topic of its own now')
        options.copied()
      },
      failed: (of, err) =>
        logger.warn({ ...of, err }, 'what a sink has left to deliver of a stream could not be copied; it is tried again'),
    })
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
    let copying: Promise<void> | undefined // may take long, and trimming goes on
    while (!signal.aborted) {
      try {
        const trimmed = await this.#trim.run()
        copying ??= this.#copies
          .run(trimmed, signal)
          .catch(() => undefined) // the state database is away, and trimming says so
          .finally(() => (copying = undefined))
        this.#isFailing = false
      } catch (err) {
        if (!this.#isFailing && !signal.aborted) this.#logger.warn({ err }, 'streams could not be trimmed; it is tried again')
        this.#isFailing = true
      }
      await delay(EVERY_MS, undefined, { signal, ref: false }).catch(() => undefined)
    }
  }
}
