/**
 * The rows of one page, rendered as they are read and kept as bytes until the page's mark comes: only then is it known where in the
 * stream they stand, and which of them a newer change has made needless.
 */
import { ByteWriter, WriterFull } from '../byte-writer.ts'
import { MESSAGE_FLAG } from '../log/pack.ts'
import type { AddedRow, OwnStream } from '../wal/change-packer.ts'
import { Change, groupHash, writeGroupKey, writeKeys } from '../wal/decode/change.ts'
import { writeDiscardedReadHead, writeReadHead, writeReadTail } from '../wal/decode/change-writer.ts'
import type { Relation } from '../wal/decode/relation.ts'
import { textBytes } from '../wal/decode/tuple.ts'

/** Of each row: where it starts, the lengths of its keys, where its place belongs, where it ends, and flags. */
const COLUMNS = 6

/** What the rows of a page are rendered for. */
type RowsFor = Readonly<{
  /** id of the backfill */
  backfill: string
  relation: Relation
  /** the sink's own stream, as it takes the table */
  stream: OwnStream
  /** a row whose message would be larger is not kept: a message that says so stands for it */
  maxMessageBytes: number
}>

/** The rows of one page. */
export class PageRows {
  readonly #for: RowsFor
  readonly #bytes: ByteWriter
  readonly #change = new Change()
  #places = new Int32Array(COLUMNS * 256)
  #groups = new Float64Array(256)
  count = 0

  constructor(of: RowsFor) {
    this.#for = of
    this.#bytes = new ByteWriter(64 * 1024)
  }

  /** Describes the table as it was when they were read. */
  get relation(): Relation {
    return this.#for.relation
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
  add(bytes: Uint8Array, view: DataView, place: Readonly<{ start: number; end: number }>): Change {
    const { relation, stream } = this.#for
    const change = this.#change.readCopied(relation, bytes, view, place)
    const { target, groupColumns, hasOwnGroup } = stream
    const n = this.count++
    if (n === this.#groups.length) this.#grow()
    const out = this.#bytes
    const start = out.length
    writeKeys(out, change, 'new')
    const keyLength = out.length - start
    if (hasOwnGroup) writeGroupKey(out, change, groupColumns, 'new')
    const groupKeyLength = out.length - start - keyLength
    const isDiscarded = this.#renderHead(change)
    const at = out.length
    writeReadTail(out, change, this.#for.backfill)
    this.#groups[n] = groupHash(change, target.grouping ? groupColumns : relation.key, 'new')
    const flags = MESSAGE_FLAG.read | (isDiscarded ? MESSAGE_FLAG.discarded : 0) | (target.grouping ? 0 : MESSAGE_FLAG.ungrouped)
    this.#places.set([start, keyLength, groupKeyLength, at, out.length, flags], n * COLUMNS)
    return change
  }

  /** The primary key of a row as the windows have it. */
  key(n: number): string {
    const start = this.#places[n * COLUMNS] as number
    return this.#bytes.buffer.toString('latin1', start, start + (this.#places[n * COLUMNS + 1] as number))
  }

  /** A row as it is added at a mark. @param idx its index there */
  row(n: number, idx: number): AddedRow {
    const { relation, stream } = this.#for
    const { topic, partitions } = stream.target
    const at = n * COLUMNS
    const places = this.#places
    const group = this.#groups[n] as number
    return {
      topic,
      partition: group % partitions,
      idx,
      relation: relation.oid,
      flags: places[at + 5] as number,
      group,
      bytes: this.#bytes.buffer,
      start: places[at] as number,
      keyLength: places[at + 1] as number,
      groupKeyLength: places[at + 2] as number,
      place: places[at + 3] as number,
      end: places[at + 4] as number,
    }
  }

  /** @returns whether the row is too large to be kept */
  #renderHead(change: Change): boolean {
    const { stream, maxMessageBytes } = this.#for
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
