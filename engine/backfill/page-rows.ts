/**
 * The rows of one slice of a page, rendered as they are read and kept as bytes until the slice's mark comes: only then is it known where
 * in the stream they stand, and which of them a newer change has made needless. One object serves one slice after the other: its
 * memory is kept, and a row costs no object.
 */
import { ByteWriter, WriterFull } from '../byte-writer.ts'
import { MESSAGE_FLAG } from '../log/pack.ts'
import type { AddedRow, OwnStream } from '../wal/change-packer.ts'
import { Change, groupHash, writeGroupKey, writeKeys } from '../wal/decode/change.ts'
import { ReadTail, writeDiscardedReadHead, writeReadHead } from '../wal/decode/change-writer.ts'
import { malformed, textBytes } from '../wal/decode/tuple.ts'
import type { SourceTable } from './source-table.ts'
import { RowKeys } from './windows.ts'

/** Of each row: where it starts, the lengths of its keys, where its place belongs, where it ends, and flags. */
const COLUMNS = 6

const TAB = 0x09

/** The backfill, and the stretch of the log, that the rows of a slice go to. */
type RowsFor = Readonly<{
  /** id of the backfill */
  backfill: string
  table: SourceTable
  /** the sink's own stream, as it takes the table */
  stream: OwnStream
  /** a row whose message would be larger is not kept: a message that says so stands for it */
  maxMessageBytes: number
}>

/** The rows of one slice. */
export class PageRows {
  /** what they are rendered for */
  of: RowsFor
  readonly #bytes = new ByteWriter(64 * 1024)
  readonly #change = new Change()
  readonly #tail: ReadTail
  readonly #row: { -readonly [N in keyof AddedRow]: AddedRow[N] } = {
    ...{ topic: '', partition: 0, idx: 0, relation: 0, flags: 0, group: 0 },
    ...{ bytes: this.#bytes, start: 0, place: 0, end: 0, keyLength: 0, groupKeyLength: 0 },
  }
  /** by which keys the windows know the rows, where it is not their primary key */
  #keys: RowKeys | undefined
  /** columns that the idempotency keys are of; none: they are of the place in the table's file */
  #named: readonly number[] = []
  /** ahead of its columns each row has its place in the table's file */
  #isPlaced = false
  /** keys of the rows, where they are not the primary keys */
  readonly #otherKeys: string[] = []
  /** places of the rows in the table's file, where they are read by that */
  readonly #lying: string[] = []
  #places = new Int32Array(COLUMNS * 256)
  #groups = new Float64Array(256)
  count = 0

  constructor(of: RowsFor) {
    this.of = of
    this.#tail = new ReadTail(of.backfill)
    this.begin(of)
  }

  /** Serves another slice of that backfill. */
  begin(of: RowsFor): this {
    const { relation, identity, identityColumns, order } = of.table
    const columns = identityColumns.map(({ index }) => index)
    const isPrimary = columns.length > 0 && columns.join() === relation.key.join()
    this.#keys = isPrimary ? undefined : new RowKeys(identity)
    this.#keys?.fits(relation)
    this.#named = relation.key.length > 0 ? relation.key : columns
    this.#isPlaced = order.length === 0
    this.of = of
    this.#bytes.reset()
    this.#otherKeys.length = 0
    this.#lying.length = 0
    this.count = 0
    return this
  }

  /** Rendered so far. */
  get bytes(): number {
    return this.#bytes.length
  }

  /**
   * Renders a row as COPY gives it.
   * @returns the row, valid until the next one
   * @throws EngineError MESSAGE_MALFORMED
   */
  add(bytes: Uint8Array, view: DataView, from: number, to: number): Change {
    const { stream, table } = this.of
    const { relation } = table
    const columnsFrom = this.#isPlaced ? this.#readPlace(bytes, from, to) : from
    const change = this.#change.readCopied(relation, bytes, view, columnsFrom, to)
    const { target, groupColumns, hasOwnGroup } = stream
    const n = this.count++
    if (this.#keys) this.#otherKeys.push(this.#keys.of(change, 'new'))
    if (n === this.#groups.length) this.#grow()
    const out = this.#bytes
    const start = out.length
    writeKeys(out, change, 'new')
    const keyLength = out.length - start
    if (hasOwnGroup) writeGroupKey(out, change, groupColumns, 'new')
    const groupKeyLength = out.length - start - keyLength
    const isDiscarded = this.#renderHead(change)
    const at = out.length
    this.#tail.write(out, change, this.#named.length > 0 ? this.#named : `${table.orderedBy}:${this.#lying[n]}`)
    this.#groups[n] = groupHash(change, target.grouping ? groupColumns : relation.key, 'new')
    const flags = MESSAGE_FLAG.read | (isDiscarded ? MESSAGE_FLAG.discarded : 0) | (target.grouping ? 0 : MESSAGE_FLAG.ungrouped)
    const places = this.#places
    const p = n * COLUMNS
    places[p] = start
    places[p + 1] = keyLength
    places[p + 2] = groupKeyLength
    places[p + 3] = at
    places[p + 4] = out.length
    places[p + 5] = flags
    return change
  }

  /** The key of a row as the windows have it. */
  key(n: number): string {
    if (this.#keys) return this.#otherKeys[n] ?? ''
    const start = this.#places[n * COLUMNS] as number
    return this.#bytes.buffer.toString('latin1', start, start + (this.#places[n * COLUMNS + 1] as number))
  }

  /** Where a row lies in the table's file, if rows are read by that. */
  place(n: number): string | undefined {
    return this.#lying[n]
  }

  /** A row as it is added at a mark, valid until the next one. @param idx its index there */
  row(n: number, idx: number): AddedRow {
    const { table, stream } = this.of
    const { topic, partitions } = stream.target
    const at = n * COLUMNS
    const places = this.#places
    const group = this.#groups[n] as number
    const row = this.#row
    row.topic = topic
    row.partition = group % partitions
    row.idx = idx
    row.relation = table.relation.oid
    row.group = group
    row.start = places[at] as number
    row.keyLength = places[at + 1] as number
    row.groupKeyLength = places[at + 2] as number
    row.place = places[at + 3] as number
    row.end = places[at + 4] as number
    row.flags = places[at + 5] as number
    return row
  }

  /** @returns where the columns begin */
  #readPlace(bytes: Uint8Array, from: number, to: number): number {
    const end = bytes.indexOf(TAB, from)
    if (end < 0 || end >= to) throw malformed('a row of COPY has no place', from)
    this.#lying.push(Buffer.from(bytes.buffer, bytes.byteOffset + from, end - from).toString('latin1'))
    return end + 1
  }

  /** @returns whether the row is too large to be kept */
  #renderHead(change: Change): boolean {
    const { stream, maxMessageBytes } = this.of
    const out = this.#bytes
    const start = out.length
    let bytes = textBytes(change.row)
    if (bytes <= maxMessageBytes) {
      try {
        writeReadHead(out, change, stream.target.timestampFormat)
        bytes = out.length - start
      } catch (error) {
        if (!(error instanceof WriterFull)) throw error
        bytes = Infinity
      }
      if (bytes <= maxMessageBytes) return false
    }
    out.length = start
    writeDiscardedReadHead(out, change, bytes)
    return true
  }

  #grow(): void {
    const size = this.#groups.length * 2
    const groups = new Float64Array(size)
    groups.set(this.#groups)
    this.#groups = groups
    const places = new Int32Array(size * COLUMNS)
    places.set(this.#places)
    this.#places = places
  }
}
