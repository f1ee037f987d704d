/** A table gets another primary key while it streams: each sink that groups by it goes on in another generation. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { SourceActor } from '../../../actors/source/source-actor.ts'
import { messagesOf, reaches, routedSink, SourceFixture, type FixtureOptions } from './source-fixture.ts'
import { until } from '../../waiting.ts'

const BY_KEY = '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01'
const BY_NAME = '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a02'
const UNGROUPED = '5f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a03'
const TABLE = 'create table item (id int primary key, tenant int, name text)'
const OTHER_KEY = 'alter table item drop constraint item_pkey, add primary key (tenant, id)'

type Sink = Readonly<{ sinkId: string; partitions: number; grouping: boolean; groupColumns: Record<string, string[]> }>
const SINKS: readonly Sink[] = [
  { sinkId: BY_KEY, partitions: 2, grouping: true, groupColumns: {} },
  { sinkId: BY_NAME, partitions: 2, grouping: true, groupColumns: { 'public.item': ['name'] } },
  { sinkId: UNGROUPED, partitions: 2, grouping: false, groupColumns: {} },
]

async function open(options: FixtureOptions = {}): Promise<SourceFixture> {
  const it = await SourceFixture.create({ ddl: TABLE, sinks: SINKS.map((sink) => routedSink(sink)), ...options })
  for (const { sinkId, ...shape } of SINKS) {
    await it.state.query(
      `insert into tailrace.sink (id, account_id, database_id, name, status, settings, destination)
       select $1::uuid, account_id, id, $1::text, 'active', '{}', '{}' from tailrace.source_database where id = $2`,
      [sinkId, it.id],
    )
    await it.state.query('insert into tailrace.generation (sink_id, generation, shape) values ($1, 1, $2)', [sinkId, JSON.stringify(shape)])
  }
  return it
}

async function streaming(it: SourceFixture): Promise<SourceActor> {
  const actor = it.start()
  await reaches(actor, 'streaming')
  return actor
}

const namesOf = async (it: SourceFixture, topic: string) => (await it.messages(topic)).map((m) => m.json.record['name'])
const topicsOf = async (it: SourceFixture) => (await it.log.topics()).map(({ topic }) => topic.slice(-4)).sort()

/** How many last packs a topic has, by partition. */
function closings(it: SourceFixture, topic: string): number[] {
  const counts = [0, 0]
  for (const { records } of it.log.appends)
    for (const record of records)
      if (record.topic === topic && messagesOf(topic, 0, record.pack).length === 0)
        counts[record.partition] = (counts[record.partition] ?? 0) + 1
  return counts
}

async function opensAt(it: SourceFixture): Promise<readonly unknown[]> {
  const { rows } = await it.state.query('select sink_id, generation, history, lsn::text, idx from tailrace.generation where generation > 1')
  return rows
}

test('with another primary key the next generation of the sinks that group by it begins, and of no other', async () => {
  await using it = await open()
  await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.db.query('alter table item add column more int') // of no concern to any group
  await it.db.query(`update item set name = 'b' where id = 1`)
  await it.db.query(OTHER_KEY)
  await it.db.query(`update item set name = 'c' where id = 1`)
  const [last] = await it.until((seen) => seen.length > 0, `${BY_KEY}.2`)
  assert.equal(last?.key, '["1","7"]')
  assert.deepEqual(await namesOf(it, `${BY_KEY}.1`), ['a', 'b'])
  assert.deepEqual(await namesOf(it, `${BY_KEY}.2`), ['c'])
  assert.deepEqual(closings(it, `${BY_KEY}.1`), [1, 1])
  assert.equal((await it.messages(`${BY_NAME}.1`)).length, 3)
  assert.equal((await it.messages(`${UNGROUPED}.1`)).length, 3)
  assert.deepEqual(await topicsOf(it), ['01.1', '01.2', '02.1', '03.1'])
})

test('what was written under the former key is read under it, although the catalogue has a key that was not there yet', async () => {
  await using it = await open({ ddl: `${TABLE}; alter table item replica identity full` })
  const first = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.1`)
  await first.stop()
  await it.db.query(`insert into item values (2, 7, 'b')`)
  await it.db.query('delete from item where id = 1')
  await it.db.query('alter table item drop constraint item_pkey, add column code int generated always as identity primary key')
  await it.db.query(`update item set name = 'c'`)
  await streaming(it)
  const [last] = await it.until((seen) => seen.length > 0, `${BY_KEY}.2`)
  assert.equal(last?.json.record.name, 'c')
  assert.equal(last.key, '["1"]')
  assert.deepEqual((await it.messages(`${BY_KEY}.1`)).map((m) => [m.action, m.key]).sort(), [
    ['delete', '["1"]'],
    ['insert', '["1"]'],
    ['insert', '["2"]'],
  ])
})

test('a key that changes within a transaction splits it there, and a run that is cut before the append splits it at the same place', async () => {
  await using it = await open()
  const first = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a'), (2, 7, 'x')`)
  await it.until((seen) => seen.length >= 2, `${BY_KEY}.1`)
  const cut = Promise.withResolvers<void>()
  it.log.before = (records) => {
    if (!records.some(({ topic }) => topic === `${BY_KEY}.2`)) return
    cut.resolve()
    throw new Error('cut')
  }
  const session = await it.db.connect()
  await session.query('begin')
  await session.query(`update item set name = 'b' where id = 1`)
  await session.query(OTHER_KEY)
  await session.query(`update item set name = 'c' where id = 1`)
  await session.query(`update item set name = 'y' where id = 2`)
  await session.query('commit')
  await cut.promise
  await first.stop()
  const place = await opensAt(it)
  assert.equal(place.length, 1)
  it.log.before = undefined
  const second = await streaming(it)
  await it.until((seen) => seen.length >= 2, `${BY_KEY}.2`)
  assert.deepEqual((await namesOf(it, `${BY_KEY}.1`)).sort(), ['a', 'b', 'x'])
  assert.deepEqual((await namesOf(it, `${BY_KEY}.2`)).sort(), ['c', 'y'])
  assert.deepEqual(closings(it, `${BY_KEY}.1`), [1, 1])
  assert.deepEqual(await opensAt(it), place)
  await second.stop()
  await streaming(it)
  await it.db.query(`update item set name = 'd' where id = 1`)
  await it.until((seen) => seen.length >= 3, `${BY_KEY}.2`)
  assert.deepEqual(await opensAt(it), place, 'what is known is not a change')
})

test('a key that changed while nobody read begins a generation with the first change after it, whatever run meets it', async () => {
  await using it = await open()
  const first = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.1`)
  await first.stop()
  await it.db.query(OTHER_KEY)
  await it.db.query(`update item set name = 'b' where id = 1`)
  let refuses = true
  const cut = Promise.withResolvers<void>()
  it.log.before = (records) => {
    if (!refuses || !records.some(({ topic }) => topic.startsWith(BY_KEY))) return
    refuses = false
    cut.resolve()
    throw new Error('cut') // the closing packs and the change: the generation is saved, and the log has none of it
  }
  it.start()
  await cut.promise
  await it.until((seen) => seen.length > 0, `${BY_KEY}.2`)
  assert.deepEqual(await namesOf(it, `${BY_KEY}.1`), ['a'])
  assert.deepEqual(await namesOf(it, `${BY_KEY}.2`), ['b'])
  assert.deepEqual(closings(it, `${BY_KEY}.1`), [1, 1])
})

test('a version that waits for its mark holds with the generation that a change of the key begins', async () => {
  await using it = await open()
  const actor = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.1`)
  const shape = { partitions: 3, grouping: true, groupColumns: {} }
  await it.state.query('insert into tailrace.generation (sink_id, generation, shape) values ($1, 2, $2)', [BY_KEY, JSON.stringify(shape)])
  const sinks = SINKS.map((sink) => routedSink(sink.sinkId === BY_KEY ? { sinkId: BY_KEY, generation: 2, ...shape } : sink))
  await it.save(sinks)
  await it.db.query(OTHER_KEY)
  await it.db.query(`update item set name = 'b' where id = 1`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.3`)
  const topics = new Map((await it.log.topics()).map(({ topic, partitions }) => [topic, partitions]))
  assert.equal(topics.get(`${BY_KEY}.3`), 3)
  assert.equal(topics.has(`${BY_KEY}.2`), false)
  assert.equal(actor.figures?.routingVersion, 3)
  assert.deepEqual(closings(it, `${BY_KEY}.1`), [1, 1])
})

test('a key that had changed above what was confirmed begins a generation once more when another log is accepted', async () => {
  await using it = await open()
  const { first, cut } = await heldBack(it)
  await it.db.query(OTHER_KEY)
  await it.db.query(`update item set name = 'c'`)
  await until('the generation is saved, and the log knows it', async () => first.figures?.routingVersion === 2)
  await cut()
  await it.replaceLog()
  const second = it.start()
  await reaches(second, 'failed')
  await second.acceptGap()
  await it.until((seen) => seen.some((m) => m.json.record.name === 'c'), `${BY_NAME}.2`)
  assert.deepEqual(new Map(await keysOf(it, 3)).get('b'), '["1"]')
  assert.deepEqual(await keysOf(it, 4), [['c', '["1","7"]']])
})

/** What a topic has, each with its key. */
const keysOf = async (it: SourceFixture, generation: number) =>
  (await it.messages(`${BY_KEY}.${generation}`)).map((m): [string, string] => [String(m.json.record['name']), m.key]).sort()

test('a run that Postgres announces the table to elsewhere than to the one before begins the generation at the same change', async () => {
  await using it = await open({
    ddl: `${TABLE}; create table note (id int primary key, name text); alter table item replica identity full`,
  })
  const early = `${it.slot}_early`
  await it.db.query('select pg_copy_logical_replication_slot($1, $2)', [it.slot, early])
  const first = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.1`)
  await first.stop()
  await it.db.query(`begin; insert into note values (1, 'x'); update item set name = 'b'; insert into note values (2, 'y'); commit`)
  await it.db.query(OTHER_KEY)
  const cut = Promise.withResolvers<void>()
  it.log.before = (records) => {
    if (!records.some(({ topic }) => topic === `${BY_KEY}.2`)) return
    cut.resolve()
    throw new Error('cut')
  }
  const second = it.start()
  await cut.promise
  await second.stop()
  it.log.before = undefined
  const place = await opensAt(it)
  // it stands where it did before the first run, as after a crash of the server: this run has met the table before the change
  const third = it.start({}, { database: it.database(it.db.connection, early) })
  await it.until((seen) => seen.length >= 4, `${BY_NAME}.1`)
  assert.deepEqual(await keysOf(it, 1), [['a', '["1"]'], ['x', '["1"]']]) // prettier-ignore
  assert.deepEqual(await keysOf(it, 2), [['b', '["1","7"]'], ['y', '["2"]']]) // prettier-ignore
  assert.deepEqual(await opensAt(it), place)
  assert.deepEqual(closings(it, `${BY_KEY}.1`), [1, 1])
  await third.stop()
})

/** A run that has one change in the log, has read another under the same key, and can't append it. @returns `cut` ends it with that append refused */
async function heldBack(it: SourceFixture): Promise<Readonly<{ first: SourceActor; cut: () => Promise<void> }>> {
  const first = await streaming(it)
  await it.db.query(`insert into item values (1, 7, 'a')`)
  await it.until((seen) => seen.length > 0, `${BY_KEY}.1`)
  const held = Promise.withResolvers<void>()
  const reached = Promise.withResolvers<void>()
  it.log.before = () => {
    reached.resolve()
    return held.promise
  }
  await it.db.query(`update item set name = 'b'`)
  await reached.promise
  const cut = async () => {
    held.reject(new Error('cut'))
    await reaches(first, 'waiting')
    await first.stop()
    it.log.before = undefined
  }
  return { first, cut }
}

test('what a run had read under the former key, and could not append before it met the new one, is read under it again', async () => {
  await using it = await open({ ddl: `${TABLE}; alter table item replica identity full` })
  const { cut } = await heldBack(it)
  await it.db.query(OTHER_KEY)
  await it.db.query(`update item set name = 'c'`)
  const place = await until('the generation is saved', async () => ((await opensAt(it)).length > 0 ? opensAt(it) : undefined))
  await cut()
  await streaming(it)
  await it.until((seen) => seen.length >= 3, `${BY_NAME}.1`)
  assert.deepEqual(await opensAt(it), place)
  assert.deepEqual(await keysOf(it, 1), [['a', '["1"]'], ['b', '["1"]']]) // prettier-ignore
  assert.deepEqual(await keysOf(it, 2), [['c', '["1","7"]']])
})

const PASSED: readonly Readonly<{ what: string; pass: (it: SourceFixture, actor: SourceActor) => Promise<void> }>[] = [
  {
    what: 'a version that has its place',
    pass: async (it, actor) => {
      await it.route(
        actor,
        SINKS.filter(({ sinkId }) => sinkId !== UNGROUPED).map((sink) => routedSink(sink)),
      )
      await until('the version has its place', async () => actor.figures?.routingVersion === 2)
    },
  },
  {
    what: 'what was found of the table later',
    pass: async (it) => {
      await it.db.query('alter table item add column more int')
      await it.db.query(`update item set name = 'b2'`)
      await until('it is saved', async () => {
        // a busy server has the table announced with any change: that something more was saved doesn't say that it is this
        const { rows } = await it.state.query(`select from tailrace.relation_key where columns -> 'columns' @> '[{"name": "more"}]'`)
        return rows.length > 0
      })
    },
  },
]
for (const { what, pass } of PASSED)
  test(`a generation never begins below ${what}, whatever the catalogue says of the key by then`, async () => {
    await using it = await open({ ddl: `${TABLE}; alter table item replica identity full` })
    const { first, cut } = await heldBack(it)
    await pass(it, first)
    await it.db.query(OTHER_KEY)
    await cut()
    await streaming(it)
    await it.db.query(`update item set name = 'c'`)
    await it.until((seen) => seen.some((m) => m.json.record.name === 'c'), `${BY_NAME}.1`)
    assert.deepEqual(new Set((await keysOf(it, 1)).map(([, key]) => key)), new Set(['["1"]']))
    assert.ok((await namesOf(it, `${BY_KEY}.1`)).includes('b'))
    assert.deepEqual(await keysOf(it, 2), [['c', '["1","7"]']])
    const { rows } = await it.state.query('select version, lag(lsn) over (order by version) < lsn as follows from tailrace.routing_version')
    assert.ok(
      rows.every(({ version, follows }) => version === 1 || follows === true),
      JSON.stringify(rows),
    )
  })
