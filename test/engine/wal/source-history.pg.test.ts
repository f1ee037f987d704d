/** Servers whose log goes back: a promoted standby, a restored copy. Each goes on without loss, or says what is lost. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { test } from 'node:test'
import { Client } from 'pg'
import { EngineError } from '../../../engine/errors.ts'
import type { AppendRecord } from '../../../engine/log/log.ts'
import { Pack } from '../../../engine/log/pack.ts'
import { machinePostgres, startPostgres, type TestServer } from '../../services/postgres.ts'
import { reaches, routedSink, SourceFixture, type Seen } from './source-fixture.ts'
import { until } from '../../waiting.ts'

const TABLE = 'create table item (id int primary key)'
/** Grows the log without a row: a logical message of nobody. */
const WRITE_LOG = `select pg_logical_emit_message(false, 'filler', repeat('x', 1000000)) from generate_series(1, 20)`
const shape = (seen: readonly Seen[]) => seen.map((m) => [m.position.history, Number(m.json.record.id)])

async function session(server: TestServer, database: string): Promise<Client> {
  const { hostname, port, username, password } = server.connection(database)
  const client = new Client({ host: hostname, port, user: username, password, database })
  client.on('error', () => undefined)
  await client.connect()
  return client
}

const copy = (from: string, to: string): void => assert.equal(spawnSync('cp', ['-a', from, to]).status, 0)

const withPrograms = machinePostgres().at(-1)
const skip = withPrograms ? false : 'NO POSTGRES WITH pg_basebackup ON THIS MACHINE: a failover to a promoted standby was not tested'
if (skip) console.warn(skip)

test(
  'a promoted standby that lacks the last commits reuses their LSNs: history grows, nothing is taken for a repetition',
  { skip },
  async () => {
    await using primary = await startPostgres({ binaries: withPrograms! })
    const leaving = routedSink({ sinkId: randomUUID(), source: { include_tables: ['public.other'] } })
    await using it = await SourceFixture.create({ ddl: TABLE, server: primary.url, createSlot: false, sinks: [routedSink(), leaving] })
    await it.state.query(
      `insert into tailrace.sink (id, account_id, database_id, name, status, settings, destination)
       select $1, account_id, id, 'leaving', 'active', '{}', '{}' from tailrace.source_database`,
      [leaving.sinkId],
    )
    await it.state.query('insert into tailrace.generation (sink_id, generation, shape) values ($1, 1, $2)', [
      leaving.sinkId,
      JSON.stringify({ partitions: 1, grouping: true, groupColumns: {} }),
    ])
    await using standby = await primary.standby()
    await it.createSlot()
    const first = it.start()
    await reaches(first, 'streaming')
    await it.db.query('insert into item values (1)')
    await it.db.query('insert into item values (2)')
    await it.until((s) => s.length >= 2)
    await first.stop()
    const replica = await session(standby, it.db.name)
    const end = await it.walEnd()
    await until('the standby has replayed', async () => {
      const { rows } = await replica.query<{ at: string }>(`select (pg_last_wal_replay_lsn() - '0/0')::text as at`)
      return BigInt(rows[0]?.at ?? 0) >= end
    })
    await replica.end()
    await standby.stop()
    await it.db.query('checkpoint') // writes the slot's state to disk, where tools for failover slots copy it from
    copy(join(primary.folder, 'pg_replslot', it.slot), join(standby.folder, 'pg_replslot'))

    // what only the old primary has
    const second = it.start()
    await reaches(second, 'streaming')
    for (const id of [3, 4, 5]) await it.db.query('insert into item values ($1)', [id])
    const before = await it.until((s) => s.length >= 5)
    assert.deepEqual(
      shape(before),
      [1, 2, 3, 4, 5].map((id) => [0, id]),
    )
    const marked = (records: readonly AppendRecord[]) => records.filter(({ pack }) => Pack.header(pack).isMarker)
    it.log.before = (records) => {
      if (marked(records).length > 0) throw new Error('refused') // the sink's last mark has its place, and no marker
    }
    await it.route(second, [routedSink()])
    await reaches(second, 'waiting')
    await second.stop()
    it.log.before = undefined
    await primary.kill()

    await standby.start()
    await standby.promote()
    const writer = await session(standby, it.db.name)
    for (const id of [6, 7, 8]) await writer.query('insert into item values ($1)', [id])
    const notices: string[] = []
    const { inner } = it.log
    it.log.remember = () => {
      it.log.remember = (source, state) => inner.remember(source, state)
      throw new Error('cut') // the state has the new history by now, the log has not
    }
    const third = it.start(
      {},
      { database: it.database(standby.connection(it.db.name)), observer: { notice: (notice) => notices.push(notice) } },
    )
    await reaches(third, 'streaming')
    const after = await it.until((s) => s.length >= 8)
    assert.deepEqual(
      shape(after.slice(5)),
      [6, 7, 8].map((id) => [1, id]),
    )
    const lsns = after.map((m) => m.position.lsn)
    assert.ok(lsns[5]! < lsns[4]!, 'the LSNs went back')
    const keys = after.map((m) => Buffer.from(String(m.json.metadata.idempotency_key), 'base64').toString())
    assert.match(keys[5]!, /^1:\d+:0$/)
    assert.match(keys[4]!, /^\d+:0$/)
    const { rows } = await it.state.query(
      'select history, timeline, phantom_messages::int as phantoms from tailrace.source_history order by history',
    )
    assert.deepEqual(rows, [
      { history: 0, timeline: 1, phantoms: 0 },
      { history: 1, timeline: 2, phantoms: 3 },
    ])
    assert.ok(notices.some((notice) => /3 messages received from LSN .* on are unknown to the server that is the primary now/.test(notice)))
    assert.equal(third.status().details?.phantomMessages, 3)
    assert.deepEqual(
      it.log.appends.flatMap(({ records }) => marked(records).map(({ topic, pack }) => [topic, Pack.header(pack).first.history])),
      [[`${leaving.sinkId}.1`, 1]],
      'who has left by a mark that the new primary lacks is told under the new history',
    )

    // and once more over the same stretch: what came under the new history is recognised
    await third.stop()
    const fourth = it.start({}, { database: it.database(standby.connection(it.db.name)) })
    await reaches(fourth, 'streaming')
    await writer.query('insert into item values (9)')
    assert.deepEqual(shape(await it.until((s) => s.length >= 9)).slice(8), [[1, 9]])
    await writer.end()
    await fourth.stop()
  },
)

test('a slot made on a promoted standby stands above the switch: a gap, although below what was confirmed', { skip }, async () => {
  await using primary = await startPostgres({ binaries: withPrograms! })
  await using it = await SourceFixture.create({ ddl: TABLE, server: primary.url })
  await using standby = await primary.standby()
  const first = it.start()
  await reaches(first, 'streaming')
  await standby.stop()
  await it.db.query('insert into item values (1)')
  await it.until((s) => s.length >= 1)
  const filler = await it.db.connect()
  await filler.query(WRITE_LOG)
  const end = await it.walEnd()
  await until('all of it is confirmed', async () => (await it.slotRow()).confirmed >= end)
  await first.stop()
  await primary.kill()
  await standby.start()
  await standby.promote()
  const writer = await session(standby, it.db.name)
  await writer.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [it.slot])
  const second = it.start({}, { database: it.database(standby.connection(it.db.name)) })
  await reaches(second, 'failed')
  assert.equal(second.lastError?.code, 'SLOT_GAP')
  await second.acceptGap()
  await reaches(second, 'streaming')
  await writer.query('insert into item values (2)')
  assert.deepEqual(shape(await it.until((s) => s.length >= 2)), [
    [0, 1],
    [1, 2],
  ])
  await writer.end()
  await second.stop()
})

test('a failover slot on a standby that is not promoted yet is waited for, and streams without loss after the promotion', async () => {
  await using primary = await startPostgres()
  const admin = await session(primary, 'postgres')
  await admin.query(`select pg_create_physical_replication_slot('standby', true)`)
  await admin.end()
  await using standby = await primary.standby({ primary_slot_name: 'standby', hot_standby_feedback: 'on' })
  await using it = await SourceFixture.create({ ddl: TABLE, server: primary.url, createSlot: false })
  await it.createSlot(', false, false, true')
  const replica = await session(standby, 'postgres')
  await until('the standby has a copy of the slot', async () => {
    await it.db.query('select pg_log_standby_snapshot()') // a slot is copied once it needs no more than the standby has
    await it.db.query('select pg_replication_slot_advance($1, pg_current_wal_lsn())', [it.slot])
    await replica.query('select pg_sync_replication_slots()')
    const { rows } = await replica.query('select from pg_replication_slots where slot_name = $1 and synced and not temporary', [it.slot])
    return rows.length > 0
  })
  const first = it.start()
  await reaches(first, 'streaming')
  await it.db.query('insert into item values (1)')
  await it.until((seen) => seen.length >= 1)
  await first.stop()
  await it.db.query('insert into item values (2)')
  const end = await it.walEnd()
  await until('the standby has replayed', async () => {
    const { rows } = await replica.query<{ at: string }>(`select (pg_last_wal_replay_lsn() - '0/0')::text as at`)
    return BigInt(rows[0]?.at ?? 0) >= end
  })
  await primary.kill()

  const second = it.start({}, { database: it.database(standby.connection(it.db.name)) })
  await reaches(second, 'waiting')
  assert.equal(second.lastError?.code, 'SOURCE_IN_RECOVERY')
  await replica.end()
  await standby.promote()
  await reaches(second, 'streaming')
  const writer = await session(standby, it.db.name)
  await writer.query('insert into item values (3)')
  await writer.end()
  const seen = await it.until((messages) => messages.length >= 3)
  assert.deepEqual(
    seen.map((m) => m.json.record.id),
    [1, 2, 3],
  )
  await second.stop()
})

test(
  'a publication that was dropped and made again: what it can not decode is named, and accepted only that is left out',
  { skip },
  async () => {
    await using server = await startPostgres({ binaries: withPrograms!, settings: { wal_level: 'logical' } })
    await using it = await SourceFixture.create({ ddl: TABLE, server: server.url })
    const first = it.start()
    await reaches(first, 'streaming')
    await it.db.query('insert into item values (1)')
    await it.until((s) => s.length >= 1)
    await first.stop()
    await it.db.query('create table late (id int primary key)') // what comes of it has to wait until it is described
    await it.db.query('insert into late values (2)')
    await it.db.query('drop publication pub')
    await it.db.query('insert into item values (3)')
    await it.db.query(WRITE_LOG)
    await it.db.query('insert into item values (4)')
    await it.db.query('create publication pub for all tables')
    await it.db.query('insert into item values (5)')
    await it.db.query(WRITE_LOG)
    const second = it.start({ lingerMs: 60_000 }) // what was read before the end has not been appended by itself
    await reaches(second, 'failed')
    assert.equal(second.lastError?.code, 'PUBLICATION_TOO_YOUNG')
    assert.match(second.lastError.message, /accept-gap test/)
    assert.deepEqual(
      shape(await it.messages()).map(([, id]) => id),
      [1, 2],
    )
    await second.acceptGap()
    await reaches(second, 'streaming')
    await second.stop()
    const third = it.start()
    await it.db.query('insert into item values (6)')
    assert.deepEqual(
      shape(await it.until((s) => s.length >= 4)).map(([, id]) => id),
      [1, 2, 5, 6],
    )
    // one that is not there is missing, however much is to be sent
    await it.db.query('drop publication pub')
    await it.db.query('insert into item values (7)')
    await reaches(third, 'failed')
    assert.equal(third.lastError?.code, 'PUBLICATION_MISSING')
    await third.stop()
  },
)

test('a cluster put back from an older copy, without a new timeline, is noticed; accepted, it goes on as a new history', async () => {
  await using server = await startPostgres()
  await using it = await SourceFixture.create({ ddl: TABLE, server: server.url })
  const first = it.start()
  await reaches(first, 'streaming')
  await it.db.query('insert into item values (1)')
  await it.until((s) => s.length >= 1)
  await first.stop()
  await server.stop('fast')
  const snapshot = await server.snapshot()

  await server.start()
  const second = it.start()
  await reaches(second, 'streaming')
  const writer = await session(server, it.db.name)
  for (const id of [2, 3]) await writer.query('insert into item values ($1)', [id])
  await writer.query(WRITE_LOG)
  await it.until((s) => s.length >= 3)
  await second.stop()
  await server.kill()
  await writer.end().catch(() => undefined)
  await snapshot.putBack()

  await server.start()
  it.log.offsetFor = () => {
    throw new EngineError('PACK_MALFORMED', 'it is damaged') // what stands there can't be counted: that stops nothing
  }
  const notices: string[] = []
  const third = it.start({}, { observer: { notice: (notice) => notices.push(notice) } })
  await reaches(third, 'failed')
  assert.equal(third.lastError?.code, 'SOURCE_WENT_BACK')
  await third.acceptGap()
  await reaches(third, 'streaming')
  assert.match(notices.join(), /could not be counted: it is damaged.* are unknown to the server that is the primary now/)
  const again = await session(server, it.db.name)
  for (const id of [4, 5]) await again.query('insert into item values ($1)', [id])
  const seen = await it.until((s) => s.filter((m) => m.position.history === 1).length >= 2)
  assert.deepEqual(shape(seen), [
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 4],
    [1, 5],
  ])
  await again.end()
  await third.stop()
})

test('a cluster put back and written past its old end is told by the transaction that is missing; accepted, all it has comes', async () => {
  await using server = await startPostgres()
  await using it = await SourceFixture.create({ ddl: TABLE, server: server.url })
  const first = it.start()
  await reaches(first, 'streaming')
  await it.db.query('insert into item values (1)')
  await it.until((s) => s.length >= 1)
  await first.stop()
  await server.stop('fast')
  const snapshot = await server.snapshot()

  await server.start()
  const second = it.start()
  await reaches(second, 'streaming')
  const writer = await session(server, it.db.name)
  for (const id of [2, 3]) await writer.query('insert into item values ($1)', [id])
  await it.until((s) => s.length >= 3)
  await second.stop()
  const sent = await it.savedConfirmed()
  await writer.end()
  await server.stop('fast')
  await snapshot.putBack()

  await server.start()
  const again = await session(server, it.db.name)
  await again.query(WRITE_LOG) // first, so that nothing commits where the last transaction did
  for (const id of [4, 5]) await again.query('insert into item values ($1)', [id])
  const { rows } = await again.query<{ end: string }>(`select (pg_current_wal_flush_lsn() - '0/0')::text as end`)
  assert.ok(BigInt(rows[0]?.end ?? 0) > sent, 'its log is longer than what it had sent')
  const third = it.start()
  await reaches(third, 'failed')
  assert.equal(third.lastError?.code, 'SOURCE_WENT_BACK')
  assert.match(third.lastError.message, /has no transaction \d+ of \d{4}-\d\d-\d\dT\S+Z any more/)
  assert.ok((await slotOf(again, it.slot)) < sent, 'what was read was not confirmed')
  await third.acceptGap()
  await reaches(third, 'streaming')
  await again.query('insert into item values (6)')
  const seen = await it.until((s) => s.filter((m) => m.position.history === 1).length >= 3)
  assert.deepEqual(shape(seen), [
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 4],
    [1, 5],
    [1, 6],
  ])
  await again.end()
  await third.stop()
})

async function slotOf(client: Client, slot: string): Promise<bigint> {
  const { rows } = await client.query<{ at: string }>(
    `select (confirmed_flush_lsn - '0/0')::text as at from pg_replication_slots where slot_name = $1`,
    [slot],
  )
  return BigInt(rows[0]?.at ?? 0)
}
