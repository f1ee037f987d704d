/**
 * The decoder of pgoutput messages (protocol 1, `messages 'true'`, `binary` off): says what a message is and where its
 * rows begin, and leaves reading them to whoever wants the table. Every tag is handled or passed to `unknown` on
 * purpose: a message we don't know never stops the slot.
 * @see PostgreSQL manual, "Logical Replication Message Formats"
 */
import type { Lsn } from '../../lsn.ts'
import { malformed, memoryOf, skipTuple } from './tuple.ts'

/** What Postgres sends of the row before: nothing, the columns of the replica identity, or all. */
export const OLD = { none: 0, key: 1, row: 2 } as const
export type OldKind = (typeof OLD)[keyof typeof OLD]

/** default (primary key), nothing, full, using index */
export type ReplicaIdentity = 'd' | 'n' | 'f' | 'i'

export type RelationColumn = Readonly<{
  name: string
  typeOid: number
  typmod: number
  /** part of the replica identity */
  key: boolean
}>

export type RelationMessage = Readonly<{
  oid: number
  schema: string
  table: string
  replicaIdentity: ReplicaIdentity
  columns: readonly RelationColumn[]
}>

/** Times are µs since the Unix epoch. Chunks and contents are views: valid during the call only. */
export interface PgoutputHandler {
  /** @param lsn of the commit record, before any of its changes arrive */
  begin(lsn: Lsn, commitTimeUs: number, xid: number): void
  commit(lsn: Lsn, end: Lsn, commitTimeUs: number): void
  relation(message: RelationMessage): void
  type(oid: number, schema: string, name: string): void
  origin(lsn: Lsn, name: string): void
  /** @param newAt offset in the chunk where the row begins, for `readTuple` */
  insert(relation: number, chunk: Buffer, newAt: number): void
  /** @param oldAt 0 when there is none */
  update(relation: number, chunk: Buffer, old: OldKind, oldAt: number, newAt: number): void
  delete(relation: number, chunk: Buffer, old: OldKind, oldAt: number): void
  truncate(relations: readonly number[], options: Readonly<{ cascade: boolean; restartIdentity: boolean }>): void
  message(transactional: boolean, lsn: Lsn, prefix: string, content: Buffer): void
  unknown(tag: number): void
}

const POSTGRES_EPOCH_US = Date.UTC(2000, 0, 1) * 1000
const IDENTITIES: ReadonlySet<string> = new Set<ReplicaIdentity>(['d', 'n', 'f', 'i'])

/**
 * @param chunk one whole message
 * @throws EngineError MESSAGE_MALFORMED: cut short, a length that leaves it, or an unknown kind of row; and what the handler throws
 */
export function decode(chunk: Buffer, handler: PgoutputHandler): void {
  if (chunk.length === 0) throw malformed('it is empty', 0)
  const tag = chunk[0] as number
  switch (tag) {
    case 0x49 /* I */: {
      need(chunk, 6)
      if (chunk[5] !== 0x4e /* N */) throw malformed('an insert without a row', 5)
      return handler.insert(uint32(chunk, 1), chunk, 6)
    }
    case 0x55 /* U */: {
      need(chunk, 6)
      const marker = chunk[5] as number
      if (marker === 0x4e /* N */) return handler.update(uint32(chunk, 1), chunk, OLD.none, 0, 6)
      const old = oldKind(marker, 5)
      const end = skipTuple(chunk, 6)
      if (chunk[end] !== 0x4e /* N */) throw malformed('an update without a row', end)
      return handler.update(uint32(chunk, 1), chunk, old, 6, end + 1)
    }
    case 0x44 /* D */:
      need(chunk, 6)
      return handler.delete(uint32(chunk, 1), chunk, oldKind(chunk[5] as number, 5), 6)
    case 0x42 /* B */:
      need(chunk, 21)
      return handler.begin(uint64(chunk, 1), time(chunk, 9), uint32(chunk, 17))
    case 0x43 /* C */:
      need(chunk, 26) // a byte of flags, unused
      return handler.commit(uint64(chunk, 2), uint64(chunk, 10), time(chunk, 18))
    case 0x52 /* R */:
      return handler.relation(relation(chunk))
    case 0x59 /* Y */: {
      need(chunk, 5)
      const schema = cString(chunk, 5)
      const name = cString(chunk, schema.end)
      return handler.type(uint32(chunk, 1), schema.text || CATALOG, name.text)
    }
    case 0x4f /* O */:
      need(chunk, 9)
      return handler.origin(uint64(chunk, 1), cString(chunk, 9).text)
    case 0x54 /* T */:
      return truncate(chunk, handler)
    case 0x4d /* M */: {
      need(chunk, 10)
      const prefix = cString(chunk, 10)
      need(chunk, prefix.end + 4)
      const start = prefix.end + 4
      const size = uint32(chunk, prefix.end)
      if (size > chunk.length - start) throw malformed('the length of a logical message leaves it', prefix.end)
      return handler.message(((chunk[1] as number) & 1) === 1, uint64(chunk, 2), prefix.text, chunk.subarray(start, start + size))
    }
    default:
      return handler.unknown(tag)
  }
}

/** An empty schema name means this one. */
const CATALOG = 'pg_catalog'

function relation(chunk: Buffer): RelationMessage {
  need(chunk, 5)
  const schema = cString(chunk, 5)
  const table = cString(chunk, schema.end)
  let p = table.end
  need(chunk, p + 3)
  const replicaIdentity = String.fromCharCode(chunk[p] as number)
  if (!IDENTITIES.has(replicaIdentity)) throw malformed(`a replica identity of kind ${chunk[p]}`, p)
  const count = chunk.readInt16BE(p + 1)
  if (count < 0) throw malformed('a relation has less than no columns', p + 1)
  p += 3
  const columns: RelationColumn[] = []
  for (let i = 0; i < count; i++) {
    need(chunk, p + 1)
    const key = ((chunk[p] as number) & 1) === 1
    const name = cString(chunk, p + 1)
    p = name.end + 8
    need(chunk, p)
    columns.push({ name: name.text, typeOid: uint32(chunk, p - 8), typmod: chunk.readInt32BE(p - 4), key })
  }
  return {
    oid: uint32(chunk, 1),
    schema: schema.text || CATALOG,
    table: table.text,
    replicaIdentity: replicaIdentity as ReplicaIdentity,
    columns,
  }
}

function truncate(chunk: Buffer, handler: PgoutputHandler): void {
  need(chunk, 6)
  const count = uint32(chunk, 1)
  const flags = chunk[5] as number
  if (count * 4 > chunk.length - 6) throw malformed('a truncate of more tables than bytes', 1)
  const relations = Array.from({ length: count }, (_, i) => uint32(chunk, 6 + i * 4))
  handler.truncate(relations, { cascade: (flags & 1) !== 0, restartIdentity: (flags & 2) !== 0 })
}

function oldKind(marker: number, at: number): OldKind {
  if (marker === 0x4b /* K */) return OLD.key
  if (marker === 0x4f /* O */) return OLD.row
  throw malformed(`a row of kind ${marker}`, at)
}

function need(chunk: Buffer, bytes: number): void {
  if (bytes > chunk.length) throw malformed('it is cut short', chunk.length)
}

/** @returns the text up to the next zero byte, and the offset after that */
function cString(chunk: Buffer, at: number): { text: string; end: number } {
  const zero = chunk.indexOf(0, at)
  if (zero < 0 || at > chunk.length) throw malformed('a name has no end', at)
  return { text: chunk.toString('utf8', at, zero), end: zero + 1 }
}

/** `chunk` is known to be long enough. */
const uint32 = (chunk: Buffer, at: number): number => chunk.readUInt32BE(at)
/** A Buffer's own way adds up two halves, by way of three BigInts. */
const uint64 = (chunk: Buffer, at: number): bigint => memoryOf(chunk).getBigUint64(chunk.byteOffset + at)

/** µs since 2000 as a signed 64-bit integer; exact until the year 2255. */
const time = (chunk: Buffer, at: number): number => chunk.readInt32BE(at) * 0x1_0000_0000 + chunk.readUInt32BE(at + 4) + POSTGRES_EPOCH_US
