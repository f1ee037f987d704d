/** The rows of a backfill on their way through the functions of a sink. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { FunctionType } from '../../engine/state/function-kinds.ts'
import { until } from '../waiting.ts'
import { ITEMS, NEVER, Shop } from './shop.ts'

test('rows of a backfill pass the enrichment, the filter and the transform of their sink', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.insert(1, 20)
  await shop.take('a', 20)
  const sink = shop.node.cache.sinks.find(({ name }) => name === 'a') ?? assert.fail()
  const make = (name: string, type: FunctionType, code: string) =>
    shop.node.edits.create(
      'function',
      { id: sink.accountId, name: 'shop' },
      { name, type, code, compiled: code, description: null, sinkType: null, usesMetadata: true },
    )
  await make('squares', 'enrichment', 'select id, id * id as square from item where id = any($1)')
  await make(
    'even',
    'filter',
    `export default (action, record, changes, metadata) => action === 'read' && metadata.enrichment.square % 2 === 0`,
  )
  await make('shown', 'transform', 'export default (action, record, changes, metadata) => [action, record.id, metadata.enrichment.square]')
  await shop.node.edits.update('sink', sink.id, { enrichment: 'squares', filter: 'even', transform: 'shown' })
  await shop.node.backfills.start(sink, [{ table: 'public.item', max_timeout_ms: 5_000 }])
  const came: unknown[] = []
  await until('all have come', async () => {
    const { body } = await shop.sink('a').receive({ batchSize: 100, waitMs: 1_000, shape: 'flat', signal: NEVER })
    const { data } = JSON.parse(body.toString()) as { data: { ack_id: string; data: unknown }[] }
    if (data.length > 0) await shop.ack('a', data)
    came.push(...data.map(({ data: made }) => made))
    return came.length >= 10
  })
  assert.deepEqual(
    came.toSorted((a, b) => Number((a as unknown[])[1]) - Number((b as unknown[])[1])),
    Array.from({ length: 10 }, (_, i) => ['read', 2 * (i + 1), 4 * (i + 1) ** 2]),
  )
  await shop.nothingMore('a')
})
