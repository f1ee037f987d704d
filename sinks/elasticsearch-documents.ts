/**
 * What messages are to Elasticsearch: lines of a bulk request. Each puts a whole document into the index or takes one out, named
 * by the row's primary key. Documents are spliced from the log's bytes, which hold no line breaks.
 *
 *  I1. The same rule names a document when it is put in and when it is taken out, whatever a function made of the row.
 *  I2. A version grows with the position in the source, so that an older change never stands over a newer one, however
 *      late it arrives (correctness 35). Within a transaction the order in the request decides.
 */
import type { Position } from '../engine/position.ts'
import { ACTION, MESSAGE_FLAG } from '../engine/log/pack.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { JsonMembers } from './json-members.ts'
import { Messages } from './messages.ts'
import type { Load } from './push.ts'

/** One operation of a bulk request. */
export type Operation = Readonly<{
  /** of its message in the load */
  i: number
  kind: 'index' | 'delete'
  /** the identifier as JSON text */
  idJson: string
  /** the action line, with its line break */
  line: string
  bytes: number
}>
export type Refused = Readonly<{ i: number; refusal: string }>

/** Elasticsearch refuses a whole request for a longer one. */
const MAX_ID_BYTES = 512
const MAX_VERSION = 2n ** 63n - 1n
const NEWLINE = 0x0a
const OPEN_OBJECT = 0x7b
/** what an action line has beside index and identifier, at most */
const LINE_BYTES = 96
const NUMBER_OR_UUID = /^(?:-?\d+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/

export type DocumentOptions = Readonly<{
  sink: Sink
  database: Database
  isVersioned: boolean
  /** the longest name of an index that may be used, in bytes */
  indexBytes: number
  warn: (text: string) => void
}>

export class ElasticsearchDocuments {
  readonly overheadBytes: number
  readonly #messages: Messages
  readonly #isVersioned: boolean
  readonly #warn: (text: string) => void
  #hasWarned = false
  #versioned: Readonly<{ history: number; lsn: bigint; text: string | undefined }> = { history: -1, lsn: -1n, text: undefined }

  constructor({ sink, database, isVersioned, indexBytes, warn }: DocumentOptions) {
    this.#messages = new Messages(sink, database)
    this.#isVersioned = isVersioned
    this.#warn = warn
    this.overheadBytes = this.#messages.overheadBytes + indexBytes + MAX_ID_BYTES + LINE_BYTES
  }

  /** @param indexJson name of the index as JSON text */
  operation(load: Load, i: number, indexJson: string): Operation | Refused {
    const view = load.views[i] as Load['views'][number]
    const place = load.places[i] as number
    const idJson = this.#id(view.buffer, view.keyStart(place), view.keyEnd(place))
    if (!idJson.startsWith('"')) return { i, refusal: idJson }
    let version = ''
    if (this.#isVersioned) {
      const text = this.#version(view.position(place))
      if (text === undefined) return { i, refusal: 'the position of the change fits no version; set versioning to none' }
      version = `,"version":${text},"version_type":"external_gte"`
    }
    const isTombstone = (view.flags(place) & MESSAGE_FLAG.tombstone) !== 0
    const kind = isTombstone || view.action(place) === ACTION.delete ? 'delete' : 'index'
    const payload = load.payloads?.[i]
    if (kind === 'index' && payload && payload[0] !== OPEN_OBJECT)
      return { i, refusal: 'the function made no object of it: a document is an object' }
    const line = `{"${kind}":{"_index":${indexJson},"_id":${idJson}${version}}}\n`
    const bytes = Buffer.byteLength(line) + (kind === 'index' ? this.#messages.size(load, i) + 1 : 0)
    return { i, kind, idJson, line, bytes }
  }

  body(load: Load, operations: readonly Operation[]): Buffer {
    const body = Buffer.allocUnsafeSlow(operations.reduce((sum, { bytes }) => sum + bytes, 0))
    let at = 0
    for (const { i, kind, line } of operations) {
      at += body.write(line, at)
      if (kind === 'delete') continue
      at = this.#messages.write(load, i, body, at)
      body[at++] = NEWLINE
    }
    return body
  }

  /** @returns the identifier as JSON text, or why there is none */
  #id(bytes: Buffer, start: number, end: number): string {
    const keys = bytes.toString('utf8', start, end)
    const one = /^\[("(?:[^"\\]|\\.)+")\]$/.exec(keys)?.[1]
    if (one !== undefined && end - start <= MAX_ID_BYTES) return one // escapes only make it longer
    const parts = JSON.parse(keys) as (string | null)[]
    if (parts.length === 0) return 'nothing names the document of this row: its table has no primary key'
    const id = parts.join('-')
    if (id === '') return 'the primary key is empty: Elasticsearch takes no document of that name'
    const length = Buffer.byteLength(id)
    if (length > MAX_ID_BYTES) return `the primary key has ${length} bytes; Elasticsearch takes ${MAX_ID_BYTES} to name a document`
    if (!this.#hasWarned && parts.filter((part) => part !== null && !NUMBER_OR_UUID.test(part)).length > 1) this.#tellOfTexts()
    return JSON.stringify(id)
  }

  #tellOfTexts(): void {
    this.#hasWarned = true
    this.#warn(
      'documents are named by the values of the primary key, joined with "-"; several of them are texts, so "a-b" and "c" name the same document as "a" and "b-c"',
    )
  }

  /** history · 2^56 + LSN: a whole position doesn't fit 63 bits. */
  #version({ history, lsn }: Position): string | undefined {
    const last = this.#versioned
    if (last.lsn === lsn && last.history === history) return last.text
    const version = (BigInt(history) << 56n) + lsn
    const text = version > MAX_VERSION ? undefined : version.toString()
    this.#versioned = { history, lsn, text }
    return text
  }
}

/** The table of message i, as its metadata has it. */
export function tableOf({ views, places }: Load, i: number): Readonly<{ schema: string; table: string }> {
  const view = views[i] as Load['views'][number]
  const { buffer } = view
  const message = new JsonMembers(buffer, view.bodyStart(places[i] as number))
  for (let name = message.name(); name && !message.is(name, 'metadata'); name = message.name()) message.value()
  const metadata = JsonMembers.of(buffer, message.at)
  const text = () => {
    metadata?.name()
    const { start, end } = metadata?.value() ?? { start: 0, end: 0 }
    return JSON.parse(buffer.toString('utf8', start, end)) as string
  }
  return { schema: text(), table: text() } // the first two
}
