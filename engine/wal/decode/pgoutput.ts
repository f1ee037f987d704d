/**
 * The decoder of pgoutput messages (protocol 1, `messages 'true'`, `binary` off): says what a message is and where its
 * rows begin, and leaves reading them to whoever wants the table. Every tag is handled or passed to `unknown` on
 * purpose: a message we don't know never stops the slot.
 * @see PostgreSQL manual, "Logical Replication Message Formats"
 */
import type { Lsn } from '../../lsn.ts'
import type { Chunk } from './chunk.ts'
import { malformed, skipTuple } from './tuple.ts'

/** The numbers for what Postgres sends of the row before: nothing, the columns of the replica identity, or all. */
export const OLD = { none: 0, key: 1, row: 2 } as const
/** Says which values of the old row Postgres has sent. */
export type OldKind = (typeof OLD)[keyof typeof OLD]

/** The replica identity of a table by its letter: default (the primary key), nothing, full, or using an index. */
export type ReplicaIdentity = 'd' | 'n' | 'f' | 'i'

/** A column as the stream announces it. */
export type RelationColumn = Readonly<{
  name: string
  typeOid: number
  typmod: number
  /** part of the replica identity */
  key: boolean
}>

/** A table as the stream announces it. */
export type RelationMessage = Readonly<{
  oid: number
  schema: string
  table: string
  replicaIdentity: ReplicaIdentity
  columns: readonly RelationColumn[]
}>

/**
 * Gets what messages say, and answers what `decode` returns. Times are µs since the Unix epoch. Chunks and contents are views:
 * valid during the call only.
 */
export interface PgoutputHandler<Said = void> {
  /** @param lsn of the commit record, before any of its changes arrive */
  begin(lsn: Lsn, commitTimeUs: number, xid: number): Said
  commit(lsn: Lsn, end: Lsn, commitTimeUs: number): Said
  relation(message: RelationMessage): Said
  type(oid: number, schema: string, name: string): Said
  origin(lsn: Lsn, name: string): Said
  /** @param newAt offset in the chunk where the row begins, for `readTuple` */
  insert(relation: number, chunk: Chunk, newAt: number): Said
  /** @param oldAt 0 when there is none */
  update(relation: number, chunk: Chunk, old: OldKind, oldAt: number, newAt: number): Said
  delete(relation: number, chunk: Chunk, old: OldKind, oldAt: number): Said
  truncate(relations: readonly number[], options: Readonly<{ cascade: boolean; restartIdentity: boolean }>): Said
  message(transactional: boolean, lsn: Lsn, prefix: string, content: Buffer): Said
  unknown(tag: number): Said
}

const POSTGRES_EPOCH_US = Date.UTC(2000, 0, 1) * 1000
const IDENTITIES: ReadonlySet<string> = new Set<ReplicaIdentity>(['d', 'n', 'f', 'i'])

/**
 * Reads one message and tells the handler what it says.
 * @param chunk one whole message
 * @returns what the handler returns
 * @throws EngineError MESSAGE_MALFORMED: cut short, a length that leaves it, or an unknown kind of row; and what the handler throws
 */
export function decode<Said>(chunk: Chunk, handler: PgoutputHandler<Said>): Said {
  if (chunk.length === 0) throw malformed('it is empty', 0)
  const tag = chunk.uint8(0)
  switch (tag) {
    case 0x49 /* I */: {
      need(chunk, 6)
      if (chunk.uint8(5) !== 0x4e /* N */) throw malformed('an insert without a row', 5)
      return handler.insert(chunk.uint32(1), chunk, 6)
    }
    case 0x55 /* U */: {
      need(chunk, 6)
      const marker = chunk.uint8(5)
      if (marker === 0x4e /* N */) return handler.update(chunk.uint32(1), chunk, OLD.none, 0, 6)
      const old = oldKind(marker, 5)
      const end = skipTuple(chunk, 6)
      if (end === chunk.length || chunk.uint8(end) !== 0x4e /* N */) throw malformed('an update without a row', end)
      return handler.update(chunk.uint32(1), chunk, old, 6, end + 1)
    }
    case 0x44 /* D */:
      need(chunk, 6)
      return handler.delete(chunk.uint32(1), chunk, oldKind(chunk.uint8(5), 5), 6)
    case 0x42 /* B */:
      need(chunk, 21)
      return handler.begin(chunk.uint64(1), time(chunk, 9), chunk.uint32(17))
    case 0x43 /* C */:
      need(chunk, 26) // a byte of flags, unused
      return handler.commit(chunk.uint64(2), chunk.uint64(10), time(chunk, 18))
    case 0x52 /* R */:
      return handler.relation(relation(chunk))
    case 0x59 /* Y */: {
      need(chunk, 5)
      const schema = cString(chunk, 5)
      const name = cString(chunk, schema.end)
      return handler.type(chunk.uint32(1), schema.text || CATALOG, name.text)
    }
    case 0x4f /* O */:
      need(chunk, 9)
      return handler.origin(chunk.uint64(1), cString(chunk, 9).text)
    case 0x54 /* T */:
      return truncate(chunk, handler)
    case 0x4d /* M */: {
      need(chunk, 10)
      const prefix = cString(chunk, 10)
      need(chunk, prefix.end + 4)
      const start = prefix.end + 4
      const size = chunk.uint32(prefix.end)
      if (size > chunk.length - start) throw malformed('the length of a logical message leaves it', prefix.end)
      return handler.message((chunk.uint8(1) & 1) === 1, chunk.uint64(2), prefix.text, chunk.bytes(start, start + size))
    }
    default:
      return handler.unknown(tag)
  }
}

/** An empty schema name means this one. */
const CATALOG = 'pg_catalog'

function relation(chunk: Chunk): RelationMessage {
  need(chunk, 5)
  const schema = cString(chunk, 5)
  const table = cString(chunk, schema.end)
  let p = table.end
  need(chunk, p + 3)
  const replicaIdentity = String.fromCharCode(chunk.uint8(p))
  if (!IDENTITIES.has(replicaIdentity)) throw malformed(`a replica identity of kind ${chunk.uint8(p)}`, p)
  const count = chunk.int16(p + 1)
  if (count < 0) throw malformed('a relation has less than no columns', p + 1)
  p += 3
  const columns: RelationColumn[] = []
  for (let i = 0; i < count; i++) {
    need(chunk, p + 1)
    const key = (chunk.uint8(p) & 1) === 1
    const name = cString(chunk, p + 1)
    p = name.end + 8
    need(chunk, p)
    columns.push({ name: name.text, typeOid: chunk.uint32(p - 8), typmod: chunk.int32(p - 4), key })
  }
  return {
    oid: chunk.uint32(1),
    schema: schema.text || CATALOG,
    table: table.text,
    replicaIdentity: replicaIdentity as ReplicaIdentity,
    columns,
  }
}

function truncate<Said>(chunk: Chunk, handler: PgoutputHandler<Said>): Said {
  need(chunk, 6)
  const count = chunk.uint32(1)
  const flags = chunk.uint8(5)
  if (count * 4 > chunk.length - 6) throw malformed('a truncate of more tables than bytes', 1)
  const relations = Array.from({ length: count }, (_, i) => chunk.uint32(6 + i * 4))
  return handler.truncate(relations, { cascade: (flags & 1) !== 0, restartIdentity: (flags & 2) !== 0 })
}

function oldKind(marker: number, at: number): OldKind {
  if (marker === 0x4b /* K */) return OLD.key
  if (marker === 0x4f /* O */) return OLD.row
  throw malformed(`a row of kind ${marker}`, at)
}

function need(chunk: Chunk, bytes: number): void {
  if (bytes > chunk.length) throw malformed('it is cut short', chunk.length)
}

/** @returns the text up to the next zero byte, and the offset after that */
function cString(chunk: Chunk, at: number): { text: string; end: number } {
  let zero = at
  while (zero < chunk.length && chunk.uint8(zero) !== 0) zero++
  if (zero >= chunk.length) throw malformed('a name has no end', at)
  return { text: chunk.bytes(at, zero).toString('utf8'), end: zero + 1 }
}

/** µs since 2000 as a signed 64-bit integer; exact until the year 2255. */
const time = (chunk: Chunk, at: number): number => chunk.int32(at) * 0x1_0000_0000 + chunk.uint32(at + 4) + POSTGRES_EPOCH_US
