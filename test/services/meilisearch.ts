/**
 * A server that speaks the protocol of Meilisearch 1.50 as far as a sink needs it: rights, documents, deletions, edits by
 * function, and the task queue with its batches, in the words of the real one. The real server is in no package registry,
 * so this stands in for it; meilisearch.test.ts holds what was seen of the real one against it.
 *
 * It searches nothing, reads no CSV, and knows of filters and of functions only what meilisearch/edit.ts says. Its pace is set
 * by the test. `kill` ends it as a crash does: what was answered with 202 is still there after `start`.
 */
import { once } from 'node:events'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import { gzipSync } from 'node:zlib'
import { createServer } from '../../engine/net/http.ts'
import type { Row } from './meilisearch/edit.ts'
import { printJson, type Value } from './meilisearch/json.ts'
import { answer, type Answered, type Asked, type Key } from './meilisearch/routes.ts'
import { Disk, TaskQueue, type Manner, type Task } from './meilisearch/tasks.ts'
import { pass } from '../waiting.ts'

export type { Key, Task }
export type Pace = Omit<Manner, 'poison'>
export type MeilisearchOptions = Readonly<{
  /** undefined: every request passes */
  masterKey?: string
  keys?: readonly Key[]
  /** largest body in bytes, after inflation */
  payloadLimit?: number
  /** what a batch takes: by itself, and for each document */
  pace?: Pace
  port?: number
}>

/**
 * What is done with a request instead of, or beside, answering it.
 *
 *  hang        taken in and never answered · cut: the connection breaks before it is taken in
 *  cutAfter    taken in, and the connection breaks before the answer
 *  status      answered so, and not taken in
 *  delayMs     answered as it should be, late
 */
export type Fault =
  | 'hang'
  | 'cut'
  | 'cutAfter'
  | Readonly<{ status: number; body?: string; headers?: Readonly<Record<string, string>> }>
  | Readonly<{ delayMs: number }>
export type Request = Readonly<{ method: string; path: string; query: URLSearchParams; body: Buffer; authorization: string | undefined }>

const DEFAULT_LIMIT = 100 * 1024 * 1024

export class Meilisearch implements AsyncDisposable {
  /** what a batch takes from now on */
  pace: Pace
  /** documents that fail a whole batch, beside those of which it is known: the real server has reasons of its own */
  poison: Manner['poison'] = () => false
  /** asked for every request before it is answered; undefined: as it should be */
  fault: ((request: Request) => Fault | undefined) | undefined
  /** all that came, in order */
  readonly requests: Request[] = []
  readonly #options: MeilisearchOptions
  readonly #disk = new Disk()
  readonly #waiting = new Set<() => void>()
  #queue: TaskQueue
  #server: Server | undefined
  #port: number

  private constructor(options: MeilisearchOptions) {
    this.#options = options
    this.#port = options.port ?? 0
    this.pace = options.pace ?? { batchMs: 0, documentMs: 0 }
    this.#queue = this.#newQueue()
  }

  static async start(options: MeilisearchOptions = {}): Promise<Meilisearch> {
    const server = new Meilisearch(options)
    await server.#listen()
    return server
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`
  }
  get port(): number {
    return this.#port
  }
  get tasks(): readonly Readonly<Task>[] {
    return [...this.#disk.tasks.values()]
  }
  /** how many of them have not ended */
  get openTasks(): number {
    return this.tasks.filter(({ status }) => status === 'enqueued' || status === 'processing').length
  }

  /** The documents of an index by their identifiers; none: the index is not there. */
  documents(index: string): ReadonlyMap<string, Row> {
    return this.#disk.indexes.get(index)?.documents ?? new Map()
  }

  /** Runs no batch any more, or so many. */
  hold(): void {
    this.#queue.hold()
  }
  release(batches?: number): void {
    this.#queue.release(batches)
  }

  /** Settles once this holds; looked at after every request and every step of a task. */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) await new Promise<void>((resolve) => this.#waiting.add(resolve))
  }

  /** Ends as by SIGKILL: connections break, and the batch under way is not done. */
  async kill(): Promise<void> {
    this.#queue.stop()
    const server = this.#server
    this.#server = undefined
    if (!server) return
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  }

  /** Starts again after a kill, on the same port, with what it had. */
  async start(): Promise<void> {
    this.#queue = this.#newQueue()
    await this.#listen()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
  }

  #newQueue(): TaskQueue {
    return new TaskQueue(
      this.#disk,
      () => ({ ...this.pace, poison: this.poison }),
      () => this.#tell(),
    )
  }

  async #listen(): Promise<void> {
    const server = createServer((request, response) => void this.#take(request, response))
    server.keepAliveTimeout = 60_000
    server.listen(this.#port, '127.0.0.1')
    await once(server, 'listening')
    this.#port = (server.address() as { port: number }).port
    this.#server = server
  }

  #tell(): void {
    for (const wake of this.#waiting) wake()
    this.#waiting.clear()
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = []
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer)
    } catch {
      return // it broke off while it was sent
    }
    const { pathname, searchParams: query } = new URL(request.url ?? '/', this.url)
    const asked: Asked = {
      ...{ method: request.method ?? '', path: pathname, query, body: Buffer.concat(chunks) },
      authorization: request.headers.authorization,
      contentType: request.headers['content-type'],
      contentEncoding: request.headers['content-encoding'],
    }
    const fault = this.fault?.(asked)
    this.requests.push(asked)
    const isTaken = fault !== 'cut' && !(typeof fault === 'object' && 'status' in fault)
    const { masterKey, keys = [], payloadLimit = DEFAULT_LIMIT } = this.#options
    const answered = isTaken ? answer(asked, { disk: this.#disk, queue: this.#queue, masterKey, keys, payloadLimit }) : undefined
    this.#tell()
    if (fault === 'hang') return
    if (fault === 'cut' || fault === 'cutAfter') return void request.socket.destroy()
    if (typeof fault === 'object' && 'status' in fault) return void response.writeHead(fault.status, fault.headers).end(fault.body)
    if (fault) await pass(fault.delayMs, 'the answer is to be late')
    if (!response.destroyed) send(request, response, answered as Answered)
  }
}

function send({ headers }: IncomingMessage, response: ServerResponse, { status, body }: Answered): void {
  if (body === undefined) return void response.writeHead(status).end()
  const text = printJson(body as Value)
  const isPacked = /\bgzip\b/.test(String(headers['accept-encoding'] ?? ''))
  response.writeHead(status, { 'content-type': 'application/json', ...(isPacked ? { 'content-encoding': 'gzip' } : {}) })
  response.end(isPacked ? gzipSync(text) : text)
}
