import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeStream, shapeOf, type StreamShape } from '../../../engine/state/generation-shape.ts'

const selects = (fields: Partial<Parameters<typeof shapeOf>[1]>) =>
  describeStream(shapeOf('id', { partitions: 1, message_grouping: true, tables: [], ...fields }).stream as StreamShape)

test('what a stream selects is told in short, with the names of three at most', () => {
  assert.equal(selects({}), 'every table')
  assert.equal(selects({ source: { include_tables: ['item', 'shop.order'] } }), 'public.item, shop.order')
  assert.equal(selects({ source: { include_tables: ['a', 'b', 'c', 'd', 'e'] } }), 'public.a, public.b, public.c and 2 more')
  assert.equal(
    selects({ source: { include_schemas: ['shop'], exclude_tables: ['shop.log'] }, message_grouping: false }),
    'every table; of schema shop; without shop.log; ungrouped',
  )
  assert.equal(
    selects({
      ...{ tables: [{ name: 'item', group_column_names: ['owner', 'kind'] }], timestamp_format: 'unix_microsecond' },
      load_shedding_policy: 'discard_on_full',
    }),
    'every table; public.item by owner, kind; times as unix_microsecond; for one sink alone',
  )
})
