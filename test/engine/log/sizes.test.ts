import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countedOf, counters, Sizes } from '../../../engine/log/kafka/sizes.ts'
import { weightOf, type Weight } from '../../../engine/log/weight.ts'

const RECORDS = 10_000
const BYTES = 100
const READERS = 50

/** Every other byte is of an update. */
const of = (bytes: number): Weight => ({ bytes, insert: 0, update: bytes / 2, delete: 0 })
const counted = (offset: number) => ({ weight: of(BYTES), total: of((offset + 1) * BYTES) })

test('however many readers a partition has, few of its records are looked up to say how much each has before it', async () => {
  const lookedUp: number[] = []
  const sizes = new Sizes(async (_topic, _partition, offset) => {
    lookedUp.push(offset)
    return counted(offset)
  })
  for (let round = 0; round < 3; round++)
    for (let reader = 0; reader < READERS; reader++) {
      const committed = 1_000 + reader * 100 + round
      const found = await sizes.between('stream', 0, { first: 500, committed, next: RECORDS })
      assert.deepEqual(found, { bytes: (RECORDS - 500) * BYTES, finishedBytes: (committed - 500) * BYTES })
      const open = await sizes.weigh('stream', 0, { from: committed, before: RECORDS, next: RECORDS })
      assert.deepEqual(open, of((RECORDS - committed) * BYTES))
    }
  assert.ok(lookedUp.length < 10, `looked up ${lookedUp.join(' ')}`)
})

test('what was read or appended is not looked up, and what is known stays known when others read elsewhere', async () => {
  const sizes = new Sizes(() => assert.fail('everything is known'))
  for (let offset = 0; offset < 5_000; offset++) sizes.read('stream', 0, offset, counted(offset))
  sizes.appended('stream', 0, RECORDS, of(RECORDS * BYTES))
  const at = { first: 1_000, committed: 4_000, next: RECORDS }
  const found = { bytes: 9_000 * BYTES, finishedBytes: 3_000 * BYTES }
  assert.deepEqual(await sizes.between('stream', 0, at), found)
  for (let offset = 5_000; offset < RECORDS; offset++) sizes.read('stream', 0, offset, counted(offset))
  assert.deepEqual(await sizes.between('stream', 0, at), found)
  assert.deepEqual(await sizes.weigh('stream', 0, { from: 1_000, before: 4_000, next: RECORDS }), of(3_000 * BYTES))
})

test('of a record whose counters a former version wrote it is known what it takes, and nothing of its actions', () => {
  const value = Buffer.alloc(100)
  const total = { bytes: 700, insert: 1, update: 2, delete: 3 }
  const headers = Object.fromEntries(Object.entries(counters(total)).map(([name, text]) => [name, Buffer.from(text)]))
  assert.deepEqual(countedOf(value, headers), { weight: weightOf(100, 0), total })
  assert.deepEqual(countedOf(value, { bytes: Buffer.from('700') }).total, { bytes: 700, insert: 0, update: 0, delete: 0 })
  assert.equal(countedOf(value, {}).total, undefined)
})
