/**
 * What a message is to Meilisearch: a document that is put into an index or taken out of it, and its identifier, by one rule
 * for both. Documents are spliced from the log's bytes; they are only looked into.
 *
 * The identifier is the field `primary_key` of the document: of what a function made of the row, or of the row itself. Where
 * the row has no such column, or neither it nor the function tells of a deleted row, it is the row's primary key, joined with "-".
 */
import type { Message } from '../engine/dispatch/batch.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { JsonMembers, type ByteSpan } from './json-members.ts'
import { documentName, effectOf, isTombstone, keyValues, NO_OBJECT, once, type Refused } from './keyed-documents.ts'
import { Messages } from './messages.ts'

/** What a message does to its document. */
export type Item = Readonly<{
  message: Message
  kind: 'index' | 'delete'
  /** names its document: 2 and "2" are one */
  id: string
  /** the identifier as it is sent */
  idJson: string
  /** Meilisearch most likely refuses it: sent apart from others, for its words */
  isOdd: boolean
  /** in front of the default message: the field that is its identifier */
  head: Buffer | undefined
}>

const ID = /^[A-Za-z0-9_-]{1,511}$/
const I64_MIN = -(2n ** 63n)
const U64_MAX = 2n ** 64n - 1n
/** Its reader gives up at 128. */
const MAX_DEPTH = 120
const OPEN_OBJECT = 0x7b
const NEWLINE = 0x0a
/** the longest identifier, and what stands around it */
const HEAD_BYTES = 520
const TOO_LARGE_NUMBER =
  'the document has a number beyond ±1.8e308, for which Meilisearch would refuse every task beside it; send it as text'
const BAD_VECTORS = '`_vectors` of the document is no object, for which Meilisearch would refuse every task beside it'

/** Makes documents of the messages of one sink. */
export class MeilisearchDocuments {
  readonly overheadBytes: number
  readonly #key: string
  readonly #isTransformed: boolean
  readonly #messages: Messages
  readonly #warn: (text: string) => void

  constructor({ sink, database, key, warn }: Readonly<{ sink: Sink; database: Database; key: string; warn: (text: string) => void }>) {
    this.#key = key
    this.#isTransformed = (sink.transform ?? null) !== null
    this.#messages = new Messages(sink, database)
    this.#warn = once(warn)
    this.overheadBytes = this.#messages.overheadBytes + Buffer.byteLength(JSON.stringify(key)) + HEAD_BYTES
  }

  /** @param action what a routing function says; undefined: by the message. A tombstone is always a delete. */
  item(message: Message, action: 'index' | 'delete' | undefined): Item | Refused {
    const isDeleted = isTombstone(message) || (action ?? effectOf(message)) === 'delete'
    return isDeleted ? this.#deleted(message) : this.#indexed(message)
  }

  /** The body of a request: a document on each line. */
  ndjson(items: readonly Item[]): Buffer {
    const sizes = items.map(({ message, head }) => this.#messages.size(message) + (head ? head.length - 1 : 0) + 1)
    const body = Buffer.allocUnsafeSlow(sizes.reduce((sum, size) => sum + size, 0))
    let at = 0
    for (const { message, head } of items) {
      const start = at
      if (head) at += head.length - 1 // over the brace of the message
      at = this.#messages.write(message, body, at)
      head?.copy(body, start)
      body[at++] = NEWLINE
    }
    return body
  }

  #indexed(message: Message): Item | Refused {
    const { isObject, idJson: found, isOutOfRange, hasBadVectors, depth } = this.#look(message)
    if (!isObject) return { refusal: NO_OBJECT }
    if (isOutOfRange) return { refusal: TOO_LARGE_NUMBER }
    if (hasBadVectors) return { refusal: BAD_VECTORS }
    const isDefault = message.payload === undefined
    if (isDefault && this.#isTransformed)
      return { refusal: 'the routing function wants to index a deleted row, for which the transform returned no document' }
    const idJson = found ?? (isDefault ? primaryKeyJson(message) : undefined)
    if (idJson === undefined) return { refusal: `the document has no field "${this.#key}", which is the primary key of the index` }
    const head = isDefault ? Buffer.from(`{${JSON.stringify(this.#key)}:${idJson},`) : undefined
    const id = nameOf(idJson)
    return { message, kind: 'index', id: id ?? idJson, idJson, isOdd: id === undefined || depth > MAX_DEPTH, head }
  }

  #deleted(message: Message): Item | Refused {
    const { idJson: found } = this.#look(message)
    if (found === 'null')
      this.#warn(
        `Postgres does not send "${this.#key}" of deleted rows, so their documents are deleted by primary key. With REPLICA IDENTITY FULL, Postgres sends it`,
      )
    const idJson = found === undefined || found === 'null' ? primaryKeyJson(message) : found
    if (idJson === undefined)
      return { refusal: `the document of this row has no id: the row has no "${this.#key}", and its table no primary key` }
    return { message, kind: 'delete', id: nameOf(idJson) ?? idJson, idJson, isOdd: false, head: undefined }
  }

  #look({ view, place, payload }: Message): Look {
    const bytes = payload ? payload.text : view.buffer
    // the default message has its brace put in front at delivery
    const members = payload ? JsonMembers.of(bytes, payload.start) : new JsonMembers(bytes, view.bodyStart(place))
    if (!members) return NOT_AN_OBJECT
    let id: ByteSpan | undefined
    let hasBadVectors = false
    for (let name = members.name(); name; name = members.name()) {
      if (!payload && members.is(name, 'metadata')) break // ours, and left open
      if (!payload && members.is(name, 'record')) id = columnOf(bytes, members.at, this.#key)
      const value = members.value()
      if (!payload) continue
      if (members.is(name, this.#key)) id = value
      if (members.is(name, '_vectors')) hasBadVectors = bytes[value.start] !== OPEN_OBJECT
    }
    const { depth, isOutOfRange } = members
    return { isObject: true, idJson: id && bytes.toString('utf8', id.start, id.end), hasBadVectors, depth, isOutOfRange }
  }
}

type Look = Readonly<{ isObject: boolean; idJson: string | undefined; hasBadVectors: boolean; depth: number; isOutOfRange: boolean }>
const NOT_AN_OBJECT: Look = { isObject: false, idJson: undefined, hasBadVectors: false, depth: 0, isOutOfRange: false }

/** The value of a column of the row that stands at `start`. */
function columnOf(bytes: Buffer, start: number, column: string): ByteSpan | undefined {
  const row = JsonMembers.of(bytes, start)
  if (!row) return undefined
  for (let name = row.name(); name; name = row.name()) {
    const value = row.value()
    if (row.is(name, column)) return value
  }
  return undefined
}

/** The row's primary key, joined with "-", as JSON text. */
function primaryKeyJson(message: Message): string | undefined {
  const values = keyValues(message)
  return values.length === 0 ? undefined : JSON.stringify(documentName(values))
}

/** The name of a document, of its identifier as JSON. @returns undefined: Meilisearch takes no such identifier */
function nameOf(idJson: string): string | undefined {
  if (/^-?\d{1,20}$/.test(idJson)) {
    const value = BigInt(idJson)
    return value >= I64_MIN && value <= U64_MAX ? idJson : undefined
  }
  const text: unknown = idJson.startsWith('"') ? JSON.parse(idJson) : undefined
  return typeof text === 'string' && ID.test(text) ? text : undefined
}
