/**
 * Packs: many messages of one partition in one record of the log, with one codec for both logs.
 *
 * A record is a header of 80 bytes, never compressed, and a payload: an index in columns in front of the bodies,
 * plain or in zstd as the log chose. Everything is little-endian; columns are aligned, so that a reader looks at them
 * through typed arrays without copying. N messages, T transactions:
 *
 *   header   magic u16 · version u8 · flags u8 · N u32 · history u32 · term u32 · generation u32 · routing u32
 *            first position: lsn u64 · idx u32 · part u8 · 3 spare     last position: the same
 *            smallest and largest commit time f64 (µs since the epoch) · payload length before compression u32 · T u32
 *   payload  group f64×N · lsn u64×T · commit time f64×T · xid u32×T
 *            transaction u32×N · idx u32×N · relation u32×N · end u32×N · key length u32×N · group key length u32×N
 *            part u8×N · action u8×N · flags u8×N · bodies
 *
 * A body is: the primary key as JSON array text, the group key when it differs, the message itself.
 */
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { ByteWriter } from '../byte-writer.ts'
import { EngineError } from '../errors.ts'
import type { Lsn } from '../lsn.ts'
import { ORIGIN, type Part, type Position } from '../position.ts'

export const PACK_VERSION = 1
/** A part of a pack (pack-parts.ts): its header is that of the whole. */
export const PART_VERSION = 2
const MAGIC = 0x5054 // "TP"
export const HEADER_BYTES = 80
/** Below this compression costs more than it saves. */
const COMPRESS_FROM_BYTES = 512
const BYTES_PER_MESSAGE = 8 + 6 * 4 + 3
const BYTES_PER_TRANSACTION = 8 + 8 + 4

export const ACTION = { insert: 0, update: 1, delete: 2, read: 3, truncate: 4 } as const
export type ActionCode = (typeof ACTION)[keyof typeof ACTION]

/** Facts of one message, as bits. */
export const MESSAGE_FLAG = {
  /** deletes the old key of an update that changed the primary key */
  tombstone: 1,
  /** a row of a backfill */
  read: 2,
  /** a TOASTed value was not sent: the body holds a literal instead */
  unchanged: 4,
  /** the sink has no message groups */
  ungrouped: 8,
  /** too large to keep: key and size only, to be put on record and never delivered */
  discarded: 16,
} as const

const PACK_FLAG = { zstd: 1, closing: 2 } as const

export type PackOrigin = Readonly<{ history: number; term: number; generation: number; routing: number }>

export type PackHeader = PackOrigin &
  Readonly<{
    count: number
    first: Position
    last: Position
    /** µs since the epoch */
    minCommitTimeUs: number
    maxCommitTimeUs: number
    /** the last pack of its partition in this generation */
    closing: boolean
    rawBytes: number
  }>

const malformed = (what: string) => new EngineError('PACK_MALFORMED', `a record of the log can't be read: ${what}`)

/** Gathers messages, which the caller renders into `bodies`, and encodes them as one record. */
export class PackBuilder {
  readonly bodies = new ByteWriter()
  readonly #origin: PackOrigin
  #count = 0
  #group = new Float64Array(256)
  /** columns of u32 side by side, BUILD_COLUMNS for each message */
  #words = new Uint32Array(256 * BUILD_COLUMNS)
  #marks = new Uint8Array(256 * 3)
  #lsn: Lsn[] = []
  #xid: number[] = []
  #commitTimeUs: number[] = []
  #transaction: { lsn: Lsn; xid: number; commitTimeUs: number } = { lsn: 0n, xid: 0, commitTimeUs: 0 }
  #transactionAdded = false
  /** where the message that is being rendered begins */
  #start = 0

  constructor(origin: PackOrigin) {
    this.#origin = origin
  }

  get count(): number {
    return this.#count
  }

  /** Size before compression, without the message that is being rendered. */
  get bytes(): number {
    return HEADER_BYTES + this.#start + this.#count * BYTES_PER_MESSAGE + this.#lsn.length * BYTES_PER_TRANSACTION
  }

  /** Messages added from here on belong to this transaction. @param commitTimeUs µs since the epoch */
  begin(lsn: Lsn, xid: number, commitTimeUs: number): void {
    this.#transaction = { lsn, xid, commitTimeUs }
    this.#transactionAdded = false
  }

  /**
   * Closes the message rendered into `bodies` since the last call: key, group key, message, in this order.
   * @param group hash of the message's group, an integer from 0 to 2^52 - 1
   * @param keyLength bytes of the key; @param groupKeyLength bytes of the group key, 0: as the key
   */
  add(
    idx: number,
    part: Part,
    action: ActionCode,
    relation: number,
    flags: number,
    group: number,
    keyLength: number,
    groupKeyLength: number,
  ): void {
    const i = this.#count
    if (i === this.#group.length) this.#grow()
    if (!this.#transactionAdded) this.#addTransaction()
    this.#group[i] = group
    const w = i * BUILD_COLUMNS
    const words = this.#words
    words[w] = this.#lsn.length - 1
    words[w + 1] = idx
    words[w + 2] = relation
    words[w + 3] = this.bodies.length
    words[w + 4] = keyLength
    words[w + 5] = groupKeyLength
    const m = i * 3
    this.#marks[m] = part
    this.#marks[m + 1] = action
    this.#marks[m + 2] = flags
    this.#start = this.bodies.length
    this.#count = i + 1
  }

  /** Takes back what was rendered since the last `add`. */
  drop(): void {
    this.bodies.length = this.#start
  }

  /** Copies the rendered bytes of another builder's last message here, as if rendered anew; `add` must follow. */
  copyLast(from: PackBuilder): void {
    const end = from.#start
    const start = from.#count > 1 ? (from.#words[(from.#count - 2) * BUILD_COLUMNS + 3] as number) : 0
    this.bodies.copy(from.bodies.buffer, start, end)
  }

  /** @returns the record, in memory of its own; the builder is empty afterwards and may be used again */
  encode(closing = false): Buffer {
    this.drop()
    const n = this.#count
    const t = this.#lsn.length
    const rawBytes = n * BYTES_PER_MESSAGE + t * BYTES_PER_TRANSACTION + this.bodies.length
    const record = Buffer.from(new ArrayBuffer(HEADER_BYTES + rawBytes))
    const columns = new Columns(record, HEADER_BYTES, n, t)
    columns.group.set(this.#group.subarray(0, n))
    for (let i = 0; i < t; i++) {
      columns.lsn[i] = this.#lsn[i] as bigint
      columns.commitTimeUs[i] = this.#commitTimeUs[i] as number
      columns.xid[i] = this.#xid[i] as number
    }
    for (let i = 0, w = 0, m = 0; i < n; i++, w += BUILD_COLUMNS, m += 3) {
      columns.transaction[i] = this.#words[w] as number
      columns.idx[i] = this.#words[w + 1] as number
      columns.relation[i] = this.#words[w + 2] as number
      columns.end[i] = this.#words[w + 3] as number
      columns.keyLength[i] = this.#words[w + 4] as number
      columns.groupKeyLength[i] = this.#words[w + 5] as number
      columns.part[i] = this.#marks[m] as number
      columns.action[i] = this.#marks[m + 1] as number
      columns.flags[i] = this.#marks[m + 2] as number
    }
    record.set(this.bodies.view(), columns.bodies)
    let min = Infinity
    let max = -Infinity
    for (const time of this.#commitTimeUs) {
      if (time < min) min = time
      if (time > max) max = time
    }
    const o = this.#origin
    record.writeUInt16LE(MAGIC, 0)
    record.writeUInt8(PACK_VERSION, 2)
    record.writeUInt8(closing ? PACK_FLAG.closing : 0, 3)
    record.writeUInt32LE(n, 4)
    record.writeUInt32LE(o.history, 8)
    record.writeUInt32LE(o.term, 12)
    record.writeUInt32LE(o.generation, 16)
    record.writeUInt32LE(o.routing, 20)
    writeEdge(record, 24, columns, 0)
    writeEdge(record, 40, columns, n - 1)
    record.writeDoubleLE(n > 0 ? min : 0, 56)
    record.writeDoubleLE(n > 0 ? max : 0, 64)
    record.writeUInt32LE(rawBytes, 72)
    record.writeUInt32LE(t, 76)
    this.#reset()
    return record
  }

  #addTransaction(): void {
    this.#lsn.push(this.#transaction.lsn)
    this.#xid.push(this.#transaction.xid)
    this.#commitTimeUs.push(this.#transaction.commitTimeUs)
    this.#transactionAdded = true
  }

  #grow(): void {
    const size = this.#group.length * 2
    const group = new Float64Array(size)
    const words = new Uint32Array(size * BUILD_COLUMNS)
    const marks = new Uint8Array(size * 3)
    group.set(this.#group)
    words.set(this.#words)
    marks.set(this.#marks)
    this.#group = group
    this.#words = words
    this.#marks = marks
  }

  #reset(): void {
    this.bodies.reset()
    this.#count = 0
    this.#start = 0
    this.#lsn = []
    this.#xid = []
    this.#commitTimeUs = []
    this.#transactionAdded = false
  }
}
const BUILD_COLUMNS = 6

function writeEdge(record: Buffer, at: number, columns: Columns, i: number): void {
  if (i < 0 || columns.n === 0) return
  record.writeBigUInt64LE(columns.lsn[columns.transaction[i] as number] as bigint, at)
  record.writeUInt32LE(columns.idx[i] as number, at + 8)
  record.writeUInt8(columns.part[i] as number, at + 12)
}

/**
 * The record with its payload compressed by zstd, or itself when that saves less than a tenth. It is the log's choice:
 * level 1 costs 1–4 µs a message in packs of 100–400, reading back another 1–2, and shrinks JSON 3–20 times.
 */
export function compressPack(record: Buffer): Buffer {
  if (record.length < COMPRESS_FROM_BYTES) return record
  const payload = zstdCompressSync(record.subarray(HEADER_BYTES), { params: { [constants.ZSTD_c_compressionLevel]: 1 } })
  if (payload.length > (record.length - HEADER_BYTES) * 0.9) return record
  const small = Buffer.concat([record.subarray(0, HEADER_BYTES), payload])
  small.writeUInt8(record.readUInt8(3) | PACK_FLAG.zstd, 3)
  return small
}

/** Typed views of a payload's columns. */
class Columns {
  readonly n: number
  readonly group: Float64Array
  readonly lsn: BigUint64Array
  readonly commitTimeUs: Float64Array
  readonly xid: Uint32Array
  readonly transaction: Uint32Array
  readonly idx: Uint32Array
  readonly relation: Uint32Array
  readonly end: Uint32Array
  readonly keyLength: Uint32Array
  readonly groupKeyLength: Uint32Array
  readonly part: Uint8Array
  readonly action: Uint8Array
  readonly flags: Uint8Array
  /** offset of the bodies in the buffer */
  readonly bodies: number

  /** @param at where the payload begins; a multiple of 8 in the memory behind the buffer */
  constructor(buffer: Buffer, at: number, n: number, t: number) {
    const memory = buffer.buffer
    let p = buffer.byteOffset + at
    const take = (bytes: number) => {
      const start = p
      p += bytes
      return start
    }
    this.n = n
    this.group = new Float64Array(memory, take(8 * n), n)
    this.lsn = new BigUint64Array(memory, take(8 * t), t)
    this.commitTimeUs = new Float64Array(memory, take(8 * t), t)
    this.xid = new Uint32Array(memory, take(4 * t), t)
    this.transaction = new Uint32Array(memory, take(4 * n), n)
    this.idx = new Uint32Array(memory, take(4 * n), n)
    this.relation = new Uint32Array(memory, take(4 * n), n)
    this.end = new Uint32Array(memory, take(4 * n), n)
    this.keyLength = new Uint32Array(memory, take(4 * n), n)
    this.groupKeyLength = new Uint32Array(memory, take(4 * n), n)
    this.part = new Uint8Array(memory, take(n), n)
    this.action = new Uint8Array(memory, take(n), n)
    this.flags = new Uint8Array(memory, take(n), n)
    this.bodies = p - buffer.byteOffset
  }
}

/** A decoded record. Accessors take the index of a message in it and allocate nothing, but for `lsn` and `position`. */
export class Pack {
  readonly header: PackHeader
  /** key, group key and body of every message lie in here, between the offsets of the accessors */
  readonly buffer: Buffer
  readonly #columns: Columns

  private constructor(header: PackHeader, buffer: Buffer, columns: Columns) {
    this.header = header
    this.buffer = buffer
    this.#columns = columns
  }

  /** Reads the header alone. @throws EngineError PACK_MALFORMED */
  static header(record: Buffer): PackHeader {
    if (record.length < HEADER_BYTES) throw malformed(`${record.length} bytes are no header`)
    if (record.readUInt16LE(0) !== MAGIC) throw malformed('it does not begin as a pack')
    const version = record.readUInt8(2)
    if (version > PART_VERSION) throw malformed(`its format is version ${version}, known up to ${PART_VERSION}`)
    const count = record.readUInt32LE(4)
    const history = record.readUInt32LE(8)
    return {
      count,
      history,
      term: record.readUInt32LE(12),
      generation: record.readUInt32LE(16),
      routing: record.readUInt32LE(20),
      first: readEdge(record, 24, history, count),
      last: readEdge(record, 40, history, count),
      minCommitTimeUs: record.readDoubleLE(56),
      maxCommitTimeUs: record.readDoubleLE(64),
      closing: (record.readUInt8(3) & PACK_FLAG.closing) !== 0,
      rawBytes: record.readUInt32LE(72),
    }
  }

  /** @throws EngineError PACK_MALFORMED: lengths that don't fit, a newer version, damaged bytes */
  static decode(record: Buffer): Pack {
    const header = Pack.header(record)
    if (record.readUInt8(2) === PART_VERSION) throw malformed('it is a part of one')
    const t = record.readUInt32LE(76)
    const { count: n, rawBytes } = header
    const fixed = n * BYTES_PER_MESSAGE + t * BYTES_PER_TRANSACTION
    if (fixed > rawBytes) throw malformed(`${n} messages don't fit ${rawBytes} bytes`)
    const payload = aligned(payloadOf(record, rawBytes))
    if (payload.length !== rawBytes) throw malformed(`its payload has ${payload.length} bytes instead of ${rawBytes}`)
    const columns = new Columns(payload, 0, n, t)
    const bodyBytes = rawBytes - columns.bodies
    let start = 0
    for (let i = 0; i < n; i++) {
      const end = columns.end[i] as number
      if (end < start + (columns.keyLength[i] as number) + (columns.groupKeyLength[i] as number))
        throw malformed(`message ${i} has a negative length`)
      if ((columns.transaction[i] as number) >= t) throw malformed(`message ${i} has no transaction`)
      start = end
    }
    if (start !== bodyBytes) throw malformed(`its messages end at ${start} of ${bodyBytes} bytes`)
    return new Pack(header, payload, columns)
  }

  get count(): number {
    return this.header.count
  }
  idx(i: number): number {
    return this.#columns.idx[i] as number
  }
  part(i: number): Part {
    return this.#columns.part[i] as Part
  }
  action(i: number): ActionCode {
    return this.#columns.action[i] as ActionCode
  }
  flags(i: number): number {
    return this.#columns.flags[i] as number
  }
  relation(i: number): number {
    return this.#columns.relation[i] as number
  }
  group(i: number): number {
    return this.#columns.group[i] as number
  }
  lsn(i: number): Lsn {
    return this.#columns.lsn[this.transaction(i)] as bigint
  }
  xid(i: number): number {
    return this.#columns.xid[this.transaction(i)] as number
  }
  /** number of the message's transaction within the pack */
  transaction(i: number): number {
    return this.#columns.transaction[i] as number
  }
  commitTimeUs(i: number): number {
    return this.#columns.commitTimeUs[this.transaction(i)] as number
  }
  position(i: number): Position {
    return { history: this.header.history, lsn: this.lsn(i), idx: this.idx(i), part: this.part(i) }
  }

  /** @returns below 0, 0 or above 0, as the message stands before, at or after the position */
  compare(i: number, position: Position): number {
    if (this.header.history !== position.history) return this.header.history - position.history
    const lsn = this.lsn(i)
    if (lsn !== position.lsn) return lsn < position.lsn ? -1 : 1
    return this.idx(i) - position.idx || this.part(i) - position.part
  }

  keyStart(i: number): number {
    return this.#columns.bodies + (i === 0 ? 0 : (this.#columns.end[i - 1] as number))
  }
  keyEnd(i: number): number {
    return this.keyStart(i) + (this.#columns.keyLength[i] as number)
  }
  groupKeyStart(i: number): number {
    return this.keyEnd(i)
  }
  groupKeyEnd(i: number): number {
    return this.keyEnd(i) + (this.#columns.groupKeyLength[i] as number)
  }
  bodyStart(i: number): number {
    return this.groupKeyEnd(i)
  }
  bodyEnd(i: number): number {
    return this.#columns.bodies + (this.#columns.end[i] as number)
  }
}

function readEdge(record: Buffer, at: number, history: number, count: number): Position {
  if (count === 0) return { ...ORIGIN, history }
  return { history, lsn: record.readBigUInt64LE(at), idx: record.readUInt32LE(at + 8), part: record.readUInt8(at + 12) === 0 ? 0 : 1 }
}

function payloadOf(record: Buffer, rawBytes: number): Buffer {
  const payload = record.subarray(HEADER_BYTES)
  if ((record.readUInt8(3) & PACK_FLAG.zstd) === 0) return payload
  try {
    return zstdDecompressSync(payload, { maxOutputLength: Math.max(rawBytes, 1) })
  } catch (cause) {
    throw new EngineError('PACK_MALFORMED', "a record of the log can't be read: it does not decompress", {}, { cause })
  }
}

/** Typed views need memory that begins at a multiple of 8. */
function aligned(payload: Buffer): Buffer {
  if (payload.byteOffset % 8 === 0) return payload
  const copy = Buffer.from(new ArrayBuffer(payload.length))
  copy.set(payload)
  return copy
}
