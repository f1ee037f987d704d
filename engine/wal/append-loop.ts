/**
 * One append at a time, and none after one that failed (correctness 4, invariant 1). While an append is open the next
 * one gathers, so packs grow with the load; when nothing is open, what was gathered leaves after a few milliseconds.
 */
import { EngineError } from '../errors.ts'
import type { AppendRecord, Log, Progress } from '../log/log.ts'

export type Append = Readonly<{
  records: readonly AppendRecord[]
  progress: Progress
  messages: number
  /** raw size, the share of the bytes in flight that it frees */
  bytes: number
  /** commit time of its oldest transaction, µs since the epoch */
  oldestCommitUs: number
}>

export type AppendLoopOptions = Readonly<{
  log: Pick<Log, 'append'>
  /** what has been gathered so far, or undefined: nothing */
  take: () => Append | undefined
  durable: (append: Append, number: number) => void
  /** called once; nothing is appended afterwards */
  failed: (error: EngineError) => void
  lingerMs: number
  /** an append that hasn't settled by then has failed for us: what becomes of it is sorted out by the next run */
  timeoutMs: number
}>

export class AppendLoop {
  readonly #options: AppendLoopOptions
  /** the number the next append gets; the first is 1 */
  #next = 1
  #open: Append | undefined
  #appending: Promise<unknown> = Promise.resolve()
  #timer: NodeJS.Timeout | undefined
  #state: 'running' | 'stopped' | 'failed' = 'running'
  #idle = Promise.withResolvers<void>()

  constructor(options: AppendLoopOptions) {
    this.#options = options
  }

  /** Number of the append that what is gathered now will leave in. */
  get gathering(): number {
    return this.#next
  }

  /** Number of the last append that was begun; 0: none. */
  get begun(): number {
    return this.#next - 1
  }

  get open(): Append | undefined {
    return this.#open
  }

  /** Settles when no append is open; never rejects. */
  get settled(): Promise<unknown> {
    return this.#appending
  }

  /** Something was gathered. @param full don't linger: there is a pack's worth of it */
  wake(full: boolean): void {
    if (this.#open || this.#state !== 'running') return
    if (full) this.#begin()
    else this.#timer ??= setTimeout(() => this.#begin(), this.#options.lingerMs)
  }

  /** Appends what is gathered and waits until nothing is open. */
  async drain(): Promise<void> {
    this.#begin()
    while (this.#open && this.#state === 'running') {
      await this.#idle.promise
    }
  }

  /** Nothing is begun any more; an open append is left to itself. */
  stop(): void {
    if (this.#state === 'running') this.#state = 'stopped'
    clearTimeout(this.#timer)
    this.#idle.resolve()
  }

  #begin(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#open || this.#state !== 'running') return
    let append: Append | undefined
    try {
      append = this.#options.take()
    } catch (error) {
      return this.#fail(error)
    }
    if (!append) return
    this.#open = append
    this.#next++
    void this.#run(append, this.#next - 1)
  }

  async #run(append: Append, number: number): Promise<void> {
    const { log, timeoutMs } = this.#options
    const timeout = Promise.withResolvers<never>()
    const timer = setTimeout(
      () =>
        timeout.reject(
          new EngineError('LOG_APPEND_TIMEOUT', `an append of ${append.bytes} bytes has not settled within ${timeoutMs} ms`, {
            bytes: append.bytes,
          }),
        ),
      timeoutMs,
    )
    try {
      const appending = log.append(append.records, append.progress)
      this.#appending = appending.catch(() => undefined)
      await Promise.race([appending, timeout.promise])
    } catch (error) {
      return this.#fail(error)
    } finally {
      clearTimeout(timer)
    }
    this.#open = undefined
    const idle = this.#idle
    this.#idle = Promise.withResolvers()
    if (this.#state === 'running') {
      this.#options.durable(append, number)
      this.#begin()
    }
    idle.resolve()
  }

  #fail(error: unknown): void {
    if (this.#state === 'failed') return
    const wasRunning = this.#state === 'running'
    this.#state = 'failed'
    clearTimeout(this.#timer)
    this.#idle.resolve()
    const text = error instanceof Error ? error.message : String(error)
    if (wasRunning)
      this.#options.failed(
        error instanceof EngineError
          ? error
          : new EngineError('LOG_APPEND_FAILED', `the log refused an append: ${text}`, {}, { cause: error }),
      )
  }
}
