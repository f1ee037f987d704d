import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { DeliveredMessages, type DeliveredTogether } from '../../../engine/dispatch/delivered-messages.ts'
import { bodyOf } from '../../../engine/dispatch/parked/message-records.ts'
import { Pack } from '../../../engine/log/pack.ts'
import { packOf } from '../../actors/sink-fixture.ts'
import { until } from '../../waiting.ts'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void
const SINK_ID = '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01'
const together = (fields: Partial<DeliveredTogether> = {}): DeliveredTogether => ({
  ...{ generation: 1, partition: 0, at: Date.parse('2025-02-03T04:05:06Z'), tries: 1, formerAttempts: [], bytes: 100 },
  ...{ attempt: () => ({ status: 200 }) },
  ...fields,
})
const pack = (count: number, pad = 0, from = 0) =>
  Pack.decode(packOf(16n, Array.from({ length: count }, (_, i) => ({ id: from + i, pad })))) // prettier-ignore

const messagesOf = (view: Pack, offset: number, places: readonly number[]) => places.map((place) => ({ view, place, offset, index: place }))

function filled(count: number, options: { perPack: number; pad?: number; isSensitive?: boolean }) {
  const list = new DeliveredMessages(SINK_ID, 'delivered', options.isSensitive === true)
  for (let offset = 0; offset * options.perPack < count; offset++) {
    const view = pack(options.perPack, options.pad, offset * options.perPack)
    const sent = together()
    list.add(
      messagesOf(
        view,
        offset,
        Array.from({ length: options.perPack }, (_, i) => i),
      ),
      sent,
    )
  }
  return list
}

test('the newest thousand are kept, newest first, each with its content and its attempt', () => {
  const list = filled(2_500, { perPack: 100 })
  const records = list.list(2_000)
  assert.equal(records.length, 1_000)
  assert.deepEqual([records[0]?.record_pks, records.at(-1)?.record_pks], [['g2499'], ['g1500']])
  assert.deepEqual(records[0]?.attempts, [{ status: 200 }])
  assert.deepEqual(list.list(3).map(({ commit_idx }) => commit_idx), [99, 98, 97]) // prettier-ignore
  const found = list.find(records[5]?.id ?? '')
  assert.match(String(bodyOf(found)), /^"record":\{"id":2494,/)
  assert.equal(list.find('nothing'), undefined)
})

test('large messages, and few of large packs, stay within some megabytes', ({ mock }) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  const large = filled(300, { perPack: 1, pad: 100_000 })
  assert.ok(large.bytes < 17_000_000, `${large.bytes} bytes at once`)
  mock.timers.tick(1_000)
  assert.ok(large.bytes < 5_000_000 && large.size >= 15 && large.size < 60, `${large.bytes} bytes, ${large.size} messages`)
  assert.equal(large.list(1)[0]?.record_pks[0], 'g299')
  const huge = filled(1, { perPack: 1, pad: 6_000_000 })
  mock.timers.tick(1_000)
  assert.equal(huge.size, 1)
  assert.ok(huge.find(huge.list(1)[0]?.id ?? '')?.content === undefined)
  const sparse = new DeliveredMessages(SINK_ID, 'delivered', false)
  for (let offset = 0; offset < 500; offset++) sparse.add(messagesOf(pack(200, 500, offset * 200), offset, [7]), together()) // one of each pack
  assert.ok(sparse.bytes < 17_000_000, `${sparse.bytes} bytes at once`)
  mock.timers.tick(1_000)
  assert.ok(sparse.bytes < 5_000_000, String(sparse.bytes))
  assert.equal(sparse.size, 500)
  assert.deepEqual(sparse.list(2).map(({ record_pks }) => record_pks[0]), ['g99807', 'g99607']) // prettier-ignore
})

test('of large messages, which are known without their content, no pack stays in memory', async ({ mock }) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  const list = new DeliveredMessages(SINK_ID, 'delivered', false)
  const delivered = (offset: number): WeakRef<ArrayBufferLike> => {
    const view = pack(1, 600_000, offset)
    list.add(messagesOf(view, offset, [0]), together())
    return new WeakRef(view.buffer.buffer)
  }
  const packs = Array.from({ length: 20 }, (_, offset) => delivered(offset))
  assert.equal(list.size, 20)
  assert.equal(list.list(1)[0]?.record_pks[0], 'g19')
  const left = () => {
    collect()
    return packs.filter((each) => each.deref() !== undefined).length
  }
  await until('the packs are let go of', () => left() === 0, { withinMs: 10_000 })
})

test('packs whose messages many requests delivered in turns are held once, and nothing is copied out of them', ({ mock }) => {
  mock.timers.enable({ apis: ['setTimeout'] })
  const list = new DeliveredMessages(SINK_ID, 'delivered', false)
  const packs = [0, 1].map((offset) => pack(500, 500, offset * 500))
  for (let i = 0; i < 500; i++)
    for (const [offset, view] of packs.entries()) list.add(messagesOf(view, offset, [i]), together({ bytes: 1 }))
  mock.timers.tick(1_000)
  assert.equal(list.size, 1_000)
  assert.ok(list.find(list.list(1)[0]?.id ?? '')?.content?.view === packs[1], 'the pack that was read')
})

test('of a sensitive sink nothing of the content is kept, and what was there before is forgotten', () => {
  const list = filled(50, { perPack: 50, pad: 100, isSensitive: true })
  const [newest] = list.list(1)
  assert.deepEqual([newest?.record_pks, newest?.table], [['g49'], null])
  assert.equal(list.find(newest?.id ?? '')?.content, undefined)
  assert.ok(list.bytes < 20_000)
  const before = filled(10, { perPack: 10 })
  before.isSensitive = true
  assert.equal(before.size, 0)
})
