import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Pack } from '../../../engine/log/pack.ts'
import { ORIGIN } from '../../../engine/position.ts'
import { Packing, type PackTransaction } from '../../../engine/wal/packing.ts'

const head = { history: 0, term: 7, routing: 1 }
const TOPIC = 'stream.1'

function write(packing: Packing, transaction: PackTransaction, idx: number, partition = 0, bytes = 10): void {
  const pack = packing.pack(TOPIC, partition, transaction)
  pack.builder.bodies.ascii('x'.repeat(bytes))
  pack.builder.add(idx, 1, 0, 1, 0, 1, 0, 0)
  packing.added(pack, transaction.commitTimeUs)
}
const transaction = (lsn: bigint, commitTimeUs = 1): PackTransaction => ({ lsn, xid: Number(lsn), commitTimeUs })
const contents = (packing: Packing) =>
  packing.take({ position: ORIGIN })?.records.map(({ partition, pack }) => {
    const decoded = Pack.decode(pack)
    return {
      partition,
      lsns: Array.from({ length: decoded.count }, (_, i) => Number(decoded.lsn(i))),
      routing: decoded.header.routing,
      isMarker: decoded.header.isMarker,
    }
  })

test('an append takes everything, one pack for each partition, and leaves nothing', () => {
  const packing = new Packing({ source: 's', packBytes: 100_000, head })
  const first = transaction(1n)
  write(packing, first, 0)
  write(packing, first, 1, 2)
  write(packing, transaction(5n), 0)
  assert.ok(packing.bytes > 30)
  assert.ok(!packing.isFull)
  assert.deepEqual(contents(packing), [
    { partition: 0, lsns: [1, 5], routing: 1, isMarker: false },
    { partition: 2, lsns: [1], routing: 1, isMarker: false },
  ])
  assert.ok(packing.isEmpty)
  assert.equal(packing.bytes, 0)
  assert.equal(packing.take({ position: ORIGIN }), undefined)
})

test('a full pack closes at once, packs of a partition stay in order, and bytes are counted until they are taken', () => {
  const packing = new Packing({ source: 's', packBytes: 500, head })
  const one = transaction(1n)
  for (let idx = 0; idx < 3; idx++) write(packing, one, idx, 0, 400)
  assert.ok(packing.isFull)
  assert.ok(packing.bytes > 1200)
  const append = packing.take({ position: ORIGIN })!
  assert.equal(append.messages, 3)
  assert.ok(append.bytes > 1200)
  const idx = append.records.flatMap(({ pack }) => Array.from({ length: Pack.decode(pack).count }, (_, i) => Pack.decode(pack).idx(i)))
  assert.deepEqual(idx, [0, 1, 2])
})

test('another head closes what was gathered under the former one', () => {
  const packing = new Packing({ source: 's', packBytes: 100_000, head })
  const one = transaction(1n)
  write(packing, one, 0)
  packing.setHead(head.history, 2)
  write(packing, one, 1)
  assert.deepEqual(
    contents(packing)?.map((p) => p.routing),
    [1, 2],
  )
})

test('a marker stands behind everything of its partition, and says its place', () => {
  const packing = new Packing({ source: 's', packBytes: 100_000, head })
  write(packing, transaction(1n), 0)
  const position = { history: 0, lsn: 5n, idx: 3, part: 1 } as const
  packing.addMarker(TOPIC, 0, position, 7)
  const [before, marker] = packing.take({ position: ORIGIN })!.records.map(({ pack }) => Pack.header(pack))
  assert.deepEqual([before?.isMarker, before?.count], [false, 1])
  assert.deepEqual([marker?.isMarker, marker?.count, marker?.first, marker?.last], [true, 0, position, position])
  assert.deepEqual([marker?.minCommitTimeUs, marker?.maxCommitTimeUs], [7, 7])
})

test('the oldest commit of an append is that of its first message', () => {
  const packing = new Packing({ source: 's', packBytes: 100_000, head })
  write(packing, transaction(1n, 50), 0)
  write(packing, transaction(2n, 90), 0)
  assert.equal(packing.take({ position: ORIGIN })?.oldestCommitUs, 50)
  write(packing, transaction(3n, 95), 0)
  assert.equal(packing.take({ position: ORIGIN })?.oldestCommitUs, 95)
})
