/** pgoutput messages built by hand, and a handler that writes down what it is told. */
import type { Chunk } from '../../../engine/wal/decode/chunk.ts'
import { Tuple, readTuple } from '../../../engine/wal/decode/tuple.ts'
import type { PgoutputHandler } from '../../../engine/wal/decode/pgoutput.ts'

const POSTGRES_EPOCH_US = BigInt(Date.UTC(2000, 0, 1)) * 1000n

const int = (bytes: 1 | 2 | 4, value: number): Buffer => {
  const buffer = Buffer.alloc(bytes)
  buffer.writeIntBE(value, 0, bytes)
  return buffer
}
const uint32 = (value: number): Buffer => int(4, value | 0)
const int64 = (value: bigint): Buffer => {
  const buffer = Buffer.alloc(8)
  buffer.writeBigInt64BE(BigInt.asIntN(64, value))
  return buffer
}
const name = (text: string): Buffer => Buffer.from(`${text}\0`)
const time = (us: number): Buffer => int64(BigInt(us) - POSTGRES_EPOCH_US)
const tag = (letter: string): Buffer => Buffer.from(letter)

export const UNCHANGED = Symbol('a TOASTed value that is not sent')
export type Cell = string | null | typeof UNCHANGED

export const row = (...cells: readonly Cell[]): Buffer =>
  Buffer.concat([
    int(2, cells.length),
    ...cells.map((cell) => {
      if (cell === null) return tag('n')
      if (cell === UNCHANGED) return tag('u')
      const text = Buffer.from(cell)
      return Buffer.concat([tag('t'), int(4, text.length), text])
    }),
  ])

type Old = Readonly<{ key: readonly Cell[] } | { row: readonly Cell[] }>
const old = (before: Old): Buffer =>
  'key' in before ? Buffer.concat([tag('K'), row(...before.key)]) : Buffer.concat([tag('O'), row(...before.row)])

export const begin = (lsn: bigint, commitTimeUs: number, xid = 7): Buffer =>
  Buffer.concat([tag('B'), int64(lsn), time(commitTimeUs), uint32(xid)])
export const commit = (lsn: bigint, end: bigint, commitTimeUs: number): Buffer =>
  Buffer.concat([tag('C'), int(1, 0), int64(lsn), int64(end), time(commitTimeUs)])
export const insert = (oid: number, cells: readonly Cell[]): Buffer => Buffer.concat([tag('I'), uint32(oid), tag('N'), row(...cells)])
export const update = (oid: number, cells: readonly Cell[], before?: Old): Buffer =>
  Buffer.concat([tag('U'), uint32(oid), before ? old(before) : Buffer.alloc(0), tag('N'), row(...cells)])
export const remove = (oid: number, before: Old): Buffer => Buffer.concat([tag('D'), uint32(oid), old(before)])
export const truncate = (oids: readonly number[], flags = 0): Buffer =>
  Buffer.concat([tag('T'), int(4, oids.length), int(1, flags), ...oids.map(uint32)])
export const type = (oid: number, schema: string, typeName: string): Buffer =>
  Buffer.concat([tag('Y'), uint32(oid), name(schema), name(typeName)])
export const origin = (lsn: bigint, originName: string): Buffer => Buffer.concat([tag('O'), int64(lsn), name(originName)])
export const message = (transactional: boolean, lsn: bigint, prefix: string, content: Uint8Array): Buffer =>
  Buffer.concat([tag('M'), int(1, transactional ? 1 : 0), int64(lsn), name(prefix), int(4, content.length), content])

type Column = Readonly<{ name: string; typeOid: number; typmod?: number; key?: boolean }>
export const relation = (oid: number, schema: string, table: string, identity: string, columns: readonly Column[]): Buffer =>
  Buffer.concat([
    tag('R'),
    uint32(oid),
    name(schema),
    name(table),
    tag(identity),
    int(2, columns.length),
    ...columns.flatMap((column) => [int(1, column.key ? 1 : 0), name(column.name), uint32(column.typeOid), int(4, column.typmod ?? -1)]),
  ])

/** Writes each call down as [name, ...arguments]; rows as arrays of texts. */
export function recorder(): { events: unknown[]; handler: PgoutputHandler } {
  const events: unknown[] = []
  const tuple = new Tuple()
  const cells = (chunk: Chunk, at: number) => {
    readTuple(chunk, at, tuple)
    return Array.from({ length: tuple.count }, (_, i) => (tuple.kind[i] === 1 ? UNCHANGED : tuple.text(i)))
  }
  const handler: PgoutputHandler = {
    begin: (...args) => events.push(['begin', ...args]),
    commit: (...args) => events.push(['commit', ...args]),
    relation: (...args) => events.push(['relation', ...args]),
    type: (...args) => events.push(['type', ...args]),
    origin: (...args) => events.push(['origin', ...args]),
    insert: (oid, chunk, newAt) => events.push(['insert', oid, cells(chunk, newAt)]),
    update: (oid, chunk, kind, oldAt, newAt) => events.push(['update', oid, kind, kind ? cells(chunk, oldAt) : null, cells(chunk, newAt)]),
    delete: (oid, chunk, kind, oldAt) => events.push(['delete', oid, kind, cells(chunk, oldAt)]),
    truncate: (...args) => events.push(['truncate', ...args]),
    message: (transactional, lsn, prefix, content) => events.push(['message', transactional, lsn, prefix, content.toString('latin1')]),
    unknown: (...args) => events.push(['unknown', ...args]),
  }
  return { events, handler }
}
