/**
 * One append at a time, and none after one that failed (docs/rules.md, rule 4). While an append is open the next
 * one gathers, so packs grow with the load. Each append costs the same, whatever is in it: the service, its clients and the disk
 * do a round for it. So what is no full pack waits until some milliseconds after the last append began, and as long after its
 * end as it took: a change that comes alone leaves at once, and a slow disk is not asked without rest. What a large append takes it
 * takes for its bytes, rows of a backfill mostly: changes behind it don't wait for that twice.
 */
import { EngineError, errorText } from '../errors.ts'
import { BusyShare } from '../busy-share.ts'
import { within } from '../within.ts'
import type { AppendRecord, Log, Progress } from '../log/log.ts'
import type { Cursor } from './cursor.ts'
import type { Packing } from './packing.ts'

/** Holds what is appended to the log at once. */
export type Append = Readonly<{
  records: readonly AppendRecord[]
  progress: Progress
  messages: number
  /** raw size, the share of the bytes in flight that it frees */
  bytes: number
  /** commit time of its oldest transaction, µs since the epoch */
  oldestCommitUs: number
  /** when the first of its messages was read, ms since the epoch */
  readAtMs: number
}>

type AppendLoopOptions = Readonly<{
  log: Pick<Log, 'append'>
  packing: Pick<Packing, 'isEmpty' | 'isFull' | 'take'>
  /** says how far an append brings the source */
  cursor: Pick<Cursor, 'settle'>
  /** gets the time in which packs are encoded */
  decoding: BusyShare
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
/** An append of more bytes is large. */
const LARGE_BYTES = 64 * 1024

/** Appends what a run has gathered. */
export class AppendLoop {
  readonly #options: AppendLoopOptions
  /** an append is open */
  readonly #busy = new BusyShare(performance.now())
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

  /** Share of the last ten seconds in which an append was open. */
  get busyPercent(): number {
    return this.#busy.percent(performance.now())
  }

  /** Settles when no append is open; never rejects. */
  get settled(): Promise<unknown> {
    return this.#appending
  }

  /** Something was gathered. */
  wake(): void {
    if (this.#open || this.#state !== 'running') return
    const { isEmpty, isFull } = this.#options.packing
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
    const { packing, cursor, decoding } = this.#options
    if (packing.isEmpty) return
    const from = performance.now()
    let append: Append | undefined
    try {
      append = packing.take(cursor.settle())
    } catch (error) {
      return this.#fail(error)
    }
    if (!append) return
    const to = performance.now()
    decoding.add(from, to)
    this.#busy.begin(to)
    this.#open = append
    this.#next++
    void this.#run(append, this.#next - 1)
  }

  async #run(append: Append, number: number): Promise<void> {
    const { log, lingerMs, timeoutMs } = this.#options
    const begunAt = performance.now()
    try {
      const appending = log.append(append.records, append.progress)
      this.#appending = appending.catch(() => undefined)
      const text = `the log did not finish an append of ${append.bytes} bytes within ${timeoutMs} ms`
      await within(timeoutMs, appending, () => new EngineError('LOG_APPEND_TIMEOUT', text, { bytes: append.bytes }))
    } catch (error) {
      return this.#fail(error)
    }
    this.#open = undefined
    const endedAt = performance.now()
    this.#busy.end(endedAt)
    const restMs = Math.min(endedAt - begunAt, MAX_REST_MS) * Math.min(1, LARGE_BYTES / append.bytes)
    this.#restsUntil = Math.max(begunAt + lingerMs, endedAt + restMs)
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
    const text = errorText(error)
    if (wasRunning)
      this.#options.failed(
        error instanceof EngineError
          ? error
          : new EngineError('LOG_APPEND_FAILED', `the log refused an append: ${text}`, {}, { cause: error }),
      )
  }
}

/** Holds, by log and source, an append that its run has left behind. */
const openAppends = new WeakMap<Log, Map<string, Promise<unknown>>>()

/** Remembers the last append of a run that ends, for the next run. @param settled of the append */
export function leaveBehind(log: Log, source: string, settled: Promise<unknown>): void {
  openAppends.set(log, (openAppends.get(log) ?? new Map<string, Promise<unknown>>()).set(source, settled))
}

/**
 * Waits for what the source's former run has left open: two runs never append to a log at once, even when one gave up on an append.
 * @throws EngineError LOG_APPEND_TIMEOUT
 */
export async function formerAppend(log: Log, source: string, timeoutMs: number): Promise<void> {
  const text = `the log did not finish an append of the former run within ${timeoutMs} ms`
  await within(timeoutMs, openAppends.get(log)?.get(source) ?? Promise.resolve(), () => new EngineError('LOG_APPEND_TIMEOUT', text))
}
