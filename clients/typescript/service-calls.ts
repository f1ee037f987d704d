/** Calls of the API that are tried again: with pauses that grow, by chance a little longer, and never shorter than the service asks for. */

/** What a call, or a consumer, failed with. */
export class TailraceError extends Error {
  override readonly name = 'TailraceError'
  /** as in docs/errors.md; SERVICE_UNREACHABLE where no answer came */
  readonly code: string
  /** HTTP status; undefined where no answer came */
  readonly status: number | undefined
  /** what to do about it, where the service says so */
  readonly remedy: string | undefined

  constructor(
    message: string,
    { code, status, remedy, cause }: Readonly<{ code: string; status?: number; remedy?: string; cause?: unknown }>,
  ) {
    super(message, cause === undefined ? undefined : { cause })
    this.code = code
    this.status = status
    this.remedy = remedy
  }
}

/** Tells of a call that failed and is tried again. */
export type Retry = Readonly<{ error: TailraceError; attempt: number; delayMs: number }>

export type CallOptions = Readonly<{
  /** of the service, such as "http://127.0.0.1:7376" */
  url: string
  token: string
  /** id or name */
  sink: string
  /** default: the runtime's own */
  fetch: typeof fetch
  onRetry: (retry: Retry) => void
}>
type PostOptions = Readonly<{ signal: AbortSignal; waitMs?: number; lingerMs?: number }>
type OnceOptions = Readonly<{ signal: AbortSignal; withinMs: number; lingerMs?: number }>
type Answer = Readonly<{ text: string; arrivedAt: number }>

const FIRST_PAUSE_MS = 100
const MAX_PAUSE_MS = 10_000
/** Of the pause: clients that failed together don't come back together. */
const MOST_CHANCE = 0.5
/** A call without an answer for so long has lost its connection. */
const ANSWER_WITHIN_MS = 30_000
const PASSING = new Set([408, 425, 429])

/** Calls the pull API of one sink. */
export class ServiceCalls {
  readonly #options: CallOptions

  constructor(options: CallOptions) {
    this.#options = options
  }

  /**
   * Posts until it is answered with 200.
   * @param options waitMs: how long the service may hold it; lingerMs: one that is younger is not ended by the signal, for an answer may be on its way
   * @throws TailraceError the service refuses it; the signal's reason when that is aborted
   */
  async post(call: 'receive' | 'ack' | 'nack', body: object, { signal, waitMs = 0, lingerMs = 0 }: PostOptions): Promise<Answer> {
    const path = `http_pull_consumers/${encodeURIComponent(this.#options.sink)}/${call}`
    const text = JSON.stringify(body)
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#once(path, { method: 'POST', body: text }, { signal, lingerMs, withinMs: waitMs + ANSWER_WITHIN_MS })
      if (!(outcome instanceof Failure)) return outcome
      if (!outcome.isPassing) throw outcome.error
      const backOff = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(attempt - 1, 16), MAX_PAUSE_MS)
      const delayMs = Math.max(backOff, outcome.retryAfterMs) * (1 + Math.random() * MOST_CHANCE)
      this.#options.onRetry({ error: outcome.error, attempt, delayMs })
      await pause(delayMs, signal)
    }
  }

  /** Reads the sink once. @returns undefined: it was not answered, or the token may not see it */
  async sink(signal: AbortSignal): Promise<Readonly<Record<string, unknown>> | undefined> {
    const path = `sinks/${encodeURIComponent(this.#options.sink)}`
    const outcome = await this.#once(path, {}, { signal, withinMs: ANSWER_WITHIN_MS })
    return outcome instanceof Failure ? undefined : fieldsOf(outcome.text)
  }

  /** @throws the signal's reason */
  async #once(path: string, init: RequestInit, { signal, withinMs, lingerMs = 0 }: OnceOptions): Promise<Answer | Failure> {
    const { url, token, fetch } = this.#options
    signal.throwIfAborted()
    const ended = new AbortController()
    const begunAt = performance.now()
    let lingering: ReturnType<typeof setTimeout> | undefined
    const onAbort = () => {
      lingering = setTimeout(() => ended.abort(signal.reason), Math.max(0, begunAt + lingerMs - performance.now()))
    }
    const timer = setTimeout(() => ended.abort(new Error(`no answer within ${withinMs} ms`)), withinMs)
    signal.addEventListener('abort', onAbort)
    try {
      const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', ...traceHeaders() }
      const answer = await fetch(`${url}/api/${path}`, { ...init, headers, signal: ended.signal })
      const arrivedAt = performance.now()
      const text = await answer.text()
      return answer.ok ? { text, arrivedAt } : Failure.of(answer, text)
    } catch (cause) {
      signal.throwIfAborted()
      const reason = ended.signal.aborted ? (ended.signal.reason as Error).message : wordsOf(cause)
      return new Failure(
        new TailraceError(`no Tailrace answers at ${url}: ${reason}`, { code: 'SERVICE_UNREACHABLE', remedy: UNREACHABLE, cause }),
      )
    } finally {
      clearTimeout(timer)
      clearTimeout(lingering)
      signal.removeEventListener('abort', onAbort)
    }
  }
}

const UNREACHABLE = 'Check that the service runs, its address and the network.'

/** A call that was refused or got no answer. */
class Failure {
  readonly error: TailraceError
  readonly isPassing: boolean
  readonly retryAfterMs: number

  constructor(error: TailraceError, retryAfterMs = 0) {
    const { status } = error
    this.error = error
    this.isPassing = status === undefined || status >= 500 || PASSING.has(status)
    this.retryAfterMs = retryAfterMs
  }

  static of({ status, headers }: Response, text: string): Failure {
    const { summary, code, remedy } = fieldsOf(text)
    const error = new TailraceError(typeof summary === 'string' ? summary : `HTTP ${status}: ${text.slice(0, 200)}`, {
      code: typeof code === 'string' ? code : `HTTP_${status}`,
      status,
      ...(typeof remedy === 'string' && { remedy }),
    })
    return new Failure(error, retryAfterMs(headers.get('retry-after')))
  }
}

/** Reads Retry-After: seconds or a date. */
function retryAfterMs(value: string | null): number {
  if (value === null) return 0
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now()
  return Number.isFinite(ms) ? Math.max(0, ms) : 0
}

/** Waits. @throws the signal's reason */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason)
    const onAbort = () => {
      clearTimeout(timer)
      reject(signal.reason)
    }
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    }, ms)
    signal.addEventListener('abort', onAbort, { once: true })
  })
}

function fieldsOf(json: string): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(json)
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}
  } catch {
    return {} // a proxy's page
  }
}

/** The reason of fetch is in its cause. */
function wordsOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { cause } = error
  return cause instanceof Error ? cause.message || String((cause as { code?: unknown }).code ?? error.message) : error.message
}

/** Describes what @opentelemetry/api 1.x leaves for others where a program has it: so nothing is imported. */
type Telemetry = Readonly<{
  context?: { active(): unknown; with<T>(context: unknown, work: () => T): T }
  propagation?: {
    inject(context: unknown, carrier: object, setter: { set(carrier: Record<string, string>, key: string, value: string): void }): void
    extract(context: unknown, carrier: object, getter: typeof GETTER): unknown
  }
}>
const OPENTELEMETRY = Symbol.for('opentelemetry.js.api.1')
const SETTER = { set: (carrier: Record<string, string>, key: string, value: string) => void (carrier[key] = value) }

const GETTER = {
  get: (carrier: object, key: string): string | undefined => {
    const value = (carrier as Readonly<Record<string, unknown>>)[key]
    return typeof value === 'string' ? value : undefined
  },
  keys: (carrier: object): string[] => Object.keys(carrier),
}

/** Works in the trace of who wrote a row, where the program has OpenTelemetry. @param annotations of the transaction that wrote it */
export function inTraceOf<T>(annotations: unknown, work: () => T): T {
  const { context, propagation } = (globalThis as unknown as Record<symbol, Telemetry | undefined>)[OPENTELEMETRY] ?? {}
  if (!context || !propagation || typeof annotations !== 'object' || annotations === null) return work()
  return context.with(propagation.extract(context.active(), annotations, GETTER), work)
}

/** The headers, such as traceparent, by which the calls belong to the trace of who makes them. */
function traceHeaders(): Readonly<Record<string, string>> {
  const telemetry = (globalThis as unknown as Record<symbol, Telemetry | undefined>)[OPENTELEMETRY]
  if (!telemetry?.propagation) return {}
  const headers: Record<string, string> = {}
  // without a context manager nothing is active, and OpenTelemetry's own API is not there to say so
  if (telemetry.context) telemetry.propagation.inject(telemetry.context.active(), headers, SETTER)
  return headers
}
