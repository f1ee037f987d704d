/**
 * `import { consume } from 'tailrace/client'`: reads a pull sink. It needs fetch and nothing else, so it runs in Node, Deno and Bun.
 *
 *  - A message is settled by the program, or by its handler: acked when that settles, given back when it fails. What is neither comes
 *    again when the sink's ack_wait_ms is over. So a program that dies loses nothing.
 *  - The next batch is on its way while one is handled. Of both together no more is held than is handled in a quarter of
 *    ack_wait_ms at the present pace, and a message whose time is over before it was begun is let go: it comes again.
 *  - The service hands out one message of a row at a time, so handlers that run beside each other keep the order of each row.
 *  - When the signal is aborted, or a loop is left, what was not begun goes back at once, what is being handled ends and is settled,
 *    and nothing more is received.
 */
import { parseExact } from './exact-json.ts'
import { Batch, type Deleted, type Message, type Row } from './message.ts'
import { inTraceOf, pause, ServiceCalls, TailraceError, type Retry } from './service-calls.ts'
import { Settlements } from './settlements.ts'

export { TailraceError, type Retry } from './service-calls.ts'
export type { Batch, Deleted, Message, Metadata, Row } from './message.ts'

/** Says what to read, and how. */
export type ConsumeOptions = Readonly<{
  /** id or name of the pull sink */
  sink: string
  /** API token of its account */
  token: string
  /** of the service; default "http://127.0.0.1:7376" */
  url?: string | URL
  /** messages in an answer, at most 1000; default 100 */
  batchSize?: number
  /** how long a call waits for a message; default 20 s, at most 5 minutes */
  waitForMs?: number
  /** ends the reading */
  signal?: AbortSignal
  /** the sink's ack_wait_ms; default: what the service says, or 30 s where the token may not read the sink */
  ackWaitMs?: number
  /** hears of calls that failed and are tried again; default: console.warn from the third time on */
  onRetry?: (retry: Retry) => void
  /** default: the runtime's own */
  fetch?: typeof fetch
}>

/** Says how messages are handled. */
export type HandleOptions = ConsumeOptions &
  Readonly<{
    /** handlers that run beside each other; default 1 */
    concurrency?: number
    /** hears of handlers that failed; default: console.error. Their messages come again after a pause that grows */
    onError?: (error: unknown, message: Message) => void
  }>

/** Works on one message: it is acked when this settles, and given back when it fails. */
export type Handler<R = Row, D = Deleted<R>, T = unknown> = (message: Message<R, D, T>) => unknown

/** A sink that can be read: message by message, or batch by batch. */
export interface Consumer<R = Row, D = Deleted<R>, T = unknown> extends AsyncIterable<Message<R, D, T>> {
  /** Gives batches; each wants an ack or a nack. */
  batches(): AsyncGenerator<Batch<R, D, T>, void, undefined>
}

const DEFAULT_URL = 'http://127.0.0.1:7376'
const DEFAULT_BATCH = 100
const MAX_BATCH = 1_000
const DEFAULT_WAIT_MS = 20_000
const MAX_WAIT_MS = 300_000
/** What a sink has unless it says otherwise. */
const DEFAULT_ACK_WAIT_MS = 30_000
/** Of ack_wait_ms: the rest is for the way of messages and acks. */
const USABLE = 0.9
/** Of ack_wait_ms, for each of two batches. */
const HELD = 1 / 8
/** A receive that is older waits for a message to be written: to end it leaves none on its way, which would come again only after ack_wait_ms. */
const LINGER_MS = 1_000
/** An empty answer that comes sooner would be asked for again and again. */
const LEAST_WAIT_MS = 250
const FIRST_NACK_PAUSE_MS = 500
const MAX_NACK_PAUSE_MS = 60_000
/** Failures of a handler that are remembered. */
const MAX_FAILURES = 10_000

/** Makes a consumer of a pull sink: loop over it, or over its batches. @throws TailraceError ARGUMENT_INVALID */
export function consume<R = Row, D = Deleted<R>, T = unknown>(options: ConsumeOptions): Consumer<R, D, T>
/**
 * Handles messages until the signal is aborted.
 * @returns settles when all that was begun is settled
 * @throws TailraceError what the service refuses for good, such as TOKEN_INVALID or NOT_FOUND
 */
export function consume<R = Row, D = Deleted<R>, T = unknown>(options: HandleOptions, handler: Handler<R, D, T>): Promise<void>
export function consume<R, D, T>(options: HandleOptions, handler?: Handler<R, D, T>): Consumer<R, D, T> | Promise<void> {
  if (handler) return handleAll(options, handler)
  const checked = checkedOptions(options)
  return {
    batches: () => new Reading<R, D, T>(checked).batches(checked.batchSize),
    [Symbol.asyncIterator]: () => new Reading<R, D, T>(checked).messages(1),
  }
}

type Checked = Required<Pick<ConsumeOptions, 'sink' | 'token' | 'batchSize' | 'waitForMs' | 'fetch' | 'onRetry'>> &
  Readonly<{ url: string; signal: AbortSignal; ackWaitMs: number | undefined }>

function checkedOptions(options: ConsumeOptions): Checked {
  const { sink, token, batchSize = DEFAULT_BATCH, waitForMs = DEFAULT_WAIT_MS, ackWaitMs } = options
  if (typeof sink !== 'string' || sink === '') throw invalid('sink must be the id or name of a pull sink')
  if (typeof token !== 'string' || token === '') throw invalid('token must be an API token of the account')
  if (!isWhole(batchSize, 1, MAX_BATCH)) throw invalid(`batchSize must be a whole number from 1 to ${MAX_BATCH}`)
  if (!isWhole(waitForMs, 0, MAX_WAIT_MS)) throw invalid(`waitForMs must be a whole number from 0 to ${MAX_WAIT_MS}`)
  return {
    ...{ sink, token, batchSize, waitForMs, ackWaitMs },
    url: String(options.url ?? DEFAULT_URL).replace(/\/+$/, ''),
    signal: options.signal ?? new AbortController().signal,
    fetch: options.fetch ?? globalThis.fetch,
    onRetry: options.onRetry ?? warn(sink),
  }
}

const isWhole = (value: number, least: number, most: number): boolean => Number.isInteger(value) && value >= least && value <= most
const invalid = (message: string): TailraceError => new TailraceError(message, { code: 'ARGUMENT_INVALID' })
const warn =
  (sink: string) =>
  ({ error, attempt, delayMs }: Retry): void => {
    if (attempt >= 3) console.warn(`tailrace: sink ${sink}: ${error.message} (${error.code}); trying again in ${Math.round(delayMs)} ms`)
  }

async function handleAll<R, D, T>(options: HandleOptions, handler: Handler<R, D, T>): Promise<void> {
  const { concurrency = 1, onError = (error) => console.error('tailrace: a handler failed:', error) } = options
  if (!isWhole(concurrency, 1, Number.MAX_SAFE_INTEGER)) throw invalid('concurrency must be a whole number from 1 on')
  const reading = new Reading<R, D, T>(checkedOptions(options))
  const messages = reading.messages(concurrency)
  const pauses = new NackPauses()
  /** A message whose time is over comes again, also here, while it is worked on: once is enough. */
  const atWork = new Set<string>()
  const work = async () => {
    for await (const message of { [Symbol.asyncIterator]: () => messages }) {
      if (atWork.has(message.ack_id)) continue
      atWork.add(message.ack_id)
      try {
        await inTraceOf(message.metadata?.transaction_annotations, () => handler(message))
      } catch (error) {
        onError(error, message as Message)
        await pause(pauses.after(message.ack_id, message.expiresAt - Date.now()), reading.stopped).catch(() => {})
        reading.settled(message.nack())
        continue
      } finally {
        atWork.delete(message.ack_id)
      }
      pauses.forget(message.ack_id)
      reading.settled(message.ack())
    }
  }
  await Promise.all(Array.from({ length: concurrency }, work).map((worker) => worker.catch((error: unknown) => reading.fail(error))))
  await reading.end()
}

/** How long a message whose handler failed is kept before it is given back, for the API has no pause for that. */
class NackPauses {
  readonly #failures = new Map<string, number>()

  /** @param leftMs until it comes again by itself */
  after(id: string, leftMs: number): number {
    const failures = (this.#failures.get(id) ?? 0) + 1
    this.#failures.delete(id)
    this.#failures.set(id, failures)
    for (const oldest of this.#failures.keys()) {
      if (this.#failures.size <= MAX_FAILURES) break
      this.#failures.delete(oldest)
    }
    return Math.max(0, Math.min(FIRST_NACK_PAUSE_MS * 2 ** Math.min(failures - 1, 16), MAX_NACK_PAUSE_MS, leftMs))
  }

  forget(id: string): void {
    if (this.#failures.size > 0) this.#failures.delete(id)
  }
}

/** A batch of which some messages may not have been begun. */
type Held<R, D, T> = { readonly batch: Batch<R, D, T>; begun: number }

/** One reading of a sink, from its first call to its stop. */
class Reading<R, D, T> {
  readonly #options: Checked
  readonly #calls: ServiceCalls
  readonly #settlements: Settlements
  /** aborted by the program's signal, by the end of a loop, or by a failure */
  readonly #stop = new AbortController()
  readonly #held = new Set<Held<R, D, T>>()
  #ackWaitMs: Promise<number> | undefined
  #failure: Readonly<{ error: unknown }> | undefined
  #watched: Promise<void> | undefined
  /** time that a message took lately; 0: none was handled */
  #paceMs = 0

  constructor(options: Checked) {
    this.#options = options
    this.#calls = new ServiceCalls(options)
    this.#settlements = new Settlements(this.#calls, this.stopped)
    const { signal } = options
    if (signal.aborted) this.#stop.abort()
    else signal.addEventListener('abort', this.#onStop, { once: true })
  }

  /** aborted when nothing more is begun */
  get stopped(): AbortSignal {
    return this.#stop.signal
  }

  /** Gives messages one by one. @param first how many are asked for before their pace is known */
  async *messages(first: number): AsyncGenerator<Message<R, D, T>, void, undefined> {
    for await (const held of this.#batches(first)) {
      for (const message of held.batch) {
        if (this.stopped.aborted || message.expiresAt <= Date.now()) break
        held.begun++
        yield message
      }
      this.#held.delete(held)
    }
  }

  /** Gives batches. @param first how many messages are asked for before their pace is known */
  async *batches(first: number): AsyncGenerator<Batch<R, D, T>, void, undefined> {
    for await (const held of this.#batches(first)) {
      this.#held.delete(held)
      yield held.batch
    }
  }

  /** Watches a settlement that nobody awaits: its failure ends the reading. */
  settled(settlement: Promise<void>): void {
    if (settlement === this.#watched) return // one for all that go with the same call
    this.#watched = settlement
    settlement.catch((error: unknown) => this.fail(error))
  }

  /** Ends the reading: `end` throws the first failure. */
  fail(error: unknown): void {
    this.#failure ??= { error }
    this.#onStop()
  }

  /** Waits until all is settled. @throws what it failed with */
  async end(): Promise<void> {
    this.#onStop()
    await this.#settlements.idle()
    this.#options.signal.removeEventListener('abort', this.#onStop)
    if (this.#failure) throw this.#failure.error
  }

  async *#batches(first: number): AsyncGenerator<Held<R, D, T>, void, undefined> {
    let next: Promise<Held<R, D, T> | undefined> | undefined
    try {
      while (!this.stopped.aborted) {
        const held = await (next ?? this.#receive(first))
        next = undefined
        if (!held) continue
        if (held.batch.expiresAt <= Date.now()) {
          this.#held.delete(held)
          continue
        }
        next = this.#receive(first)
        next.catch(() => {}) // it is looked at when this batch is done
        const begunAt = performance.now()
        yield held
        this.#measure(performance.now() - begunAt, held.batch.messages.length)
      }
    } finally {
      this.#onStop()
      await next?.catch((error: unknown) => void (this.#failure ??= { error }))
      await this.end()
    }
  }

  /** @returns undefined: there was none, or nothing more is begun */
  async #receive(first: number): Promise<Held<R, D, T> | undefined> {
    const { waitForMs } = this.#options
    this.#ackWaitMs ??= this.#findAckWait()
    const ackWaitMs = await this.#ackWaitMs
    const body = { batch_size: this.#size(first, ackWaitMs), wait_for: waitForMs, ack_token: true }
    const begunAt = performance.now()
    try {
      const { text, arrivedAt } = await this.#calls.post('receive', body, { signal: this.stopped, waitMs: waitForMs, lingerMs: LINGER_MS })
      const received = parseExact(text) as ConstructorParameters<typeof Batch>[0]
      if (received.data.length === 0) {
        if (arrivedAt - begunAt < LEAST_WAIT_MS) await pause(LEAST_WAIT_MS, this.stopped) // a sink that is paused, a service that stops
        return undefined
      }
      const expiresAt = Date.now() - (performance.now() - arrivedAt) + ackWaitMs * USABLE
      const held = { batch: new Batch<R, D, T>(received, this.#settlements, expiresAt), begun: 0 }
      this.#held.add(held)
      if (!this.stopped.aborted) return held
      this.#giveBack()
    } catch (error) {
      if (error !== this.stopped.reason) throw error
    }
    return undefined
  }

  async #findAckWait(): Promise<number> {
    const { ackWaitMs } = this.#options
    if (ackWaitMs !== undefined) return ackWaitMs
    const sink = await this.#calls.sink(this.stopped).catch(() => undefined)
    const stored = sink?.['ack_wait_ms']
    return typeof stored === 'number' ? stored : DEFAULT_ACK_WAIT_MS
  }

  #size(first: number, ackWaitMs: number): number {
    const { batchSize } = this.#options
    if (this.#paceMs === 0) return Math.min(first, batchSize)
    return Math.max(1, Math.min(batchSize, Math.floor((ackWaitMs * HELD) / this.#paceMs)))
  }

  #measure(tookMs: number, messages: number): void {
    const paceMs = Math.max(tookMs / messages, 1e-6)
    this.#paceMs = this.#paceMs === 0 ? paceMs : this.#paceMs * 0.7 + paceMs * 0.3
  }

  readonly #onStop = (): void => {
    this.#stop.abort()
    this.#giveBack()
  }

  /** What was not begun comes at once to others; without an answer to this it does when ack_wait_ms is over. */
  #giveBack(): void {
    for (const { batch, begun } of this.#held) {
      if (batch.expiresAt <= Date.now()) continue // others may have it already
      const back = begun === 0 ? [batch.nack()] : batch.messages.slice(begun).map((message) => message.nack())
      for (const one of back) one.catch(() => {})
    }
    this.#held.clear()
  }
}
