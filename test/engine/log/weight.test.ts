import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, BYTES_PER_MESSAGE, compressPack, MESSAGE_FLAG } from '../../../engine/log/pack.ts'
import { recordKey, weightOfKey } from '../../../engine/log/record-key.ts'
import { minus, plus, readShares, weightOf } from '../../../engine/log/weight.ts'

test('the header of a pack tells what messages of each action take; a key change and a row of a backfill are of none', () => {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(1n, 1, 1)
  const add = (action: (typeof ACTION)[keyof typeof ACTION], bytes: number, flags = 0) => {
    builder.bodies.copy(Buffer.alloc(bytes - BYTES_PER_MESSAGE))
    builder.add(0, 1, action, 1, flags, 1, 0, 0)
  }
  for (let i = 0; i < 10; i++) add(ACTION.insert, 400)
  add(ACTION.update, 2_000)
  add(ACTION.update, 1_000, MESSAGE_FLAG.moved)
  add(ACTION.delete, 1_000, MESSAGE_FLAG.tombstone)
  add(ACTION.read, 1_000, MESSAGE_FLAG.read)
  add(ACTION.delete, 1_000)
  const pack = builder.encode()
  const { insert, update, delete: deleted } = weightOf(10_000, readShares(pack))
  for (const [found, expected] of [
    [insert, 4_000],
    [update, 2_000],
    [deleted, 1_000],
  ] as const)
    assert.ok(found <= expected && found > expected - 10, `${found} of ${expected}`)
  assert.equal(readShares(compressPack(pack)), readShares(pack))
  const key = recordKey(1, 2, 3, 10_000, readShares(pack))
  assert.deepEqual(weightOfKey(key), weightOf(10_000, readShares(pack)))
  assert.deepEqual(weightOfKey(key.subarray(0, 18)), { bytes: 10_000, insert: 0, update: 0, delete: 0 }, 'of a former version')
})

test('weights add up, and a difference is never less than nothing', () => {
  const a = { bytes: 5, insert: 1, update: 2, delete: 0 }
  assert.deepEqual(minus(plus(a, a), a), a)
  assert.deepEqual(minus(a, { bytes: 6, insert: 0, update: 3, delete: 1 }), { bytes: 0, insert: 1, update: 0, delete: 0 })
})
