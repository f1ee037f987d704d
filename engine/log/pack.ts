/**
 * Packs: many messages of one partition in one record of the log, with one codec for both logs.
 *
 * A record is a header of 80 bytes, never compressed, and a payload: an index in columns in front of the bodies,
 * plain or in zstd as the log chose. Everything is little-endian; columns are aligned, so that a reader looks at them
 * through typed arrays without copying. N messages, T transactions:
 *
 *   header   magic u16 · version u8 · flags u8 · N u32 · history u32 · term u32 · shares u32 (weight.ts) · routing u32
 *            first position: lsn u64 · idx u32 · part u8 · 3 spare     last position: the same
 *            smallest and largest commit time f64 (µs since the epoch) · payload length before compression u32 · T u32
 *   payload  group f64×N · lsn u64×T · commit time f64×T · xid u32×T
 *            transaction u32×N · idx u32×N · relation u32×N · end u32×N · key length u32×N · group key length u32×N
 *            part u8×N · action u8×N · flags u8×N · bodies
 *
 * A body is: the primary key as JSON array text, the group key when it differs, the message itself.
 */
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { EngineError } from '../errors.ts'
import type { Lsn } from '../lsn.ts'
import type { Part, Position } from '../position.ts'

/** Version of a pack, in its header. */
export const PACK_VERSION = 1
/** The version of a record that is a part of a pack (pack-parts.ts): its header is that of the whole. */
export const PART_VERSION = 2
/** The first bytes of every pack. */
export const MAGIC = 0x5054 // "TP"
/** Length of the header. */
export const HEADER_BYTES = 80
/** Below this compression costs more than it saves. */
const COMPRESS_FROM_BYTES = 512
/** Each message takes so many bytes in the columns. */
export const BYTES_PER_MESSAGE = 8 + 6 * 4 + 3
/** Each transaction takes so many bytes in the columns. */
export const BYTES_PER_TRANSACTION = 8 + 8 + 4

/** The numbers by which a pack says what happened to the row of a message. */
export const ACTION = { insert: 0, update: 1, delete: 2, read: 3, truncate: 4 } as const
/** An action as packs have it. */
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
  /** parked only: it was given up and is delivered after all, when later changes of its row may have been */
  reopened: 32,
  /** an update that changed the primary key: the group of the old one has a tombstone */
  moved: 64,
} as const

/** Facts of a whole pack, as bits. */
export const PACK_FLAG = { zstd: 1, marker: 2 } as const

/** Says under which history, term and routing version a pack was written. */
export type PackOrigin = Readonly<{ history: number; term: number; routing: number }>

/** Holds what the header of a pack says. */
export type PackHeader = PackOrigin &
  Readonly<{
    count: number
    first: Position
    last: Position
    /** µs since the epoch */
    minCommitTimeUs: number
    maxCommitTimeUs: number
    /**
     * It has no messages: everything below its position stands before it. Of a topic that a single generation has it is the
     * last record, and in those of former versions it stands at position 0.
     */
    isMarker: boolean
    rawBytes: number
  }>

const malformed = (what: string) => new EngineError('PACK_MALFORMED', `a record of the log can't be read: ${what}`)

/**
 * Compresses the payload of a record by zstd; gives the record itself when that saves less than a tenth. It is the log's choice:
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

/** A decoded record. Accessors take the index of a message in it and allocate nothing, but for `lsn` and `position`. */
export class Pack {
  readonly header: PackHeader
  readonly count: number
  /** key, group key and body of every message lie in here, between the offsets of the accessors */
  readonly buffer: Buffer
  readonly #columns: PackColumns

  private constructor(header: PackHeader, buffer: Buffer, columns: PackColumns) {
    this.header = header
    this.count = header.count
    this.buffer = buffer
    this.#columns = columns
  }

  /** Reads the header alone. @throws EngineError PACK_MALFORMED */
  static header(record: Buffer): PackHeader {
    if (record.length < HEADER_BYTES) throw malformed(`it has ${record.length} bytes, less than a header`)
    if (record.readUInt16LE(0) !== MAGIC) throw malformed('it does not begin as a pack')
    const version = record.readUInt8(2)
    if (version > PART_VERSION)
      throw malformed(`its format is version ${version}; this version of Tailrace reads up to version ${PART_VERSION}`)
    const count = record.readUInt32LE(4)
    const history = record.readUInt32LE(8)
    return {
      count,
      history,
      term: record.readUInt32LE(12),
      routing: record.readUInt32LE(20),
      first: readEdge(record, 24, history),
      last: readEdge(record, 40, history),
      minCommitTimeUs: record.readDoubleLE(56),
      maxCommitTimeUs: record.readDoubleLE(64),
      isMarker: (record.readUInt8(3) & PACK_FLAG.marker) !== 0,
      rawBytes: record.readUInt32LE(72),
    }
  }

  /**
   * Reads a record, which is decompressed and checked once for all who read the same memory at about the same time: the readers of a
   * stream have one buffer in their hands, and it is never written again (docs/rules.md, rule 48).
   * @throws EngineError PACK_MALFORMED
   */
  static shared(record: Buffer): Pack {
    const known = inHands.get(record)?.deref()
    if (known) return known
    const pack = Pack.decode(record)
    inHands.set(record, new WeakRef(pack))
    return pack
  }

  /** @throws EngineError PACK_MALFORMED: lengths that don't fit, a newer version, damaged bytes */
  static decode(record: Buffer): Pack {
    const header = Pack.header(record)
    if (record.readUInt8(2) === PART_VERSION) throw malformed('it is a part of a record')
    const t = record.readUInt32LE(76)
    const { count: n, rawBytes } = header
    const fixed = n * BYTES_PER_MESSAGE + t * BYTES_PER_TRANSACTION
    if (fixed > rawBytes) throw malformed(`${n} messages don't fit ${rawBytes} bytes`)
    const payload = aligned(payloadOf(record, rawBytes))
    if (payload.length !== rawBytes) throw malformed(`its payload has ${payload.length} bytes instead of ${rawBytes}`)
    const columns = new PackColumns(payload, 0, n, t)
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

/** Packs that somebody reads, by their record; the record may stay in memory longer than what it holds is looked at. */
const inHands = new WeakMap<Buffer, WeakRef<Pack>>()

function readEdge(record: Buffer, at: number, history: number): Position {
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

/** Typed views of the columns of a payload. */
export class PackColumns {
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

/** Shows messages to whoever delivers them, by their place in the view: those of a decoded pack, or one that was parked. */
export interface MessageView {
  /** keys and bodies lie in here, between the offsets of the accessors */
  readonly buffer: Buffer
  position(i: number): Position
  /** the one of its position */
  idx(i: number): number
  part(i: number): Part
  action(i: number): ActionCode
  flags(i: number): number
  relation(i: number): number
  /** hash of the message group, below 2^52 */
  group(i: number): number
  /** of its transaction, the lower 32 bits; 0: not known any more */
  xid(i: number): number
  /** µs since the epoch */
  commitTimeUs(i: number): number
  keyStart(i: number): number
  keyEnd(i: number): number
  /** empty: the group key is the key */
  groupKeyStart(i: number): number
  groupKeyEnd(i: number): number
  /** the message as JSON, its metadata left open */
  bodyStart(i: number): number
  bodyEnd(i: number): number
}
