/**
 * Counts what a sink gives when there is too much of it to keep: each row of one table exactly once, by its id. Clients
 * ack whatever they get at once.
 */
import assert from 'node:assert/strict'
import { Pool } from 'undici'
import { TOKEN, type Service } from './service.ts'
import { pass, until } from '../waiting.ts'

const CLIENTS = 2
const RETRY_AFTER_MS = 50
const IDLE_MS = 60_000

export class Tally implements AsyncDisposable {
  readonly #pool: Pool
  readonly #sink: string
  readonly #seen: Uint8Array
  #count = 0
  #bytes = 0

  /** @param rows ids are from 1 to this */
  constructor(options: { service: Service; sink: string; rows: number }) {
    this.#pool = new Pool(options.service.origin, { connections: CLIENTS * 2, headersTimeout: 60_000, bodyTimeout: 60_000 })
    this.#sink = options.sink
    this.#seen = new Uint8Array(options.rows + 1)
  }

  /** messages received so far */
  get count(): number {
    return this.#count
  }

  /** of all answers */
  get bytes(): number {
    return this.#bytes
  }

  /** Receives and acks until so many messages came in all. @throws AssertionError one came twice, or none for a minute */
  async drain(until: number): Promise<void> {
    await Promise.all(Array.from({ length: CLIENTS }, () => this.#client(until)))
  }

  /** @throws AssertionError an id of the range never came */
  assertComplete(from: number, to: number): void {
    const missing: number[] = []
    for (let id = from; id <= to && missing.length < 10; id++) if (this.#seen[id] === 0) missing.push(id)
    assert.deepEqual(missing, [], `of ids ${from} to ${to} these never came, among others`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pool.destroy()
  }

  async #client(goal: number): Promise<void> {
    let idleSince = performance.now()
    while (this.#count < goal) {
      const text = await this.#post('receive', { batch_size: 1_000, wait_for: 500 })
      if (text === undefined) {
        await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
        continue
      }
      this.#bytes += text.length
      const ids: string[] = []
      const { data } = JSON.parse(text) as { data: { ack_id: string; record: { id: number } }[] }
      for (const { ack_id: ackId, record } of data) {
        ids.push(ackId)
        assert.equal(this.#seen[record.id], 0, `row ${record.id} came twice`)
        this.#seen[record.id] = 1
      }
      if (ids.length === 0) {
        assert.ok(performance.now() - idleSince < IDLE_MS, `${this.#count} of ${goal} messages came, and none more in ${IDLE_MS} ms`)
        continue
      }
      this.#count += ids.length
      await until('the ack is taken', () => this.#post('ack', { ack_ids: ids }))
      idleSince = performance.now()
    }
  }

  /** @returns undefined: try again */
  async #post(operation: string, body: object): Promise<string | undefined> {
    const { statusCode, body: answer } = await this.#pool.request({
      method: 'POST',
      path: `/api/http_pull_consumers/${this.#sink}/${operation}`,
      headers: { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await answer.text()
    if (statusCode === 503) return undefined
    assert.equal(statusCode, 200, text.slice(0, 500))
    return text
  }
}
