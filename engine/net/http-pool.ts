/**
 * Requests to one origin, over a bounded number of connections that stay open. Each has a client of its own, and the one that
 * was free last is used next, so that no more of them are in use than there are requests at once: undici's own pool has
 * a client back only a turn of the event loop later, and takes others meanwhile. A request settles with an answer or with
 * what went wrong, and never rejects: whoever sends messages must know whether anything may have arrived. No redirect
 * is followed, and addresses are those the egress guard lets through.
 */
import { isIP, type Socket } from 'node:net'
import type { Dispatcher } from 'undici'
import { Bag, NOWHERE, type Member } from '../bag.ts'
import { EngineError, codeOf } from '../errors.ts'
import { type Egress, guardedLookup } from './egress.ts'
import { buildConnector, Client } from './http.ts'

/** A request. */
export type HttpRequest = Readonly<{
  method: string
  /** with the query */
  path: string
  /** name, value, name, value, … */
  headers: readonly string[]
  body?: Uint8Array | null
  /** from the call to the end of the answer, a wait for a connection included */
  timeoutMs: number
  /** how much of the answer's body is kept; a short rest is read and dropped, and before a longer one the connection is ended */
  keepBytes: number
  /** gives up; what was sent may arrive all the same */
  signal?: AbortSignal | undefined
  /** told before the answer when nobody reads the body any more: its memory may be used again. Not told when that isn't certain then */
  bodySent?: () => void
}>

/** Holds what a server answered. */
export type HttpAnswer = Readonly<{
  status: number
  headers: Readonly<Record<string, string | string[] | undefined>>
  body: Buffer
  /** longer than `keepBytes` */
  isCut: boolean
}>

/** Why there is no answer. */
export type HttpFailure = Readonly<{
  /**
   * `connect`: no connection, so nothing was sent · `timeout`: no whole answer in time · `broken`: the connection ended before
   * the answer was whole · `aborted`: by the signal
   */
  phase: 'connect' | 'timeout' | 'broken' | 'aborted'
  /** such as ECONNREFUSED */
  code: string
  message: string
}>

/** Tells what came of a request. */
export type HttpResult = Readonly<{ answer: HttpAnswer; failure?: undefined } | { answer?: undefined; failure: HttpFailure }>

type HttpPoolOptions = Readonly<{
  /** such as "https://search.example.com:9200" */
  origin: string
  connections: number
  egress: Egress
  /** authority in PEM that is trusted instead of the common ones */
  caCert?: string | undefined
}>

const CONNECT_MS = 10_000
/** Node's timers take no more. */
const LONGEST_TIMER_MS = 0x7fffffff
/**
 * So much of an answer is read beyond what is kept, for the connection is used again then. What is longer is not read: each piece of it is
 * memory that only the garbage collector frees.
 */
const READ_ON_BYTES = 1024 * 1024

/** Sends requests to one origin. */
export class HttpPool {
  readonly #origin: string
  readonly #connections: number
  readonly #connect: ReturnType<typeof buildConnector>
  readonly #clients: Client[] = []
  /** the socket that each client is connected with now */
  readonly #sockets = new WeakMap<Client, Socket>()
  /** the clients that no request uses, the last one first */
  readonly #free: Client[] = []
  /** for a client */
  readonly #waiting: Call[] = []
  /** begun and not settled */
  readonly #underWay = new Bag<Call>()
  /** the signals that are listened to: a listener for each request would cost more than the rest of it */
  readonly #signals = new WeakSet<AbortSignal>()
  /** set to the time that ends first, or an earlier one: a timer for each request would be made and cleared in vain */
  #timer: NodeJS.Timeout | undefined
  #timerAt = Infinity
  #isClosed = false

  constructor({ origin, connections, egress, caCert }: HttpPoolOptions) {
    this.#origin = origin
    this.#connections = connections
    this.#connect = guardedConnector(egress, caCert)
  }

  request(request: HttpRequest): Promise<HttpResult> {
    return new Promise((resolve) => this.begin(request, resolve))
  }

  /**
   * Begins a request, and tells what came of it without a promise.
   * @param ended told once, after this has returned, and must not throw. An answer is told in the very tick in which it came, and what is
   *   begun from within goes out on that connection without a pause: a request that comes later is written a turn of the event
   *   loop later still, for a connection that has rested is looked at before
   */
  begin(request: HttpRequest, ended: (result: HttpResult) => void): void {
    const { signal, timeoutMs } = request
    if (signal?.aborted) return queueMicrotask(() => ended({ failure: ABORTED }))
    if (signal) this.#listenTo(signal)
    const call = new Call(request, { tell: ended, freed: this.#freed, isSent: this.#isSent, underWay: this.#underWay })
    call.endsAt = performance.now() + timeoutMs
    if (call.endsAt < this.#timerAt) this.#setTimer(call.endsAt, timeoutMs)
    const client = this.#free.pop() ?? this.#another()
    if (client) this.#send(call, client)
    else this.#waiting.push(call)
  }

  #another(): Client | undefined {
    if (this.#clients.length >= this.#connections || this.#isClosed) return undefined
    const client = new Client(this.#origin, {
      pipelining: 1, // a request never waits behind another's answer
      connect: (options, callback) =>
        this.#connect(options, (...result) => {
          if (result[1]) this.#sockets.set(client, result[1])
          callback(...result)
        }),
      headersTimeout: 0, // each request has its own time
      bodyTimeout: 0,
    })
    this.#clients.push(client)
    return client
  }

  #send(call: Call, client: Client): void {
    call.client = client
    try {
      client.dispatch(call.options, call)
    } catch (error) {
      call.onResponseError(undefined, error instanceof Error ? error : new Error(String(error))) // a header or path that undici refuses
    }
  }

  /** A server may answer before it has read the request: then the rest of it is still read from its memory. */
  readonly #isSent = (client: Client): boolean => this.#sockets.get(client)?.writableLength === 0

  /** The client has done with its request. */
  readonly #freed = (client: Client): void => {
    if (this.#isClosed) return
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) if (!next.isSettled) return this.#send(next, client)
    this.#free.push(client)
  }

  #listenTo(signal: AbortSignal): void {
    if (this.#signals.has(signal)) return
    this.#signals.add(signal)
    const calls = this.#underWay
    const giveUp = () => [...calls].filter((call) => call.request.signal === signal).forEach((call) => call.abort())
    signal.addEventListener('abort', giveUp, { once: true })
  }

  #setTimer(at: number, inMs: number): void {
    clearTimeout(this.#timer)
    this.#timerAt = at
    this.#timer = setTimeout(() => this.#onTime(), Math.min(Math.ceil(inMs), LONGEST_TIMER_MS)).unref() // what is under way keeps the process alive by its socket
  }

  #onTime(): void {
    this.#timerAt = Infinity
    const now = performance.now()
    let next = Infinity
    for (const call of [...this.#underWay]) {
      if (call.endsAt <= now) call.timeOut()
      else next = Math.min(next, call.endsAt)
    }
    if (next < this.#timerAt) this.#setTimer(next, next - now)
  }

  /** Connects, TLS included, and sends nothing. @returns undefined: somebody is there */
  reach(signal: AbortSignal): Promise<HttpFailure | undefined> {
    const { protocol, hostname, host, port } = new URL(this.#origin)
    return new Promise((resolve) => {
      const onAbort = () => resolve(ABORTED)
      signal.addEventListener('abort', onAbort, { once: true })
      this.#connect({ protocol, hostname: hostname.replace(/^\[(.*)\]$/, '$1'), host, port }, (...[error, socket]) => {
        signal.removeEventListener('abort', onAbort)
        socket?.destroy()
        resolve(error ? { phase: 'connect', ...describe(error) } : undefined)
      })
    })
  }

  /** Ends what is under way. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#timer)
    for (const call of this.#waiting.splice(0)) call.onResponseError(undefined, new Error('the connections were closed'))
    await Promise.all(this.#clients.map((client) => client.destroy()))
  }
}

const NO_BODY = Buffer.alloc(0)
/** for an answer that comes in pieces */
const MEMORY_BYTES = 16 * 1024
const ABORTED: HttpFailure = { phase: 'aborted', code: 'ABORTED', message: 'called off' }

/**
 * @property underWay where it is until it is settled. @property freed gets the client that has done with it. @property isSent
 * whether a client has sent all
 */
type CallOptions = Readonly<{
  tell: (result: HttpResult) => void
  freed: (client: Client) => void
  isSent: (client: Client) => boolean
  underWay: Bag<Call>
}>

/** One request under way. */
class Call implements Dispatcher.DispatchHandler, Member {
  place = NOWHERE
  /** monotonic ms */
  endsAt = Infinity
  /** that sends it, until it has done so */
  client: Client | undefined
  readonly request: HttpRequest
  readonly #of: CallOptions
  #controller: Dispatcher.DispatchController | undefined
  #started = false
  #status = 0
  #headers: HttpAnswer['headers'] = {}
  /** what is kept of the body: the only piece as it came, or memory that all are copied into, however small they are */
  #body: Buffer = NO_BODY
  #bytes = 0

  constructor(request: HttpRequest, of: CallOptions) {
    this.request = request
    this.#of = of
    of.underWay.add(this)
  }

  get isSettled(): boolean {
    return this.place === NOWHERE
  }

  get options(): Dispatcher.DispatchOptions {
    const { method, path, headers, body = null } = this.request
    return { method, path, headers: headers as string[], body }
  }

  abort(): void {
    this.#giveUp(ABORTED)
  }

  timeOut(): void {
    this.#giveUp({ phase: 'timeout', code: 'TIMEOUT', message: `no answer within ${this.request.timeoutMs} ms` })
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.isSettled) return controller.abort(new Error('the request was given up'))
    this.#controller = controller
    this.#started = true
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: HttpAnswer['headers']): void {
    if (status < 200) return // an interim answer
    this.#status = status
    this.#headers = headers
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#keep(chunk)
    this.#bytes += chunk.length
    if (this.#bytes <= this.request.keepBytes + READ_ON_BYTES) return
    const answer = this.#answer()
    if (this.#leave()) queueMicrotask(() => this.#of.tell({ answer })) // when the client can tell that it is not connected
    controller.abort(new Error('the rest of an answer is not read'))
  }

  #keep(chunk: Buffer): void {
    const { keepBytes } = this.request
    const kept = Math.min(chunk.length, keepBytes - this.#bytes)
    if (kept <= 0) return
    if (this.#bytes === 0) return void (this.#body = chunk)
    const bytes = this.#bytes + kept
    if (bytes > this.#body.length) {
      const memory = Buffer.allocUnsafeSlow(Math.min(keepBytes, Math.max(MEMORY_BYTES, bytes * 2)))
      this.#body.copy(memory, 0, 0, this.#bytes)
      this.#body = memory
    }
    chunk.copy(this.#body, this.#bytes, 0, kept)
  }

  onResponseEnd(): void {
    const { bodySent } = this.request
    if (bodySent && this.client && this.#of.isSent(this.client)) bodySent()
    this.#end() // before it is told: what is begun then finds its client free
    if (this.#leave()) this.#of.tell({ answer: this.#answer() })
  }

  #answer(): HttpAnswer {
    const { keepBytes } = this.request
    const body = this.#body.subarray(0, Math.min(this.#bytes, keepBytes))
    return { status: this.#status, headers: this.#headers, body, isCut: this.#bytes > keepBytes }
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    this.#fail({ phase: this.#started ? 'broken' : 'connect', ...describe(error) })
    this.#end()
  }

  #end(): void {
    const { client } = this
    this.client = undefined
    if (client) this.#of.freed(client)
  }

  #giveUp(failure: HttpFailure): void {
    this.#fail(failure)
    this.#controller?.abort(new Error(failure.message))
  }

  /** Told a little later: it may be undici's refusal of a request that is just being begun. */
  #fail(failure: HttpFailure): void {
    if (this.#leave()) queueMicrotask(() => this.#of.tell({ failure }))
  }

  /** @returns false: it was settled before */
  #leave(): boolean {
    return this.#of.underWay.delete(this)
  }
}

function guardedConnector(egress: Egress, caCert: string | undefined): ReturnType<typeof buildConnector> {
  const lookup = guardedLookup(() => egress)
  const connect = buildConnector({ timeout: CONNECT_MS, allowH2: false, lookup, ...(caCert === undefined ? {} : { ca: caCert }) })
  return (options, callback) => {
    if (isIP(options.hostname) === 0) return connect(options, callback)
    egress.addressesOf(options.hostname).then(
      // an address is not looked up
      () => connect(options, callback),
      (error: Error) => callback(error, null),
    )
  }
}

/** @returns a code and one line; an error that stands for several has none of its own */
function describe(error: Error): { code: string; message: string } {
  if (error instanceof EngineError) return { code: error.code, message: error.message }
  const { message } = error
  const code = codeOf(error)
  if (error instanceof AggregateError) {
    const texts = [...new Set(error.errors.map((one: Error) => one.message))]
    return { code: code ?? 'CONNECT_FAILED', message: texts.join('; ') || message }
  }
  return { code: code ?? error.name, message }
}
