/** Sinks of one shape share a stream: what is written once is read by each of them, and what one does concerns no other. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StreamTrim } from '../../engine/dispatch/stream-trim.ts'
import type { TestDatabase } from '../services/postgres.ts'
import { applyYaml } from './engine-node.ts'
import { config, ITEMS, serving, Shop, upTo } from './shop.ts'
import { until } from '../waiting.ts'

test('sinks of one shape read one stream, whatever they are called and do with it; another selection is another stream', async () => {
  await using shop = await Shop.open([
    `name: a, ${ITEMS}`,
    `name: b, ${ITEMS}, actions: [delete], batch_size: 7, annotations: { team: x }`,
    'name: c, source: { include_tables: [public.item] }',
    'name: d, source: { include_tables: [other] }',
    `name: e, ${ITEMS}, partitions: 2`,
    `name: f, ${ITEMS}, message_grouping: false`,
    `name: g, ${ITEMS}, timestamp_format: unix_microsecond`,
    `name: h, ${ITEMS}, load_shedding_policy: discard_on_full`,
  ])
  assert.equal((await shop.topics()).length, 6)
  await shop.insert(1, 100)
  assert.deepEqual(await shop.take('a', 100), upTo(1, 100))
  assert.deepEqual(await shop.take('b', 1, 0), [], 'it takes no inserts')
  assert.deepEqual(await shop.take('c', 100), upTo(1, 100))
  for (const name of ['e', 'f', 'g', 'h']) assert.deepEqual(await shop.take(name, 100), upTo(1, 100))
})

test('a sink that joins a stream begins at its mark; one that leaves has all before, and comes back at another', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.insert(1, 10)
  await shop.add('late', 'a')
  await serving(shop.node, 'late')
  const [line] = await shop.state.query<{ begins: number }>('select begins::int from tailrace.reader_line where sink_id = $1', [
    shop.id('late'),
  ])
  assert.ok(line && line.begins > 0, 'what the stream has from before does not concern it')
  await shop.insert(11, 20)
  assert.deepEqual(await shop.take('late', 10), upTo(11, 20))
  assert.equal((await shop.topics()).length, 1)
  await shop.node.edits.update('sink', shop.id('late'), { status: 'disabled' })
  await shop.insert(21, 30)
  await shop.node.edits.update('sink', shop.id('late'), { status: 'active' })
  await shop.insert(31, 40)
  assert.deepEqual(await shop.take('late', 10), upTo(31, 40))
  assert.deepEqual(await shop.take('a', 40), upTo(1, 40))
  await shop.node.edits.update('sink', shop.id('late'), { partitions: 3 })
  await shop.insert(41, 60)
  assert.deepEqual(await shop.take('late', 20), upTo(41, 60))
  await shop.node.edits.update('sink', shop.id('late'), { partitions: 1 })
  await shop.insert(61, 80)
  assert.deepEqual(await shop.take('late', 20), upTo(61, 80))
  assert.deepEqual(await shop.take('a', 40), upTo(41, 80))
})

test('a stream is trimmed below the last of its readers, and goes when the last one has left', async () => {
  await using shop = await Shop.open([`name: quick, ${ITEMS}`, `name: slow, ${ITEMS}`])
  await shop.insert(1, 100)
  const [topic] = await shop.topics()
  const first = async () =>
    Number((await shop.state.query<{ line: number }>('select min(line) as line from tailrace.reader_line'))[0]?.line)
  assert.deepEqual(await shop.take('quick', 100), upTo(1, 100))
  assert.deepEqual(await shop.take('slow', 100), upTo(1, 100))
  await until('both have passed it', async () => (await first()) > 0)
  await shop.insert(101, 200)
  assert.deepEqual(await shop.take('quick', 100), upTo(101, 200))
  await shop.node.edits.delete('sink', shop.id('quick'))
  assert.deepEqual(await shop.take('slow', 100), upTo(101, 200))
  await shop.node.edits.delete('sink', shop.id('slow'))
  await shop.insert(201, 202)
  await until('the stream is gone', async () => {
    const rows = await shop.state.query('select from tailrace.log_topic where topic = $1', [topic])
    return rows.length === 0
  })
})

test('a sink that keeps much of a stream which others need no more says so in its health, and it is told of each reader what it keeps', async () => {
  await using shop = await Shop.open([`name: quick, ${ITEMS}`, `name: slow, ${ITEMS}, max_backlog_mb: 1`])
  const { engine, edits, metrics } = shop.node
  const noticed = async (name: string) => {
    const id = shop.id(name)
    const checks = (await engine.sinkHealth([id]))[id]?.checks ?? []
    return checks.filter(({ error }) => error?.code === 'STREAM_HELD')
  }
  const readers = () => {
    const [stream, ...others] = engine.streams()
    assert.equal(others.length, 0)
    const named = (name: string) => stream?.readers.find(({ sink }) => sink === name)
    return { stream, quick: named('quick'), slow: named('slow') }
  }
  await shop.db.query(`insert into item select i, (select string_agg(md5(i || '.' || k), '') from generate_series(1, 128) k) from generate_series(1, 100) i`) // prettier-ignore
  assert.deepEqual(await shop.take('quick', 100), upTo(1, 100))
  await until('slow is named', async () => (await noticed('slow')).length > 0)
  const { stream, quick, slow } = readers()
  assert.deepEqual([stream?.database, stream?.partitions, stream?.selects], [shop.db.name, 1, 'public.item'])
  assert.ok(slow && quick && stream && slow.heldBytes > 400_000 && slow.heldBytes <= stream.bytes, JSON.stringify(stream))
  assert.deepEqual([slow.backlogBytes >= slow.heldBytes, slow.partitions[0]?.line, slow.state], [true, 0, 'reading'])
  assert.deepEqual([quick.heldBytes, quick.backlogBytes, quick.partitions[0]?.committed], [0, 0, quick.partitions[0]?.line])
  assert.deepEqual(await noticed('quick'), [])
  const lines = (await metrics.text()).split('\n')
  for (const start of ['tailrace_stream_appended_bytes_total{', 'tailrace_stream_kept_bytes{', 'tailrace_reader_held_bytes{'])
    assert.ok(
      lines.some((line) => line.startsWith(start) && Number(line.split(' ').at(-1)) > 400_000),
      start,
    )
  assert.ok(lines.some((line) => line.startsWith('tailrace_stream_readers{') && line.endsWith(' 2')))

  await edits.update('sink', shop.id('slow'), { status: 'paused' })
  await until('it says that it is paused', async () => (await noticed('slow'))[0]?.error?.message.includes('paused'))
  await edits.delete('sink', shop.id('slow'))
  await until('nothing is kept', async () => (readers().stream?.bytes ?? 1e9) < 100_000)
  assert.equal(readers().slow, undefined)
})

test('what a sink leaves out is not its backlog; when it keeps too much of that in the log it is named, and its source waits until it reads on', async () => {
  await using shop = await Shop.open([`name: all, ${ITEMS}`, `name: few, ${ITEMS}, actions: [delete], max_backlog_mb: 1, status: paused`])
  const { engine, edits, metrics } = shop.node
  const insert = (from: number, to: number) =>
    shop.db.query(
      `insert into item select i, (select string_agg(md5(i || '.' || k), '') from generate_series(1, 128) k) from generate_series(${from}, ${to}) i`,
    )
  const full = async () =>
    (await engine.sinkHealth([shop.id('few')]))[shop.id('few')]?.checks.find(({ error }) => error?.code === 'BACKLOG_FULL')
  await insert(1, 3)
  await shop.db.query('delete from item')
  await insert(4, 303)
  const check = await until('it is full of what is not its own', full)
  assert.match(
    check.error?.message ?? '',
    /^messages of the stream that the actions of this sink leave out fill the log \(1(\.\d)? MB of 1 MB\)/,
  )
  assert.equal((await shop.take('all', 306)).length, 306, 'what is in the log is delivered')
  const reader = () => engine.streams()[0]?.readers.find(({ sink }) => sink === 'few')
  await until('it is shown', async () => (reader()?.othersBytes ?? 0) > 2 ** 20)
  assert.ok((reader()?.backlogBytes ?? 1e9) < 10_000, JSON.stringify(reader()))
  assert.match(await metrics.text(), /tailrace_reader_others_bytes{[^}]*"few"[^}]*} 1\d{6}\n/)
  await insert(304, 313)
  await edits.update('sink', shop.id('few'), { status: 'active' })
  await shop.nothingMore('all')
  assert.deepEqual(await shop.take('few', 3), upTo(1, 3))
  assert.deepEqual(await shop.take('all', 10), upTo(304, 313))
  await until('it has room', async () => !(await full()))
})

test('the last reader of a stream leaves while another of the shape comes: each has its own, and in order', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  const [first] = await shop.topics()
  await shop.insert(1, 10)
  await applyYaml(shop.state.connection, config(shop.db, [`name: a, ${ITEMS}, partitions: 2`, `name: b, ${ITEMS}`])) // in one edit
  await shop.opened('b')
  await shop.insert(11, 20)
  await serving(shop.node, 'b')
  assert.deepEqual(await shop.take('b', 10), upTo(11, 20))
  assert.deepEqual(await shop.take('a', 20), upTo(1, 20))
  assert.ok((await shop.topics()).includes(String(first)), 'b reads the stream that a has left')

  await shop.withoutPlaces(async () => {
    await shop.node.edits.delete('sink', shop.id('b'))
    await shop.insert(21, 30)
    await shop.add('c', 'a', { partitions: 1 })
    await shop.insert(31, 40)
  })
  await shop.opened('c')
  await serving(shop.node, 'c')
  await shop.insert(41, 50)
  assert.deepEqual(await shop.take('c', 20), upTo(31, 50))
  assert.ok(!(await shop.topics()).includes(String(first)), 'a stream that was left does not come back')

  await shop.withoutPlaces(async () => {
    await shop.add('d', 'c')
    await shop.insert(51, 60)
    await shop.node.edits.update('sink', shop.id('c'), { partitions: 3 })
    await shop.insert(61, 70)
  })
  await shop.opened('d')
  await serving(shop.node, 'd')
  await shop.insert(71, 80)
  assert.deepEqual(await shop.take('d', 30), upTo(51, 80))
  assert.deepEqual(await shop.take('c', 30), upTo(51, 80))
  assert.deepEqual(await shop.take('a', 60), upTo(21, 80))
  for (const name of ['a', 'c', 'd']) await shop.nothingMore(name)
})

test('a sink that is made while the source is far behind gets nothing of what waits, not even by a replay', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}, replay_window: 1h`])
  const appends = Promise.withResolvers<void>()
  shop.node.log.before = () => appends.promise
  for (let id = 1; id <= 5_000; id += 100) await shop.insert(id, id + 99)
  await shop.add('late', 'a')
  await shop.insert(5_001, 5_010)
  shop.node.log.before = undefined
  appends.resolve()
  await serving(shop.node, 'late')
  assert.deepEqual(await shop.take('late', 10), upTo(5_001, 5_010))
  assert.equal((await shop.take('a', 5_010)).length, 5_010)
  assert.equal((await shop.topics()).length, 1)
  await shop.node.engine.replay(shop.id('late'), { lsn: 1n })
  await serving(shop.node, 'late')
  assert.deepEqual(await shop.take('late', 10), upTo(5_001, 5_010))
  await shop.nothingMore('late')
  await shop.nothingMore('a')
})

test('a replay of one reader goes back as far as its own window, whatever the stream holds for others, and concerns no other', async () => {
  const windows = { long: '1h', brief: '1s', none: '0' }
  await using shop = await Shop.open(Object.entries(windows).map(([name, window]) => `name: ${name}, ${ITEMS}, replay_window: ${window}`))
  await shop.insert(1, 50)
  await shop.insert(51, 100)
  for (const name of Object.keys(windows)) assert.deepEqual(await shop.take(name, 100), upTo(1, 100))
  const lines = async (name: string) =>
    (await shop.state.query<{ line: number }>('select line::int from tailrace.reader_line where sink_id = $1', [shop.id(name)]))[0]?.line
  await until('the windows have moved on', async () => (await lines('brief')) && (await lines('none')))
  assert.equal(await lines('long'), 0)
  const refused = { code: 'REPLAY_OUT_OF_WINDOW' }
  for (const name of ['brief', 'none']) await assert.rejects(shop.node.engine.replay(shop.id(name), { lsn: 1n }), refused)
  await shop.node.engine.replay(shop.id('long'), { lsn: 1n })
  await serving(shop.node, 'long')
  assert.deepEqual(await shop.take('long', 100), upTo(1, 100))
  await shop.insert(101, 110)
  for (const name of Object.keys(windows)) assert.deepEqual(await shop.take(name, 10), upTo(101, 110))

  await shop.node.edits.update('sink', shop.id('long'), { partitions: 2 })
  await shop.insert(111, 120)
  for (const name of Object.keys(windows)) assert.deepEqual(await shop.take(name, 10), upTo(111, 120))
  await new StreamTrim({ query: shop.node.store.query, log: shop.node.log, holder: shop.node.registry.id }).run()
  await shop.node.engine.replay(shop.id('long'), { lsn: 1n })
  assert.deepEqual(await shop.take('long', 120, 20_000), upTo(1, 120), 'also what it has of a stream that it has left')
  for (const name of Object.keys(windows)) await shop.nothingMore(name)
})

test('a replay of a reader that takes some actions counts and names its own messages, not what others have of the stream', async () => {
  await using shop = await Shop.open([`name: all, ${ITEMS}`, `name: deletes, ${ITEMS}, actions: [delete], replay_window: 1h`])
  const written = async (sql: string): Promise<bigint> => {
    const [at] = await shop.db.query<{ lsn: string }>(`select (pg_current_wal_insert_lsn() - '0/0')::text as lsn`)
    await shop.db.query(sql)
    return BigInt(at?.lsn ?? 0)
  }
  await shop.insert(1, 10)
  await shop.db.query('delete from item where id <= 2')
  const between = await written(`insert into item select i from generate_series(11, 20) i`)
  const second = await written('delete from item where id in (3, 4, 5)')
  const end = await written(`insert into item select i from generate_series(21, 30) i`)
  assert.deepEqual(await shop.take('deletes', 5), upTo(1, 5))
  await shop.nothingMore('deletes')
  const { messages, from } = await shop.node.engine.replay(shop.id('deletes'), { lsn: between })
  assert.deepEqual({ messages, isOwn: from !== undefined && from.lsn > second }, { messages: 3, isOwn: true })
  assert.deepEqual(await shop.take('deletes', 3), upTo(3, 5))
  const after = await shop.node.engine.replay(shop.id('deletes'), { lsn: end })
  assert.deepEqual({ messages: after.messages, from: after.from }, { messages: 0, from: undefined })
  await shop.nothingMore('deletes')
})

test('a reader that takes other actions from a mark on has what stands before it as it was, whoever reads it', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`, `name: b, ${ITEMS}, actions: [insert]`])
  await shop.insert(1, 10)
  await shop.node.edits.update('sink', shop.id('b'), { actions: ['delete'] })
  await shop.insert(11, 20)
  await shop.db.query('delete from item where id <= 5')
  await shop.node.edits.update('sink', shop.id('b'), { actions: ['insert', 'delete'] })
  await shop.insert(21, 30)
  await shop.restart()
  assert.deepEqual((await shop.take('b', 25)).join(), [...upTo(1, 5), ...upTo(1, 10), ...upTo(21, 30)].toSorted((x, y) => x - y).join())
  await shop.nothingMore('b')
  assert.equal((await shop.take('a', 35)).length, 35)
  assert.equal((await shop.topics()).length, 1)
})

test('with another primary key both readers of a stream go on with another one, each after what it holds', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`, `name: b, ${ITEMS}, actions: [insert]`])
  const [first] = await shop.topics()
  await shop.insert(1, 10)
  assert.deepEqual(await shop.take('a', 10), upTo(1, 10))
  await shop.db.query('alter table item drop constraint item_pkey, add primary key (name, id)')
  await shop.insert(11, 20)
  assert.deepEqual(await shop.take('a', 10), upTo(11, 20))
  await shop.db.query('delete from item where id = 1')
  await shop.insert(21, 30)
  assert.deepEqual(await shop.take('b', 30), upTo(1, 30))
  assert.deepEqual(await shop.take('a', 11), [1, ...upTo(21, 30)])
  for (const name of ['a', 'b']) await shop.nothingMore(name)
  const [now, ...others] = await until('both have left the former one', async () => {
    const topics = await shop.topics()
    return topics.length === 1 ? topics : undefined
  })
  assert.deepEqual(others, [])
  assert.notEqual(now, first)
})

test('what is parked of a generation that has ended, and nobody has, is delivered by the next one at once', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.node.edits.update('sink', shop.id('a'), { max_memory_mb: 1 / 64, ack_wait_ms: 60_000 })
  const names = upTo(1, 8).map((i) => `${i}${'x'.repeat(4_000)}`)
  await shop.db.query('insert into item values (1, $1)', [names[0]])
  for (const name of names.slice(1)) await shop.db.query('update item set name = $1 where id = 1', [name])
  await shop.db.query(`insert into item select i, repeat('y', 2_000) from generate_series(2, 20) i`)
  const [held] = await shop.receive('a', 1)
  assert.equal((await shop.receive('a', 19)).length, 19)
  await until('the first, and what waits behind it, is parked', async () => {
    await shop.nothingMore('a') // it is looked at when somebody asks
    const parked = await shop.state.query(`select from tailrace.parked where state = 'open'`)
    return parked.length === names.length
  })
  await shop.node.edits.update('sink', shop.id('a'), { partitions: 2 })
  await shop.opened('a')
  assert.ok(held)
  await shop.ack('a', [held])
  await until('the former one has ended', async () => {
    const ended = await shop.state.query('select from tailrace.generation where drained_at is not null')
    return ended.length > 0
  })
  assert.deepEqual(
    (await shop.receive('a', 7)).map(({ record }) => record.name),
    names.slice(1),
  )
})

test('a sink that is disabled when it has delivered everything keeps nothing of its stream, and comes back to it', async () => {
  await using shop = await Shop.open([`name: on, ${ITEMS}`, `name: off, ${ITEMS}`])
  await shop.insert(1, 10)
  for (const name of ['on', 'off']) assert.deepEqual(await shop.take(name, 10), upTo(1, 10))
  await shop.node.edits.update('sink', shop.id('off'), { status: 'disabled' })
  await shop.insert(11, 20)
  assert.deepEqual(await shop.take('on', 10), upTo(11, 20))
  await until('the stream is trimmed', async () => shop.node.engine.streams()[0]?.bytes === 0)
  await shop.node.edits.update('sink', shop.id('off'), { status: 'active' })
  await shop.insert(21, 30)
  for (const name of ['on', 'off']) assert.deepEqual(await shop.take(name, 10), upTo(21, 30))
})

test('a replay to a time when the sink was off begins where it was enabled again', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}, replay_window: 1h`, `name: other, ${ITEMS}, replay_window: 1h`])
  await shop.insert(1, 5)
  assert.deepEqual(await shop.take('a', 5), upTo(1, 5))
  await shop.node.edits.update('sink', shop.id('a'), { status: 'disabled' })
  await shop.insert(6, 10)
  const [off] = await shop.db.query<{ lsn: string }>(`select (pg_current_wal_lsn() - '0/0')::text as lsn`)
  await shop.insert(11, 12)
  await shop.node.edits.update('sink', shop.id('a'), { status: 'active' })
  await shop.insert(13, 20)
  assert.deepEqual(await shop.take('a', 8), upTo(13, 20))
  await shop.node.engine.replay(shop.id('a'), { lsn: BigInt(off?.lsn ?? 0) })
  assert.deepEqual(await shop.take('a', 8), upTo(13, 20))
  await shop.nothingMore('a')
  assert.deepEqual(await shop.take('other', 20), upTo(1, 20))
})

/** A process of a version in which each generation had a topic of its own. */
const FORMER = '0c8a3e1e-51f6-4a39-8d4a-0a5dd1a1f0aa'
/** It was seen last by then. */
const formerLives = (state: TestDatabase, inS = 0) =>
  state.query(
    `insert into tailrace.node (id, name, address, version, seen_at) values ($1, 'former', 'http://127.0.0.1:1', '0.1.0', clock_timestamp() + $2 * interval '1 s')
     on conflict (id) do update set seen_at = excluded.seen_at`,
    [FORMER, inS],
  )

test('what a version without streams has left is delivered, acked by the names that it gave, and replayed, before what is read of streams', async () => {
  const sinks = [`name: waits, ${ITEMS}`, `name: holds, ${ITEMS}`, `name: done, ${ITEMS}, replay_window: 1h`]
  await using shop = await Shop.open(sinks, (state) => formerLives(state, 3_600))
  await shop.insert(1, 30)
  assert.deepEqual(await shop.take('done', 30), upTo(1, 30))
  const { body } = await shop.node.engine
    .sink(shop.id('holds'))!
    .receive({ batchSize: 10, waitMs: 10_000, shape: 'flat', signal: new AbortController().signal })
  const { data: held } = JSON.parse(body.toString()) as { data: { ack_id: string; record: { id: number } }[] }
  assert.ok(held.length > 0)
  assert.ok((await shop.topics()).every((topic) => topic === null || !topic.startsWith('stream.')))
  await shop.restart(async () => {
    await shop.insert(31, 40)
    await shop.state.query(`update tailrace.generation set shape = shape - 'stream', topic = null, takes = '[]'`)
    await shop.state.query('delete from tailrace.reader_line')
    await shop.state.query('delete from tailrace.node where id = $1', [FORMER])
  })
  await until('the names are known again', () =>
    shop.node.engine
      .sink(shop.id('holds'))!
      .ack(held.map((each) => each.ack_id))
      .then(
        () => true,
        () => undefined,
      ),
  )
  const acked = held.map(({ record }) => record.id)
  await until('each reads a stream next', async () => {
    const opened = await shop.state.query(`select from tailrace.generation where topic like 'stream.%' and lsn is not null`)
    return opened.length === sinks.length
  })
  await shop.insert(41, 50)
  assert.deepEqual(await shop.take('waits', 50), upTo(1, 50))
  assert.deepEqual(
    await shop.take('holds', 50 - acked.length),
    upTo(1, 50).filter((id) => !acked.includes(id)),
  )
  assert.deepEqual(await shop.take('done', 20), upTo(31, 50))
  await shop.node.engine.replay(shop.id('done'), { offset: 0, partition: 0, generation: 1 })
  assert.deepEqual(await shop.take('done', 50), upTo(1, 50))
  await shop.node.edits.update('sink', shop.id('done'), { replay_window: 0 })
  await shop.insert(51, 52) // the source passes what ended them
  await until('the topics of the former version go', async () => {
    const former = await shop.state.query(`select from tailrace.log_topic where topic not like 'stream.%'`)
    return former.length === 0
  })
})

test('a process that knows no streams and comes back to life when there are some takes nothing back: edits go on, and it owns none of them', async () => {
  await using shop = await Shop.open([`name: a, ${ITEMS}`])
  await shop.insert(1, 10)
  assert.deepEqual(await shop.take('a', 10), upTo(1, 10))
  await formerLives(shop.state)
  await shop.node.edits.update('sink', shop.id('a'), { partitions: 2 })
  await shop.insert(11, 20)
  assert.deepEqual(await shop.take('a', 10), upTo(11, 20))
  assert.ok((await shop.topics()).every((topic) => topic.startsWith('stream.')))
  for (const [kind, key] of [
    ['partition', `${shop.id('a')}.2/0`],
    ['source', shop.node.cache.databases[0]?.id],
  ])
    await assert.rejects(
      shop.state.query('update tailrace.term set term = term + 1, holder = $3 where kind = $1 and key = $2', [kind, key, FORMER]),
      /knows no streams/,
    )
  await shop.insert(21, 30)
  assert.deepEqual(await shop.take('a', 10), upTo(21, 30))
})
