/**
 * Elasticsearch and OpenSearch: rows become documents of an index, deleted rows leave it, always by `_bulk`. Each item of
 * a request succeeds or fails on its own, so what is sent again is items, and never those that are done.
 */
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { ElasticsearchDestination } from './elasticsearch-settings.ts'
import { bodyMemory } from '../engine/body-memory.ts'
import { ElasticsearchApi } from './elasticsearch-api.ts'
import { ElasticsearchDocuments, headsOf, type BulkOperation } from './elasticsearch-documents.ts'
import { builtInIndex, elasticsearchRouting } from './elasticsearch-settings.ts'
import { loginProblem } from './elasticsearch-auth.ts'
import { deliverTo, indexMissing, itemsOf, MAX_BODY_BYTES, ofOneIndex, outcomeOf } from './keyed-documents.ts'
import { tableOf } from './messages.ts'
import { ElasticsearchComparing } from './elasticsearch-comparing.ts'
import type { Answer, Comparing, Failure, Outcome, PushOptions, PushType, PushWire } from './push.ts'

/** Sinks that keep documents in an Elasticsearch or OpenSearch. */
export const elasticsearch: PushType = {
  type: 'elasticsearch',
  settings: ElasticsearchDestination,
  keyed: true,
  routing: elasticsearchRouting,
  refused: (sink) => {
    const problem = loginProblem(sink.destination as ElasticsearchDestination)
    return [...(problem === undefined ? [] : [['destination.auth_value', problem] as const]), ...indexMissing(sink)]
  },
  concurrency: 4, // two keep a small server busy
  open: (options) => new Elasticsearch(options),
}

class Elasticsearch implements PushWire {
  readonly maxMessages: number
  readonly maxBytes = MAX_BODY_BYTES
  readonly judgesEach = true
  readonly overheadBytes: number
  readonly #settings: ElasticsearchDestination
  /** name of the database */
  readonly #database: string
  readonly #api: ElasticsearchApi
  readonly #documents: ElasticsearchDocuments
  readonly comparing: Comparing

  constructor({ sink, database, egress, concurrency, warn }: PushOptions) {
    const settings = sink.destination as ElasticsearchDestination
    this.#settings = settings
    this.#database = database.name
    this.maxMessages = settings.batch_size
    this.#api = new ElasticsearchApi(settings, { egress, connections: concurrency })
    const indexBytes = Buffer.byteLength(JSON.stringify(settings.index_name ?? ''))
    this.#documents = new ElasticsearchDocuments({ sink, database, isVersioned: settings.versioning !== 'none', indexBytes, warn })
    this.overheadBytes = this.#documents.overheadBytes
    const indexOf = (message: Message) => builtInIndex({ database: database.name, ...tableOf(message) })
    this.comparing = new ElasticsearchComparing({
      api: this.#api,
      documents: this.#documents,
      index: settings.index_name ?? undefined,
      indexOf,
    })
  }

  send(batch: Batch, signal: AbortSignal): Promise<Outcome> {
    return deliverTo(this.#settings, batch, (index) =>
      index === undefined ? this.#deliverByTable(batch, signal) : this.#deliver(batch, index, signal),
    )
  }

  test(signal: AbortSignal): Promise<Answer | undefined> {
    return this.#api.test(this.#settings.index_name ?? undefined, signal)
  }

  close(): Promise<void> {
    return this.#api.pool.close()
  }

  /** Nobody names an index: each table has its own. */
  async #deliverByTable(batch: Batch, signal: AbortSignal): Promise<Outcome> {
    const byIndex = Map.groupBy(batch.messages, (message) => builtInIndex({ database: this.#database, ...tableOf(message) }))
    const failures = new Map<Message, Failure>()
    let status = 0
    for (const [index, messages] of byIndex) {
      const outcome = ofOneIndex(await this.#deliver({ ...batch, messages }, index, signal))
      if (outcome.kind === 'failed' && outcome.failure.blame === 'rejected')
        for (const message of messages) failures.set(message, outcome.failure)
      else if (outcome.kind === 'failed' || outcome.kind === 'aborted') return outcome
      else status = outcome.status
      if (outcome.kind !== 'each') continue
      for (const [n, message] of messages.entries()) {
        const failure = outcome.failures[n]
        if (failure) failures.set(message, failure)
      }
    }
    return outcomeOf(batch, failures, status)
  }

  /** A failure that isn't about single documents ends it for all: what was done will be done again, to the same effect. */
  async #deliver(batch: Batch, index: string, signal: AbortSignal): Promise<Outcome> {
    const failures = new Map<Message, Failure>()
    const heads = headsOf(index)
    const operations = itemsOf(batch.messages, this.#api, failures, (message) => this.#documents.operation(message, heads))
    let status = 0
    for (const part of partsOf(operations)) {
      const body = this.#documents.write(part, bodyMemory.take(bytesOf(part)))
      const end = await this.#api.bulk(index, part, body, signal)
      if (end.kind !== 'answered') return end
      status = end.status
      for (const [message, failure] of end.failures) failures.set(message, failure)
      if (end.isAllTold) bodyMemory.give(body)
    }
    return outcomeOf(batch, failures, status)
  }
}

const bytesOf = (operations: readonly BulkOperation[]): number => operations.reduce((sum, { bytes }) => sum + bytes, 0)

/** What goes in one request: functions, and values that were looked up, may have made more of messages than was foreseen. */
function partsOf(operations: readonly BulkOperation[]): readonly (readonly BulkOperation[])[] {
  const parts: BulkOperation[][] = []
  let bytes = Infinity
  for (const operation of operations) {
    if (bytes + operation.bytes > MAX_BODY_BYTES) {
      parts.push([])
      bytes = 0
    }
    parts.at(-1)?.push(operation)
    bytes += operation.bytes
  }
  return parts
}
