/** What may happen to a sink while it is backfilled: it converges, or its backfill ends by name, and no other one is touched. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backfillsOf, type Backfill } from '../../engine/state/backfills.ts'
import { MAX_MOVED } from '../../engine/state/moved-rows.ts'
import { differences, Mirror } from '../faults/mirror.ts'
import { messageOf, type Wire } from '../faults/sink-client.ts'
import { until } from '../waiting.ts'
import { ITEMS, NEVER, serving, Shop, upTo } from './shop.ts'

const ROWS = 2_500
/** A page of a thousand rows takes half a second. */
const SLOW = '(id % 20 <> 0 or pg_sleep(0.01) is not null)'
const MAX_TIMEOUT_MS = 20_000

async function begin(shop: Shop, sink: string, { table = 'public.item', where = SLOW as string | null } = {}): Promise<void> {
  await shop.node.backfills.start(sinkOf(shop, sink), [{ table, max_timeout_ms: MAX_TIMEOUT_MS, where }])
}

const sinkOf = (shop: Shop, sink: string) => shop.node.cache.sinks.find(({ name }) => name === sink) ?? assert.fail()

const newest = async (shop: Shop, sink: string): Promise<Backfill> =>
  (await backfillsOf(shop.node.store.query, shop.id(sink)))[0] ?? assert.fail(`${sink} has no backfill`)

/** Settles when rows are behind the backfill, and others before it. */
const inTheMidst = (shop: Shop, sink: string) =>
  until('a page is durable', async () => {
    const { state, pages } = await newest(shop, sink)
    assert.equal(state, 'active', 'the backfill was too fast: nothing is tested')
    return pages.length > 0
  })

const ended = (shop: Shop, sink: string, state: Backfill['state']) =>
  until(`the backfill of ${sink} is ${state}`, async () => {
    const found = await newest(shop, sink)
    return found.state === state && found
  })

/** Takes all that was committed so far: it is in the log first, and then the sink has nothing left of it. How much that is sets no limit of time. */
async function takeAll(shop: Shop, sink: string, into: Mirror): Promise<void> {
  await confirmed(shop)
  for (let isDone = false; !isDone;) {
    const { body } = await shop.sink(sink).receive({ batchSize: 1000, waitMs: 100, shape: 'flat', signal: NEVER })
    const { data } = JSON.parse(body.toString()) as { data: Wire[] }
    for (const { action, key, lsn, idx, record, changes } of data.map(messageOf))
      into.take({ action, key: String(key[0]), lsn, idx, record, changes })
    if (data.length > 0) await shop.ack(sink, data)
    isDone = data.length === 0 && (await isThrough(shop, sink))
  }
}

/** Tells whether a sink reads its newest generation, and everything in that is acknowledged. */
async function isThrough(shop: Shop, sink: string): Promise<boolean> {
  const [newest] = await shop.state.query<{ generation: number }>(
    'select max(generation)::int as generation from tailrace.generation where sink_id = $1',
    [shop.id(sink)],
  )
  const { details, partitions = [] } = shop.node.engine.actors().find(({ id }) => id === `sink/${shop.id(sink)}`) ?? {}
  return (
    details?.['generation'] === newest?.generation &&
    partitions.length > 0 &&
    partitions.every((each) => each.state === 'running' && each.lag === 0 && each.parked === 0)
  )
}

const table = (shop: Shop) => shop.db.query<{ id: number; name: string }>('select * from item')

/** @param isFormer a row that the sink may hold besides: it does not hear where that went */
async function holdsTable(
  shop: Shop,
  sink: string,
  mirror = new Mirror(),
  isFormer: (key: string) => boolean = () => false,
): Promise<void> {
  const rows = await table(shop)
  const keys = new Set(rows.map(({ id }) => String(id)))
  let found: string[] = []
  const isSame = async () => {
    await takeAll(shop, sink, mirror)
    const held = [...mirror.rows()].filter(([key]) => keys.has(key) || !isFormer(key))
    return (found = differences(new Map(held), rows)).length === 0
  }
  await until(() => `${sink} holds the table:\n${found.join('\n')}`, isSame)
}

/** With rows that no sink was told of. */
async function open(...sinks: string[]): Promise<Shop> {
  const shop = await Shop.open(sinks)
  await shop.insert(1, ROWS)
  for (const { name } of shop.node.cache.sinks) await takeAll(shop, name, new Mirror())
  return shop
}
async function isReading(shop: Shop): Promise<boolean> {
  const rows = await shop.db.query(
    `select from pg_stat_activity where datname = $1 and query like 'copy (%pg_sleep%' and state = 'active'`,
    [shop.db.name],
  )
  return rows.length > 0
}
const edit = (shop: Shop, sink: string, fields: object) => shop.node.edits.update('sink', shop.id(sink), fields)

test('a sink that is disabled in the midst, and misses changes, is backfilled from the beginning when it is enabled', async () => {
  await using shop = await open(`name: a, ${ITEMS}`)
  await begin(shop, 'a')
  await inTheMidst(shop, 'a')
  const mirror = new Mirror()
  await edit(shop, 'a', { status: 'disabled' })
  await until('the sink takes nothing more', async () => {
    const [version] = await shop.state.query<{ placed: boolean }>(
      'select lsn is not null as placed from tailrace.routing_version order by version desc limit 1',
    )
    return version?.placed
  })
  await shop.db.query(`update item set name = 'missed' where id <= 10`)
  await edit(shop, 'a', { status: 'active' })
  await serving(shop.node, 'a')
  await ended(shop, 'a', 'completed')
  await holdsTable(shop, 'a', mirror)
})

test('a sink that is paused in the midst, and edited to other partitions, converges', async () => {
  await using shop = await open(`name: a, ${ITEMS}`)
  await begin(shop, 'a')
  await inTheMidst(shop, 'a')
  await edit(shop, 'a', { status: 'paused' })
  await edit(shop, 'a', { partitions: 3 })
  await shop.db.query(`update item set name = 'changed' where id % 7 = 0`)
  await shop.db.query('delete from item where id % 11 = 0')
  await edit(shop, 'a', { status: 'active' })
  await serving(shop.node, 'a')
  await ended(shop, 'a', 'completed')
  await holdsTable(shop, 'a')
})

test('a backfill of a table that its sink takes no more fails by name, and others go on', async () => {
  await using shop = await open(`name: a, ${ITEMS}`, `name: b, ${ITEMS}`)
  await begin(shop, 'a')
  await begin(shop, 'b')
  await inTheMidst(shop, 'a')
  await edit(shop, 'a', { source: { include_tables: ['public.other'] } })
  const { error } = await ended(shop, 'a', 'failed')
  assert.equal(error?.code, 'BACKFILL_REFUSED')
  assert.match(error?.message ?? '', /does not take public\.item/)
  await ended(shop, 'b', 'completed')
  await holdsTable(shop, 'b')
})

test('a sink that is deleted in the midst takes its backfill along, and others go on', async () => {
  await using shop = await open(`name: a, ${ITEMS}`, `name: b, ${ITEMS}`)
  await begin(shop, 'a')
  await begin(shop, 'b')
  await inTheMidst(shop, 'a')
  await shop.node.edits.delete('sink', shop.id('a'))
  await ended(shop, 'b', 'completed')
  await holdsTable(shop, 'b')
})

/** Rows with a large value, of which the stream has brought all. */
async function openLarge(rows: number): Promise<Shop> {
  const shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.db.query(`alter table item alter name set storage external`)
  await shop.db.query(`insert into item select i, repeat(md5(i::text), 100) from generate_series(1, ${rows}) i`)
  await shop.db.query(`alter table item add column version int not null default 0`)
  await takeAll(shop, 'a', new Mirror())
  return shop
}

test('a row of which an update leaves a large value alone, before it is read, comes with the value', async () => {
  await using shop = await openLarge(1_500)
  await begin(shop, 'a')
  await until('the backfill reads', () => isReading(shop))
  await shop.db.query('update item set version = 1')
  await ended(shop, 'a', 'completed')
  await holdsTable(shop, 'a')
})

test('a row that is changed all the time, with a large value that is left alone, holds up no other row', async () => {
  await using shop = await openLarge(5_000)
  const over = new AbortController()
  const hot = await shop.db.connect()
  const changing = (async () => {
    while (!over.signal.aborted) await hot.query('update item set version = version + 1 where id = 7; select pg_sleep(0.002)')
  })()
  await begin(shop, 'a', { where: null })
  await ended(shop, 'a', 'completed').finally(() => over.abort())
  await changing
  const mirror = new Mirror()
  await takeAll(shop, 'a', mirror)
  const rows = mirror.rows()
  const others = (await table(shop)).filter(({ id }) => id !== 7)
  assert.deepEqual(differences(new Map([...rows].filter(([key]) => key !== '7')), others), [])
  assert.deepEqual(mirror.violations, [])
})

/** Lets rows that were not read yet get keys of places that were, by updates, and each of them once more. */
async function moveBack(shop: Shop, ids: readonly number[]): Promise<void> {
  await shop.db.query('update item set id = id - 100000 where id = any ($1)', [ids])
  await shop.db.query('update item set id = id + 50000 where id = any ($1)', [ids.map((id) => id - 100_000)])
}

/** Settles when what was committed so far is confirmed: no other run is told of it. */
async function confirmed(shop: Shop): Promise<void> {
  const [row] = await shop.db.query<{ lsn: string }>('select pg_current_wal_lsn()::text as lsn')
  await until('all is confirmed', async () => {
    await shop.db.query('select pg_logical_emit_message(true, $1, $2)', ['test', 'something to confirm'])
    return (
      (
        await shop.db.query('select from pg_replication_slots where slot_name = $2 and confirmed_flush_lsn > $1::pg_lsn', [
          row?.lsn,
          `s_${shop.db.name}`,
        ])
      ).length > 0
    )
  })
}

const move = (shop: Shop, sink: string, state: 'active' | 'paused') =>
  newest(shop, sink).then(({ id }) => shop.node.backfills.move(sinkOf(shop, sink), id, { state }))

test('no place of a backfill is saved while its rows are on their way to the log, and what does not get there is read again', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.insert(1, ROWS)
  await takeAll(shop, 'a', new Mirror())
  const { log } = shop.node
  const held = Promise.withResolvers<void>()
  const former = new Set(log.appends.flatMap(({ records }) => records.map(({ topic }) => topic)))
  let isHeld = false
  log.before = async (records) => {
    if (records.every(({ topic }) => former.has(topic))) return // what closes the stream that the sink leaves
    isHeld = true
    await held.promise
  }
  await begin(shop, 'a', { where: null })
  await until('rows are on their way to the log', () => isHeld)
  for (let turns = 0; turns < 100; turns++) assert.deepEqual((await newest(shop, 'a')).pages, []) // what is not waited for goes on
  log.before = undefined
  held.reject(new Error('the disk is lost, and what was on its way to it'))
  await ended(shop, 'a', 'completed')
  await holdsTable(shop, 'a')
})

const UNLIKE = 'actions: [insert, delete]'
const LONG_NAMES = `alter table item alter name set storage external; update item set name = repeat(md5(id::text), 100)`
const pausedWhile = (work: (shop: Shop) => Promise<unknown>) => async (shop: Shop) => {
  await move(shop, 'a', 'paused')
  await work(shop)
  await move(shop, 'a', 'active')
}

for (const [what, sink, prepared, meanwhile] of [
  ['is paused, and its sink takes no such changes', UNLIKE, '', pausedWhile((shop) => moveBack(shop, [ROWS, ROWS - 1]))],
  [
    'is paused, and its process ends',
    UNLIKE,
    '',
    pausedWhile(async (shop) => {
      await moveBack(shop, [ROWS])
      await confirmed(shop)
      await shop.restart(() => moveBack(shop, [ROWS - 1]))
    }),
  ],
  ['is paused, and the changes leave a large value alone', '', LONG_NAMES, pausedWhile((shop) => moveBack(shop, [ROWS, ROWS - 1]))],
  [
    'is paused, and more have moved than are known by their keys',
    UNLIKE,
    `insert into item select i, 'more' from generate_series(${ROWS + 1}, ${ROWS + MAX_MOVED}) i`,
    pausedWhile((shop) => moveBack(shop, upTo(ROWS, ROWS + MAX_MOVED))),
  ],
  [
    'has failed, and its sink takes no such changes',
    UNLIKE,
    '',
    async (shop: Shop) => {
      await edit(shop, 'a', { source: { include_tables: ['public.other'] } })
      await ended(shop, 'a', 'failed')
      await edit(shop, 'a', { source: { include_tables: ['public.item'] } })
      await serving(shop.node, 'a')
      await moveBack(shop, [ROWS, ROWS - 1])
      await move(shop, 'a', 'active')
    },
  ],
] as const)
  test(`rows that get keys of places that were read come, though the backfill ${what}`, async () => {
    await using shop = await Shop.open([`name: a, ${ITEMS}, ${sink}`])
    await shop.insert(1, ROWS)
    if (prepared) await shop.db.query(prepared)
    await takeAll(shop, 'a', new Mirror())
    await begin(shop, 'a', { where: `(id not between 1 and ${ROWS} or ${SLOW})` })
    await inTheMidst(shop, 'a')
    await meanwhile(shop)
    await ended(shop, 'a', 'completed')
    await holdsTable(shop, 'a', new Mirror(), (key) => Number(key) > 0)
  })

for (const [action, keyChanges] of [
  ['insert', 'update'],
  ['update', 'delete_insert'],
  ['delete', 'update'],
])
  test(`rows come to a sink of ${action} whatever changes beside its backfill (key_changes: ${keyChanges})`, async () => {
    await using shop = await open(`name: a, ${ITEMS}, actions: [${action}], key_changes: ${keyChanges}`)
    await begin(shop, 'a', { where: '(id % 20 <> 0 or pg_sleep(0.003) is not null)' })
    let expected: readonly number[] = []
    let round = 0
    await until('the backfill is completed', async () => {
      if (round < 60) {
        const nth = round++
        await shop.db.query(`update item set name = 'u' || $1::text where id % 60 = $1`, [nth])
        await shop.db.query(`update item set id = id + 10000 where id between $1 and $1 + 5 and id <= ${ROWS}`, [nth * 40 + 1])
        await shop.db.query(`update item set id = id - 10000 where id > 10000 and id % 2 = 0`)
        const ids = (await table(shop)).map(({ id }) => id)
        if (await isReading(shop)) expected = ids // its mark is still to come: what moved stands before that
      }
      return (await newest(shop, 'a')).state === 'completed'
    })
    const mirror = new Mirror()
    await takeAll(shop, 'a', mirror)
    const came = new Set([...mirror.messages].filter(({ action }) => action !== 'delete').map(({ key }) => key))
    const there = new Set((await table(shop)).map(({ id }) => id))
    const left = expected.filter((id) => there.has(id) && !came.has(String(id)))
    assert.ok(
      expected.some((id) => id > ROWS),
      'no row got another key in the midst',
    )
    assert.deepEqual(left.slice(0, 5), [], `${left.length} rows never came`)
  })
