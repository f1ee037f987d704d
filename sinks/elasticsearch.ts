/**
 * Elasticsearch and OpenSearch: rows become documents of an index, deleted rows leave it, always by `_bulk`. Each item of
 * a request succeeds or fails on its own, so what is sent again is items, and never those that are done.
 */
import { ElasticsearchDestination } from './elasticsearch-settings.ts'
import { bodyMemory } from './body-memory.ts'
import { ElasticsearchApi } from './elasticsearch-api.ts'
import { ElasticsearchDocuments, headsOf, tableOf, type BulkOperation } from './elasticsearch-documents.ts'
import { builtInIndex, elasticsearchRouting } from './elasticsearch-settings.ts'
import { loginProblem } from './elasticsearch-auth.ts'
import { indexMissing, MAX_BODY_BYTES, ofOneIndex } from './keyed-documents.ts'
import type { Answer, Failure, Load, Outcome, PushOptions, PushType, PushWire } from './push.ts'

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

/** What a routing function may say of its messages. */
type Route = Readonly<{ index_name?: string }>

class Elasticsearch implements PushWire {
  readonly maxMessages: number
  readonly maxBytes = MAX_BODY_BYTES
  readonly judgesEach = true
  readonly overheadBytes: number
  readonly #settings: ElasticsearchDestination
  /** its name */
  readonly #database: string
  readonly #api: ElasticsearchApi
  readonly #documents: ElasticsearchDocuments

  constructor({ sink, database, egress, concurrency, warn }: PushOptions) {
    const settings = sink.destination as ElasticsearchDestination
    this.#settings = settings
    this.#database = database.name
    this.maxMessages = settings.batch_size
    this.#api = new ElasticsearchApi(settings, { egress, connections: concurrency })
    const indexBytes = Buffer.byteLength(JSON.stringify(settings.index_name ?? ''))
    this.#documents = new ElasticsearchDocuments({ sink, database, isVersioned: settings.versioning !== 'none', indexBytes, warn })
    this.overheadBytes = this.#documents.overheadBytes
  }

  async send(load: Load, signal: AbortSignal): Promise<Outcome> {
    const { index_name: routed } = (load.route ?? {}) as Route
    const index = routed ?? this.#settings.index_name
    if (typeof index !== 'string') return this.#deliverByTable(load, signal)
    const outcome = await this.#deliver(load, index, signal)
    return routed === undefined ? outcome : ofOneIndex(outcome)
  }

  async test(signal: AbortSignal): Promise<Answer | undefined> {
    return this.#api.test(this.#settings.index_name ?? undefined, signal)
  }

  async close(): Promise<void> {
    await this.#api.close()
  }

  /** Nobody names an index: each table has its own. */
  async #deliverByTable(load: Load, signal: AbortSignal): Promise<Outcome> {
    const byIndex = Map.groupBy(load.views.keys(), (i) => builtInIndex({ database: this.#database, ...tableOf(load, i) }))
    const failures: (Failure | undefined)[] = []
    let status = 0
    for (const [index, places] of byIndex) {
      const outcome = ofOneIndex(await this.#deliver(partOf(load, places), index, signal))
      if (outcome.kind === 'failed' && outcome.failure.blame === 'rejected') for (const i of places) failures[i] = outcome.failure
      else if (outcome.kind === 'failed' || outcome.kind === 'aborted') return outcome
      else status = outcome.status
      if (outcome.kind === 'each') for (const [n, i] of places.entries()) failures[i] = outcome.failures[n]
    }
    return outcomeOf(load, failures, status)
  }

  /** A failure that isn't about single documents ends it for all: what was done will be done again, to the same effect. */
  async #deliver(load: Load, index: string, signal: AbortSignal): Promise<Outcome> {
    const failures: (Failure | undefined)[] = []
    const operations: BulkOperation[] = []
    const heads = headsOf(index)
    for (let i = 0; i < load.views.length; i++) {
      const operation = this.#documents.operation(load, i, heads)
      if ('refusal' in operation) failures[i] = this.#api.verbatim.undeliverable(operation.refusal)
      else operations.push(operation)
    }
    let status = 0
    for (const part of partsOf(operations)) {
      const body = this.#documents.write(load, part, bodyMemory.take(bytesOf(part)))
      const end = await this.#api.bulk(index, part, body, signal)
      if (end.kind !== 'answered') return end
      status = end.status
      if (end.failures) for (const [n, { i }] of part.entries()) failures[i] = end.failures[n]
      else bodyMemory.give(body) // it has told of each document, so it has read them
    }
    return outcomeOf(load, failures, status)
  }
}

/** @param failures by the place of the message; most often there are none */
function outcomeOf({ views: { length } }: Load, failures: readonly (Failure | undefined)[], status: number): Outcome {
  if (failures.every((failure) => failure === undefined)) return { kind: 'delivered', status }
  return { kind: 'each', status, failures: Array.from({ length }, (_, i) => failures[i]) }
}

const bytesOf = (operations: readonly BulkOperation[]): number => operations.reduce((sum, { bytes }) => sum + bytes, 0)

function partOf({ views, places, payloads, enrichments }: Load, chosen: readonly number[]): Load {
  const pick = <T>(list: readonly T[]): T[] => chosen.map((i) => list[i] as T)
  return {
    views: pick(views),
    places: pick(places),
    ...(payloads && { payloads: pick(payloads) }),
    ...(enrichments && { enrichments: pick(enrichments) }),
  }
}

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
