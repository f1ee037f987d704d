/**
 * What messages are to Elasticsearch: lines of a bulk request. Each puts a whole document into the index or takes one out, named
 * by the row's primary key. Documents are spliced from the log's bytes, which hold no line breaks.
 *
 *  I1. The same rule names a document when it is put in and when it is taken out, whatever a function made of the row.
 *  I2. A version grows with the position in the source, so that an older change never stands over a newer one, however
 *      late it arrives (docs/rules.md, rule 35). Within a transaction the order in the request decides.
 */
import type { Message } from '../engine/dispatch/batch.ts'
import type { Position } from '../engine/position.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { documentName, effectOf, keyValues, NO_OBJECT, once, type Refused } from './keyed-documents.ts'
import { Messages } from './messages.ts'

/** One operation of a bulk request: its action line is `head`, the identifier, `tail`. */
export type BulkOperation = Readonly<{
  message: Message
  kind: 'index' | 'delete'
  head: Buffer
  /** the identifier as JSON text: these bytes, most often the log's */
  id: Buffer
  idStart: number
  idEnd: number
  /** with its line break */
  tail: Buffer
  bytes: number
}>
/** What the action lines of one index begin with. */
type Heads = Readonly<Record<BulkOperation['kind'], Buffer>>

/** Elasticsearch refuses a whole request for a longer one. */
const MAX_ID_BYTES = 512
const MAX_VERSION = 2n ** 63n - 1n
const NEWLINE = 0x0a
const QUOTE = 0x22
const BACKSLASH = 0x5c
const OPEN_OBJECT = 0x7b
/** what an action line has beside index and identifier, at most */
const LINE_BYTES = 96
const PLAIN_TAIL = Buffer.from('}}\n')
const SEVERAL_TEXTS =
  'documents are named by the values of the primary key, joined with "-"; several of them are texts, so "a-b" and "c" name the same document as "a" and "b-c"'
const NUMBER_OR_UUID = /^(?:-?\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/

type DocumentOptions = Readonly<{
  sink: Sink
  database: Database
  isVersioned: boolean
  /** the longest name of an index that may be used, in bytes */
  indexBytes: number
  warn: (text: string) => void
}>

/** Makes operations of the messages of one sink. */
export class ElasticsearchDocuments {
  readonly overheadBytes: number
  readonly #messages: Messages
  readonly #isVersioned: boolean
  readonly #warn: (text: string) => void
  /** the end of the action lines of one transaction */
  #tail: Readonly<{ history: number; lsn: bigint; bytes: Buffer | undefined }> = { history: -1, lsn: -1n, bytes: undefined }

  constructor({ sink, database, isVersioned, indexBytes, warn }: DocumentOptions) {
    this.#messages = new Messages(sink, database)
    this.#isVersioned = isVersioned
    this.#warn = once(warn)
    this.overheadBytes = this.#messages.overheadBytes + indexBytes + MAX_ID_BYTES + LINE_BYTES
  }

  /** Makes of a message the operation that it is to the index of these heads. */
  operation(message: Message, heads: Heads): BulkOperation | Refused {
    const { view, place, payload } = message
    const tail = this.#isVersioned ? this.#versioned(view.position(place)) : PLAIN_TAIL
    if (!tail) return { refusal: 'the position of the change is too large for a document version: set versioning to none' }
    const kind = effectOf(message)
    if (kind === 'index' && payload && payload.text[payload.start] !== OPEN_OBJECT) return { refusal: NO_OBJECT }
    let id = view.buffer
    let idStart = view.keyStart(place) + 1
    let idEnd = view.keyEnd(place) - 1
    if (!isPlainText(id, idStart, idEnd)) {
      const named = this.#named(keyValues(message))
      if ('refusal' in named) return named
      id = Buffer.from(JSON.stringify(named.id))
      idStart = 0
      idEnd = id.length
    }
    const head = heads[kind]
    const line = head.length + idEnd - idStart + tail.length
    const bytes = kind === 'index' ? line + this.#messages.size(message) + 1 : line
    return { message, kind, head, id, idStart, idEnd, tail, bytes }
  }

  /** @param body as long as all of them, and written to its end. @returns it */
  write(operations: readonly BulkOperation[], body: Buffer): Buffer {
    let at = 0
    for (const { message, kind, head, id, idStart, idEnd, tail } of operations) {
      body.set(head, at)
      at += head.length
      for (let from = idStart; from < idEnd; from++) body[at++] = id[from] ?? 0 // too short for a call
      body.set(tail, at)
      at += tail.length
      if (kind === 'delete') continue
      at = this.#messages.write(message, body, at)
      body[at++] = NEWLINE
    }
    return body
  }

  /** @param key values of the primary key */
  #named(key: readonly (string | null)[]): Readonly<{ id: string }> | Refused {
    if (key.length === 0) return { refusal: 'the document of this row has no _id: its table has no primary key' }
    const id = documentName(key)
    if (id === '') return { refusal: 'the primary key of the row is empty: Elasticsearch takes no document with an empty _id' }
    const length = Buffer.byteLength(id)
    if (length > MAX_ID_BYTES)
      return { refusal: `the primary key of the row has ${length} bytes; Elasticsearch takes an _id of at most ${MAX_ID_BYTES} bytes` }
    if (key.filter((value) => value !== null && !NUMBER_OR_UUID.test(value)).length > 1) this.#warn(SEVERAL_TEXTS)
    return { id }
  }

  /** By history · 2^56 + LSN: a whole position doesn't fit 63 bits. @returns undefined: nor does this one */
  #versioned({ history, lsn }: Position): Buffer | undefined {
    const last = this.#tail
    if (last.lsn === lsn && last.history === history) return last.bytes
    const version = (BigInt(history) << 56n) + lsn
    const bytes = version > MAX_VERSION ? undefined : Buffer.from(`,"version":${version},"version_type":"external_gte"}}\n`)
    this.#tail = { history, lsn, bytes }
    return bytes
  }
}

/** Makes the beginnings of action lines for an index. */
export const headsOf = (index: string): Heads => {
  const of = (kind: BulkOperation['kind']) => Buffer.from(`{"${kind}":{"_index":${JSON.stringify(index)},"_id":`)
  return { index: of('index'), delete: of('delete') }
}

/** The identifier of an operation’s document, as JSON text. */
export const idOf = ({ id, idStart, idEnd }: BulkOperation): string => id.toString('utf8', idStart, idEnd)

/** Whether a text that isn't empty, short enough and without escapes, is all there is between the brackets of a key. */
function isPlainText(bytes: Buffer, start: number, end: number): boolean {
  const last = end - 1
  if (bytes[start] !== QUOTE || bytes[last] !== QUOTE || last - start < 2 || last - start > MAX_ID_BYTES) return false
  for (let at = start + 1; at < last; at++) if (bytes[at] === QUOTE || bytes[at] === BACKSLASH) return false
  return true
}
