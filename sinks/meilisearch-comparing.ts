/**
 * Reads documents of a Meilisearch for who compares them with their rows: by their identifiers, which Meilisearch takes since 1.14, and all of
 * an index, by their number. What a task still has to do is not seen.
 */
import { isDeepStrictEqual } from 'node:util'
import type { Batch, Message } from '../engine/dispatch/batch.ts'
import { objectsOf } from '../engine/json.ts'
import { comparedOf, rowNamedBy } from './keyed-documents.ts'
import type { MeilisearchApi } from './meilisearch-api.ts'
import type { Item, MeilisearchDocuments } from './meilisearch-documents.ts'
import type { Comparing, Looked, Standing, StoredPage } from './push.ts'

type Options = Readonly<{
  api: MeilisearchApi
  documents: MeilisearchDocuments
  /** of the sink; undefined: it names none */
  index: string | undefined
  /** field that names a document */
  primaryKey: string
  /** documents are what a function makes */
  isTransformed: boolean
}>

const NO_INDEX = { code: 'DESTINATION_REFUSED', message: 'the sink names no index of its own that could be listed' } as const
const I64_MIN = -(2n ** 63n)
const U64_MAX = 2n ** 64n - 1n

/** Compares the documents of one sink. */
export class MeilisearchComparing implements Comparing {
  readonly #options: Options

  constructor(options: Options) {
    this.#options = options
  }

  async compare({ messages, route }: Batch, signal: AbortSignal): Promise<Looked<readonly (Standing | undefined)[]>> {
    const { documents, index: own } = this.#options
    const index = typeof route?.['index_name'] === 'string' ? route['index_name'] : own
    if (index === undefined) return { answer: NO_INDEX }
    const action = String(route?.['action'] ?? '').toLowerCase()
    if (action === 'function') return { found: messages.map(() => undefined) } // what an edit has done can't be told from a document
    const items = messages.map((message) => documents.item(message, action === 'index' || action === 'delete' ? action : undefined))
    const standings = new Map<Message, Standing>()
    const { answer } = await this.#look(
      index,
      items.flatMap((item) => ('kind' in item && !item.isOdd ? [item] : [])), // it has no odd one
      standings,
      signal,
    )
    return answer ? { answer } : { found: messages.map((message) => standings.get(message)) }
  }

  /** Of a document that a function made only the field is known that names it: it is the key where it has the name of the key's column. */
  namesByKey(columns: readonly string[]): boolean {
    const { primaryKey, isTransformed } = this.#options
    return !isTransformed || (columns.length === 1 && columns[0] === primaryKey)
  }

  async stored(after: string | undefined, limit: number, signal: AbortSignal): Promise<Looked<StoredPage>> {
    const { primaryKey } = this.#options
    const offset = Number(after ?? 0)
    const { found, answer } = await this.#fetch({ offset, limit, fields: [primaryKey, 'metadata'] }, signal)
    if (answer) return { answer }
    const documents = found.documents.map((document) => ({ id: idOf(document[primaryKey]), ...rowNamedBy(document) }))
    return { found: { documents, next: documents.length < limit ? undefined : String(offset + limit) } }
  }

  async present(ids: readonly string[], signal: AbortSignal): Promise<Looked<readonly string[]>> {
    const { primaryKey } = this.#options
    const { found, answer } = await this.#fetch({ ids, limit: ids.length, fields: [primaryKey] }, signal)
    return answer ? { answer } : { found: found.documents.map((document) => idOf(document[primaryKey])) }
  }

  async count(signal: AbortSignal): Promise<Looked<number>> {
    const { found, answer } = await this.#fetch({ limit: 0 }, signal)
    return answer ? { answer } : { found: found.total }
  }

  /** Documents may be large: where an answer would be too long, halves are asked for. */
  async #look(index: string, items: readonly Item[], standings: Map<Message, Standing>, signal: AbortSignal): Promise<Looked<undefined>> {
    const { primaryKey } = this.#options
    const ids = items.map(({ id }) => id)
    const { found, answer } = ids.length === 0 ? NONE : await this.#fetch({ ids, limit: ids.length }, signal, index)
    if (answer) {
      if (answer.status !== 200 || items.length === 1) return { answer }
      const half = items.length >> 1
      const first = await this.#look(index, items.slice(0, half), standings, signal)
      return first.answer ? first : this.#look(index, items.slice(half), standings, signal)
    }
    const there = new Map(found.documents.map((document) => [idOf(document[primaryKey]), document]))
    for (const { message, kind, id } of items) {
      const document = there.get(id)
      const isWanted = kind === 'index'
      const state = !document ? (isWanted ? 'missing' : 'same') : !isWanted ? 'extra' : isSame(message, document) ? 'same' : 'different'
      standings.set(message, { id, state })
    }
    return { found: undefined }
  }

  async #fetch(
    asked: object,
    signal: AbortSignal,
    index = this.#options.index,
  ): Promise<Looked<Readonly<{ documents: readonly Readonly<Record<string, unknown>>[]; total: number }>>> {
    if (index === undefined) return { answer: NO_INDEX }
    const { found, answer } = await this.#options.api.ask(`/indexes/${encodeURIComponent(index)}/documents/fetch`, asked, signal)
    return answer ? { answer } : { found: { documents: objectsOf(found['results']), total: Number(found['total']) } }
  }
}

const NONE = { found: { documents: [], total: 0 }, answer: undefined } as const

/** The name of a document of what stands in its field: 2 and "2" are one. */
const idOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value))

function isSame(message: Message, document: Readonly<Record<string, unknown>>): boolean {
  const { payload, row } = comparedOf(message)
  return payload === undefined ? isDeepStrictEqual(kept(document['record']), kept(row)) : isDeepStrictEqual(kept(document), kept(payload))
}

/** A value as Meilisearch keeps it: integers of 64 bits have all their digits, other numbers are float64. */
function kept(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(kept)
  if (typeof value !== 'object' || value === null) return value
  if (!JSON.isRawJSON(value)) return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, kept(member)]))
  const digits = BigInt(JSON.stringify(value))
  return digits >= I64_MIN && digits <= U64_MAX ? digits : Number(digits)
}
