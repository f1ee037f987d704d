/**
 * A real HTTP server that does what a test tells it to: answers, waits, hangs, breaks off in the middle, or answers after
 * the caller has given up. It binds 127.0.0.1 and stops with its scope.
 */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { createServer } from '../../engine/net/http.ts'
import { pass } from '../waiting.ts'

export type Received = Readonly<{
  method: string
  path: string
  headers: IncomingHttpHeaders
  body: Buffer
  /** of the connection */ remotePort: number
}>
export type Reply =
  | Readonly<{ status?: number; headers?: Readonly<Record<string, string>>; body?: string | Buffer; delayMs?: number }>
  /** never answers · resets the connection · sends half of an answer and resets */
  | 'hang'
  | 'reset'
  | 'half'
export type Handler = (request: Received) => Reply | Promise<Reply>

export class HttpReceiver implements AsyncDisposable {
  readonly requests: Received[] = []
  handler: Handler
  /** requests that have no answer yet, and the most there ever were */
  open = 0
  mostOpen = 0
  connections = 0
  /** requests that have begun to come, and may never come whole */
  begun = 0
  readonly #server: ReturnType<typeof createServer>
  readonly #scheme: 'http' | 'https'
  readonly #waiting = new Set<() => void>()

  private constructor(handler: Handler, secure: 'server' | 'elsewhere' | undefined) {
    this.handler = handler
    const listener = (request: IncomingMessage, response: ServerResponse) => void this.#take(request, response)
    const pem = (file: string) => readFileSync(join(import.meta.dirname, 'tls', file))
    this.#server = secure ? createTlsServer({ cert: pem(`${secure}.crt`), key: pem(`${secure}.key`) }, listener) : createServer(listener)
    this.#scheme = secure ? 'https' : 'http'
    this.#server.keepAliveTimeout = 60_000
    this.#server.on('connection', () => this.connections++)
  }

  /** @param options.secure the certificate of test/services/tls it shows; absent: no TLS */
  static async start(
    handler: Handler = () => ({}),
    options: { secure?: 'server' | 'elsewhere'; port?: number } = {},
  ): Promise<HttpReceiver> {
    const receiver = new HttpReceiver(handler, options.secure)
    receiver.#server.listen(options.port ?? 0, '127.0.0.1')
    await once(receiver.#server, 'listening')
    return receiver
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port
  }
  get url(): string {
    return `${this.#scheme}://127.0.0.1:${this.port}`
  }
  get bodies(): unknown[] {
    return this.requests.map(jsonOf)
  }

  /** Settles once so many requests have come. */
  async until(condition: (requests: readonly Received[]) => boolean): Promise<void> {
    while (!condition(this.requests)) await new Promise<void>((resolve) => this.#waiting.add(resolve))
  }

  /** Ends every connection; the next one is taken. */
  cut(): void {
    this.#server.closeAllConnections()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    this.#server.close()
    if (this.#server.listening) await once(this.#server, 'close')
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.begun++
    const chunks: Buffer[] = []
    request.on('error', () => undefined)
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer)
    } catch {
      return // the line broke: nobody waits for an answer
    }
    const received: Received = {
      method: request.method ?? '',
      path: request.url ?? '',
      headers: request.headers,
      body: Buffer.concat(chunks),
      remotePort: request.socket.remotePort ?? 0,
    }
    this.open++
    this.mostOpen = Math.max(this.mostOpen, this.open)
    response.on('close', () => this.open--)
    this.requests.push(received)
    const reply = await this.handler(received)
    for (const wake of this.#waiting) wake()
    this.#waiting.clear()
    if (reply === 'hang') return
    if (reply === 'reset') return void request.socket.resetAndDestroy()
    if (reply === 'half') {
      response.writeHead(200, { 'content-length': 1000 })
      response.write('half of ', () => request.socket.destroy())
      return
    }
    const { status = 200, headers = {}, body = '', delayMs = 0 } = reply
    if (delayMs > 0) await pass(delayMs, 'the answer is to be late')
    if (!response.destroyed) response.writeHead(status, headers).end(body)
  }
}

/** The body as JSON, whichever way it came. */
export function jsonOf({ headers, body }: Received): unknown {
  return JSON.parse((headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body).toString())
}
