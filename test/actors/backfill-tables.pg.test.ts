/** Backfills of tables whose definition changes in the midst, and of tables without a primary key, under writes. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { backfillsOf, type Backfill } from '../../engine/state/backfills.ts'
import { until } from '../waiting.ts'
import { serving, Shop } from './shop.ts'

type Message = {
  ack_id: string
  action: string
  record: Record<string, unknown>
  changes: Record<string, unknown> | null
  metadata: { table_name: string }
}

const ended = (backfill: Backfill | undefined) => backfill && backfill.state !== 'active' && backfill

/** A sink that takes what comes, for as long as a backfill goes on and then until nothing more comes. */
class Taker {
  readonly #shop: Shop
  readonly #sink: string
  readonly messages: Message[] = []

  constructor(shop: Shop, sink = 'a') {
    this.#shop = shop
    this.#sink = sink
  }

  async start(table: string, over: Readonly<Record<string, unknown>> = {}): Promise<void> {
    const { backfills, cache } = this.#shop.node
    const sink = cache.sinks.find(({ name }) => name === this.#sink) ?? assert.fail()
    await backfills.start(sink, [{ table, max_timeout_ms: 5_000, ...over }])
  }

  async newest(): Promise<Backfill | undefined> {
    const [newest] = await backfillsOf(this.#shop.node.store.query, this.#shop.id(this.#sink))
    return newest
  }

  async take(waitMs: number): Promise<number> {
    const signal = new AbortController().signal
    const { body } = await this.#shop.sink(this.#sink).receive({ batchSize: 1000, waitMs, shape: 'flat', signal })
    const { data } = JSON.parse(body.toString()) as { data: Message[] }
    this.messages.push(...data)
    if (data.length > 0) await this.#shop.ack(this.#sink, data)
    return data.length
  }

  /** How the backfill ended, with all that came. */
  async end(): Promise<Backfill> {
    const backfill = await until('the end of the backfill', async () => {
      await this.take(10)
      return ended(await this.newest())
    })
    await until('nothing more comes', async () => (await this.take(500)) === 0)
    return backfill
  }
}

const count = 1_500
/** Of a thousand rows and of about 1,700 are the first pages of a table of which a thousand rows take 0.6 s. */
const PAGES_OF = 4_000
/** Each row takes a while to read, so that there is a midst. */
const SLOWLY = { where: 'pg_sleep(0.0005) is not null' }

async function opened(sink = 'name: a'): Promise<Shop> {
  const shop = await Shop.open([sink])
  await serving(shop.node, 'a')
  return shop
}

/** What is done to the table while it is backfilled, and how that ends. */
const CHANGES: readonly Readonly<{ name: string; ddl: string; state: 'completed' | 'failed'; says?: RegExp; sink?: string }>[] = [
  { name: 'a column is added', ddl: `alter table big add column more int default 7`, state: 'completed' },
  { name: 'a column is dropped', ddl: `alter table big drop column name`, state: 'completed' },
  { name: 'a column gets another type', ddl: `alter table big alter column name type varchar(50)`, state: 'completed' },
  { name: 'the table is rewritten', ddl: `alter table big alter column n type bigint`, state: 'completed' },
  { name: 'the key gets another type', ddl: `alter table big alter column id type bigint`, state: 'completed' },
  { name: 'a column of the key is renamed', ddl: `alter table big rename column id to number`, state: 'completed' },
  { name: 'the key is of other columns', ddl: `alter table big drop constraint big_pkey, add primary key (n, id)`, state: 'completed' },
  {
    name: 'the key is dropped',
    ddl: `alter table big drop constraint big_pkey`,
    state: 'completed',
    sink: 'name: a, message_grouping: false', // rows without a key share one group, and would come one after the other
  },
  {
    name: 'the table is emptied and filled',
    ddl: `begin; truncate big; insert into big select i, 'new', -i from generate_series(1, 3000) i; commit`,
    state: 'completed',
  },
  {
    name: 'another table takes its name',
    ddl: `begin; alter table big rename to former; create table big (id int primary key, name text, n int not null); insert into big select i, 'new', -i from generate_series(1, 3000) i; commit`,
    state: 'completed',
  },
  { name: 'the table is renamed', ddl: `alter table big rename to former`, state: 'failed', says: /there is no such table/ },
  { name: 'the table is dropped', ddl: `drop table big`, state: 'failed', says: /there is no such table/ },
  { name: 'the table is no longer published', ddl: 'PUBLICATION', state: 'failed', says: /not in the publication/ },
]

for (const { name, ddl, state, says, sink } of CHANGES)
  test(`${name}: the backfill of it alone ${state === 'completed' ? 'goes on and leaves no row out' : 'fails, and says why'}`, async () => {
    await using shop = await opened(sink)
    await shop.db.query(
      `create table big (id int primary key, name text, n int not null); insert into big select i, 'old', -i from generate_series(1, ${PAGES_OF}) i`,
    )
    await shop.insert(1, 10)
    const taker = new Taker(shop)
    await until('the rows have come', async () => (await taker.take(100), taker.messages.length >= PAGES_OF + 10))
    taker.messages.length = 0
    await taker.start('public.big', { where: '(n % 20 <> 0 or pg_sleep(0.012) is not null)', max_timeout_ms: 20_000 })
    await until('a page is durable', async () => {
      const newest = await taker.newest()
      assert.equal(newest?.state, 'active', 'the backfill was too fast: nothing is tested')
      return newest.pages.length > 0
    })
    const publication = `"s_${shop.db.name}"`
    await shop.db.query(ddl === 'PUBLICATION' ? `alter publication ${publication} set table item` : ddl).catch((error: Error) => {
      if (ddl !== 'PUBLICATION') throw error
      return shop.db.query(`drop publication ${publication}; create publication ${publication} for table item`)
    })
    const backfill = await taker.end()
    assert.equal(backfill.state, state, backfill.error?.message)
    if (says) assert.match(backfill.error?.message ?? '', says)
    else {
      const table = await shop.db.query<{ n: number }>('select n from big')
      const missing = () => {
        const got = new Set(taker.messages.map(({ record }) => Number(record['n'])))
        return table.filter(({ n }) => !got.has(Number(n)))
      }
      await until('all rows have come', async () => (await taker.take(100), missing().length === 0))
    }
    await taker.start('public.item')
    assert.equal((await taker.end()).state, 'completed')
    const ofOther = () => taker.messages.filter(({ metadata }) => metadata.table_name === 'item').length
    await until('the rows of another table have come', async () => (await taker.take(100), ofOther() >= 10))
    assert.equal(ofOther(), 10)
  })

/** Rows are known by `id` to the test alone, where the table has no key; and to the sink, which keeps those of one in their order. */
const BY_ID = 'name: a, tables: [{ name: item, group_column_names: [id] }]'

const KEYLESS: readonly Readonly<{ name: string; ddl: string }>[] = [
  {
    name: 'an index for its replica identity',
    ddl: 'create unique index by_id on item (id); alter table item replica identity using index by_id',
  },
  {
    name: 'one that pages can not be ordered by',
    ddl: 'create unique index by_id on item (id desc); alter table item replica identity using index by_id',
  },
  {
    name: 'a unique index, and whole rows as its replica identity',
    ddl: 'create unique index by_id on item (id); alter table item replica identity full',
  },
  { name: 'no index at all, and whole rows as its replica identity', ddl: 'alter table item replica identity full' },
]

for (const { name, ddl } of KEYLESS)
  test(`a table without a primary key that has ${name}: under writes each row comes as it is in the end`, async () => {
    await using shop = await opened(BY_ID)
    await shop.db.query(`alter table item drop constraint item_pkey; alter table item alter column id set not null; ${ddl}`)
    await shop.insert(1, count)
    const taker = new Taker(shop)
    await until('the rows have come', async () => (await taker.take(100), taker.messages.length >= count))
    taker.messages.length = 0
    await taker.start('public.item', SLOWLY)
    const over = new AbortController()
    const writing = (async () => {
      for (let round = 1; !over.signal.aborted; round++) {
        const at = (round * 397) % (count / 2)
        await shop.db.query(`update item set name = 'u' || $2::int where id between $1::int and $1::int + 3`, [at, round])
        await shop.db.query('delete from item where id = $1', [at + 25])
        await shop.db.query(`insert into item select $1::int, 'again' where not exists (select from item where id = $1)`, [
          (round * 31) % (count / 2),
        ])
      }
    })()
    const backfill = await until('the backfill is completed', async () => {
      await taker.take(10)
      return ended(await taker.newest())
    }).finally(() => over.abort())
    await writing
    assert.equal(backfill.state, 'completed', backfill.error?.message)
    const rows = (await shop.db.query<{ id: number; name: string }>('select id, name from item order by id')).map((row) => [
      row.id,
      row.name,
    ])
    await until('the sink has the rows of the table', async () => (await taker.take(100), isDeepStrictEqual(folded(taker.messages), rows)))
    await until('nothing more comes', async () => (await taker.take(500)) === 0)
    assert.deepEqual(folded(taker.messages), rows)
    assert.ok(taker.messages.filter(({ action }) => action === 'read').length >= count / 3)
  })

/** The rows that a copy has which takes each message as it comes. */
function folded(messages: readonly Message[]): unknown[][] {
  const rows = new Map<number, unknown>()
  for (const { action, record } of messages) {
    if (action === 'delete') rows.delete(Number(record['id']))
    else rows.set(Number(record['id']), record['name'])
  }
  return [...rows].sort(([a], [b]) => a - b)
}
