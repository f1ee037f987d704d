/** What the source writes into its own log: heartbeats and the marks of routing versions. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { emitRoutingMark, ROUTING_MARK } from '../../../engine/wal/routing/routing.ts'
import type { AppendRecord } from '../../../engine/log/log.ts'
import { HEARTBEAT } from '../../../engine/wal/connection/run-session.ts'
import { startPostgres } from '../../services/postgres.ts'
import { reaches, routedSink, SourceFixture } from './source-fixture.ts'
import { until } from '../../waiting.ts'

const TABLE = 'create table item (id int primary key)'
const BOTH = [routedSink(), routedSink({ sinkId: 'other' })]

/** Logical messages as any reader gets them: int8 flags, int64 LSN, prefix. Bit 0 of the flags: transactional. */
async function messagesIn(it: SourceFixture, slot: string): Promise<{ prefix: string; isTransactional: boolean }[]> {
  const rows = await it.db.query<{ data: Buffer }>(
    `select data from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', 'pub', 'messages', 'true')`,
    [slot],
  )
  return rows
    .filter(({ data }) => data[0] === 0x4d /* M */)
    .map(({ data }) => ({ prefix: data.toString('utf8', 10, data.indexOf(0, 10)), isTransactional: (data[1]! & 1) === 1 }))
}

test('heartbeats and marks are transactional messages: others would not wait for commits before them', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const watching = `w_${it.db.name}`.slice(0, 60)
  await it.db.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [watching])
  const actor = it.start({ heartbeatMs: 50 })
  await reaches(actor, 'streaming')
  await it.route(actor, BOTH)
  const seen = await until('heartbeats and a mark', async () => {
    const messages = await messagesIn(it, watching)
    const count = (wanted: string) => messages.filter(({ prefix }) => prefix === wanted).length
    return count(HEARTBEAT) >= 2 && count(ROUTING_MARK) >= 1 ? messages : undefined
  })
  assert.deepEqual(
    seen.filter(({ isTransactional }) => !isTransactional),
    [],
  )
})

test('a mark of a version that stands elsewhere switches nothing, in this run and in the next', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const first = it.start()
  await reaches(first, 'streaming')
  await it.db.query('insert into item values (1)')
  await it.until((seen) => seen.length === 1)
  const version = await it.save(BOTH)
  await it.state.query(`update tailrace.routing_version set history = 0, lsn = 'FF/0', idx = 0 where database_id = $1 and version = $2`, [
    it.id,
    version.version,
  ])
  await emitRoutingMark(async (sql, params) => ({ rows: await it.db.query(sql, params) }), version)
  await it.db.query('insert into item values (2)')
  await it.until((seen) => seen.length === 2)
  await first.stop()
  await reaches(it.start(), 'streaming')
  await it.db.query('insert into item values (3)')
  await it.until((seen) => seen.length === 3)
  assert.deepEqual(await it.messages('other.1'), [])
})

test('a generation whose last pack was refused, and whose mark never comes again, gets one after the gap', async () => {
  const sinkId = randomUUID()
  await using it = await SourceFixture.create({ ddl: TABLE, sinks: [routedSink({ sinkId })] })
  await it.state.query(
    `insert into tailrace.sink (id, account_id, database_id, name, status, settings, destination)
     select $1, account_id, id, 'items', 'active', '{}', '{}' from tailrace.source_database`,
    [sinkId],
  )
  const begin = (generation: number, partitions: number) =>
    it.state.query('insert into tailrace.generation (sink_id, generation, shape) values ($1, $2, $3)', [
      sinkId,
      generation,
      JSON.stringify({ partitions, grouping: true, groupColumns: {} }),
    ])
  await begin(1, 1)
  const first = it.start()
  await reaches(first, 'streaming')
  await it.db.query('insert into item values (1)')
  await it.until((seen) => seen.length === 1, `${sinkId}.1`)
  const closing = (records: readonly AppendRecord[]) =>
    records.filter(({ topic, pack }) => topic === `${sinkId}.1` && (pack.readUInt8(3) & 2) !== 0)
  const closed = () => it.log.appends.flatMap(({ records }) => closing(records))
  it.log.before = (records) => {
    if (closing(records).length > 0) throw new Error('refused')
  }
  await begin(2, 2)
  await it.route(first, [routedSink({ sinkId, generation: 2, partitions: 2 })])
  await reaches(first, 'waiting')
  await first.stop()
  it.log.before = undefined
  assert.deepEqual(closed(), [])
  const { rows } = await it.state.query('select from tailrace.generation where generation = 2 and lsn is not null')
  assert.equal(rows.length, 1, 'the switch has its place')
  await until('the slot is free', async () => !(await it.slotRow()).active)
  await it.db.query('select pg_drop_replication_slot($1)', [it.slot])
  await it.createSlot()
  const second = it.start()
  await reaches(second, 'failed')
  await second.acceptGap()
  await reaches(second, 'streaming')
  await it.db.query('insert into item values (3)')
  await it.until((seen) => seen.length === 1, `${sinkId}.2`)
  assert.equal(closed().length, 1)
  await second.stop()
  await it.state.query(`insert into tailrace.drained_partition (sink_id, generation, partition) values ($1, 1, 0)`, [sinkId])
  await reaches(it.start(), 'streaming')
  await it.db.query('insert into item values (4)')
  await it.until((seen) => seen.length === 2, `${sinkId}.2`)
  assert.equal(closed().length, 1, 'what is drained needs no other')
})

test('marks and heartbeats wait for no standby: one that is gone holds up no edit', async () => {
  await using server = await startPostgres({ settings: { synchronous_standby_names: 'nobody', synchronous_commit: 'local' } })
  await using it = await SourceFixture.create({ ddl: TABLE, server: server.url })
  await it.db.query(`alter database ${it.db.name} set synchronous_commit = on`) // for sessions from here on
  const notices: string[] = []
  const actor = it.start({ heartbeatMs: 50 }, { observer: { notice: (text) => notices.push(text) } })
  await reaches(actor, 'streaming')
  assert.equal(await it.route(actor, BOTH), true, notices.join())
  await it.db.query('insert into item values (1)')
  await it.until((seen) => seen.length === 1, 'other.1')
  await actor.stop()
  assert.equal(await it.route(actor, [routedSink()]), true)
})
