import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ackIdPrefix, ackIdsByPartition, digitCount, readAckIds, sinkTag, writeDigits } from '../../../engine/dispatch/ack-id.ts'
import fc from '../../services/fast-check.ts'

const id = (tag: string, generation: number, partition: number, offset: number, index: number): string => {
  const head = Buffer.from(ackIdPrefix(tag, generation, partition))
  const bytes = Buffer.alloc(head.length + digitCount(offset) + 1 + digitCount(index))
  head.copy(bytes)
  const dot = writeDigits(bytes, head.length, offset)
  bytes[dot] = 46
  assert.equal(writeDigits(bytes, dot + 1, index), bytes.length)
  return bytes.toString()
}
const TAG = sinkTag('5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01')

test('an ack id names its message again, in short ASCII', () => {
  const small = fc.nat(10_000)
  fc.assert(
    fc.property(small, small, fc.maxSafeNat(), fc.nat(1_000_000), (generation, partition, offset, index) => {
      const text = id(TAG, generation, partition, offset, index)
      assert.match(text, /^[0-9a-z.]{1,40}$/)
      assert.deepEqual([...readAckIds([text], TAG, generation)], [[partition, { offsets: [offset], indexes: [index] }]])
    }),
  )
})

test('ids of another sink, another generation, and anything else are unknown', () => {
  const good = id(TAG, 1, 2, 77, 5)
  const others = [
    id(sinkTag('another sink'), 1, 2, 77, 5),
    id(TAG, 2, 2, 77, 5),
    good.toUpperCase(),
    `${good}.1`,
    `${good} `,
    good.slice(0, -1),
    good.replace('.2.', '.02.'),
    '',
    '.',
    '....',
    `${TAG}.1.`,
  ]
  assert.deepEqual([...readAckIds(others, TAG, 1)], [])
  assert.deepEqual(
    [...readAckIds([...others, good, `${TAG}.1.2.zzzzzzzzzzzzzzzz.0`, 'x'.repeat(10_000_000)], TAG, 1)],
    [[2, { offsets: [77], indexes: [5] }]],
  )
})

test('no text whatever breaks the reading of ack ids', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.oneof(
          fc.string({ unit: 'binary' }),
          fc.stringMatching(/^[0-9a-z.]{0,30}$/).map((s) => `${TAG}.1.${s}`),
        ),
      ),
      (ids) => {
        for (const { offsets, indexes } of readAckIds(ids, TAG, 1).values())
          for (const n of [...offsets, ...indexes]) assert.ok(Number.isSafeInteger(n) && n >= 0)
      },
    ),
  )
})

test('ids are sorted by the partition they name, of every generation, and what is no id of the sink is left out', () => {
  const [first, again, other, later] = [id(TAG, 1, 0, 5, 0), id(TAG, 1, 0, 6, 1), id(TAG, 1, 37, 5, 0), id(TAG, 2, 0, 5, 0)]
  const foreign = [
    id(sinkTag('another'), 1, 0, 5, 0),
    `${TAG}.1.0`,
    `${TAG}..0.1.1`,
    `${TAG}.01.0.1.1`,
    `${TAG}.1.!.1.1`,
    '',
    'x'.repeat(99),
  ]
  assert.deepEqual(
    [...ackIdsByPartition([first, ...foreign, other, again, later], TAG)],
    [
      ['1/0', [first, again]],
      ['1/37', [other]],
      ['2/0', [later]],
    ],
  )
})
