/**
 * Meilisearch: rows become documents of an index, deleted rows leave it, and a routing function may let one edit others. Every
 * write is answered with a task that is done later. A request counts as delivered when its tasks have ended well;
 * meanwhile others are sent, as many as the sink's concurrency allows. So a queue that grows at the server holds up what is
 * read from the log, and nothing else.
 */
import { MeilisearchDestination } from './meilisearch-settings.ts'
import { indexMissing, MAX_BODY_BYTES, ofOneIndex } from './keyed-documents.ts'
import { MeilisearchApi } from './meilisearch-api.ts'
import { deliver } from './meilisearch-delivery.ts'
import { MeilisearchDocuments, type Item } from './meilisearch-documents.ts'
import { MeilisearchEdits, type Edit } from './meilisearch-edits.ts'
import { meilisearchRouting } from './meilisearch-settings.ts'
import { MeilisearchTasks } from './meilisearch-tasks.ts'
import type { Answer, Failure, Load, Outcome, PushOptions, PushType, PushWire } from './push.ts'
import { QueueGate } from './queue-gate.ts'

export const meilisearch: PushType = {
  type: 'meilisearch',
  settings: MeilisearchDestination,
  keyed: true,
  namesByTransform: true,
  routing: meilisearchRouting,
  refused: indexMissing,
  refusedDocument: (document, { primary_key: key }) =>
    Object.hasOwn(document, String(key)) ? undefined : `the document has no field "${String(key)}", which is the primary key of the index`,
  concurrency: 16, // tasks at once: ten of them keep the server busy
  open: (options) => new MeilisearchWire(options),
}

/** What a routing function may say of its messages. */
type Route = Readonly<{ action?: string; index_name?: string }> & Partial<Edit>

class MeilisearchWire implements PushWire {
  readonly maxMessages: number
  readonly maxBytes = MAX_BODY_BYTES
  readonly judgesEach = true // by halves
  readonly overheadBytes: number
  readonly #settings: MeilisearchDestination
  readonly #api: MeilisearchApi
  readonly #tasks: MeilisearchTasks
  readonly #gate = new QueueGate()
  readonly #documents: MeilisearchDocuments
  readonly #edits: MeilisearchEdits

  constructor({ sink, database, egress, concurrency, warn, heard = () => undefined }: PushOptions) {
    const settings = sink.destination as MeilisearchDestination
    this.#settings = settings
    this.maxMessages = settings.batch_size
    this.#api = new MeilisearchApi(settings, { egress, connections: concurrency + 1 })
    this.#tasks = new MeilisearchTasks(this.#api, heard)
    this.#documents = new MeilisearchDocuments({ sink, database, key: settings.primary_key, warn })
    this.overheadBytes = this.#documents.overheadBytes
    this.#edits = new MeilisearchEdits({ api: this.#api, tasks: this.#tasks, sinkId: sink.id, grouping: sink.message_grouping, warn })
  }

  async send(load: Load, signal: AbortSignal): Promise<Outcome> {
    const route = (load.route ?? {}) as Route
    const index = route.index_name ?? this.#settings.index_name
    if (typeof index !== 'string')
      return failed(this.#api.verbatim.undeliverable('neither the sink nor its routing function names an index'))
    const action = route.action?.toLowerCase()
    const outcome =
      action === 'function'
        ? await this.#edits.send(load, index, route as Edit, signal)
        : await this.#deliver(load, index, action === 'index' || action === 'delete' ? action : undefined, signal)
    return route.index_name === undefined ? outcome : ofOneIndex(outcome)
  }

  async test(signal: AbortSignal): Promise<Answer | undefined> {
    return this.#api.test(this.#settings.index_name ?? undefined, signal)
  }

  figures(): Readonly<Record<string, number>> {
    return this.#tasks.figures
  }

  async close(): Promise<void> {
    this.#tasks.close()
    await this.#api.close()
  }

  async #deliver(load: Load, index: string, action: 'index' | 'delete' | undefined, signal: AbortSignal): Promise<Outcome> {
    const failures: (Failure | undefined)[] = []
    const items: Item[] = []
    for (let i = 0; i < load.views.length; i++) {
      const item = this.#documents.item(load, i, action)
      if ('refusal' in item) failures[i] = this.#api.verbatim.undeliverable(item.refusal)
      else {
        failures[i] = undefined
        items.push(item)
      }
    }
    const work = { api: this.#api, tasks: this.#tasks, gate: this.#gate, documents: this.#documents }
    const end = await deliver({ ...work, load, index, primaryKey: this.#settings.primary_key, signal }, items)
    if (end.kind !== 'judged') return end
    const isAnyDelivered = items.length > end.failures.size
    for (const [i, failure] of end.failures) failures[i] = isAnyDelivered ? { ...failure, blame: 'message' } : failure
    // of what Meilisearch was asked first: we know less of it
    const first = [...end.failures.values(), ...failures].find((failure) => failure !== undefined)
    if (!first) return { kind: 'delivered', status: 202 }
    return isAnyDelivered ? { kind: 'each', status: 202, failures } : failed(first)
  }
}

const failed = (failure: Failure): Outcome => ({ kind: 'failed', failure })
