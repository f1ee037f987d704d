import assert from 'node:assert/strict'
import * as wal from '../wal-messages.ts'
import fc from '../../../services/fast-check.ts'
import { test } from 'node:test'
import { ByteWriter, Literal } from '../../../../engine/byte-writer.ts'
import { EngineError } from '../../../../engine/errors.ts'
import { readAnnotation } from '../../../../engine/wal/decode/annotations.ts'
import { describeByMessage } from '../../../../engine/wal/decode/catalog.ts'
import { Change, groupHash, hashGroup, writeGroupKey } from '../../../../engine/wal/decode/change.ts'
import { ChangeWriter } from '../../../../engine/wal/decode/change-writer.ts'
import { Chunk } from '../../../../engine/wal/decode/chunk.ts'
import { OLD, type RelationMessage } from '../../../../engine/wal/decode/pgoutput.ts'
import { Relation } from '../../../../engine/wal/decode/relation.ts'

const TEXT = 25
const message: RelationMessage = {
  oid: 16_385,
  schema: 'public',
  table: 'goods',
  replicaIdentity: 'd',
  columns: ['id', 'title', 'note'].map((name) => ({ name, typeOid: TEXT, typmod: -1, key: name === 'id' })),
}
const relation = new Relation(message, describeByMessage(message))

type Parsed = { record: Record<string, unknown>; changes: unknown; metadata: Record<string, unknown> }
const closed = (out: ByteWriter): Parsed => JSON.parse(`{${out.view().toString()}}}`) as Parsed

const written = (writer: ChangeWriter, change: Change): Parsed => {
  const out = new ByteWriter(8)
  writer.write(out, change, 'iso8601')
  return closed(out)
}

test('the idempotency key is lsn:idx, with the history in front once LSNs have gone back, and marked for a tombstone', () => {
  const writer = new ChangeWriter()
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }), fc.nat(), fc.nat({ max: 3 }), (lsn, idx, history) => {
      writer.beginTransaction(lsn, 0, history)
      const change = new Change().readUpdate(
        relation,
        idx,
        Chunk.of(wal.update(1, ['2', 'a', null], { key: ['1', null, null] })),
        OLD.key,
        6,
        17,
      )
      assert.equal(change.keyChanged, true)
      const out = new ByteWriter(8)
      writer.writeTombstone(out, change, 'iso8601')
      const plain = [written(writer, change), closed(out)].map(({ metadata }) =>
        Buffer.from(String(metadata.idempotency_key), 'base64').toString(),
      )
      const key = history > 0 ? `${history}:${lsn}:${idx}` : `${lsn}:${idx}`
      assert.deepEqual(plain, [key, `${key}:t`])
      assert.ok(out.view().toString().includes(`"commit_lsn":${lsn},"commit_idx":${idx},`))
    }),
  )
})

test('commit times have six digits whatever they are, and do not stick to the transaction before', () => {
  const writer = new ChangeWriter()
  const change = new Change().readInsert(relation, 0, Chunk.of(wal.insert(1, ['1', null, null])), 6)
  const at = (us: number) => {
    writer.beginTransaction(1n, us, 0)
    return written(writer, change).metadata.commit_timestamp
  }
  const second = Date.UTC(2025, 1, 3, 4, 5, 6) * 1000
  assert.equal(at(second + 789_012), '2025-02-03T04:05:06.789012Z')
  assert.equal(at(second + 1), '2025-02-03T04:05:06.000001Z')
  assert.equal(at(second - 1), '2025-02-03T04:05:05.999999Z')
  assert.equal(at(-1), '1969-12-31T23:59:59.999999Z')
  assert.match(String(at(2 ** 63)), /Z$/)
})

test('a row with another number of columns than its table is malformed', () => {
  assert.throws(
    () => new Change().readInsert(relation, 0, Chunk.of(wal.insert(1, ['1'])), 6),
    (error) => error instanceof EngineError && error.code === 'MESSAGE_MALFORMED',
  )
})

test('a table without columns has an empty record', () => {
  const empty: RelationMessage = { ...message, columns: [] }
  const writer = new ChangeWriter()
  writer.beginTransaction(1n, 0, 0)
  const change = new Change().readInsert(new Relation(empty, describeByMessage(empty)), 0, Chunk.of(wal.insert(1, [])), 6)
  assert.deepEqual(written(writer, change).record, {})
})

test('any row makes a message that parses to its values, from a writer that is too small', () => {
  const cell = fc.option(fc.string({ unit: 'grapheme', maxLength: 30 }).map((text) => text.toWellFormed()))
  const writer = new ChangeWriter()
  fc.assert(
    fc.property(cell, cell, cell, cell, (id, title, note, oldNote) => {
      writer.beginTransaction(1n, 0, 0)
      const full = { ...message, replicaIdentity: 'f' } as const
      const table = new Relation(full, { key: ['id'], types: {}, warnings: [] })
      const before = wal.row(id, title, oldNote)
      const chunk = Chunk.of(wal.update(1, [id, title, note], { row: [id, title, oldNote] }))
      const change = new Change().readUpdate(table, 0, chunk, OLD.row, 6, 7 + before.length)
      const { record, changes, metadata } = written(writer, change)
      assert.deepEqual([record, changes, metadata.record_pks], [{ id, title, note }, note === oldNote ? {} : { note: oldNote }, [id]])
    }),
  )
})

test('the hash of a group never changes: a re-run must find the same partition', () => {
  assert.equal(hashGroup(16_385, Buffer.from('7')), 3_780_797_795_330_756)
  assert.equal(hashGroup(0, Buffer.alloc(0)), 3_338_908_027_751_811)
})

test('hashing a change is hashing its written key, below 2^52, and tables differ', () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 20 }), fc.option(fc.string({ maxLength: 20 })), (id, title) => {
      const change = new Change().readInsert(relation, 0, Chunk.of(wal.insert(1, [id, title, null])), 6)
      const out = new ByteWriter(4)
      writeGroupKey(out, change, [1, 0, 2], 'new')
      const hash = groupHash(change, [1, 0, 2], 'new')
      assert.equal(hash, hashGroup(relation.oid, out.view()))
      assert.ok(Number.isSafeInteger(hash) && hash >= 0 && hash < 2 ** 52)
      assert.notEqual(hash, hashGroup(relation.oid + 1, out.view()))
    }),
  )
})

test('groups spread evenly over partitions', () => {
  const counts = Array.from({ length: 16 }, () => 0)
  for (let id = 0; id < 16_000; id++) counts[hashGroup(16_385, Buffer.from(String(id))) % 16]!++
  assert.ok(Math.min(...counts) > 850 && Math.max(...counts) < 1150, counts.join(' '))
})

test('annotations: valid UTF-8 and JSON only, kept as they are but for line breaks', () => {
  const set = (content: string | Uint8Array) => readAnnotation(true, 'sequin:transaction_annotations.set', Buffer.from(content))
  assert.deepEqual(set('{"a":\n\t1.0}'), { kind: 'set', json: Buffer.from('{"a":  1.0}') })
  for (const broken of ['', '{', "{'a': 1}", '\ufeff{}', Uint8Array.of(0x22, 0xff, 0x22)]) assert.equal(set(broken)?.kind, 'invalid')
  assert.equal(readAnnotation(true, 'tailrace:transaction_annotations.unset', Buffer.from('{}')), undefined)
})

test('a writer holds what was written: words, digits, copies of any size', () => {
  const part = fc.oneof(
    fc.string({ unit: 'grapheme', maxLength: 70 }),
    fc.nat({ max: Number.MAX_SAFE_INTEGER }),
    fc.constantFrom(0, 9, 10, 99, 100, 2 ** 53 - 1),
  )
  fc.assert(
    fc.property(fc.array(part, { maxLength: 12 }), (parts) => {
      const out = new ByteWriter(1)
      const other = new ByteWriter(1)
      for (const value of parts) {
        if (typeof value === 'number') {
          out.digits(value)
          continue
        }
        const bytes = Buffer.from(value)
        out.literal(new Literal(value))
        out.copy(bytes)
        out.copy(Buffer.concat([Buffer.from('ab'), bytes]), 2)
        other.reset()
        other.copy(bytes)
        out.append(other)
      }
      assert.equal(
        out.view().toString(),
        parts.map((value) => (typeof value === 'number' ? String(value) : Buffer.from(value).toString().repeat(4))).join(''),
      )
    }),
  )
})
