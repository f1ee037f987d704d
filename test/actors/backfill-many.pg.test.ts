/** Backfills of a thousand tables, most of them empty: what each of them costs decides how long all take. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { askedSourceOf, wantedBackfills } from '../../actors/resources/wanted-backfills.ts'
import { MAX_TIMEOUT_MS } from '../../engine/state/backfills.ts'
import { until } from '../waiting.ts'
import { Shop } from './shop.ts'

const TABLES = 1_000
/** every so manieth table has rows */
const EVERY = 50
const ROWS = 30
const names = Array.from({ length: TABLES }, (_, i) => `public.t${i}`)

async function withTables(shop: Shop): Promise<void> {
  for (let from = 0; from < TABLES; from += 100)
    await shop.db.query(
      `do $$ begin for i in ${from}..${from + 99} loop
         execute format('create table t%s (id int primary key, name text)', i);
         if i % ${EVERY} = 0 then execute format('insert into t%s select n, ''n'' || n from generate_series(1, ${ROWS}) n', i); end if;
       end loop; end $$`,
    )
}

/** Settles when no backfill is under way any more. @returns the time that took, in ms */
async function ended(shop: Shop): Promise<number> {
  const from = performance.now()
  const states = () =>
    shop.state.query<{ state: string; count: number }>('select state, count(*)::int4 as count from tailrace.backfill group by state')
  await until(
    async () => `all are completed, and not ${JSON.stringify(await states())}`,
    async () => (await states()).every(({ state }) => state === 'completed'),
    { withinMs: 240_000 },
  )
  return performance.now() - from
}

/** Takes what has come to a sink. @returns the tables of the rows, with how many came of each */
async function rowsOf(shop: Shop, name: string): Promise<Record<string, number>> {
  const rows = (await shop.receive(name, (TABLES / EVERY) * ROWS)) as unknown as { action: string; metadata: { table_name: string } }[]
  assert.ok(rows.every(({ action }) => action === 'read'))
  return Object.fromEntries([...Map.groupBy(rows, ({ metadata }) => metadata.table_name)].map(([table, of]) => [table, of.length]))
}

/** The most backfills that were between their first page and their end at the same time, by what the service said. */
function mostAtOnce(shop: Shop): number {
  let [now, most] = [0, 0]
  for (const { message } of shop.node.lines) {
    if (message === 'a backfill begins') most = Math.max(most, ++now)
    if (message === 'a backfill is completed') now--
  }
  return most
}

test('a thousand tables, most of them empty, are asked for within seconds and backfilled within a minute', async () => {
  await using shop = await Shop.open(['name: a'])
  await withTables(shop)
  const expected = Object.fromEntries(Array.from({ length: TABLES / EVERY }, (_, i) => [`t${i * EVERY}`, ROWS]))
  const [sink] = shop.node.cache.sinks
  const [database] = shop.node.cache.databases
  assert.ok(sink && database)
  await shop.take('a', (TABLES / EVERY) * ROWS) // as they were inserted
  const whole = { sort_column: null, start_position: null, where: null, max_timeout_ms: MAX_TIMEOUT_MS }
  const askedAt = performance.now()
  const wanted = await wantedBackfills(askedSourceOf(database), sink.source, { tables: names, isList: true, reading: whole })
  await shop.node.backfills.start(sink, wanted)
  const askedMs = performance.now() - askedAt
  const tookMs = await ended(shop)
  assert.deepEqual(await rowsOf(shop, 'a'), expected)
  assert.ok(askedMs < 15_000, `asked for in ${askedMs} ms`)
  assert.ok(tookMs < 60_000, `completed in ${tookMs} ms`)
  assert.ok(mostAtOnce(shop) > 5, 'of small tables more than two are read at a time')

  await shop.node.edits.create('sink', { id: sink.accountId, name: 'shop' }, { ...sink, name: 'b', initial_backfill: 'all' })
  const initialMs = await ended(shop)
  assert.ok(initialMs < 60_000, `a new sink has all in ${initialMs} ms`)
  assert.deepEqual(await rowsOf(shop, 'b'), expected)
})
