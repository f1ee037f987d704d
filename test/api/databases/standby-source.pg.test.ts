/** A source that is a standby of PostgreSQL: read there, while what has to be written goes to its primary. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Service } from '../../faults/service.ts'
import { Client } from 'pg'
import { stringify } from 'yaml'
import { createDatabase, createState, startPostgres, type TestDatabase } from '../../services/postgres.ts'
import { gather, until } from '../../waiting.ts'

type Message = Readonly<{ ack_id: string; action: string; record: Readonly<{ id: number }> }>

const receive = (service: Service, sink: string, enough: number) =>
  gather(
    `messages of ${sink}`,
    async () => {
      const path = `/api/http_pull_consumers/${sink}`
      const { body } = await service.post(`${path}/receive`, { batch_size: 1_000, wait_for: 10_000 })
      const { data = [] } = body as { data?: Message[] }
      if (data.length > 0) await service.post(`${path}/ack`, { ack_ids: data.map(({ ack_id }) => ack_id) })
      return data
    },
    enough,
    { service },
  )
const idsOf = (messages: readonly Message[]) => messages.map(({ record }) => record.id)

test('a standby is read in the place of its primary: sinks, edits, backfills and a restart need only the address of both, and a promotion loses nothing', async () => {
  await using primary = await startPostgres({ isAnother: true })
  await using standby = await primary.standby({ hot_standby_feedback: 'on' }) // the primary is stopped meanwhile
  await using db = await createDatabase('create table goods (id int primary key); create table more (id int primary key)', {
    server: primary.url,
  })
  await db.query('insert into more select generate_series(1, 500)')
  await untilReplayed(db)
  await using other = await createDatabase('create table a (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({ source: other.connection, stateUrl: state.url, sinks: [], slot: `s_${other.name}` })
  await service.startReady()

  const whole = {
    ...{ name: 'shop', ...standby.connection(db.name), ssl: false },
    replication_slots: [{ slot_name: 'of_standby', publication_name: 'of_both', create_if_not_exists: true }],
  }
  const create = async (body: object) => {
    const answer = await service.post('/api/postgres_databases', body)
    return { status: answer.status, ...(answer.body as { summary: string; code: string; primary?: { port: number; password: string } }) }
  }
  const alone = await create(whole)
  assert.deepEqual([alone.status, alone.code], [422, 'SOURCE_IN_RECOVERY'])
  assert.match(alone.summary, /give the connection of its primary as "primary"/)
  const foreign = await create({ ...whole, primary: other.connection })
  assert.deepEqual([foreign.status, foreign.code], [422, 'SOURCE_REFUSED'], foreign.summary)
  const made = await create({ ...whole, primary: primary.connection(db.name) })
  assert.equal(made.status, 201, made.summary)
  assert.equal(made.primary?.port, primary.port)
  assert.match(made.primary?.password ?? '', /\*/)
  assert.deepEqual(await db.query('select slot_name from pg_replication_slots'), [], 'the slot is on the standby')

  const sink = { database: 'shop', destination: { type: 'sequin_stream' } }
  await service.post('/api/sinks', { ...sink, name: 'goods', source: { include_tables: ['goods'] } })
  await db.query('insert into goods select generate_series(1, 100)')
  assert.deepEqual(new Set(idsOf(await receive(service, 'goods', 100))), new Set(Array.from({ length: 100 }, (_, i) => i + 1)))
  await service.patch('/api/sinks/goods', { source: null })
  await db.query('insert into more values (501)')
  assert.deepEqual(idsOf(await receive(service, 'goods', 1)), [501], 'the mark of an edit takes its way over the primary')

  await service.post('/api/sinks/goods/backfills', { tables: ['more'] })
  const rows = await receive(service, 'goods', 501)
  assert.deepEqual([new Set(idsOf(rows)).size, rows[0]?.action], [501, 'read'])

  await service.stop()
  await db.query('insert into goods values (101)')
  await service.startReady()
  assert.deepEqual(idsOf(await receive(service, 'goods', 1)), [101])

  const seen = await until('the slot of the standby was asked', async () => {
    const { body } = await service.get('/api/postgres_databases/shop')
    const { health, replication_slots: [slot] = [] } = body as { health: { status: string }; replication_slots?: { state: unknown }[] }
    return slot?.state ? { status: health.status, state: slot.state } : undefined
  })
  assert.equal(seen.status, 'healthy')
  const { yaml } = (await service.get('/api/config/export')).body as { yaml: string }
  const planned = (await service.post('/api/config/plan', { yaml })).body as { changes: unknown[]; actions: unknown[] }
  assert.deepEqual([planned.changes, planned.actions], [[], []], 'a file has the primary too')
  const second = { ...whole, name: 'second', primary: primary.connection(db.name), replication_slots: undefined }
  const slots = { slot: { name: 'of_file', create_if_not_exists: true }, publication: { name: 'of_file', create_if_not_exists: true } }
  const applied = await service.post('/api/config/apply', { yaml: stringify({ databases: [{ ...second, ...slots }] }) })
  assert.equal(applied.status, 200, JSON.stringify(applied.body))
  await until('both are read', async () => (await service.get('/health/ready')).status === 200, { service })

  await untilReplayed(db)
  await db.leave()
  await primary.stop()
  await standby.promote()
  await service.patch('/api/sinks/goods', { source: { include_tables: ['goods'] } })
  const { hostname: host, port, username: user, password } = standby.connection(db.name)
  const client = new Client({ host, port, user, password, database: db.name })
  await client.connect()
  await client.query('insert into more values (502); insert into goods values (102)')
  await client.end()
  assert.ok(idsOf(await receive(service, 'goods', 1)).includes(102), 'what the former primary would have been written goes to the new one')
})

const untilReplayed = (db: TestDatabase) =>
  until('the standby has all', async () => {
    const [row] = await db.query<{ done: boolean | null }>(
      `select bool_and(replay_lsn >= pg_current_wal_flush_lsn()) as done from pg_stat_replication where application_name = 'walreceiver'`,
    )
    return row?.done === true
  })
