/**
 * A change as the bytes of its message (docs/messages.md). The body has no opening brace and stays open inside `metadata`:
 *
 *   "record":{…},"changes":…,"action":"…","metadata":{"table_schema":…,"table_name":…,"commit_timestamp":…,"commit_lsn":…,
 *   "commit_idx":…,"idempotency_key":…,"record_pks":[…],"transaction_annotations":…
 *
 * Nothing in it is of one sink: delivery puts `{` and perhaps an ack_id in front, and behind it the rest of the metadata
 * (enrichment, consumer, database) and `}}`.
 */
import { ByteWriter, Literal } from '../../byte-writer.ts'
import type { Lsn } from '../../lsn.ts'
import { type Change, type Side, tupleOf, writeKeys } from './change.ts'
import { OLD } from './pgoutput.ts'
import type { TimestampFormat } from './render.ts'
import { KIND, type Tuple } from './tuple.ts'
import type { Render } from './value-type.ts'

const RECORD = new Literal('"record":{')
const NULL = new Literal('null')
const UNCHANGED = new Literal('"unchanged_toast"')
const INSERT = new Literal('},"changes":null,"action":"insert",')
const DELETE = new Literal('},"changes":null,"action":"delete",')
const READ = new Literal('},"changes":null,"action":"read",')
const CHANGES = new Literal('},"changes":{')
const UPDATE = new Literal('},"action":"update",')
const COMMIT_LSN = new Literal('Z","commit_lsn":')
const COMMIT_IDX = new Literal(',"commit_idx":')
const IDEMPOTENCY_KEY = new Literal(',"idempotency_key":"')
const RECORD_PKS = new Literal('","record_pks":')
const ANNOTATIONS = new Literal(',"transaction_annotations":')

const COMMA = 0x2c
const COLON = 0x3a
const ZERO = 0x30
/** Behind the index in a tombstone's idempotency key: it must not pass for a repetition of the update it belongs to. */
const TOMBSTONE_MARK = [COLON, 0x74 /* t */] as const
const MAX_DATE_SECONDS = 8_640_000_000_000

/** Writes the messages of one stream. */
export class ChangeWriter {
  /** `2025-02-03T04:05:06.789012Z","commit_lsn":26741272,"commit_idx":` of the open transaction */
  readonly #transaction = new ByteWriter(256)
  /** commit times are often of the same second */
  #second = Number.NaN
  #secondText = ''
  readonly #key = new IdempotencyKey()
  #annotations: Uint8Array | null = null

  /**
   * @param lsn of the Begin
   * @param history above 0 it is part of the idempotency key: LSNs are reused after a failover
   */
  beginTransaction(lsn: Lsn, commitTimeUs: number, history: number): void {
    const head = this.#transaction
    head.reset()
    this.#writeTime(head, commitTimeUs)
    head.literal(COMMIT_LSN)
    writeLsn(head, lsn)
    head.literal(COMMIT_IDX)
    this.#key.begin(lsn, history)
    this.#annotations = null
  }

  /** Sets the annotations that the following changes of the transaction carry. @param json valid JSON without line breaks, kept as it is */
  annotations(json: Uint8Array | null): void {
    this.#annotations = json
  }

  /** @returns whether the record has a column whose value Postgres didn't send and a literal stands for */
  write(out: ByteWriter, change: Change, format: TimestampFormat): boolean {
    const { action, relation, row, old } = change
    const renderers = relation.renderers(format)
    out.literal(RECORD)
    if (action === 'delete') {
      const { names } = relation
      for (let i = 0; i < old.count; i++) {
        if (i > 0) out.byte(COMMA)
        out.literal(names[i] as Literal)
        writeValue(out, old, i, renderers[i] as Render) // what Postgres doesn't tell of a deleted row it sends as null
      }
      out.literal(DELETE)
    } else {
      const { names } = relation
      for (let i = 0; i < row.count; i++) {
        if (i > 0) out.byte(COMMA)
        out.literal(names[i] as Literal)
        writeValue(out, row, i, renderers[i] as Render)
      }
      if (action === 'insert') out.literal(INSERT)
      else {
        out.literal(CHANGES)
        if (change.oldKind !== OLD.none) writeChanges(out, change, renderers)
        out.literal(UPDATE)
      }
    }
    this.#metadata(out, change, 'new', false)
    return action === 'delete' ? old.unchanged > 0 : row.unchanged > 0
  }

  /** Writes what deletes the old key of an update that changed it: a delete with only the old key's columns. */
  writeTombstone(out: ByteWriter, change: Change, format: TimestampFormat): void {
    const { relation } = change
    const { names, key } = relation
    const renderers = relation.renderers(format)
    out.literal(RECORD)
    for (let i = 0, k = 0; i < names.length; i++) {
      if (i > 0) out.byte(COMMA)
      out.literal(names[i] as Literal)
      const isKey = key[k] === i
      if (isKey) k++
      if (isKey || change.knowsOld(i)) writeValue(out, tupleOf(change, i, 'old'), i, renderers[i] as Render)
      else out.literal(NULL)
    }
    out.literal(DELETE)
    this.#metadata(out, change, 'old', true)
  }

  /** Writes what stands for a change that is too large to be kept: where it was, and its size. Nobody is sent this. */
  writeDiscarded(out: ByteWriter, change: Change, bytes: number): void {
    out.ascii('"record":null,"changes":null,"action":"')
    out.ascii(change.action)
    out.ascii('","bytes":')
    out.digits(bytes)
    out.byte(COMMA)
    this.#metadata(out, change, change.action === 'delete' ? 'old' : 'new', false)
  }

  /** Writes the place of a message of the open transaction: commit time and LSN, and its index. */
  writePlace(out: ByteWriter, idx: number): void {
    out.append(this.#transaction)
    out.digits(idx)
  }

  #metadata(out: ByteWriter, change: Change, side: Side, isTombstone: boolean): void {
    out.literal(change.relation.tableMetadata)
    this.writePlace(out, change.idx)
    out.literal(IDEMPOTENCY_KEY)
    this.#key.write(out, change.idx, isTombstone)
    out.literal(RECORD_PKS)
    writeKeys(out, change, side)
    out.literal(ANNOTATIONS)
    if (this.#annotations) out.copy(this.#annotations)
    else out.literal(NULL)
  }

  /** ISO 8601 with six digits, without the Z. */
  #writeTime(out: ByteWriter, us: number): void {
    const second = Math.max(-MAX_DATE_SECONDS, Math.min(MAX_DATE_SECONDS, Math.floor(us / 1_000_000)))
    if (second !== this.#second) {
      this.#second = second
      this.#secondText = new Date(second * 1000).toISOString().slice(0, -4) // without "000Z"
    }
    out.ascii(this.#secondText)
    const fraction = us - Math.floor(us / 1_000_000) * 1_000_000
    for (let scale = 100_000; scale >= 1; scale /= 10) out.byte(ZERO + (Math.floor(fraction / scale) % 10))
  }
}

/**
 * Writes the message of a row that a backfill has read, up to where its place belongs (@see ChangeWriter.writePlace). It is not known
 * yet when the row is read.
 */
export function writeReadHead(out: ByteWriter, { relation, row }: Change, format: TimestampFormat): void {
  const renderers = relation.renderers(format)
  const { names } = relation
  out.literal(RECORD)
  for (let i = 0; i < row.count; i++) {
    if (i > 0) out.byte(COMMA)
    out.literal(names[i] as Literal)
    writeValue(out, row, i, renderers[i] as Render)
  }
  out.literal(READ)
  out.literal(relation.tableMetadata)
}

/** Writes what stands for a row that is too large to be kept. Nobody is sent this. */
export function writeDiscardedReadHead(out: ByteWriter, { relation }: Change, bytes: number): void {
  out.ascii('"record":null,"changes":null,"action":"read","bytes":')
  out.digits(bytes)
  out.byte(COMMA)
  out.literal(relation.tableMetadata)
}

/** Writes the rest of such messages of one backfill, behind their place. */
export class ReadTail {
  /** the idempotency key of a row: the backfill and the row's key, whose beginning all rows have in common */
  readonly #key: KeyOfPrefix

  /** @param backfill its id */
  constructor(backfill: string) {
    this.#key = new KeyOfPrefix()
    this.#key.prefix.ascii(backfill)
    this.#key.begin()
  }

  /** @param named the columns of a key of the row; or a text, of a row that has none */
  write(out: ByteWriter, change: Change, named: readonly number[] | string): void {
    const { row } = change
    const rest = this.#key.rest()
    if (typeof named === 'string') rest.ascii(`:${named}`)
    else
      for (const column of named) {
        rest.byte(COLON)
        if (row.kind[column] !== KIND.text) continue
        const start = row.start[column] as number
        const end = row.end[column] as number
        rest.reserve(end - start)
        for (let i = start; i < end; i++) rest.buffer[rest.length++] = row.bytes.getUint8(i)
      }
    out.literal(IDEMPOTENCY_KEY)
    this.#key.write(out)
    out.literal(RECORD_PKS)
    writeKeys(out, change, 'new')
    out.literal(ANNOTATIONS)
    out.literal(NULL)
  }
}

function writeValue(out: ByteWriter, tuple: Tuple, i: number, render: Render): void {
  const kind = tuple.kind[i]
  if (kind === KIND.text) render(out, tuple.bytes, tuple.start[i] as number, tuple.end[i] as number)
  else out.literal(kind === KIND.null ? NULL : UNCHANGED)
}

/**
 * The old values. Of a whole old row: the columns that differ. Of a key that changed (Postgres sends it whole): its
 * columns all, so that they address the old row; a key that is sent because it is TOASTed and didn't change: nothing.
 */
function writeChanges(out: ByteWriter, change: Change, renderers: readonly Render[]): void {
  const { relation, old, oldKind } = change
  const isKey = oldKind === OLD.key
  if (isKey && !identityChanged(change)) return
  let isFirst = true
  for (let i = 0; i < old.count; i++) {
    if (isKey ? relation.identity[i] === 0 : change.sameAsOld(i)) continue
    if (!isFirst) out.byte(COMMA)
    isFirst = false
    out.literal(relation.names[i] as Literal)
    writeValue(out, old, i, renderers[i] as Render)
  }
}

function identityChanged(change: Change): boolean {
  const { identity } = change.relation
  for (let i = 0; i < identity.length; i++) if (identity[i] === 1 && !change.sameAsOld(i)) return true
  return false
}

function writeLsn(out: ByteWriter, lsn: Lsn): void {
  const number = Number(lsn)
  if (number <= Number.MAX_SAFE_INTEGER) out.digits(number)
  else out.ascii(lsn.toString())
}

const BASE64 = Buffer.from('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/')
const PADDING = 0x3d

/** Base64 of `lsn:idx`, `history:lsn:idx`, and with `:t` behind it. */
class IdempotencyKey {
  readonly #key = new KeyOfPrefix()

  begin(lsn: Lsn, history: number): void {
    const { prefix } = this.#key
    prefix.reset()
    if (history > 0) {
      prefix.digits(history)
      prefix.byte(COLON)
    }
    writeLsn(prefix, lsn)
    prefix.byte(COLON)
    this.#key.begin()
  }

  write(out: ByteWriter, idx: number, isTombstone: boolean): void {
    const rest = this.#key.rest()
    rest.digits(idx)
    if (isTombstone) for (const byte of TOMBSTONE_MARK) rest.byte(byte)
    this.#key.write(out)
  }
}

/** Writes texts of one beginning in base64: what they have in common is encoded once. */
class KeyOfPrefix {
  /** what they begin with, until `begin` */
  readonly prefix = new ByteWriter(128)
  #prefixLength = 0
  readonly #encoded = new ByteWriter(128)

  begin(): void {
    const { prefix } = this
    this.#prefixLength = prefix.length
    this.#encoded.reset()
    encode(this.#encoded, prefix.buffer, 0, prefix.length - (prefix.length % 3))
  }

  /** @returns gets what stands behind the beginning */
  rest(): ByteWriter {
    this.prefix.length = this.#prefixLength
    return this.prefix
  }

  write(out: ByteWriter): void {
    const { prefix } = this
    out.append(this.#encoded)
    encode(out, prefix.buffer, this.#prefixLength - (this.#prefixLength % 3), prefix.length)
  }
}

function encode(out: ByteWriter, from: Uint8Array, start: number, end: number): void {
  out.reserve((end - start) * 2 + 4)
  const { buffer } = out
  let o = out.length
  for (let i = start; i < end; i += 3) {
    const left = end - i
    const a = from[i] as number
    const b = left > 1 ? (from[i + 1] as number) : 0
    const c = left > 2 ? (from[i + 2] as number) : 0
    buffer[o++] = BASE64[a >> 2] as number
    buffer[o++] = BASE64[((a & 3) << 4) | (b >> 4)] as number
    buffer[o++] = left > 1 ? (BASE64[((b & 15) << 2) | (c >> 6)] as number) : PADDING
    buffer[o++] = left > 2 ? (BASE64[c & 63] as number) : PADDING
  }
  out.length = o
}
