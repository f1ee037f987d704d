import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { RoutedStream } from '../../../../engine/state/resources.ts'
import { compileTargets, parseRoutingMark } from '../../../../engine/wal/routing/routing.ts'
import { routingOf } from '../../../../engine/wal/routing/stored-versions.ts'
import { takesTable } from '../../../../engine/state/source-filter.ts'

const stream = (over: Partial<RoutedStream>): RoutedStream => ({
  topic: 'stream.1',
  partitions: 2,
  source: {},
  groupColumns: {},
  grouping: true,
  timestampFormat: 'iso8601',
  ...over,
})

test('a filter takes what passes its schemas and its tables; a bare table name means public', () => {
  assert.ok(takesTable({}, 'shop', 'shop.goods'))
  assert.ok(!takesTable({ include_schemas: ['public'] }, 'shop', 'shop.goods'))
  assert.ok(!takesTable({ exclude_schemas: ['shop'] }, 'shop', 'shop.goods'))
  assert.ok(takesTable({ include_tables: ['goods'] }, 'public', 'public.goods'))
  assert.ok(!takesTable({ include_tables: ['goods'] }, 'shop', 'shop.goods'))
  assert.ok(!takesTable({ exclude_tables: ['shop.goods'] }, 'shop', 'shop.goods'))
  assert.ok(!takesTable({ include_schemas: ['shop'], exclude_tables: ['shop.goods'] }, 'shop', 'shop.goods'))
  assert.ok(takesTable({ include_schemas: null, include_tables: null }, 'shop', 'shop.goods'))
})

test('each stream that takes the table is a target, in the order of the version', () => {
  const version = {
    databaseId: 'd',
    version: 1,
    readers: [],
    streams: [
      stream({}),
      stream({ topic: 'stream.2', source: { include_schemas: ['x'] } }),
      stream({ topic: 'c.4', actions: ['delete'], groupColumns: { 'public.t': ['g'] } }),
    ],
  }
  const targets = compileTargets(version, { schema: 'public', name: 't' })
  assert.deepEqual(
    targets.map((t) => [t.topic, t.actions, t.groupColumns]),
    [
      ['stream.1', 7, undefined],
      ['c.4', 4, ['g']],
    ],
  )
})

test('a topic that one sink has alone, of a version before streams, is shed for that sink', () => {
  const { topic: _topic, ...shape } = stream({})
  const sinks = [{ ...shape, sinkId: 'a', generation: 3, actions: ['insert'] }]
  const [target] = compileTargets(routingOf({ sinks }), { schema: 'public', name: 't' })
  assert.deepEqual([target?.topic, target?.only, target?.actions], ['a.3', 'a', 1])
})

test('our own tables are never streamed, even to a stream that asks for them', () => {
  const version = { databaseId: 'd', version: 1, readers: [], streams: [stream({ source: { include_schemas: ['tailrace'] } })] }
  assert.deepEqual(compileTargets(version, { schema: 'tailrace', name: 'source' }), [])
})

test('a mark is believed only when it is well formed and names this database: anybody may write one', () => {
  const mark = (content: string) => parseRoutingMark(Buffer.from(content), 'd')
  assert.equal(mark('{"database":"d","version":3}'), 3)
  for (const other of ['{"database":"e","version":3}', '{"database":"d","version":"3"}', '{"database":"d"}', 'null', '[]', '{', ''])
    assert.equal(mark(other), undefined)
})
