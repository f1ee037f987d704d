import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { EngineError } from '../../../engine/errors.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, compressPack, MESSAGE_FLAG, Pack } from '../../../engine/log/pack.ts'
import fc from '../../services/fast-check.ts'

const origin = { history: 1, term: 7, routing: 3 }

type Message = {
  lsn: bigint
  xid: number
  timeUs: number
  idx: number
  part: 0 | 1
  group: number
  key: string
  groupKey: string
  body: string
}
const message = fc.record({
  xid: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  timeUs: fc.integer({ min: 0, max: 2e15 }),
  idx: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  part: fc.constantFrom(0 as const, 1 as const),
  group: fc.integer({ min: 0, max: 2 ** 52 - 1 }),
  key: fc.string(),
  groupKey: fc.string(),
  body: fc.string({ maxLength: 300 }),
})

function encode(messages: readonly Message[]): Buffer {
  const builder = new PackBuilder(origin)
  for (const m of messages) {
    builder.begin(m.lsn, m.xid, m.timeUs)
    builder.bodies.copy(Buffer.from(m.key))
    builder.bodies.copy(Buffer.from(m.groupKey))
    builder.bodies.copy(Buffer.from(m.body))
    builder.add(
      m.idx,
      m.part,
      ACTION.update,
      16_384,
      MESSAGE_FLAG.unchanged,
      m.group,
      Buffer.byteLength(m.key),
      Buffer.byteLength(m.groupKey),
    )
  }
  return builder.encode()
}
const text = (pack: Pack, start: number, end: number) => pack.buffer.toString('utf8', start, end)

test('what is put into a pack comes out of it, compressed or not, at any alignment', () => {
  fc.assert(
    fc.property(fc.array(message, { maxLength: 60 }), fc.boolean(), fc.nat(7), (drawn, compress, shift) => {
      const messages = drawn.map((m, i) => ({ ...m, lsn: BigInt(i) * 2n ** 50n }))
      const plain = encode(messages)
      const encoded = compress ? compressPack(plain) : plain
      const shifted = Buffer.concat([randomBytes(shift), encoded]).subarray(shift)
      const pack = Pack.decode(shifted)
      assert.equal(pack.count, messages.length)
      assert.equal(pack.header.isMarker, false)
      assert.deepEqual({ ...origin }, { history: 1, term: pack.header.term, routing: pack.header.routing })
      for (const [i, m] of messages.entries()) {
        assert.deepEqual(pack.position(i), { history: 1, lsn: m.lsn, idx: m.idx, part: m.part })
        assert.equal(pack.compare(i, pack.position(i)), 0)
        assert.equal(pack.xid(i), m.xid)
        assert.equal(pack.commitTimeUs(i), m.timeUs)
        assert.equal(pack.group(i), m.group)
        assert.equal(pack.relation(i), 16_384)
        assert.equal(pack.flags(i), MESSAGE_FLAG.unchanged)
        assert.equal(text(pack, pack.keyStart(i), pack.keyEnd(i)), Buffer.from(m.key).toString())
        assert.equal(text(pack, pack.groupKeyStart(i), pack.groupKeyEnd(i)), Buffer.from(m.groupKey).toString())
        assert.equal(text(pack, pack.bodyStart(i), pack.bodyEnd(i)), Buffer.from(m.body).toString())
      }
      if (messages.length > 0) {
        assert.deepEqual(pack.header.first, pack.position(0))
        assert.deepEqual(pack.header.last, pack.position(messages.length - 1))
        assert.equal(pack.header.maxCommitTimeUs, Math.max(...messages.map((m) => m.timeUs)))
        assert.equal(pack.header.minCommitTimeUs, Math.min(...messages.map((m) => m.timeUs)))
      }
    }),
  )
})

test('a pack of similar rows shrinks, and a builder may be used again after encoding', () => {
  const builder = new PackBuilder(origin)
  for (let round = 0; round < 2; round++) {
    for (let i = 0; i < 400; i++) {
      builder.begin(BigInt(i), i, i)
      builder.bodies.ascii(`"record":{"id":${i},"title":"a product of the shop","price":"19.90"},"changes":null`)
      builder.add(0, 1, ACTION.insert, 1, 0, i, 0, 0)
    }
    const record = compressPack(builder.encode())
    const pack = Pack.decode(record)
    assert.ok(record.length < pack.header.rawBytes / 3, `${record.length} of ${pack.header.rawBytes}`)
    assert.equal(text(pack, pack.bodyStart(399), pack.bodyEnd(399)).slice(0, 17), '"record":{"id":39')
    assert.equal(builder.count, 0)
  }
})

test('what was rendered and not added is not in the pack', () => {
  const builder = new PackBuilder(origin)
  builder.begin(1n, 1, 1)
  builder.bodies.ascii('kept')
  builder.add(0, 1, ACTION.insert, 1, 0, 5, 0, 0)
  builder.bodies.ascii('half a mess')
  const pack = Pack.decode(builder.encode())
  assert.equal(pack.count, 1)
  assert.equal(text(pack, pack.bodyStart(0), pack.bodyEnd(0)), 'kept')
})

test('damaged or random bytes are a typed error and never a crash, a hang or a read beyond', () => {
  const valid = encode(
    Array.from({ length: 30 }, (_, i) => ({
      lsn: BigInt(i),
      xid: i,
      timeUs: i,
      idx: i,
      part: 1,
      group: i,
      key: `["${i}"]`,
      groupKey: '',
      body: 'x'.repeat(i * 3),
    })),
  )
  const decodes = (bytes: Buffer) => {
    try {
      const pack = Pack.decode(bytes)
      for (let i = 0; i < pack.count; i++) assert.ok(pack.bodyStart(i) <= pack.bodyEnd(i) && pack.bodyEnd(i) <= pack.buffer.length)
    } catch (error) {
      assert.ok(error instanceof EngineError && error.code === 'PACK_MALFORMED', String(error))
    }
  }
  fc.assert(fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => decodes(Buffer.from(bytes))))
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.nat(valid.length - 1), fc.nat(255)), { minLength: 1, maxLength: 8 }),
      fc.nat(valid.length),
      (changes, cut) => {
        const damaged = Buffer.from(valid)
        for (const [at, value] of changes) damaged[at] = value
        decodes(damaged)
        decodes(damaged.subarray(0, cut))
      },
    ),
    { numRuns: 500 },
  )
})

test('a pack of a newer format is refused', () => {
  const record = encode([])
  record.writeUInt8(2, 2)
  assert.throws(() => Pack.decode(record), { code: 'PACK_MALFORMED' })
})

test('who reads the same memory gets the same pack, and who reads a copy gets its own', () => {
  const texts = Array.from({ length: 50 }, (_, i) => 'same text '.repeat(i))
  const of = (text: string, i: number) => ({
    lsn: 16n,
    xid: 1,
    timeUs: 0,
    idx: i,
    part: 0 as const,
    group: i,
    key: '["1"]',
    groupKey: '',
    body: text,
  })
  const record = compressPack(encode(texts.map(of)))
  const pack = Pack.shared(record)
  assert.equal(Pack.shared(record), pack)
  assert.notEqual(Pack.shared(Buffer.from(record)), pack)
  assert.deepEqual(pack.buffer, Pack.decode(record).buffer)
})
