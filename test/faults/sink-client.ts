/**
 * The pull API of one sink as a client program sees it: receive, ack, nack over HTTP. What a well-made client has to
 * bear (no connection, a cut answer, 429, 503) is a `Passing` error; anything else the service may not do to it.
 */
import { Pool } from 'undici'
import { parseExact, type Json, type Row } from './json.ts'
import type { Message } from './oracle.ts'

export interface SinkClient {
  /** @throws Passing try again */
  receive(request: { batchSize: number; waitMs: number }, signal?: AbortSignal): Promise<readonly Message[]>
  ack(ids: readonly string[]): Promise<void>
  nack(ids: readonly string[]): Promise<void>
}

/** The service is away, starting or stopping: a client tries again. */
export class Passing extends Error {
  override readonly name = 'Passing'
  /** the service has said so itself */
  readonly answered: boolean

  constructor(message: string, options: ErrorOptions & { answered?: boolean } = {}) {
    super(message, options)
    this.answered = options.answered ?? false
  }
}

/** One element of an answer, or of a request that a sink sends. */
export type Wire = Readonly<{
  ack_id: string
  record: Row
  changes: Row | null
  action: string
  metadata: Readonly<{
    table_name: string
    commit_timestamp: string
    commit_lsn: number
    commit_idx: number
    idempotency_key: string
    record_pks: readonly string[]
    transaction_annotations: Json
  }>
}>

export class HttpSinkClient implements SinkClient, AsyncDisposable {
  readonly #pool: Pool
  readonly #path: string
  readonly #headers: Readonly<Record<string, string>>

  constructor(options: { origin: string; sink: string; token: string; connections?: number }) {
    // an answer may take as long as the longest wait; the kernel tells of a server that died
    this.#pool = new Pool(options.origin, { connections: options.connections ?? 16, headersTimeout: 120_000, bodyTimeout: 120_000 })
    this.#path = `/api/http_pull_consumers/${options.sink}`
    this.#headers = { authorization: `Bearer ${options.token}`, 'content-type': 'application/json' }
  }

  async receive(request: { batchSize: number; waitMs: number }, signal?: AbortSignal): Promise<readonly Message[]> {
    const text = await this.#post('receive', { batch_size: request.batchSize, wait_for: request.waitMs }, signal)
    return (parseExact(text) as { data: Wire[] }).data.map(messageOf)
  }

  async ack(ids: readonly string[]): Promise<void> {
    await this.#post('ack', { ack_ids: ids })
  }

  async nack(ids: readonly string[]): Promise<void> {
    await this.#post('nack', { ack_ids: ids })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.destroy()
  }

  async #post(operation: string, body: object, signal?: AbortSignal): Promise<string> {
    let status: number
    let text: string
    try {
      const response = await this.#pool.request({
        method: 'POST',
        path: `${this.#path}/${operation}`,
        headers: this.#headers,
        body: JSON.stringify(body),
        ...(signal ? { signal } : {}),
      })
      status = response.statusCode
      text = await response.body.text()
    } catch (error) {
      signal?.throwIfAborted()
      throw new Passing(`${operation}: ${(error as Error).message}`, { answered: false, cause: error })
    }
    if (status === 503 || status === 429) throw new Passing(`${operation}: ${status} ${text.slice(0, 200)}`, { answered: true })
    if (status !== 200) throw new Error(`${operation} was answered ${status}: ${text.slice(0, 500)}`)
    return text
  }
}

export function messageOf(wire: Wire): Message {
  const { metadata } = wire
  return {
    ackId: wire.ack_id,
    idempotencyKey: metadata.idempotency_key,
    table: metadata.table_name,
    action: wire.action,
    key: metadata.record_pks,
    lsn: BigInt(metadata.commit_lsn),
    idx: metadata.commit_idx,
    committedAt: Date.parse(metadata.commit_timestamp),
    record: wire.record,
    changes: wire.changes,
    annotations: metadata.transaction_annotations,
  }
}
