/**
 * The keys of a change: the primary key as a list, and the message group: the primary key's values, or those of the columns
 * a sink groups by, as Postgres prints them, joined by ':', null as nothing. The group's hash, with the table, chooses the
 * partition, so it is fixed for ever: another one would send a re-run's messages elsewhere.
 */
import type { ByteWriter } from '../../byte-writer.ts'
import type { Change } from './change.ts'
import { writeString } from './json-string.ts'
import { KIND, type Tuple } from './tuple.ts'

/** `old`: the group the row was in before an update (that of a tombstone). Inserts have only a new side, deletes only an old one. */
export type Side = 'new' | 'old'

const COLON = 0x3a

/** The primary key as a JSON array of texts, `["7"]`; null where Postgres doesn't tell. */
export function writeKeys(out: ByteWriter, change: Change, side: Side): void {
  const { key } = change.relation
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

/** @param columns indexes, in the order they are joined */
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

/** The hash of what `writeGroupKey` would write, without writing it. */
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

/** @returns an integer from 0 to 2^52 - 1 */
export function hashGroup(relation: number, key: Uint8Array, start = 0, end = key.length): number {
  begin(relation)
  for (let i = start; i < end; i++) mix(key[i] as number)
  return finish()
}

/**
 * Where a value of the wanted side stands. What Postgres didn't tell of the old row of an update is taken from the new
 * one: columns outside the replica identity have most likely stayed.
 */
export function tupleOf(change: Change, column: number, side: Side): Tuple {
  if (change.action === 'delete') return change.old
  return side === 'old' && change.knowsOld(column) ? change.old : change.row
}

let h1 = 0
let h2 = 0

/** cyrb53 over bytes, seeded with the table. @see https://github.com/bryc/code/blob/master/jshash/experimental/cyrb53.js */
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
