/** A test's own eyes on an Elasticsearch: an index of its own, what it holds, and its knobs. */
import { randomBytes } from 'node:crypto'
import { parseExact } from '../faults/json.ts'
import { elasticsearch } from './elasticsearch.ts'

/** An answer of a search has no more. */
const PAGE = 10_000

export type Stored = Readonly<{ id: string; version: number; source: Record<string, unknown> }>

export class SearchIndex implements AsyncDisposable {
  readonly name: string
  /** of the server, without login */
  readonly endpoint: string
  readonly #authorization: string

  constructor(url: string, name: string) {
    const { origin, username, password } = new URL(url)
    this.name = name
    this.endpoint = origin
    this.#authorization = `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`
  }

  /** @param url of another server than the shared one */
  static async create(body: object = {}, url?: string): Promise<SearchIndex> {
    const index = new SearchIndex(url ?? (await elasticsearch()), `test-${randomBytes(6).toString('hex')}`)
    await index.make(body)
    return index
  }

  async make(body: object = {}): Promise<void> {
    const settings = { number_of_shards: 1, number_of_replicas: 0, refresh_interval: '-1' }
    await this.ask('PUT', '', { settings, ...body })
  }

  async drop(): Promise<void> {
    await this.ask('DELETE', '')
  }

  /** @param path behind the index's name. @throws Error an answer beyond 299 */
  async ask(method: string, path: string, body?: object): Promise<unknown> {
    const response = await fetch(`${this.endpoint}/${this.name}${path}`, {
      method,
      headers: { authorization: this.#authorization, 'content-type': 'application/json' },
      ...(body && { body: JSON.stringify(body) }),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${this.name}${path}: ${response.status} ${text}`)
    return parseExact(text)
  }

  /** Every document, by identifier. */
  async documents(): Promise<readonly Stored[]> {
    await this.ask('POST', '/_refresh')
    const found: Stored[] = []
    for (let after: readonly unknown[] | undefined; ;) {
      const page = {
        size: PAGE,
        version: true,
        sort: [{ _seq_no: { order: 'asc', unmapped_type: 'long' } }],
        ...(after && { search_after: after }),
      }
      const { hits } = (await this.ask('POST', '/_search', page)) as {
        hits: { hits: { _id: string; _version: number; _source: Record<string, unknown>; sort: readonly unknown[] }[] }
      }
      for (const { _id, _version, _source } of hits.hits) found.push({ id: _id, version: _version, source: _source })
      if (hits.hits.length < PAGE) return found.sort((a, b) => (a.id < b.id ? -1 : 1))
      after = hits.hits.at(-1)?.sort
    }
  }

  async ids(): Promise<readonly string[]> {
    return (await this.documents()).map(({ id }) => id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.drop().catch(() => undefined) // the test may have done it, or ended the server
  }
}
