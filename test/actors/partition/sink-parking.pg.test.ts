/** Parking and discarding through a running pull sink, on a real log and a real state database. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ParkedStore } from '../../../engine/dispatch/parked/parked-store.ts'
import type { Log } from '../../../engine/log/log.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { worst } from '../../../engine/status.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { acksOf, Fixture, idsOf, SINK, type Element } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { gather, until } from '../../waiting.ts'

const LONG_MS = 20_000
/** 32 kB: a window that a few records fill. */
const SMALL_MB = 1 / 32

async function open(db: TestDatabase, settings: Partial<Sink> = {}): Promise<Fixture> {
  return Fixture.open({ max_memory_mb: SMALL_MB, ...settings }, { query: queryOf(db) })
}

/** Records of one group, more than the window holds; then one message of another. Ids count up from 0; the other one has 1000. */
async function jam(f: Fixture, count = 60): Promise<void> {
  for (let i = 0; i < count; i++) await f.append([{ id: i, group: 'hot', pad: 1_000 }])
  await f.append([{ id: 1_000, group: 'other' }])
}

const firstIn = async ({ log }: Fixture) => (await log.stats(ownTopic({ sinkId: SINK.id, generation: 1 }), 0)).first

async function receiveAndAck(f: Fixture, batchSize: number): Promise<readonly number[]> {
  const got = await f.receive(batchSize, LONG_MS)
  await f.pulled.ack(acksOf(got))
  return idsOf(got)
}

const rows = (db: TestDatabase, state: string) =>
  db.query<{ record_offset: string; group_key: string; record_key: string; attempts: number; error: string | null }>(
    'select * from tailrace.parked where state = $1 order by record_offset, record_index',
    [state],
  )

test('a partition of which the state holds nothing is taken over in three statements', async () => {
  await using db = await stateDatabase()
  const asked: string[] = []
  const query = queryOf(db)
  const counting: Query = (sql, params) => {
    asked.push(sql)
    return query(sql, params)
  }
  await using f = await Fixture.open({}, { query: counting })
  await f.append([{ id: 1 }])
  const [first] = await f.receive(1, LONG_MS)
  await f.pulled.ack(acksOf([first!]))
  await until('the log is trimmed', async () => (await firstIn(f)) > 0)
  assert.equal(asked.length, 3, asked.join('\n'))
})

test('a group that nobody acks fills the window and is parked, so that other groups go on', async () => {
  await using db = await stateDatabase()
  await using f = await open(db)
  await jam(f)
  const [hot] = await f.receive(10, LONG_MS)
  assert.equal(hot?.record.id, 0)
  const [other] = await f.receive(10, LONG_MS)
  assert.equal(other?.record.id, 1_000)
  const parked = await rows(db, 'open')
  assert.ok(parked.length > 20 && parked.length < 60, `${parked.length} of 60: only what blocked`)
  assert.deepEqual(
    parked.map((r) => Number(r.record_offset)),
    parked.map((_, i) => i),
    'the lowest',
  )
  assert.deepEqual([parked[0]?.record_key, parked[0]?.attempts, parked[1]?.attempts], ['["hot"]', 1, 0])
})

test('while appends are refused because the disk is nearly full, messages are parked, acked and trimmed', async () => {
  await using db = await stateDatabase()
  let reserve = 0
  const options = { query: queryOf(db), start: false, reserveBytes: () => reserve }
  await using f = await Fixture.open({ max_memory_mb: SMALL_MB }, options)
  await jam(f)
  reserve = Number.MAX_SAFE_INTEGER
  const large = { id: 1, pad: 65 * 1024 * 1024 } // so much that free space is looked at anew
  await assert.rejects(f.append([large]), { code: 'LOG_DISK_FULL' })
  await f.start()
  const [first] = await f.receive(10, LONG_MS)
  const [other] = await f.receive(10, LONG_MS)
  assert.deepEqual([first?.record.id, other?.record.id], [0, 1_000], 'what blocks it is parked')
  await f.pulled.ack([first?.ack_id as string, other?.ack_id as string])
  for (let id = 1; id < 60; id++) {
    const got = await f.receive(10, LONG_MS)
    assert.deepEqual(idsOf(got), [id])
    await f.pulled.ack(acksOf(got))
  }
  await until('all of the log is trimmed', async () => (await firstIn(f)) === 61)
  assert.deepEqual(await rows(db, 'open'), [])
})

test('redeliveries of the blocking message do not keep a full window from being parked', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 200 })
  await jam(f)
  const next = async () => idsOf(await f.receive(10, LONG_MS))
  const came = await gather<number>('the other group', next, (ids) => ids.includes(1_000))
  assert.ok(came.filter((id) => id === 0).length > 3)
})

test('a parked message comes in its turn, byte for byte, is ended by its ack, and the group goes back to the log', async () => {
  await using db = await stateDatabase()
  await using f = await open(db)
  await jam(f)
  const first = await f.receive(10, LONG_MS)
  const other = await f.receive(10, LONG_MS)
  await f.pulled.ack(acksOf(other))
  assert.deepEqual(await f.receive(10, 30), [], 'the first of the group is still with its client, parked or not')
  await f.pulled.ack(acksOf(first))
  const next = async () => {
    const got = await f.receive(10, LONG_MS)
    assert.equal(got.length, 1)
    await f.pulled.ack(acksOf(got))
    return got
  }
  const came = [...first, ...(await gather<Element>('the group', next, 59))]
  assert.deepEqual(
    idsOf(came),
    Array.from({ length: 60 }, (_, i) => i),
  )
  assert.equal((came[5]?.record as unknown as { pad: string }).pad.length, 1_000)
  assert.deepEqual(await rows(db, 'open'), [])
  await until('what is done is removed', async () => (await rows(db, 'done')).length === 0)
  await until('all of the log is trimmed', async () => (await firstIn(f)) === 61)
})

test('a nack and a lapse bring a parked message again under the same id', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 3_000 })
  await jam(f)
  const [first] = await f.receive(10, LONG_MS)
  await f.receive(10, LONG_MS)
  await f.pulled.nack([first?.ack_id as string])
  const [returned] = await f.receive(1, LONG_MS)
  assert.deepEqual([returned?.record.id, returned?.ack_id], [0, first?.ack_id])
  const [lapsed] = (await f.gather(2)).filter((m) => m.record.id === 0)
  assert.equal(lapsed?.ack_id, first?.ack_id)
})

test('a restart finds parked messages again: acked ones stay away, the rest keeps its order', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 1_500 })
  await jam(f)
  const next = async () => {
    const got = await f.receive(1, LONG_MS)
    await f.pulled.ack(acksOf(got))
    return idsOf(got).filter((id) => id !== 1_000)
  }
  const first = await f.receive(1, LONG_MS)
  const other = await f.receive(1, LONG_MS)
  await f.pulled.ack(acksOf([...first, ...other]))
  const came = [0]
  for (let i = 0; i < 5; i++) came.push(...(await next()))
  f.crash()
  await f.start()
  for (let i = 0; i < 5; i++) came.push(...(await next()))
  await f.sink.stop()
  await f.start()
  came.push(...(await gather('the others', next, 60 - came.length)))
  assert.deepEqual(
    came,
    Array.from({ length: 60 }, (_, i) => i),
  )
})

test('a process that dies between the parked rows and the commit leaves nothing twice', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 2_000 })
  await jam(f, 40)
  const cutAfterInsert: Query = async (sql, params) => {
    const answer = await queryOf(db)(sql, params)
    if (sql.includes('insert into tailrace.parked (')) f.crash()
    return answer
  }
  await f.sink.stop()
  await f.start({ query: cutAfterInsert })
  await f.receive(1, LONG_MS)
  const never = f.receive(1, LONG_MS) // looks at what the window holds
  await until('rows are parked', async () => (await rows(db, 'open')).length > 0)
  await f.sink.stop()
  assert.deepEqual(await never, [])
  await f.start()
  const came = await gather('all', () => receiveAndAck(f, 10), 41)
  assert.deepEqual(
    came.filter((id) => id < 1_000),
    Array.from({ length: 40 }, (_, i) => i),
  )
  assert.deepEqual(
    came.filter((id) => id === 1_000),
    [1_000],
  )
})

test('a stop while messages are being parked is clean, and they come afterwards', async () => {
  await using db = await stateDatabase()
  await using f = await open(db)
  await jam(f)
  const first = await f.receive(1, LONG_MS)
  const never = f.receive(1, LONG_MS)
  const gate = Promise.withResolvers<void>()
  const { begun } = f.process
  f.process.gate = gate.promise
  await until('the commit before the rows begins', async () => f.process.begun > begun)
  const stopped = f.sink.stop()
  gate.resolve()
  await stopped
  assert.deepEqual(await never, [])
  assert.ok(f.process.commits.at(-1)?.inFlight, 'with all that is known of what is in flight')
  await f.start()
  await f.pulled.ack(acksOf(first))
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [1])
})

test('a former owner parks nothing any more once another has taken over', async () => {
  await using db = await stateDatabase()
  const failures: string[] = []
  await using f = await Fixture.open({ max_memory_mb: SMALL_MB }, { query: queryOf(db), start: false })
  await f.start({ onFailure: (error) => failures.push((error as { code: string }).code) })
  await jam(f)
  await f.receive(10, LONG_MS)
  await db.query(`update tailrace.term set term = term + 1 where kind = 'partition'`)
  await until('the partition fails', async () => failures.length > 0)
  assert.deepEqual(failures, ['PARTITION_FENCED'])
  assert.deepEqual(await rows(db, 'open'), [])
})

test('without the state database nothing is parked, everything else goes on, and health says why', async () => {
  await using db = await stateDatabase()
  let down = false
  const query: Query = async (sql, params) => {
    if (down) throw Object.assign(new Error('connection refused'), { code: 'ECONNREFUSED' })
    return queryOf(db)(sql, params)
  }
  await using f = await Fixture.open({ max_memory_mb: SMALL_MB }, { query })
  await jam(f)
  down = true
  const [first] = await f.receive(10, LONG_MS)
  await until('health tells of it', async () => worst(f.sink.health()) !== 'healthy')
  assert.deepEqual(f.sink.health().find((c) => c.status === 'warning')?.error?.code, 'STATE_UNAVAILABLE')
  await f.pulled.ack([first?.ack_id as string])
  const [second] = await f.receive(10, LONG_MS)
  assert.equal(second?.record.id, 1, 'the log goes on')
  down = false
  assert.deepEqual(idsOf(await f.receive(10, LONG_MS)), [1_000])
  assert.equal(worst(f.sink.health()), 'healthy')
})

test('what was parked, although the answer to that was lost, ends for good when it is acked', async () => {
  await using db = await stateDatabase()
  const lost = Promise.withResolvers<void>()
  let isLost = false
  const query: Query = async (sql, params) => {
    const answer = await queryOf(db)(sql, params)
    if (isLost || !sql.includes('insert into tailrace.parked (')) return answer
    isLost = true
    lost.resolve()
    throw new Error('the connection was lost')
  }
  await using f = await Fixture.open({ max_memory_mb: SMALL_MB }, { query })
  await jam(f)
  const first = await f.receive(1, LONG_MS)
  const second = f.receive(1, LONG_MS) // looks at what waits behind it
  await lost.promise
  await f.pulled.ack(acksOf(first))
  await f.pulled.ack(acksOf(await second))
  const others = await gather('the others', () => receiveAndAck(f, 1), 61 - first.length - (await second).length)
  const came = [...idsOf(first), ...idsOf(await second), ...others]
  assert.deepEqual(came.filter((id) => id < 60), Array.from({ length: 60 }, (_, i) => i)) // prettier-ignore
  assert.deepEqual(await rows(db, 'open'), [])
  f.crash()
  await f.start()
  await f.append([{ id: 2_000, group: 'hot' }])
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [2_000], 'nothing comes once more, behind what followed it')
})

test('a message delivered max_retry_count times is discarded with a record, parked or not', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 100, max_retry_count: 2 })
  await f.append([
    { id: 1, group: 'a' },
    { id: 2, group: 'a' },
  ])
  assert.deepEqual(idsOf([...(await f.receive(1, LONG_MS)), ...(await f.receive(1, LONG_MS))]), [1, 1])
  const second = await f.receive(1, LONG_MS)
  assert.deepEqual(idsOf(second), [2])
  await f.pulled.ack(acksOf(second))
  const [discarded] = await rows(db, 'discarded')
  assert.deepEqual([discarded?.attempts, discarded?.error], [2, 'delivered max_retry_count times without an acknowledgement'])

  f.update({ ack_wait_ms: 2_500 })
  await jam(f, 26)
  await f.receive(1, LONG_MS)
  const other = await f.receive(1, LONG_MS)
  await f.pulled.ack(acksOf(other))
  assert.deepEqual(idsOf(await f.receive(1, LONG_MS)), [0], 'parked, delivered for the second time')
  const next = await f.receive(1, LONG_MS)
  assert.deepEqual(idsOf(next), [1])
  assert.equal((await rows(db, 'discarded')).length, 2)
})

test('of what was discarded the newest 1,000 are kept', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { ack_wait_ms: 100, max_retry_count: 1, max_memory_mb: 8 })
  const discard = async (from: number, to: number) => {
    await f.append(Array.from({ length: to - from }, (_, i) => ({ id: from + i, group: `g${from + i}` })))
    await f.gather(to - from)
    const last = `["g${to - 1}"]`
    await until(`${last} is discarded`, async () => (await rows(db, 'discarded')).find(({ record_key: key }) => key === last))
  }
  await discard(0, 1_050)
  for (let last = 1_050; last < 1_100 && (await rows(db, 'discarded')).length > 1_000; last++) await discard(last, last + 1) // when they are below a commit
  const kept = (await rows(db, 'discarded')).map(({ record_key: key }) => Number(/\d+/.exec(key)?.[0])).sort((a, b) => a - b)
  assert.equal(kept.length, 1_000)
  assert.equal((kept.at(-1) as number) - (kept[0] as number), 999, 'the newest, without a gap')
})

test('messages without groups are parked one by one', async () => {
  await using db = await stateDatabase()
  await using f = await open(db, { message_grouping: false })
  await jam(f)
  const first = await f.gather(61)
  const parked = await rows(db, 'open')
  assert.ok(parked.length > 20)
  await f.pulled.ack(acksOf(first).filter((_, i) => i % 2 === 0))
  await f.pulled.nack(acksOf(first))
  const again = await f.gather(30)
  assert.deepEqual(new Set(idsOf(again)), new Set(idsOf(first.filter((_, i) => i % 2 === 1))))
  await f.pulled.ack(acksOf(again))
  assert.deepEqual(await rows(db, 'open'), [])
})

test('whoever takes a partition over owns it before the commit and the parked rows are read: what they say can change no more', async () => {
  await using db = await stateDatabase()
  await using f = await Fixture.open({}, { query: queryOf(db), start: false })
  const key = { sinkId: SINK.id, generation: 1, partition: 0 }
  const former = await ParkedStore.takeOver(queryOf(db), key, { grouping: true, holder: 'former' })
  const writes: Record<string, string> = {} // the last time: the commit is also read before, to compare it with the state
  const write = async (at: string) => {
    writes[at] = await former.recordDrained().then(
      () => 'written',
      (error: { code: string }) => error.code,
    )
  }
  const log = new Proxy(f.log, {
    get: (target, name) => {
      const value: unknown = Reflect.get(target, name)
      if (name !== 'committed') return typeof value === 'function' ? value.bind(target) : value
      return async (...args: Parameters<Log['committed']>) => (await write('the commit'), target.committed(...args))
    },
  })
  const query: Query = async (sql, params) => {
    if (/select .* from tailrace\.parked (p )?where/s.test(sql)) await write('parked rows')
    return queryOf(db)(sql, params)
  }
  await f.start({ log, query })
  assert.deepEqual(writes, { 'the commit': 'PARTITION_FENCED', 'parked rows': 'PARTITION_FENCED' })
})

test('a partition that is given to another process while it is taken over is left alone: no term is taken, and nothing is committed', async () => {
  await using db = await stateDatabase()
  for (const [asked, terms] of [
    ['committed', 1], // the first time before the term is taken
    ['stats', 2],
  ] as const) {
    await db.query('delete from tailrace.term')
    await using f = await Fixture.open({}, { query: queryOf(db), start: false })
    const found: string[] = []
    let [isLost, commits] = [false, 0]
    const log = new Proxy(f.log, {
      get: (target, name) => {
        if (name === asked) isLost ||= found.length === 0
        if (name === 'commit') commits++
        if (name === 'holds') return () => !isLost
        const value: unknown = Reflect.get(target, name)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
    const onFailure = (error: unknown) => {
      found.push(`${(error as { code: string }).code} after ${commits} commits`)
      isLost = false
    }
    await f.start({ log, onFailure })
    assert.deepEqual(found, ['PARTITION_FENCED after 0 commits'], `lost when ${asked} was asked for`)
    assert.deepEqual(await db.query('select term::int from tailrace.term'), [{ term: terms }], 'it is taken over when it is ours again')
  }
})

test('a parked message that was delivered is known until a commit has it: a crash before brings it no more', async () => {
  await using db = await stateDatabase()
  const seen: string[] = []
  const query: Query = async (sql, params) => {
    const answer = await queryOf(db)(sql, params)
    if (params?.includes('done')) seen.push('ended')
    if (sql.includes('delete from tailrace.parked') && sql.includes(`'done'`)) seen.push('removed')
    if (!sql.includes('insert into tailrace.parked (')) return answer
    seen.push('parked')
    f.process.gate = new Promise(() => undefined) // no commit is durable any more
    return answer
  }
  await using f = await Fixture.open({ max_memory_mb: SMALL_MB, ack_wait_ms: 1_500 }, { query })
  await jam(f, 34)
  const first = await f.receive(1, LONG_MS)
  const never = f.receive(1, LONG_MS) // looks at what the window holds
  const untilSeen = (order: string) => until(`the order ${order}`, () => seen.join().includes(order))
  await untilSeen('parked')
  f.pulled.ack(acksOf(first)).catch(() => undefined)
  await untilSeen('ended,removed')
  f.crash()
  await never
  await f.start({ query: queryOf(db) })
  const came = await gather<number>(
    'the last',
    () => receiveAndAck(f, 1),
    (ids) => ids.includes(33),
  )
  assert.deepEqual(came.filter((id) => id < 1_000), Array.from({ length: 33 }, (_, i) => i + 1)) // prettier-ignore
})
