/** What counts as the backlog of a sink: its log, and what it has parked, on a real log and a real state database. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BacklogGuard } from '../../../actors/backlog/backlog.ts'
import { BacklogSizes } from '../../../actors/backlog/backlog-sizes.ts'
import { PART } from '../../../engine/position.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import { ReadingGate } from '../../../engine/wal/flow.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { acksOf, Fixture, packOf, SINK } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { pass, until } from '../../waiting.ts'

const MB = 2 ** 20
const LONG_MS = 20_000
const MESSAGES = 50
const PAD = 32 * 1024

/** One group that nobody acks in a window of 64 kB: nearly all of it, some 1.6 MB, is parked. */
async function parkedSink(db: TestDatabase): Promise<Fixture> {
  const f = await Fixture.open({ max_memory_mb: 1 / 16, max_backlog_mb: 1 }, { query: queryOf(db) })
  for (let id = 0; id < MESSAGES; id++) await f.append([{ id, group: 'hot', pad: PAD }])
  await f.append([{ id: MESSAGES, group: 'other' }])
  return f
}

const counted = async (db: TestDatabase) =>
  Number((await db.query('select coalesce(sum(bytes), 0) as bytes from tailrace.parked_backlog'))[0]?.['bytes'])
const weighed = async (db: TestDatabase) =>
  Number(
    (
      await db.query(
        `select coalesce(sum(octet_length(record_key) + octet_length(group_key) + octet_length(body)), 0) as bytes from tailrace.parked where state = 'open'`,
      )
    )[0]?.['bytes'],
  )

test('a sink whose unfinished messages are parked holds its source although its log is empty, until they are acked to nine tenths', async () => {
  await using db = await stateDatabase()
  await using f = await parkedSink(db)
  const [hot] = await f.receive(1, LONG_MS)
  const [other] = await f.receive(1, LONG_MS) // comes when what is in front of it is parked
  await f.pulled.ack(acksOf([other as NonNullable<typeof other>]))
  const topic = ownTopic({ sinkId: SINK.id, generation: 1 })
  await until('the log is trimmed', async () => (await f.log.stats(topic, 0)).bytes < MB / 4)
  const gate = new ReadingGate()
  const sizes = new BacklogSizes({ log: f.log, query: queryOf(db) })
  const sink: Sink = { ...SINK, max_backlog_mb: 1 }
  using guard = new BacklogGuard(
    (share) => sizes.large([sink, { ...sink, id: 'another', name: 'another' }], share, () => gate),
    (error) => assert.fail(String(error)),
  )
  await until('the sink is full', async () => {
    await guard.check()
    return gate.closed
  })
  assert.deepEqual(
    gate.causes.map((cause) => cause.replace(/\(.*/, '')),
    ['the backlog of sink "orders" is full '],
  )
  const unfinished = async () => (await weighed(db)) + (await f.log.stats(topic, 0)).bytes
  let next = hot
  await until('nine tenths are left', async () => {
    if ((await unfinished()) < 0.9 * MB) return true
    await f.pulled.ack(acksOf([next as NonNullable<typeof next>]))
    ;[next] = await f.receive(1, LONG_MS)
    assert.ok(next, 'there is more')
    return false
  })
  await until('it takes again', async () => {
    await guard.check()
    return !gate.closed
  })
})

test('what is counted is what lies there: parked, acked, after a crash of the owner, and when another program removed rows', async () => {
  await using db = await stateDatabase()
  await using f = await parkedSink(db)
  await f.receive(1, LONG_MS)
  const [other] = await f.receive(1, LONG_MS)
  await f.pulled.ack(acksOf([other as NonNullable<typeof other>]))
  const parked = await weighed(db)
  assert.ok(parked > MB, `${parked} bytes are parked`)
  assert.equal(await counted(db), parked)
  f.crash()
  await db.query(`delete from tailrace.parked where record_offset = 5`)
  await f.start({ drainAfterMs: 1 })
  assert.equal(await counted(db), await weighed(db), 'counted anew by the next owner')
  assert.ok((await weighed(db)) < parked)
})

const STREAM = 'stream.1.ab'
const append = (f: Fixture, lsn: bigint, pad: number) =>
  f.log.append([{ topic: STREAM, partition: 0, pack: packOf(lsn, [{ id: Number(lsn), pad }]) }], {
    ...{ source: 'test', position: { history: 0, lsn, idx: 1, part: PART.row } },
  })

test('what a stream had before a sink joined it is not the backlog of that sink', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.log.createTopic(STREAM, 1)
  for (let lsn = 1n; lsn <= 40n; lsn++) await append(f, lsn, PAD)
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, '{"partitions": 1, "stream": {}}', $2, 0, '0/28', 0)`,
    [SINK.id, STREAM],
  )
  await db.query(`insert into tailrace.reader_line (sink_id, generation, partition, begins, line) values ($1, 1, 0, 40, 40)`, [SINK.id])
  await append(f, 41n, PAD)
  const sizes = new BacklogSizes({ log: f.log, query: queryOf(db) })
  const [backlog] = await sizes.large([SINK], 0, () => new ReadingGate())
  const bytes = backlog?.bytes
  assert.ok(bytes && bytes > PAD && bytes < 2 * PAD, `${bytes} bytes, and its own are about ${PAD}`)
})

test('what a reader does not take is not its backlog but a figure of its own, also where its actions have changed on the way', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.log.createTopic(STREAM, 1)
  const take = (lsn: string, actions: readonly string[]) => ({ history: 0, lsn, idx: 0, actions })
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx, takes) values ($1, 1, '{"partitions": 1, "stream": {}}', $2, 0, '0/0', 0, $3)`,
    [SINK.id, STREAM, JSON.stringify([take('0/0', ['delete', 'update']), take('0/14', ['insert'])])],
  )
  await db.query(`insert into tailrace.reader_line (sink_id, generation, partition, begins, line) values ($1, 1, 0, 0, 0)`, [SINK.id])
  for (let lsn = 1n; lsn <= 30n; lsn++) await append(f, lsn, PAD) // inserts
  const sizes = new BacklogSizes({ log: f.log, query: queryOf(db) })
  const large = await sizes.large([SINK], 0, () => new ReadingGate())
  const pads = ({ bytes }: { bytes: number }) => Math.round(bytes / PAD)
  assert.deepEqual(
    large.map((each) => [each.what, pads(each)]),
    [
      ['own', 10],
      ['others', 20],
    ],
  )
  await f.log.commit(`${STREAM}@${SINK.id}.1`, 0, {
    ...{ next: { offset: 10, index: 0 }, accepted: { history: 0, lsn: 10n, idx: 0, part: PART.row } },
    ...{ finished: [], handedOut: { offset: 10, index: 0 }, term: 1 },
  })
  assert.deepEqual((await sizes.large([SINK], 0, () => new ReadingGate())).map(pads), [10, 10])
})

test('of a stream that holds less than anybody of its readers may have, each look asks once, however many they are', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.log.createTopic(STREAM, 1)
  await append(f, 1n, 2 * MB)
  await db.query(
    `insert into tailrace.sink select (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid(), 'name', 's' || i))).*
     from tailrace.sink s, generate_series(1, 20) i where s.id = $1`,
    [SINK.id],
  )
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx)
     select id, 1, '{"partitions": 1, "stream": {}}', $1, 0, '0/0', 0 from tailrace.sink`,
    [STREAM],
  )
  const ids = (await db.query<{ id: string }>('select id from tailrace.sink')).map(({ id }) => id)
  let asked = 0
  const log = new Proxy(f.log, {
    get: (target, name) => {
      if (name === 'stats') asked++
      const member: unknown = Reflect.get(target, name)
      return typeof member === 'function' ? member.bind(target) : member
    },
  })
  const sizes = new BacklogSizes({ log, query: queryOf(db) })
  const sinks = ids.map((id): Sink => ({ ...SINK, id, max_backlog_mb: 3 }))
  assert.deepEqual(await sizes.large(sinks, 0.9, () => new ReadingGate()), [])
  assert.equal(asked, 1)
  const bounded = await sizes.large(
    sinks.map((sink, i) => ({ ...sink, max_backlog_mb: i < 2 ? 1 : 3 })),
    0.9,
    () => new ReadingGate(),
  )
  assert.deepEqual(
    bounded.map(({ sinkId }) => sinkId),
    ids.slice(0, 2),
  )
  assert.equal(asked, 4)
})

test('the first generation of a new sink is looked for at once, so that its backlog is bounded from the beginning', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.log.createTopic(STREAM, 1)
  await append(f, 1n, 2 * MB)
  const sizes = new BacklogSizes({ log: f.log, query: queryOf(db) })
  const full = () => sizes.large([{ ...SINK, max_backlog_mb: 1 }], 0.9, () => new ReadingGate())
  assert.deepEqual(await full(), [])
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, '{"partitions": 1, "stream": {}}', $2, 0, '0/0', 0)`,
    [SINK.id, STREAM],
  )
  await pass(250, 'what is known of generations may be two seconds old where every sink has one')
  assert.equal((await full()).length, 1)
})

test('while the state database is away a sink is bounded all the same, by what its stream holds', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  await f.log.createTopic(STREAM, 1)
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, '{"partitions": 1, "stream": {}}', $2, 0, '0/0', 0)`,
    [SINK.id, STREAM],
  )
  let isAway = false
  const query: ReturnType<typeof queryOf> = (...asked) => (isAway ? Promise.reject(new Error('away')) : queryOf(db)(...asked))
  const sizes = new BacklogSizes({ log: f.log, query })
  const full = () => sizes.large([{ ...SINK, max_backlog_mb: 1 }], 0.9, () => new ReadingGate())
  assert.deepEqual(await full(), [])
  isAway = true
  await append(f, 1n, 2 * MB)
  assert.equal((await full()).length, 1)
})
