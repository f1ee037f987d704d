/**
 * Reads documents of an Elasticsearch or OpenSearch for who compares them with their rows: by their identifiers, which sees what was written
 * just now, and all of an index, by a scroll.
 */
import { isDeepStrictEqual } from 'node:util'
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { fieldsOf, objectsOf } from '../engine/json.ts'
import type { ElasticsearchApi } from './elasticsearch-api.ts'
import { headsOf, idOf, type BulkOperation, type ElasticsearchDocuments } from './elasticsearch-documents.ts'
import { comparedOf, rowNamedBy } from './keyed-documents.ts'
import type { Comparing, Looked, Standing, StoredPage } from './push.ts'

type Options = Readonly<{
  api: ElasticsearchApi
  documents: ElasticsearchDocuments
  /** of the sink; undefined: a table has its own */
  index: string | undefined
  indexOf: (message: Message) => string
}>

/** A scroll that nobody goes on with is forgotten after this. */
const SCROLL = '5m'
const KEY_FIELDS = ['metadata.table_schema', 'metadata.table_name', 'metadata.record_pks']
const NO_INDEX = { code: 'DESTINATION_REFUSED', message: 'the sink names no index of its own that could be listed' } as const

/** Compares the documents of one sink. */
export class ElasticsearchComparing implements Comparing {
  readonly #options: Options

  constructor(options: Options) {
    this.#options = options
  }

  async compare({ messages, route }: Batch, signal: AbortSignal): Promise<Looked<readonly (Standing | undefined)[]>> {
    const { documents, index: own, indexOf } = this.#options
    const routed = route?.['index_name']
    const byIndex = Map.groupBy(messages, (message) => (typeof routed === 'string' ? routed : (own ?? indexOf(message))))
    const standings = new Map<Message, Standing>()
    for (const [index, those] of byIndex) {
      const heads = headsOf(index)
      const operations = those.map((message) => documents.operation(message, heads)).filter((one) => 'kind' in one)
      const { answer } = await this.#look(index, operations, standings, signal)
      if (answer) return { answer }
    }
    return { found: messages.map((message) => standings.get(message)) }
  }

  namesByKey(): boolean {
    return true
  }

  async stored(after: string | undefined, limit: number, signal: AbortSignal): Promise<Looked<StoredPage>> {
    const { api, index } = this.#options
    if (index === undefined) return { answer: NO_INDEX }
    const first = { size: limit, _source: KEY_FIELDS, sort: ['_doc'] }
    const { found, answer } = await (after === undefined
      ? api.ask(`/${encodeURIComponent(index)}/_search?scroll=${SCROLL}`, first, signal)
      : api.ask('/_search/scroll', { scroll: SCROLL, scroll_id: after }, signal))
    if (answer) return { answer }
    const hits = objectsOf(fieldsOf(found['hits'])['hits'])
    const scroll = String(found['_scroll_id'])
    const documents = hits.map(({ _id, _source }) => ({ id: String(_id), ...rowNamedBy(_source) }))
    return { found: { documents, next: hits.length < limit ? undefined : scroll } }
  }

  async present(ids: readonly string[], signal: AbortSignal): Promise<Looked<readonly string[]>> {
    const { api, index } = this.#options
    if (index === undefined) return { answer: NO_INDEX }
    const { found, answer } = await api.ask(`/${encodeURIComponent(index)}/_mget?_source=false`, { ids }, signal)
    if (answer) return { answer }
    return { found: objectsOf(found['docs']).flatMap((doc) => (doc['found'] === true ? [String(doc['_id'])] : [])) }
  }

  async count(signal: AbortSignal): Promise<Looked<number>> {
    const { api, index } = this.#options
    if (index === undefined) return { answer: NO_INDEX }
    const { found, answer } = await api.ask(`/${encodeURIComponent(index)}/_search`, { size: 0, track_total_hits: true }, signal)
    return answer ? { answer } : { found: Number(fieldsOf(fieldsOf(found['hits'])['total'])['value']) }
  }

  /** Documents may be large: where an answer would be too long, halves are asked for. */
  async #look(
    index: string,
    operations: readonly BulkOperation[],
    standings: Map<Message, Standing>,
    signal: AbortSignal,
  ): Promise<Looked<undefined>> {
    if (operations.length === 0) return { found: undefined }
    const { api } = this.#options
    const ids = operations.map((operation): unknown => JSON.parse(idOf(operation)))
    const { found, answer } = await api.ask(`/${encodeURIComponent(index)}/_mget`, { ids }, signal)
    if (answer) {
      if (answer.status !== 200 || operations.length === 1) return { answer }
      const half = operations.length >> 1
      const first = await this.#look(index, operations.slice(0, half), standings, signal)
      return first.answer ? first : this.#look(index, operations.slice(half), standings, signal)
    }
    const docs = objectsOf(found['docs'])
    for (const [n, operation] of operations.entries()) {
      const there = docs[n]
      const state = there?.['found'] !== true ? 'missing' : this.#isSame(operation, there['_source']) ? 'same' : 'different'
      standings.set(operation.message, { id: String(ids[n]), state })
    }
    return { found: undefined }
  }

  /** Of a message that no function made into something else only the row is the document's: when and how it came differs. */
  #isSame({ message }: BulkOperation, source: unknown): boolean {
    const { record } = fieldsOf(source)
    const { payload, row } = comparedOf(message)
    return payload === undefined ? isDeepStrictEqual(record, row) : isDeepStrictEqual(source, payload)
  }
}
