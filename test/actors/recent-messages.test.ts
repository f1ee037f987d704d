import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RecentMessages } from '../../actors/recent-messages.ts'
import type { Pack } from '../../engine/log/pack.ts'
import { batchOf } from '../sinks/batch.ts'
import { SINK } from './sink-fixture.ts'
import { until } from '../waiting.ts'

const packOf = (ids: readonly number[], history = 0, record: object = {}): Pack =>
  batchOf(
    ids.map((id) => ({ key: [String(id)], record: { id, ...record } })),
    history,
  ).messages[0]?.view as Pack
const idsOf = (recent: RecentMessages, sinks = [SINK]) =>
  recent.of({ databaseId: SINK.databaseId, table: 'public.item' }, sinks).map(({ text }) => Number(/"id":(\d+)/.exec(text)?.[1]))
const range = (count: number) => Array.from({ length: count }, (_, i) => i)

test('the last ten messages of a table are kept, each once whoever reads it, and told by the name of the table', () => {
  const recent = new RecentMessages()
  const other = { ...SINK, id: '99999999-1111-4111-8111-111111111111' }
  recent.note(SINK, packOf(range(30)))
  recent.note(other, packOf(range(30)))
  assert.deepEqual(idsOf(recent), range(30).slice(20)) // the other read them too, and is not there any more
  assert.deepEqual(idsOf(recent, [SINK, other]), range(30).slice(20))
  assert.deepEqual(recent.of({ databaseId: SINK.databaseId, table: 'public.goods' }, [SINK, other]), [])
  assert.deepEqual(recent.of({ databaseId: 'another', table: 'public.item' }, [SINK, other]), [])
})

test('of a sensitive sink nothing is kept, and nothing is told of one that has become so', () => {
  const recent = new RecentMessages()
  recent.note({ ...SINK, sensitive: true }, packOf([1]))
  assert.deepEqual(idsOf(recent), [])
  recent.note(SINK, packOf([1]))
  assert.deepEqual(idsOf(recent), [1])
  assert.deepEqual(idsOf(recent, [{ ...SINK, sensitive: true }]), [])
})

test('of a sink that reads much the last message before it falls silent is there, and of a pack with many tables each one’s', async () => {
  const recent = new RecentMessages()
  for (const id of [0, 9, 3, 17, 11, 2, 16, 12, 4, 8, 14, 1, 10, 15, 13, 6]) recent.note(SINK, packOf([id], id)) // as partitions come
  await until('the last ones', async () => String(idsOf(recent)) === '8,9,10,11,12,13,14,15,16,17')
  const tables = [...range(40).map((id) => ({ key: [String(id)], record: { id }, relation: 7 })), { key: ['x'], record: { id: 100 } }]
  recent.note({ ...SINK, id: 'b' }, batchOf(tables, 9).messages[0]?.view as Pack)
  const asked = { databaseId: SINK.databaseId, sinkIds: ['b'] }
  assert.deepEqual(
    recent.of(asked, [{ ...SINK, id: 'b' }]).map(({ text }) => Number(/"id":(\d+)/.exec(text)?.[1])),
    [39, 100],
  )
})

test('large messages are left out, and digits stay', () => {
  const recent = new RecentMessages()
  recent.note(SINK, packOf([1], 0, { text: 'x'.repeat(20_000) }))
  recent.note({ ...SINK, id: 'b' }, packOf([2]))
  assert.deepEqual(idsOf(recent, [SINK, { ...SINK, id: 'b' }]), [2])
})

test('a pack with large messages is looked at when it is read, and not held', () => {
  const recent = new RecentMessages()
  recent.note(SINK, packOf([1]))
  const messages = [{ key: ['2'], record: { id: 2 } }, { key: ['3'], record: { id: 3, text: 'x'.repeat(600_000) } }] // prettier-ignore
  recent.note(SINK, batchOf(messages, 1).messages[0]?.view as Pack)
  assert.deepEqual(idsOf(recent), [1, 2])
})
