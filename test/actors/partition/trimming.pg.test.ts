/** What a replay window costs: the log of a sink grows by what the window may hold, and by no more. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { Trimming } from '../../../actors/partition/trimming.ts'
import { termKey } from '../../../engine/dispatch/fenced-write.ts'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { EngineError } from '../../../engine/errors.ts'
import { readerOf, type Commit, type Log } from '../../../engine/log/log.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import { shapeOf } from '../../../engine/state/generation-shape.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { packOf, SINK } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { until } from '../../waiting.ts'

const MB = 1024 * 1024
const HOUR_MS = 3_600_000
const KEPT_MB = 8
const MOST_MB = 2 * KEPT_MB
const WRITTEN_MB = 48

const commitAt = (offset: number): Commit => {
  const next = { offset, index: 0 }
  return { next, accepted: { history: 0, lsn: BigInt(offset), idx: 0, part: 1 }, finished: [], handedOut: next, inFlight: [], term: 1 }
}

test('what is acknowledged takes no more of the disk than the window may hold, however much passes, and nothing without a window', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-trimming-'))
  await using after = new AsyncDisposableStack()
  after.defer(() => rm(folder, { recursive: true, force: true }))
  const db = after.use(await stateDatabase())
  const log = after.use(await openEmbeddedLog(folder))
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const topic = ownTopic(key)
  await db.query(`insert into tailrace.generation (sink_id, generation, shape, history, lsn, idx) values ($1, 1, $2, 0, '0/0', 0)`, [
    SINK.id,
    JSON.stringify({ ...shapeOf(SINK.id, SINK), stream: undefined }),
  ])
  await db.query(`insert into tailrace.term (kind, key, term, holder) values ('partition', $1, 1, 'me')`, [termKey(key)])
  await log.createTopic(topic, 1)
  await log.beginRun('shop')

  let bounds = { windowMs: HOUR_MS, maxBytes: KEPT_MB * MB }
  const trimming = await Trimming.begin({
    ...{ log, topic, reader: topic, begins: 0, query: queryOf(db), key, term: 1, committed: commitAt(0), hasPoints: true },
    line: 0,
    bounds: () => bounds,
    leftAt: () => undefined,
    clock: () => performance.now(),
  })
  const end = new AbortController()
  const running = trimming.run(end.signal)
  const bytes = async () => (await log.stats(topic, 0)).bytes
  for (let offset = 0; offset < WRITTEN_MB * 4; offset++) {
    const lsn = BigInt(offset + 1)
    const pack = packOf(lsn, [{ id: offset, group: randomBytes(MB / 8).toString('base64') }])
    await log.append([{ topic, partition: 0, pack }], { source: 'shop', position: { history: 0, lsn, idx: 0, part: 1 } })
    trimming.read({ offset, messages: 1, bytes: pack.length, latestUs: 0 })
    await log.commit(topic, 0, commitAt(offset + 1))
    trimming.committed(commitAt(offset + 1))
    // the source may be faster than trims are; a sink that is at work is not
    await until('it is trimmed', async () => (await bytes()) <= MOST_MB * MB)
  }
  const { size } = await stat(join(folder, 'log.mdb'))
  assert.ok(size < MOST_MB * MB * 1.2 + 8 * MB, `${(size / MB).toFixed(1)} MB for ${WRITTEN_MB} MB that passed`)
  bounds = { ...bounds, windowMs: 0 }
  await until('all is trimmed', async () => (await bytes()) === 0)
  assert.deepEqual(await db.query('select from tailrace.replay_point'), [])
  end.abort()
  await running
})

test('a reader of a stream without a window needs the records before its commit that its next pack begins in, once they are known', async () => {
  await using db = await stateDatabase()
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const topic = 'stream.1.0a1b2c3d'
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, $2, $3, 0, '0/0', 0)`,
    [...[SINK.id, JSON.stringify(shapeOf(SINK.id, SINK)), topic]],
  )
  await db.query('insert into tailrace.reader_line (sink_id, generation, partition, begins, line) values ($1, 1, 0, 0, 0)', [SINK.id])
  await db.query(`insert into tailrace.term (kind, key, term, holder) values ('partition', $1, 1, 'me')`, [termKey(key)])
  /** 7 is the last part of a pack that begins at 5; nobody has read 9 yet */
  const needed = new Map([[7, 5]])
  const rounds: number[] = []
  const log: Pick<Log, 'neededFrom' | 'stats'> = {
    neededFrom: (_topic, _partition, offset) => needed.get(offset),
    stats: async () => ({ first: 0, next: rounds.push(0), bytes: 0, finishedBytes: 0, committed: 0 }),
  }
  const trimming = await Trimming.begin({
    ...{ log: log as Log, topic, reader: readerOf(topic, ownTopic(key)), begins: 0, line: 0, query: queryOf(db), key, term: 1 },
    ...{
      leftAt: () => undefined,
      committed: commitAt(0),
      hasPoints: false,
      bounds: () => ({ windowMs: 0, maxBytes: 0 }),
      clock: () => performance.now(),
    },
  })
  const end = new AbortController()
  const running = trimming.run(end.signal)
  const line = async () => Number((await db.query<{ line: string }>('select line from tailrace.reader_line'))[0]?.line)
  const lines: number[] = []
  for (const offset of [7, 9]) {
    const before = rounds.length
    await until('a whole round has seen it', async () => {
      trimming.committed(commitAt(offset))
      return rounds.length >= before + 2
    })
    lines.push(await line())
  }
  assert.deepEqual(lines, [5, 5])
  end.abort()
  await running
})

test('a line that was not stored when its process ended is stored by the next one, though nothing more comes', async () => {
  await using after = new AsyncDisposableStack()
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-trimming-'))
  after.defer(() => rm(folder, { recursive: true, force: true }))
  const db = after.use(await stateDatabase())
  const log = after.use(await openEmbeddedLog(folder))
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const [topic, reader] = ['stream.1', readerOf('stream.1', ownTopic(key))]
  await db.query(
    `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, $2, $3, 0, '0/0', 0)`,
    [SINK.id, JSON.stringify(shapeOf(SINK.id, SINK)), topic],
  )
  await db.query(`insert into tailrace.term (kind, key, term, holder) values ('partition', $1, 1, 'me')`, [termKey(key)])
  await db.query('insert into tailrace.reader_line (sink_id, generation, partition, begins, line) values ($1, 1, 0, 0, 0)', [SINK.id])
  await log.createTopic(topic, 1)
  await log.beginRun('shop')
  const lineOf = async () => (await db.query<{ line: number }>('select line::int from tailrace.reader_line'))[0]?.line ?? 0
  const begin = (query: Query, committed: Commit, maxBytes: number) =>
    Trimming.begin({
      ...{ log, topic, reader, begins: 0, line: 0, query, key, term: 1, committed, hasPoints: true },
      leftAt: () => undefined,
      bounds: () => ({ windowMs: HOUR_MS, maxBytes }),
      clock: () => performance.now(),
    })
  const kept = queryOf(db)
  const tried = Promise.withResolvers<void>()
  const first = await begin(
    (sql, params) => {
      if (!sql.includes('update tailrace.reader_line')) return kept(sql, params)
      tried.resolve()
      return Promise.reject(new EngineError('STATE_UNAVAILABLE', 'it is killed'))
    },
    commitAt(0),
    MB,
  )
  const killed = new AbortController()
  after.defer(() => killed.abort())
  const running = first.run(killed.signal)
  for (let offset = 0; offset < 64; offset++) {
    const lsn = BigInt(offset + 1)
    const pack = packOf(lsn, [{ id: offset, group: randomBytes(MB / 8).toString('base64') }])
    await log.append([{ topic, partition: 0, pack }], { source: 'shop', position: { history: 0, lsn, idx: 0, part: 1 } })
    first.read({ offset, messages: 1, bytes: pack.length, latestUs: 0 })
    await log.commit(reader, 0, commitAt(offset + 1))
    first.committed(commitAt(offset + 1))
  }
  await tried.promise
  killed.abort()
  await running
  assert.equal(await lineOf(), 0)
  const second = await begin(kept, commitAt(64), 64 * MB) // it has no reason to move the window
  const end = new AbortController()
  after.defer(() => end.abort())
  const goesOn = second.run(end.signal)
  await until('the line is stored', async () => await lineOf())
  end.abort()
  await goesOn
})

test('a partition for which the log has nothing, and whose window keeps nothing, looks at nothing until something comes', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] }) // those of the bell: that between two looks is another
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const topic = ownTopic(key)
  let looks = 0
  let bytes = 0
  const log: Pick<Log, 'neededFrom' | 'stats'> = {
    neededFrom: (_topic, _partition, offset) => offset,
    stats: async () => ({ first: 0, next: ++looks, bytes, finishedBytes: 0, committed: 0 }),
  }
  const query: Query = async () => ({ rows: [] })
  const trimming = await Trimming.begin({
    ...{ log: log as Log, topic, reader: topic, begins: 0, line: 0, query, key, term: 1, committed: commitAt(0), hasPoints: false },
    ...{ leftAt: () => undefined, bounds: () => ({ windowMs: 0, maxBytes: 0 }), clock: () => 0 },
  })
  const end = new AbortController()
  t.after(() => end.abort())
  const waits = t.mock.method(end.signal, 'addEventListener').mock
  const running = trimming.run(end.signal)
  /** @returns how often it has looked, a minute after it has done so last */
  const looksAfterAMinute = async () => {
    await until('it waits', async () => waits.callCount() >= 2 * looks) // each look is followed by two waits
    t.mock.timers.tick(60_000)
    await nextTurn()
    return looks
  }
  assert.equal(await looksAfterAMinute(), 1, 'it rests')
  bytes = 1
  trimming.read({ offset: 0, messages: 1, bytes: 1, latestUs: 0 })
  await nextTurn()
  assert.equal(looks, 2)
  assert.equal(await looksAfterAMinute(), 3, 'what is in the log is looked at')
  bytes = 0
  assert.equal(await looksAfterAMinute(), 4)
  assert.equal(await looksAfterAMinute(), 4, 'it rests again')
  end.abort()
  await running
})
