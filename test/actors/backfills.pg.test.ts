/** Backfills of a running engine: rows that were there before come as `read`, beside the stream and in its order. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backfillsOf, type BackfillSettings } from '../../engine/state/backfills.ts'
import { until } from '../waiting.ts'
import { ITEMS, serving, Shop, upTo } from './shop.ts'

type Read = {
  ack_id: string
  action: string
  record: { id: number; name: string }
  metadata: { idempotency_key: string; commit_lsn: number; commit_idx: number }
}

function start(shop: Shop, sink: string, settings: readonly BackfillSettings[]) {
  const { backfills, cache } = shop.node
  return backfills.start(cache.sinks.find(({ name }) => name === sink) ?? assert.fail(), settings)
}

test('a backfill brings the rows that were there before, once each, and then the sink joins its former stream again', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`, `name: b, ${ITEMS}`])
  await shop.insert(1, 2_500)
  for (const name of ['a', 'b']) await shop.take(name, 2_500)
  const streams = await shop.topics()
  const [begun] = await start(shop, 'a', [{ table: 'public.item', max_timeout_ms: 5_000 }])
  assert.ok(begun)
  assert.equal(begun.state, 'active')
  const rows = (await shop.receive('a', 2_500)) as unknown as Read[]
  assert.deepEqual(
    rows.map(({ record }) => record.id),
    upTo(1, 2_500),
  )
  assert.ok(rows.every(({ action }) => action === 'read'))
  assert.equal(Buffer.from(rows[0]?.metadata.idempotency_key ?? '', 'base64').toString(), `${begun.id}:1`)
  const done = await until('the backfill is completed', async () => {
    const [backfill] = await backfillsOf(shop.node.store.query, shop.id('a'))
    return backfill?.state === 'completed' && backfill
  })
  assert.deepEqual([done.rowsProcessed, done.rowsIngested], [2_500, 2_500])
  await shop.insert(2_501, 2_510)
  assert.deepEqual(await shop.take('a', 10), upTo(2_501, 2_510))
  assert.deepEqual(await shop.take('b', 10), upTo(2_501, 2_510), 'rows of the backfill are not for others')
  await until('the stream of the backfill is left', async () => (await shop.topics()).join() === streams.join())
})

test('under writes every row comes as it is in the end, and no read comes after a newer change of its row', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}, key_changes: delete_insert`])
  await shop.insert(1, 20_000)
  await shop.take('a', 20_000)
  await serving(shop.node, 'a')
  await start(shop, 'a', [{ table: 'public.item', max_timeout_ms: 5_000 }])
  const over = new AbortController()
  const writing = (async () => {
    for (let round = 0; !over.signal.aborted; round++) {
      const from = (round * 977) % 19_000
      await shop.db.query(`update item set name = 'u${round}' where id between $1 and $1 + 50`, [from])
      await shop.db.query('delete from item where id = $1', [from + 60])
      await shop.db.query(`insert into item values ($1, 'again') on conflict (id) do nothing`, [((round * 31) % 400) + 1])
      await shop.db.query('update item set id = $2 where id = $1', [from + 70, 30_000 + round])
    }
  })()
  const fold = new Map<number, string>()
  let reads = 0
  const apply = (messages: readonly Read[]) => {
    for (const { action, record } of messages) {
      if (action === 'delete') fold.delete(record.id)
      else fold.set(record.id, record.name)
      if (action === 'read') reads++
    }
  }
  const receive = async (waitMs: number) => {
    const { body } = await shop.sink('a').receive({ batchSize: 1000, waitMs, shape: 'flat', signal: new AbortController().signal })
    const { data } = JSON.parse(body.toString()) as { data: Read[] }
    apply(data)
    if (data.length > 0) await shop.ack('a', data)
    return data.length
  }
  await until('the backfill is completed', async () => {
    await receive(10)
    return (await backfillsOf(shop.node.store.query, shop.id('a'))).every(({ state }) => state === 'completed')
  })
  over.abort()
  await writing
  await until('nothing more comes', async () => (await receive(1_000)) === 0)
  const table = await shop.db.query<{ id: number; name: string }>('select id, name from item order by id')
  assert.ok(reads > 10_000, `${reads} rows were read`)
  assert.deepEqual(
    [...fold].sort(([a], [b]) => a - b),
    table.map(({ id, name }) => [id, name]),
  )
})
