import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  ackIdPrefix,
  ackIdsByPartition,
  digitCount,
  readAckIds,
  readOlderAckIds,
  sinkTag,
  splitTokens,
  tokenOf,
  TOKENS_JOIN,
  writeDigits,
} from '../../../engine/dispatch/ack-id.ts'
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
      assert.deepEqual([...readAckIds([text], TAG, generation).refs], [[partition, { offsets: [offset], indexes: [index] }]])
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
    good.replace('.25.', '.!.25.'),
    `${good}-`,
    `${good}-4`,
    `${good}-7-8`,
    `${good}-!-8`,
    `${TAG}.1.`,
  ]
  assert.deepEqual([...readAckIds(others, TAG, 1).refs], [])
  assert.deepEqual(
    [...readAckIds([...others, good, `${TAG}.1.2.zzzzzzzzzzzzzzzz.0`, 'x'.repeat(10_000_000)], TAG, 1).refs],
    [[2, { offsets: [77], indexes: [5] }]],
  )
})

test('a token names the messages of an answer, in their order; neighbours in a record cost it nothing', () => {
  const place = fc.tuple(fc.nat(50), fc.nat(50))
  fc.assert(
    fc.property(
      fc.uniqueArray(place, { minLength: 1, selector: (it) => `${it}` }),
      fc.nat(9),
      fc.nat(9),
      (places, partition, generation) => {
        const refs = { offsets: places.map(([offset]) => offset), indexes: places.map(([, index]) => index) }
        const token = tokenOf(ackIdPrefix(TAG, generation + 1, partition), refs)
        assert.match(token, /^[0-9a-z.,-]+$/)
        assert.deepEqual([...readAckIds([token], TAG, generation + 1).refs], [[partition, refs]])
        const older = readOlderAckIds([token], TAG, generation + 2)
        assert.deepEqual(older, {
          ...refs,
          generations: places.map(() => generation + 1),
          partitions: places.map(() => partition),
        })
      },
    ),
  )
  const thousand = { offsets: Array.from({ length: 1000 }, () => 7), indexes: Array.from({ length: 1000 }, (_, i) => i) }
  const tokens = [0, 1].map((partition) => tokenOf(ackIdPrefix(TAG, 1, partition), thousand))
  assert.equal(tokens[0], `${ackIdPrefix(TAG, 1, 0)}7.0-rr`)
  const both = splitTokens(['an id', tokens.join(TOKENS_JOIN)])
  assert.deepEqual(both, ['an id', ...tokens])
  assert.deepEqual(
    [...ackIdsByPartition(both, TAG)],
    [
      ['1/0', [tokens[0]]],
      ['1/1', [tokens[1]]],
    ],
  )
})

test('what tokens name is bounded for all of them together, before anything is made of it', () => {
  const many = Array.from({ length: 500 }, (_, partition) => `${ackIdPrefix(TAG, 1, partition)}0.0-rr`)
  assert.throws(() => readAckIds(many, TAG, 1), /at most 400,000 messages/)
  assert.throws(() => readOlderAckIds(many, TAG, 9), /at most 400,000 messages/)
  assert.throws(() => readAckIds([`${ackIdPrefix(TAG, 1, 0)}0.0-zzzzzzzzzz`], TAG, 1), { code: 'REQUEST_INVALID' })
  assert.equal(readAckIds(many.slice(0, 400), TAG, 1).refs.size, 400)
  assert.throws(() => splitTokens(['an id', TOKENS_JOIN.repeat(400_000)]), { code: 'REQUEST_INVALID' })
  assert.equal(splitTokens([TOKENS_JOIN.repeat(399_999)]).length, 400_000)
  const begun = performance.now()
  readAckIds([`${ackIdPrefix(TAG, 1, 0)}${',.-'.repeat(5_000_000)}`], TAG, 1)
  assert.ok(performance.now() - begun < 10_000, 'in time that grows with its length alone')
})

test('no text whatever breaks the reading of ack ids', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.oneof(
          fc.string({ unit: 'binary' }),
          fc.stringMatching(/^[0-9a-z.]{0,30}([,-][0-9a-z]{0,2}){0,3}$/).map((s) => `${TAG}.1.${s}`),
        ),
      ),
      (ids) => {
        for (const { offsets, indexes } of readAckIds(ids, TAG, 1).refs.values())
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
