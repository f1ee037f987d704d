import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sizes } from '../../../engine/log/kafka/sizes.ts'

const RECORDS = 10_000
const BYTES = 100
const READERS = 50

test('however many readers a partition has, few of its records are looked up to say how much each has before it', async () => {
  const lookedUp: number[] = []
  const sizes = new Sizes(async (_topic, _partition, offset) => {
    lookedUp.push(offset)
    return { size: BYTES, total: (offset + 1) * BYTES }
  })
  for (let round = 0; round < 3; round++)
    for (let reader = 0; reader < READERS; reader++) {
      const committed = 1_000 + reader * 100 + round
      const found = await sizes.between('stream', 0, { first: 500, committed, next: RECORDS })
      assert.deepEqual(found, { bytes: (RECORDS - 500) * BYTES, finishedBytes: (committed - 500) * BYTES })
    }
  assert.ok(lookedUp.length < 10, `looked up ${lookedUp.join(' ')}`)
})

test('what was read or appended is not looked up, and what is known stays known when others read elsewhere', async () => {
  const sizes = new Sizes(() => assert.fail('everything is known'))
  for (let offset = 0; offset < 5_000; offset++) sizes.read('stream', 0, offset, { size: BYTES, total: (offset + 1) * BYTES })
  sizes.appended('stream', 0, RECORDS, RECORDS * BYTES)
  const at = { first: 1_000, committed: 4_000, next: RECORDS }
  const found = { bytes: 9_000 * BYTES, finishedBytes: 3_000 * BYTES }
  assert.deepEqual(await sizes.between('stream', 0, at), found)
  for (let offset = 5_000; offset < RECORDS; offset++) sizes.read('stream', 0, offset, { size: BYTES, total: (offset + 1) * BYTES })
  assert.deepEqual(await sizes.between('stream', 0, at), found)
})
