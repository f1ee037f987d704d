/** Ends and beginnings: of the service by signal, of a second one on the same folder, of the Postgres it reads from, and
 *  of its slot. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Client } from 'pg'
import { calmMs } from '../services/calm-clock.ts'
import { createDatabase, startPostgres, createState, type TestDatabase } from '../services/postgres.ts'
import { Scenario, withSeed } from './scenario.ts'
import { Service, SLOT, TOKEN } from './service.ts'
import { Tally } from './tally.ts'
import { until } from '../waiting.ts'

const STOPPED_WITHIN_MS = 10_000
const SERVER_STOPPED_WITHIN_MS = 5_000

test('SIGTERM and SIGINT under load end it cleanly, and a start goes on without loss and without handing out what clients hold', async () => {
  await withSeed(11, 'shutdown.pg.test.ts', async () => {
    await using scenario = await Scenario.create({ seed: 11 })
    const { service } = scenario
    await service.startReady()
    scenario.write()
    scenario.receive()
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGTERM'] as const) {
      await scenario.untilMore(100)
      const ms = await calmMs(async () =>
        assert.deepEqual(await service.stop(signal), { code: 0, signal: null }, service.failure(`after ${signal}`).message),
      )
      assert.ok(ms < STOPPED_WITHIN_MS, service.failure(`${signal} took ${ms} ms`).message)
      scenario.checkSoFar()
      await service.startReady()
    }
    await scenario.settle()
  })
})

test('a receive that waits is answered when the service stops', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  const waiting = fetch(`${service.origin}/api/http_pull_consumers/rows/receive?wait_for=60000`, {
    headers: { authorization: `Bearer ${TOKEN}` },
  })
  await service.get('/health') // an answer to a later request: the waiting one has been read
  const ms = await calmMs(() => service.stop())
  assert.ok(ms < STOPPED_WITHIN_MS, service.failure(`SIGTERM took ${ms} ms`).message)
  const { status } = await waiting
  assert.ok(status === 200 || status === 503, `answered ${status}`)
})

test('a second start on the same data folder is refused with the pid of the first, which goes on', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  const second = await service.startSecond()
  assert.notEqual(second.code, 0, `the second one ended with ${second.signal ?? second.code}`)
  assert.match(second.output, new RegExp(`\\b${service.pid}\\b`))
  await source.query('insert into row values (1)')
  await using tally = new Tally({ service, sink: 'rows', rows: 1 })
  await tally.drain(1)
})

test('Postgres stops fast within 5 s while the service streams, and the service goes on with it afterwards', async () => {
  await using server = await startPostgres()
  await using source = await createDatabase('create table row (id int primary key)', { server: server.url })
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await using tally = new Tally({ service, sink: 'rows', rows: 2_000 })
  await source.query('insert into row select generate_series(1, 1000)')
  await tally.drain(500)
  const ms = await calmMs(() => server.stop('fast'))
  assert.ok(ms < SERVER_STOPPED_WITHIN_MS, service.failure(`the server took ${ms} ms to stop`).message)
  await server.start()
  await (await source.connect()).query('insert into row select generate_series(1001, 2000)')
  await tally.drain(2_000)
  tally.assertComplete(1, 2_000)
})

test('a crash of Postgres under load is survived: everything it committed comes, once it is back', async () => {
  await withSeed(12, 'shutdown.pg.test.ts', async () => {
    await using server = await startPostgres()
    await using source = await createDatabase(undefined, { server: server.url })
    await using scenario = await Scenario.create({ seed: 12, source })
    const { service } = scenario
    await service.startReady()
    scenario.write()
    scenario.receive()
    for (let crashes = 0; crashes < 3; crashes++) {
      await scenario.untilMore(100)
      await server.kill()
      await server.start()
    }
    await service.untilReady()
    await scenario.untilMore(100)
    await scenario.settle()
  })
})

test('a slot that was dropped is named with its remedy and not tried for ever; other sources go on', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await dropSlot(source)
  const error = await untilSourceError(service, 'SLOT_MISSING')
  assert.match(error.message, /pg_create_logical_replication_slot/i, 'the message has the SQL that creates it')
  assert.equal((await service.get('/health')).status, 200)
  assert.equal((await service.get('/health/ready')).status, 503)
})

test('a slot that another program reads is named, and taken over as soon as it is free', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await service.stop()
  await using other = await readSlot(source.connection)
  service.start()
  await untilSourceError(service, 'SLOT_IN_USE')
  await source.query('insert into row values (1)')
  await other[Symbol.asyncDispose]()
  await service.untilReady()
  await using tally = new Tally({ service, sink: 'rows', rows: 1 })
  await tally.drain(1)
})

type ActorError = Readonly<{ code: string | null; message: string }>

async function dropSlot(source: TestDatabase): Promise<void> {
  // the reader comes back at once: end it and drop in one go until that succeeds
  await until('the slot is free, and dropped', async () => {
    await source.query(
      'select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active_pid is not null',
      [SLOT],
    )
    try {
      await source.query('select pg_drop_replication_slot($1)', [SLOT])
      return true
    } catch (error) {
      if ((error as { code?: string }).code !== '55006') throw error // still in use
      return false
    }
  })
}

async function untilSourceError(service: Service, code: string): Promise<ActorError> {
  let last: unknown
  const found = async () => {
    const answer = await service.get('/info').catch(() => undefined)
    last = answer?.body
    const { nodes = [] } = (last ?? {}) as { nodes?: { actors: { kind: string; last_error: ActorError | null }[] }[] }
    return nodes.flatMap(({ actors }) => actors).find(({ last_error: error }) => error?.code === code)?.last_error
  }
  return until(() => `/info shows ${code}: ${JSON.stringify(last)}`, found, { service })
}

/** Another program that reads the slot, as some other tool would. */
async function readSlot({ hostname: host, ...connection }: TestDatabase['connection']): Promise<AsyncDisposable> {
  const { port, database, username: user, password } = connection
  const client = new Client({ host, port, database, user, password, replication: 'database' } as ConstructorParameters<typeof Client>[0])
  client.on('error', () => {})
  await client.connect()
  const started = Promise.withResolvers<void>()
  const { connection: wire } = client as unknown as { connection: NodeJS.EventEmitter }
  wire.once('replicationStart', () => started.resolve())
  client
    .query(`START_REPLICATION SLOT ${SLOT} LOGICAL 0/0 (proto_version '1', publication_names '${SLOT}_pub')`)
    .then(() => {}, started.reject)
  await started.promise
  return { [Symbol.asyncDispose]: () => client.end().catch(() => {}) }
}
