/**
 * Trims the streams now and then, while this process has the lease of their database (engine/dispatch/stream-trim.ts), and has
 * what holds that up copied meanwhile (engine/dispatch/stream-copies.ts).
 */
import { Rounds } from '../engine/bell.ts'
import { StreamCopies, type StreamCopiesOptions } from '../engine/dispatch/stream-copies.ts'
import { StreamTrim } from '../engine/dispatch/stream-trim.ts'
import type { Logger } from '../engine/logger.ts'

const EVERY_MS = 1_000

type StreamTrimmingOptions = StreamCopiesOptions &
  Readonly<{
    /** names this process in the state database */
    holder: string
    logger: Logger
    /** a generation needs its stream no more */
    copied: () => void
  }>

/** Trims the streams of this process's databases, every second; nobody rings for it. */
export class StreamTrimming extends Rounds {
  readonly #trim: StreamTrim
  readonly #copies: StreamCopies
  readonly #logger: Logger
  readonly #copied: () => void
  #isCopying = false

  constructor({ logger, copied, ...options }: StreamTrimmingOptions) {
    super()
    this.#trim = new StreamTrim(options)
    this.#copies = new StreamCopies(options)
    this.#logger = logger
    this.#copied = copied
  }

  protected override async round(): Promise<number> {
    const trimmed = await this.#trim.run()
    if (!this.#isCopying) void this.#copy(trimmed)
    return EVERY_MS
  }

  /** May take long, and trimming goes on. */
  async #copy(trimmed: Awaited<ReturnType<StreamTrim['run']>>): Promise<void> {
    this.#isCopying = true
    try {
      for await (const { error: err, ...copy } of this.#copies.run(trimmed, this.signal))
        if (copy.topic === undefined)
          this.#logger.warn({ ...copy, err }, 'what a sink has left to deliver of a stream could not be copied; it is tried again')
        else {
          this.#logger.info(copy, 'what a sink has left to deliver of a stream has a topic of its own now')
          this.#copied()
        }
    } catch {
      // the state database is away, and trimming says so
    } finally {
      this.#isCopying = false
    }
  }

  protected override failed(err: unknown, isFirst: boolean): number {
    if (isFirst) this.#logger.warn({ err }, 'streams could not be trimmed; it is tried again')
    return EVERY_MS
  }
}
