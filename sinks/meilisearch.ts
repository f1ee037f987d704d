/**
 * Meilisearch: rows become documents of an index, deleted rows leave it, and a routing function may let one edit others. Every
 * write is answered with a task that is done later. A request counts as delivered when its tasks have ended well;
 * meanwhile others are sent, as many as the sink's concurrency allows. So a queue that grows at the server holds up what is
 * read from the log, and nothing else.
 */
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { MeilisearchDestination } from './meilisearch-settings.ts'
import { deliverTo, indexMissing, itemsOf, MAX_BODY_BYTES, outcomeOf } from './keyed-documents.ts'
import { MeilisearchApi } from './meilisearch-api.ts'
import { MeilisearchComparing } from './meilisearch-comparing.ts'
import { deliver } from './meilisearch-delivery.ts'
import { MeilisearchDocuments } from './meilisearch-documents.ts'
import { MeilisearchEdits } from './meilisearch-edits.ts'
import { meilisearchRouting } from './meilisearch-settings.ts'
import { MeilisearchTasks } from './meilisearch-tasks.ts'
import type { Answer, Failure, Outcome, PushOptions, PushType, PushWire } from './push.ts'
import { QueueGate } from './queue-gate.ts'

/** Sinks that keep documents in a Meilisearch. */
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
  readonly comparing: MeilisearchComparing

  constructor({ sink, database, egress, concurrency, warn, heard = () => undefined }: PushOptions) {
    const settings = sink.destination as MeilisearchDestination
    this.#settings = settings
    this.maxMessages = settings.batch_size
    this.#api = new MeilisearchApi(settings, { egress, connections: concurrency + 1 })
    this.#tasks = new MeilisearchTasks(this.#api, heard)
    this.#documents = new MeilisearchDocuments({ sink, database, key: settings.primary_key, warn })
    this.overheadBytes = this.#documents.overheadBytes
    this.comparing = new MeilisearchComparing({
      api: this.#api,
      documents: this.#documents,
      index: settings.index_name ?? undefined,
      primaryKey: settings.primary_key,
      isTransformed: (sink.transform ?? null) !== null,
    })
    this.#edits = new MeilisearchEdits({ api: this.#api, tasks: this.#tasks, sinkId: sink.id, grouping: sink.message_grouping, warn })
  }

  send(batch: Batch, signal: AbortSignal): Promise<Outcome> {
    return deliverTo(this.#settings, batch, async (index) => {
      if (index === undefined) return failed(this.#api.verbatim.undeliverable('neither the sink nor its routing function names an index'))
      const { action: said = '', filter, function: code, context = null } = batch.route ?? {}
      const action = String(said).toLowerCase()
      if (action === 'function') return this.#edits.send(batch, index, { filter, function: code, context }, signal)
      return this.#deliver(batch, index, action === 'index' || action === 'delete' ? action : undefined, signal)
    })
  }

  test(signal: AbortSignal): Promise<Answer | undefined> {
    return this.#api.test(this.#settings.index_name ?? undefined, signal)
  }

  figures(): Readonly<Record<string, number>> {
    return this.#tasks.figures
  }

  close(): Promise<void> {
    this.#tasks.close()
    return this.#api.pool.close()
  }

  async #deliver(batch: Batch, index: string, action: 'index' | 'delete' | undefined, signal: AbortSignal): Promise<Outcome> {
    const refused = new Map<Message, Failure>()
    const items = itemsOf(batch.messages, this.#api, refused, (message) => this.#documents.item(message, action))
    const work = { api: this.#api, tasks: this.#tasks, gate: this.#gate, documents: this.#documents }
    const end = await deliver({ ...work, index, primaryKey: this.#settings.primary_key, signal }, items)
    if (end.kind !== 'judged') return end
    const [first] = [...end.failures.values(), ...refused.values()] // we know less of what Meilisearch was asked, so that goes before
    const isAnyDelivered = items.length > end.failures.size
    if (first && !isAnyDelivered) return failed(first)
    const judged = [...end.failures].map(([message, failure]) => [message, { ...failure, blame: 'message' }] as const)
    return outcomeOf(batch, new Map<Message, Failure>([...refused, ...judged]), 202)
  }
}

const failed = (failure: Failure): Outcome => ({ kind: 'failed', failure })
