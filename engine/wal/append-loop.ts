/**
 * One append at a time, and none after one that failed (correctness 4, invariant 1). While an append is open the next
 * one gathers, so packs grow with the load. Each append costs the same, whatever is in it: the service, its clients and the disk
 * do a round for it. So what is no full pack waits until some milliseconds after the last append began, and as long after its
 * end as it took: a change that comes alone leaves at once, and a slow disk is not asked without rest.
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

type AppendLoopOptions = Readonly<{
  log: Pick<Log, 'append'>
  /** of what has been gathered so far */
  gathered: () => Readonly<{ isEmpty: boolean; isFull: boolean }>
  /** what has been gathered so far, or undefined: nothing */
  take: () => Append | undefined
  durable: (append: Append, number: number) => void
  /** called once; nothing is appended afterwards */
  failed: (error: EngineError) => void
  /** from the beginning of one append to that of the next, unless there is a pack's worth */
  lingerMs: number
  /** an append that hasn't settled by then has failed for us: what becomes of it is sorted out by the next run */
  timeoutMs: number
}>

/** A disk rests no longer than this between two appends. */
const MAX_REST_MS = 10

export class AppendLoop {
  readonly #options: AppendLoopOptions
  /** the number the next append gets; the first is 1 */
  #next = 1
  #open: Append | undefined
  #appending: Promise<unknown> = Promise.resolve()
  #timer: NodeJS.Timeout | undefined
  /** what is no full pack is not appended before this; monotonic ms */
  #restsUntil: number
  #state: 'running' | 'stopped' | 'failed' = 'running'
  #idle = Promise.withResolvers<void>()

  constructor(options: AppendLoopOptions) {
    this.#options = options
    this.#restsUntil = performance.now() + options.lingerMs
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

  /** Something was gathered. */
  wake(): void {
    if (this.#open || this.#state !== 'running') return
    const { isEmpty, isFull } = this.#options.gathered()
    if (isFull) this.#begin()
    else if (!isEmpty) this.#timer ??= setTimeout(() => this.#begin(), Math.max(0, this.#restsUntil - performance.now()))
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
    const { log, lingerMs, timeoutMs } = this.#options
    const begunAt = performance.now()
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
    const endedAt = performance.now()
    this.#restsUntil = Math.max(begunAt + lingerMs, endedAt + Math.min(endedAt - begunAt, MAX_REST_MS))
    const idle = this.#idle
    this.#idle = Promise.withResolvers()
    if (this.#state === 'running') {
      this.#options.durable(append, number)
      this.wake()
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
