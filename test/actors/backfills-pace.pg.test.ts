/** How backfills go beside the stream: what a sink that does not deliver is filled with, whose turn it is, and what they survive. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Client } from 'pg'
import { backfillsOf, type Backfill } from '../../engine/state/backfills.ts'
import type { BackfillLimits } from '../../engine/backfill/backfill-limits.ts'
import type { BackfillStatus } from '../../engine/status.ts'
import { until } from '../waiting.ts'
import { ITEMS, NEVER, serving, Shop, type Taken, upTo } from './shop.ts'

const item = (more: Record<string, unknown> = {}) => ({ table: 'public.item', max_timeout_ms: 5_000, ...more })

const sum = (numbers: Iterable<number>): number => [...numbers].reduce((all, each) => all + each, 0)

const sinkOf = (shop: Shop, name: string) => shop.node.cache.sinks.find((sink) => sink.name === name) ?? assert.fail(name)

async function start(shop: Shop, name: string, settings: readonly ReturnType<typeof item>[] = [item()]): Promise<Backfill> {
  const [begun] = await shop.node.backfills.start(sinkOf(shop, name), settings)
  return begun ?? assert.fail('none was begun')
}

const newest = async (shop: Shop, name: string) =>
  (await backfillsOf(shop.node.store.query, shop.id(name)))[0] ?? assert.fail(`${name} has no backfill`)

const ended = (shop: Shop, name: string, state: Backfill['state'] = 'completed') =>
  until(`the backfill of ${name} is ${state}`, async () => {
    const found = await newest(shop, name)
    return found.state === state && found
  })

/** A backfill as `/info` shows it. */
const shown = (shop: Shop, id: string) => shop.node.engine.actors().find((actor) => actor.id === `backfill/${id}`)

const shownAs = (shop: Shop, id: string, state: BackfillStatus['state']) =>
  until(
    () => `the backfill is ${state}, and not ${shown(shop, id)?.state}`,
    () => shown(shop, id)?.state === state,
  )

/** Reads what comes until a backfill has ended, and what is there then. @returns ids of rows that were read, in order */
async function readAll(shop: Shop, name: string): Promise<number[]> {
  const ids: number[] = []
  await until(`the backfill of ${name} is completed`, async () => {
    ids.push(...(await shop.take(name, 1_000, 20)))
    return (await newest(shop, name)).state === 'completed'
  })
  for (let more = [0]; more.length > 0; ids.push(...more)) more = await shop.take(name, 1_000, 500)
  return ids.sort((a, b) => a - b)
}

async function opened(rows: number, { sinks = [`name: a, ${ITEMS}`], limits = {} as Partial<BackfillLimits> } = {}): Promise<Shop> {
  const shop = await Shop.open(sinks, undefined, undefined, limits)
  await shop.insert(1, rows)
  for (const { name } of shop.node.cache.sinks) await shop.take(name, rows)
  return shop
}

test('a sink that is paused is filled up to the bound, and its backfill goes on when messages are delivered', async () => {
  await using shop = await opened(12_000, { limits: { maxPending: 4_000 } })
  await shop.node.edits.update('sink', shop.id('a'), { status: 'paused' })
  const { id } = await start(shop, 'a')
  await shownAs(shop, id, 'waiting')
  const { rowsIngested, rowsProcessed } = await newest(shop, 'a')
  assert.ok(rowsIngested > 2_000 && rowsIngested <= 8_000, `${rowsIngested} rows were added`)
  assert.equal(rowsProcessed, rowsIngested)
  assert.match(String(shown(shop, id)?.details?.cause), /takes no more for now/)
  await shop.node.edits.update('sink', shop.id('a'), { status: 'active' })
  assert.deepEqual(await readAll(shop, 'a'), upTo(1, 12_000))
  const { rowsProcessed: all } = await newest(shop, 'a')
  assert.equal(all, 12_000)
})

test('a sink whose client has gone is filled as a paused one is', async () => {
  await using shop = await opened(6_000)
  await start(shop, 'a')
  await ended(shop, 'a')
  assert.deepEqual(await readAll(shop, 'a'), upTo(1, 6_000))
})

test('a tenth of its max_backlog_mb bounds it too, and the others of its stream go on as if nothing were', async () => {
  const sinks = [`name: full, max_backlog_mb: 20, ${ITEMS}`, `name: other, ${ITEMS}`]
  await using shop = await opened(30_000, { sinks })
  await shop.node.edits.update('sink', shop.id('full'), { status: 'paused' })
  const { id } = await start(shop, 'full')
  await shownAs(shop, id, 'waiting')
  const { rowsIngested } = await newest(shop, 'full')
  assert.ok(rowsIngested >= 1_000 && rowsIngested < 20_000, `${rowsIngested} rows were added`) // what had come from the server with them, too
  await shop.insert(50_001, 50_100)
  assert.deepEqual(await shop.take('other', 100), upTo(50_001, 50_100), 'it gets its changes, and no row')
  await shop.nothingMore('other')
  const streams = await shop.state.query<{ topic: string }>(
    `select distinct on (s.name) g.topic from tailrace.generation g join tailrace.sink s on s.id = g.sink_id order by s.name, generation desc`,
  )
  assert.equal(new Set(streams.map(({ topic }) => topic)).size, 2, 'the rows stand in a stream of their own')
  assert.equal((await newest(shop, 'full')).rowsIngested, rowsIngested)
  await shop.node.edits.update('sink', shop.id('full'), { status: 'active' })
  assert.deepEqual(
    (await readAll(shop, 'full')).filter((each) => each <= 30_000),
    upTo(1, 30_000),
  )
})

test('a small bound holds for rows that had come from the server too', async () => {
  await using shop = await opened(12_000, { sinks: [`name: a, max_backlog_mb: 1, ${ITEMS}`] })
  await shop.node.edits.update('sink', shop.id('a'), { status: 'paused' })
  const { id } = await start(shop, 'a')
  await shownAs(shop, id, 'waiting')
  const { rowsIngested } = await newest(shop, 'a')
  assert.ok(rowsIngested > 0 && rowsIngested < 1_000, `${rowsIngested} rows were added`)
  await shop.node.edits.update('sink', shop.id('a'), { status: 'active' })
  assert.deepEqual(await readAll(shop, 'a'), upTo(1, 12_000))
})

for (const status of ['active', 'paused'] as const)
  test(`the slot goes on being confirmed while a backfill of a sink that is ${status} has rows to read`, async () => {
    await using shop = await opened(20_000, { limits: { rowsPerSecond: 1_000, maxPending: 500 } })
    await shop.node.edits.update('sink', shop.id('a'), { status })
    const { id } = await start(shop, 'a')
    if (status === 'paused') await shownAs(shop, id, 'waiting')
    else await until('some of it is durable', async () => (await newest(shop, 'a')).rowsProcessed > 0)
    for (let round = 1; round <= 3; round++) {
      await shop.db.query(`insert into other select i from generate_series($1::int * 10000, $1 * 10000 + 9999) i`, [round])
      const [written] = await shop.db.query<{ lsn: string }>('select pg_current_wal_lsn()::text as lsn')
      await until('the slot needs nothing of it', async () => {
        const sql = 'select confirmed_flush_lsn >= $1::pg_lsn as done from pg_replication_slots where slot_name = $2'
        const [slot] = await shop.db.query<{ done: boolean }>(sql, [written?.lsn, `s_${shop.db.name}`])
        return slot?.done
      })
    }
    const { state, rowsProcessed } = await newest(shop, 'a')
    assert.equal(state, 'active')
    assert.ok(rowsProcessed < 20_000, `${rowsProcessed} rows were read`)
  })

test('while changes are streamed, rows come in small slices with time between them', async () => {
  await using shop = await opened(20_000)
  const over = new AbortController()
  const writing = (async () => {
    for (let id = 50_001; !over.signal.aborted; id++) await shop.insert(id, id)
  })()
  await until('changes are streamed', async () => (await shop.take('a', 1)).length > 0)
  const startedAt = performance.now()
  await start(shop, 'a')
  const slices = new Map<number, number>() // a mark for each
  await until('all rows have come', async () => {
    const { body } = await shop.sink('a').receive({ batchSize: 1_000, waitMs: 100, shape: 'flat', signal: NEVER })
    const { data } = JSON.parse(body.toString()) as { data: (Taken & { action: string; metadata: { commit_lsn: number } })[] }
    await shop.ack('a', data)
    for (const { action, record, metadata } of data)
      if (action === 'read' && record.id <= 20_000) slices.set(metadata.commit_lsn, (slices.get(metadata.commit_lsn) ?? 0) + 1)
    return sum(slices.values()) === 20_000
  })
  const tookMs = performance.now() - startedAt
  over.abort()
  await writing
  assert.ok(Math.max(...slices.values()) < 1_000, `${Math.max(...slices.values())} rows of a slice`) // of 128 KB
  assert.ok(tookMs > slices.size * 7, `${slices.size} slices in ${tookMs} ms`) // one every 8 ms
})

test('what a client has lost holds up the backfill for seconds, not until it comes again, however much the stream brings', async () => {
  await using shop = await opened(4_000)
  await start(shop, 'a')
  const lost: number[] = []
  await until('a client has taken many rows, and is gone', async () => {
    const { body } = await shop.sink('a').receive({ batchSize: 1_000, waitMs: 100, shape: 'flat', signal: NEVER })
    const { data } = JSON.parse(body.toString()) as { data: Taken[] }
    lost.push(...data.map(({ record }) => record.id))
    return lost.length >= 1_000
  })
  const ids = new Set(lost)
  const startedAt = performance.now()
  for (let id = 10_001; ids.size < 4_000; id++) {
    await shop.insert(id, id)
    for (const each of await shop.take('a', 1, 100)) if (each <= 4_000) ids.add(each)
    assert.ok(performance.now() - startedAt < 20_000, `${ids.size} rows have come`)
  }
})

test('a backfill that its sink holds up holds up none of another sink, and those of one sink go in turn', async () => {
  const sinks = [`name: slow, ${ITEMS}`, `name: quick, ${ITEMS}`]
  await using shop = await opened(5_000, { sinks, limits: { atOnce: 1, maxPending: 1_000 } })
  await shop.node.edits.update('sink', shop.id('slow'), { status: 'paused' })
  const { id } = await start(shop, 'slow')
  await shownAs(shop, id, 'waiting')
  await start(shop, 'quick')
  assert.deepEqual(await readAll(shop, 'quick'), upTo(1, 5_000))
  assert.equal((await newest(shop, 'slow')).state, 'active')
})

test('rows a second are bounded', async () => {
  await using shop = await opened(2_000, { limits: { rowsPerSecond: 1_000 } })
  const startedAt = performance.now()
  await start(shop, 'a')
  assert.deepEqual(await readAll(shop, 'a'), upTo(1, 2_000))
  assert.ok(performance.now() - startedAt > 1_500, 'it took as long as the bound asks')
})

for (const [what, to, back] of [
  ['paused by its user', 'paused', 'active'],
  ['of a sink that is disabled', 'disabled', 'enabled'],
] as const)
  test(`a backfill that is ${what} reads no more, and goes on behind its last durable page`, async () => {
    await using shop = await opened(8_000, { limits: { rowsPerSecond: 4_000 } })
    const { id } = await start(shop, 'a')
    const before = await until('some of it is durable', async () => {
      const { rowsProcessed } = await newest(shop, 'a')
      return rowsProcessed > 0 && rowsProcessed
    })
    const move = (state: typeof to | typeof back) =>
      state === 'paused' || state === 'active'
        ? shop.node.backfills.move(sinkOf(shop, 'a'), id, { state })
        : shop.node.edits.update('sink', shop.id('a'), { status: state === 'disabled' ? 'disabled' : 'active' })
    await move(to)
    await until('it is not read any more', () => shown(shop, id) === undefined)
    const { rowsProcessed } = await newest(shop, 'a')
    assert.ok(rowsProcessed >= before && rowsProcessed < 8_000, `${rowsProcessed} rows were read`)
    await move(back)
    const ids = new Set(await readAll(shop, 'a'))
    const held = to === 'disabled' ? rowsProcessed : 0 // what a disabled sink had not got yet is not for it
    assert.ok(ids.size >= 8_000 - held, `${ids.size} rows have come, ${rowsProcessed} were read before`)
    assert.equal((await newest(shop, 'a')).rowsProcessed, 8_000)
  })

test('a backfill of a sink that is deleted ends without a word of trouble', async () => {
  await using shop = await opened(8_000, { limits: { rowsPerSecond: 2_000 } })
  const { id } = await start(shop, 'a')
  await until('some of it is durable', async () => (await newest(shop, 'a')).rowsProcessed > 0)
  await shop.node.edits.delete('sink', shop.id('a'))
  await until('it is not read any more', () => shown(shop, id) === undefined)
  const lines = shop.node.lines.filter(({ level, backfill }) => backfill === id && (level === 'warn' || level === 'error'))
  assert.deepEqual(lines, [])
})

/** What may happen to the session that reads. */
const SESSION = `application_name like 'tailrace backfill%'`
const TROUBLES: Readonly<Record<string, (shop: Shop, admin: Client) => Promise<unknown>>> = {
  'its query is cancelled': (_, admin) => admin.query(`select pg_cancel_backend(pid) from pg_stat_activity where ${SESSION}`),
  'its session is ended': (_, admin) => admin.query(`select pg_terminate_backend(pid) from pg_stat_activity where ${SESSION}`),
  'its table is locked for longer than it waits': async (_, admin) => {
    await admin.query('begin')
    await admin.query('lock table item in access exclusive mode')
    await admin.query('select pg_sleep(3)')
    await admin.query('rollback')
  },
}
for (const [what, happens] of Object.entries(TROUBLES))
  test(`a backfill goes on at its page when ${what}`, async () => {
    await using shop = await opened(12_000, { limits: { rowsPerSecond: 5_000 } })
    const admin = await shop.db.connect()
    const { id } = await start(shop, 'a')
    const ids: number[] = []
    await until('some of it is durable', async () => {
      ids.push(...(await shop.take('a', 1, 50)))
      return (await newest(shop, 'a')).rowsProcessed > 0
    })
    const happening = happens(shop, admin)
    ids.push(...(await readAll(shop, 'a')))
    await happening
    assert.deepEqual(
      [...new Set(ids)].sort((a, b) => a - b),
      upTo(1, 12_000),
      'nothing is missing',
    )
    assert.ok(ids.length < 12_000 + 6_000, `${ids.length - 12_000} rows have come again`)
    const { rowsProcessed, error } = await newest(shop, 'a')
    assert.deepEqual([rowsProcessed, error], [12_000, undefined])
    const said = () => shop.node.lines.filter((line) => line.backfill === id && line.message === 'a backfill is completed').length
    await until('it is said', () => said() > 0)
    assert.equal(said(), 1)
    await admin.end().catch(() => undefined)
  })

for (const setting of [
  "statement_timeout = '100ms'",
  "lock_timeout = '50ms'",
  "idle_in_transaction_session_timeout = '50ms'",
  "idle_session_timeout = '50ms'",
  "transaction_timeout = '200ms'",
])
  test(`a role with ${setting} reads all`, async () => {
    await using shop = await opened(6_000)
    await shop.db.query(`alter database ${JSON.stringify(shop.db.connection.database)} set ${setting}`)
    await start(shop, 'a')
    assert.deepEqual(await readAll(shop, 'a'), upTo(1, 6_000))
    const lines = shop.node.lines.filter(({ message }) => message === 'a backfill goes on behind its last durable page')
    assert.ok(lines.length <= 1, JSON.stringify(lines))
  })

test('a page that takes longer than max_timeout_ms is read in smaller ones', async () => {
  await using shop = await opened(1_500)
  await shop.db.query('analyze item')
  await shop.db.query(
    `create function slowly(int) returns boolean language plpgsql as $$ begin perform pg_sleep(0.0005); return true; end $$`,
  )
  await start(shop, 'a', [item({ where: 'slowly(id)', max_timeout_ms: 200 })])
  assert.deepEqual(await readAll(shop, 'a'), upTo(1, 1_500))
})

test('one failing table does not stop others, and says why', async () => {
  await using shop = await opened(3_000)
  await start(shop, 'a', [item({ table: 'public.none' }), item()])
  assert.deepEqual(await readAll(shop, 'a').catch(() => []), upTo(1, 3_000))
  const failed = (await backfillsOf(shop.node.store.query, shop.id('a'))).find(({ table }) => table === 'public.none')
  assert.equal(failed?.state, 'failed')
  assert.match(failed?.error?.message ?? '', /does not take public.none/)
  const { status, error } = await until('the health of the sink tells of it', async () =>
    (await shop.node.health('a'))?.checks.find(({ name }) => name === 'Backfill'),
  )
  assert.deepEqual([status, error?.code], ['warning', 'BACKFILL_FAILED'])
})

test('what begins, goes on and ends is said with tables, rows and seconds, never with values', async () => {
  await using shop = await opened(2_000)
  const { id } = await start(shop, 'a')
  await readAll(shop, 'a')
  await serving(shop.node, 'a')
  const lines = shop.node.lines.filter(({ backfill }) => backfill === id)
  assert.deepEqual(
    lines.map(({ message }) => message),
    ['a backfill begins', 'a backfill is completed'],
  )
  const { table, rows, added, seconds } = lines[1] ?? {}
  assert.deepEqual([table, rows, added, typeof seconds], ['public.item', 2_000, 2_000, 'number'])
  const text = await shop.node.metrics.text()
  for (const name of ['rows_read', 'rows_added']) assert.match(text, new RegExp(`tailrace_backfill_${name}_count{.*} 2000\\n`))
})

test('the log says that a backfill has failed, and by which code, and not what a row had', async () => {
  await using shop = await opened(10)
  await shop.db.query(`update item set name = 'a secret' where id = 7`)
  const { id } = await start(shop, 'a', [item({ where: 'right(name, -1)::int > 0' })])
  const { error } = await ended(shop, 'a', 'failed')
  assert.match(error?.message ?? '', /invalid input syntax for type integer: " secret" \(22P02\)/)
  const said = await until('it is said', () => shop.node.lines.find(({ backfill, code }) => backfill === id && code === 'BACKFILL_REFUSED'))
  assert.match(String(said['message']), /^a backfill has failed: PostgreSQL refuses to read it \(22P02\)/)
  assert.doesNotMatch(JSON.stringify(shop.node.lines), /secret/)
})
