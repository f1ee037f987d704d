import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EngineError } from '../../../../engine/errors.ts'
import { Chunk } from '../../../../engine/wal/decode/chunk.ts'
import { decode, OLD } from '../../../../engine/wal/decode/pgoutput.ts'
import { readTuple, skipTuple, Tuple } from '../../../../engine/wal/decode/tuple.ts'
import * as wal from '../wal-messages.ts'
import { UNCHANGED } from '../wal-messages.ts'
import fc from '../../../services/fast-check.ts'

const NOW = Date.UTC(2025, 1, 3, 4, 5, 6) * 1000 + 789_012

/** Decodes a message that lies in the middle of a buffer, as one read from a socket does. */
function decoded(message: Buffer): unknown[] {
  const memory = Buffer.alloc(message.length + 24, 0x74)
  message.copy(memory, 13)
  const { events, handler } = wal.recorder()
  decode(new Chunk().set(memory, 13, 13 + message.length), handler)
  return events
}

const refused = (message: Buffer, reason: RegExp) =>
  assert.throws(
    () => decoded(message),
    (error) => error instanceof EngineError && error.code === 'MESSAGE_MALFORMED' && reason.test(error.message),
  )

test('a transaction begins and ends with its positions, its time in µs and its id', () => {
  assert.deepEqual(decoded(wal.begin(0x16_b374_d848n, NOW, 4_294_967_295)), [['begin', 0x16_b374_d848n, NOW, 4_294_967_295]])
  assert.deepEqual(decoded(wal.commit(0xffff_ffff_ffff_fff0n, 0xffff_ffff_ffff_fff8n, NOW)), [
    ['commit', 0xffff_ffff_ffff_fff0n, 0xffff_ffff_ffff_fff8n, NOW],
  ])
  assert.deepEqual(decoded(wal.begin(1n, Date.UTC(1999, 0, 1) * 1000 - 1)), [['begin', 1n, Date.UTC(1999, 0, 1) * 1000 - 1, 7]])
})

test('a relation has its names, identity and columns; no schema name means pg_catalog', () => {
  const columns = [
    { name: 'id', typeOid: 23, typmod: -1, key: true },
    { name: 'größe "x"', typeOid: 4_000_000_000, typmod: 14, key: false },
  ]
  assert.deepEqual(decoded(wal.relation(4_000_000_001, 'public', 'goods', 'f', columns)), [
    ['relation', { oid: 4_000_000_001, schema: 'public', table: 'goods', replicaIdentity: 'f', columns }],
  ])
  assert.deepEqual(decoded(wal.relation(1, '', 't', 'd', [])), [
    ['relation', { oid: 1, schema: 'pg_catalog', table: 't', replicaIdentity: 'd', columns: [] }],
  ])
})

test('rows are found with what was before them', () => {
  assert.deepEqual(decoded(wal.insert(5, ['1', null, '', 'é'])), [['insert', 5, ['1', null, '', 'é']]])
  assert.deepEqual(decoded(wal.insert(5, [])), [['insert', 5, []]])
  assert.deepEqual(decoded(wal.update(5, ['1', UNCHANGED])), [['update', 5, OLD.none, null, ['1', UNCHANGED]]])
  assert.deepEqual(decoded(wal.update(5, ['2', 'b'], { key: ['1', null] })), [['update', 5, OLD.key, ['1', null], ['2', 'b']]])
  assert.deepEqual(decoded(wal.update(5, ['2', UNCHANGED], { row: ['1', 'a'] })), [['update', 5, OLD.row, ['1', 'a'], ['2', UNCHANGED]]])
  assert.deepEqual(decoded(wal.remove(5, { key: ['1', null] })), [['delete', 5, OLD.key, ['1', null]]])
  assert.deepEqual(decoded(wal.remove(5, { row: ['1', 'a'] })), [['delete', 5, OLD.row, ['1', 'a']]])
})

test('truncate, type, origin and logical messages', () => {
  assert.deepEqual(decoded(wal.truncate([5, 4_000_000_000], 3)), [
    ['truncate', [5, 4_000_000_000], { cascade: true, restartIdentity: true }],
  ])
  assert.deepEqual(decoded(wal.truncate([], 2)), [['truncate', [], { cascade: false, restartIdentity: true }]])
  assert.deepEqual(decoded(wal.type(9, '', 'mood')), [['type', 9, 'pg_catalog', 'mood']])
  assert.deepEqual(decoded(wal.origin(77n, 'elsewhere')), [['origin', 77n, 'elsewhere']])
  assert.deepEqual(decoded(wal.message(true, 77n, 'tailrace:mark', Buffer.from([0, 255, 10]))), [
    ['message', true, 77n, 'tailrace:mark', '\0\xff\n'],
  ])
  assert.deepEqual(decoded(wal.message(false, 77n, '', Buffer.alloc(0))), [['message', false, 77n, '', '']])
})

test('a message of a kind nobody knows is handed on, not refused', () => {
  const known = new Set([...'BCRYOIUDTM'].map((letter) => letter.charCodeAt(0)))
  for (let tag = 0; tag < 256; tag++) if (!known.has(tag)) assert.deepEqual(decoded(Buffer.from([tag, 1, 2])), [['unknown', tag]])
})

test('lengths that leave the message, and kinds of value that were not asked for, are refused by name', () => {
  refused(Buffer.alloc(0), /it is empty/)
  refused(Buffer.concat([Buffer.from('I\0\0\0\x05N\0\x01t'), Buffer.from([0, 0, 0, 5]), Buffer.from('abcd')]), /leaves the message/)
  refused(Buffer.concat([Buffer.from('I\0\0\0\x05N\0\x01t'), Buffer.from([255, 255, 255, 255])]), /leaves the message/)
  refused(Buffer.from('I\0\0\0\x05N\0\x01b\0\0\0\x01x'), /a value of kind 98/)
  refused(Buffer.from('I\0\0\0\x05K\0\0'), /an insert without a row/)
  refused(Buffer.from('I\0\0\0\x05N\x7f\xff', 'latin1'), /more columns than bytes/)
  refused(Buffer.from('I\0\0\0\x05N\xff\xff', 'latin1'), /more columns than bytes/)
  refused(Buffer.from('U\0\0\0\x05K\0\x01nX\0\0'), /an update without a row/)
  refused(Buffer.from('D\0\0\0\x05N\0\0'), /a row of kind 78/)
  refused(wal.relation(1, 'a', 'b', 'x', []), /replica identity of kind 120/)
  refused(Buffer.from('T\xff\xff\xff\xff\0', 'latin1'), /more tables than bytes/)
  refused(Buffer.from('M\x01\0\0\0\0\0\0\0\0p\0\0\0\0\x09x'), /leaves it/)
  refused(Buffer.from('Y\0\0\0\x05abc'), /a name has no end/)
})

const EXAMPLES = [
  wal.begin(0x16_b374_d848n, NOW),
  wal.commit(1n, 2n, NOW),
  wal.relation(5, 'public', 'goods', 'd', [
    { name: 'id', typeOid: 23, key: true },
    { name: 'title', typeOid: 25 },
  ]),
  wal.insert(5, ['1', 'Lamp', null, UNCHANGED]),
  wal.update(5, ['1', UNCHANGED], { row: ['1', 'Lamp'] }),
  wal.update(5, ['2', 'Lamp'], { key: ['1', null] }),
  wal.remove(5, { key: ['1', null] }),
  wal.truncate([5, 6]),
  wal.type(9, 'public', 'mood'),
  wal.origin(1n, 'there'),
  wal.message(true, 1n, 'p', Buffer.from('{}')),
]

test('a message cut short anywhere is refused as malformed, whatever lies behind it in memory', () => {
  for (const example of EXAMPLES) for (let size = 1; size < example.length; size++) refused(example.subarray(0, size), /./)
})

/** Decoding either works or says MESSAGE_MALFORMED. */
function survives(message: Buffer): void {
  try {
    decoded(message)
  } catch (error) {
    assert.ok(error instanceof EngineError && error.code === 'MESSAGE_MALFORMED', String(error))
  }
}

test('random bytes, and messages with bytes changed, inserted or removed, are decoded or refused', () => {
  const tags = fc.constantFrom(...Buffer.from('BCRYOIUDTM'))
  fc.assert(
    fc.property(tags, fc.uint8Array({ maxLength: 64 }), (tag, rest) => survives(Buffer.from([tag, ...rest]))),
    { numRuns: 20_000 },
  )
  const cut = fc.record({ at: fc.nat(80), remove: fc.nat(6), insert: fc.uint8Array({ maxLength: 6 }) })
  fc.assert(
    fc.property(fc.constantFrom(...EXAMPLES), fc.array(cut, { minLength: 1, maxLength: 4 }), (example, cuts) => {
      let bytes = example
      for (const { at, remove, insert } of cuts) bytes = Buffer.concat([bytes.subarray(0, at), insert, bytes.subarray(at + remove)])
      survives(bytes)
    }),
    { numRuns: 20_000 },
  )
})

test('skipping a row ends where reading it does', () => {
  fc.assert(
    fc.property(fc.array(fc.option(fc.string({ maxLength: 20 })), { maxLength: 100 }), (cells) => {
      const row = Chunk.of(Buffer.concat([Buffer.from('before'), wal.row(...cells), Buffer.from('behind')]))
      const tuple = new Tuple()
      assert.equal(readTuple(row, 6, tuple), row.length - 6)
      assert.equal(skipTuple(row, 6), row.length - 6)
      assert.deepEqual(
        Array.from({ length: tuple.count }, (_, i) => tuple.text(i)),
        cells.map((cell) => cell?.toWellFormed() ?? null),
      )
    }),
  )
})

test('rows of different reads of the socket do not mix', () => {
  const one = new Tuple()
  const two = new Tuple()
  readTuple(Chunk.of(wal.row('1', 'first')), 0, one)
  readTuple(Chunk.of(wal.row('2', 'second')), 0, two)
  assert.deepEqual([one.text(0), one.text(1), two.text(0), two.text(1)], ['1', 'first', '2', 'second'])
})
