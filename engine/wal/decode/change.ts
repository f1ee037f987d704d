/**
 * One change of a row, read from its pgoutput message and completed: a TOASTed value that was not sent is taken from the
 * old row where Postgres sent that. Scratch: one object serves a whole run, and says nothing any more once the next
 * change is read or the chunk is gone.
 */
import { readCopyRow } from './copy-row.ts'
import { KIND, malformed, readTuple, sameText, Tuple } from './tuple.ts'
import type { Chunk } from './chunk.ts'
import { OLD, type OldKind } from './pgoutput.ts'
import type { Relation } from './relation.ts'
import type { ByteWriter } from '../../byte-writer.ts'
import { writeString } from './json-string.ts'

/** What a change does to its row. */
export type ChangeAction = 'insert' | 'update' | 'delete'

/** The change that is being handled. */
export class Change {
  relation!: Relation
  action: ChangeAction = 'insert'
  /** index among all messages of its transaction */
  idx = 0
  /** the new row; of no use for a delete */
  readonly row = new Tuple()
  /** the row before, as far as `oldKind` says: nothing, the columns of the replica identity, all */
  readonly old = new Tuple()
  oldKind: OldKind = OLD.none
  /** an update after which the row has another primary key */
  keyChanged = false

  /** @param newAt as the handler of `decode` got it. @throws EngineError MESSAGE_MALFORMED */
  readInsert(relation: Relation, idx: number, chunk: Chunk, newAt: number): this {
    this.#begin(relation, 'insert', idx, OLD.none)
    this.#read(chunk, newAt, this.row)
    return this
  }

  /** Reads a row as `COPY … TO STDOUT` gives it. @see readCopyRow */
  readCopied(relation: Relation, bytes: Uint8Array, view: DataView, start: number, end: number): this {
    this.#begin(relation, 'insert', 0, OLD.none)
    readCopyRow(bytes, view, start, end, this.row, relation.names.length)
    return this
  }

  readUpdate(relation: Relation, idx: number, chunk: Chunk, old: OldKind, oldAt: number, newAt: number): this {
    this.#begin(relation, 'update', idx, old)
    if (old !== OLD.none) this.#read(chunk, oldAt, this.old)
    this.#read(chunk, newAt, this.row)
    if (old !== OLD.none) this.#compare()
    return this
  }

  readDelete(relation: Relation, idx: number, chunk: Chunk, old: OldKind, oldAt: number): this {
    this.#begin(relation, 'delete', idx, old)
    this.#read(chunk, oldAt, this.old)
    return this
  }

  /** Whether Postgres told what the column held before. */
  knowsOld(column: number): boolean {
    if (this.oldKind === OLD.none || (this.oldKind === OLD.key && this.relation.identity[column] === 0)) return false
    return this.old.kind[column] !== KIND.unchanged
  }

  #begin(relation: Relation, action: ChangeAction, idx: number, old: OldKind): void {
    this.relation = relation
    this.action = action
    this.idx = idx
    this.oldKind = old
    this.keyChanged = false
  }

  #read(chunk: Chunk, at: number, tuple: Tuple): void {
    readTuple(chunk, at, tuple)
    if (tuple.count !== this.relation.names.length) {
      throw malformed(`a row of ${tuple.count} columns for a table of ${this.relation.names.length}`, at)
    }
  }

  #compare(): void {
    const { row, old, relation } = this
    for (let i = 0; row.unchanged > 0 && i < row.count; i++) {
      if (row.kind[i] !== KIND.unchanged || !this.knowsOld(i)) continue
      row.kind[i] = old.kind[i] as number
      row.start[i] = old.start[i] as number
      row.end[i] = old.end[i] as number
      row.unchanged--
    }
    for (const column of relation.key) {
      if (row.kind[column] === KIND.text && this.knowsOld(column) && !this.sameAsOld(column)) this.keyChanged = true
    }
  }

  /** Whether an update left the column as it was. What isn't known counts as the same. */
  sameAsOld(column: number): boolean {
    const kind = this.row.kind[column]
    if (kind === KIND.unchanged || !this.knowsOld(column)) return true
    return kind === this.old.kind[column] && (kind !== KIND.text || sameText(this.row, column, this.old, column))
  }
}

/**
 * Says which keys of a change are meant. `old`: those that the row had before an update, as its tombstone has them. Inserts have only a
 * new side, deletes only an old one.
 */
export type Side = 'new' | 'old'

/*
 * The keys of a change: the primary key as a list, and the message group: the primary key's values, or those of the columns
 * a sink groups by, as Postgres prints them, joined by ':', null as nothing. The group's hash, with the table, chooses the
 * partition, so it is fixed for ever: another one would send a re-run's messages elsewhere.
 */
const COLON = 0x3a

/** Writes the primary key, or other columns, as a JSON array of texts, `["7"]`; null where Postgres doesn't tell. */
export function writeKeys(out: ByteWriter, change: Change, side: Side, key: readonly number[] = change.relation.key): void {
  out.byte(0x5b /* [ */)
  for (let k = 0; k < key.length; k++) {
    if (k > 0) out.byte(0x2c /* , */)
    const column = key[k] as number
    const tuple = tupleOf(change, column, side)
    if (tuple.kind[column] === KIND.text) writeString(out, tuple.bytes, tuple.start[column] as number, tuple.end[column] as number)
    else out.ascii('null')
  }
  out.byte(0x5d /* ] */)
}

/** Writes the key of the message group. @param columns indexes, in the order they are joined */
export function writeGroupKey(out: ByteWriter, change: Change, columns: readonly number[], side: Side): void {
  for (let k = 0; k < columns.length; k++) {
    if (k > 0) out.byte(COLON)
    const column = columns[k] as number
    const tuple = tupleOf(change, column, side)
    if (tuple.kind[column] !== KIND.text) continue
    const start = tuple.start[column] as number
    const size = (tuple.end[column] as number) - start
    out.reserve(size)
    for (let i = 0; i < size; i++) out.buffer[out.length + i] = tuple.bytes.getUint8(start + i)
    out.length += size
  }
}

/** Hashes what `writeGroupKey` would write, without writing it. */
export function groupHash(change: Change, columns: readonly number[], side: Side): number {
  begin(change.relation.oid)
  for (let k = 0; k < columns.length; k++) {
    if (k > 0) mix(COLON)
    const column = columns[k] as number
    const tuple = tupleOf(change, column, side)
    if (tuple.kind[column] !== KIND.text) continue
    const end = tuple.end[column] as number
    for (let i = tuple.start[column] as number; i < end; i++) mix(tuple.bytes.getUint8(i))
  }
  return finish()
}

/** Hashes a group. @returns an integer from 0 to 2^52 - 1 */
export function hashGroup(relation: number, key: Uint8Array, start = 0, end = key.length): number {
  begin(relation)
  for (let i = start; i < end; i++) mix(key[i] as number)
  return finish()
}

/**
 * Finds the tuple in which a value of the wanted side stands. What Postgres didn't tell of the old row of an update is taken from the new
 * one: columns outside the replica identity have most likely stayed.
 */
export function tupleOf(change: Change, column: number, side: Side): Tuple {
  if (change.action === 'delete') return change.old
  return side === 'old' && change.knowsOld(column) ? change.old : change.row
}

let h1 = 0
let h2 = 0

/** Begins cyrb53 over bytes, seeded with the table. @see https://github.com/bryc/code/blob/master/jshash/experimental/cyrb53.js */
function begin(seed: number): void {
  h1 = 0xdeadbeef ^ seed
  h2 = 0x41c6ce57 ^ seed
}

function mix(byte: number): void {
  h1 = Math.imul(h1 ^ byte, 2654435761)
  h2 = Math.imul(h2 ^ byte, 1597334677)
}

function finish(): number {
  h1 = Math.imul(h1 ^ (h1 >>> 16), 2246822507) ^ Math.imul(h2 ^ (h2 >>> 13), 3266489909)
  h2 = Math.imul(h2 ^ (h2 >>> 16), 2246822507) ^ Math.imul(h1 ^ (h1 >>> 13), 3266489909)
  return (h2 & 0xfffff) * 0x1_0000_0000 + (h1 >>> 0)
}
