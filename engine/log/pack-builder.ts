/** Makes the packs that pack.ts reads. */
import { ByteWriter } from '../byte-writer.ts'
import type { Lsn } from '../lsn.ts'
import type { Part, Position } from '../position.ts'
import {
  ACTION,
  type ActionCode,
  BYTES_PER_MESSAGE,
  BYTES_PER_TRANSACTION,
  HEADER_BYTES,
  MAGIC,
  MESSAGE_FLAG,
  PACK_FLAG,
  PACK_VERSION,
  PackColumns,
  type PackOrigin,
} from './pack.ts'
import { sharesOf, writeShares } from './weight.ts'

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

  /** @returns the record, in memory of its own; the builder is empty afterwards and may be used again */
  encode(): Buffer {
    this.drop()
    const n = this.#count
    const t = this.#lsn.length
    const rawBytes = n * BYTES_PER_MESSAGE + t * BYTES_PER_TRANSACTION + this.bodies.length
    const record = Buffer.allocUnsafeSlow(HEADER_BYTES + rawBytes).fill(0, 0, HEADER_BYTES) // all else is written
    const columns = new PackColumns(record, HEADER_BYTES, n, t)
    columns.group.set(this.#group.subarray(0, n))
    for (let i = 0; i < t; i++) {
      columns.lsn[i] = this.#lsn[i] as bigint
      columns.commitTimeUs[i] = this.#commitTimeUs[i] as number
      columns.xid[i] = this.#xid[i] as number
    }
    const taken = [0, 0, 0, 0, 0] // bytes by action
    let start = 0
    for (let i = 0, w = 0, m = 0; i < n; i++, w += BUILD_COLUMNS, m += 3) {
      columns.transaction[i] = this.#words[w] as number
      columns.idx[i] = this.#words[w + 1] as number
      columns.relation[i] = this.#words[w + 2] as number
      const end = (columns.end[i] = this.#words[w + 3] as number)
      columns.keyLength[i] = this.#words[w + 4] as number
      columns.groupKeyLength[i] = this.#words[w + 5] as number
      columns.part[i] = this.#marks[m] as number
      const action = (columns.action[i] = this.#marks[m + 1] as number)
      const flags = (columns.flags[i] = this.#marks[m + 2] as number)
      if ((flags & KEY_CHANGE) === 0) (taken[action] as number) += BYTES_PER_MESSAGE + end - start
      start = end
    }
    record.set(this.bodies.view(), columns.bodies)
    let min = Infinity
    let max = -Infinity
    for (const time of this.#commitTimeUs) {
      if (time < min) min = time
      if (time > max) max = time
    }
    const o = this.#origin
    writeOrigin(record, o)
    record.writeUInt32LE(n, 4)
    if (n > 0) {
      const edge = (i: number) =>
        [columns.lsn[columns.transaction[i] as number] as bigint, columns.idx[i] as number, columns.part[i] as number] as const
      writeEdge(record, 24, ...edge(0))
      writeEdge(record, 40, ...edge(n - 1))
    }
    record.writeDoubleLE(n > 0 ? min : 0, 56)
    record.writeDoubleLE(n > 0 ? max : 0, 64)
    record.writeUInt32LE(rawBytes, 72)
    record.writeUInt32LE(t, 76)
    const [insert = 0, update = 0, deleted = 0] = [taken[ACTION.insert], taken[ACTION.update], taken[ACTION.delete]]
    writeShares(record, sharesOf({ bytes: n * BYTES_PER_MESSAGE + this.bodies.length, insert, update, delete: deleted }))
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
/** A change of a key is a delete, an insert or an update to a reader, depending on the actions that it takes. */
const KEY_CHANGE = MESSAGE_FLAG.tombstone | MESSAGE_FLAG.moved

/** A record without messages, which says that everything below a position stands before it. */
export function encodeMarker(origin: PackOrigin, { lsn, idx, part }: Position, commitTimeUs: number): Buffer {
  const record = Buffer.alloc(HEADER_BYTES)
  writeOrigin(record, origin)
  record.writeUInt8(PACK_FLAG.marker, 3)
  writeEdge(record, 24, lsn, idx, part)
  writeEdge(record, 40, lsn, idx, part)
  record.writeDoubleLE(commitTimeUs, 56)
  record.writeDoubleLE(commitTimeUs, 64)
  return record
}

function writeOrigin(record: Buffer, { history, term, routing }: PackOrigin): void {
  record.writeUInt16LE(MAGIC, 0)
  record.writeUInt8(PACK_VERSION, 2)
  record.writeUInt32LE(history, 8)
  record.writeUInt32LE(term, 12)
  record.writeUInt32LE(routing, 20)
}

function writeEdge(record: Buffer, at: number, lsn: Lsn, idx: number, part: number): void {
  record.writeBigUInt64LE(lsn, at)
  record.writeUInt32LE(Math.max(0, idx), at + 8)
  record.writeUInt8(part, at + 12)
}
