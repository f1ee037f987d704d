/**
 * A failover to a promoted standby that lacks the last commits of its primary. The new primary writes other rows at the
 * same positions: they must come, what both have must not come twice, and what only the old one had stays sent. Slots
 * travel to the standby as cluster managers do it below PostgreSQL 17: by their files.
 */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'
import { connectTo, createDatabase, machinePostgres, startPostgres, createState, type TestServer } from '../services/postgres.ts'
import { NetProxy } from './net-proxy.ts'
import { Service, SLOT } from './service.ts'
import { Tally } from './tally.ts'
import { until } from '../waiting.ts'

for (const binaries of machinePostgres().slice(-1)) {
  test(`after a failover that lost commits (PostgreSQL ${binaries.version}) every commit of the new primary comes, and once`, async () => {
    await using primary = await startPostgres({ binaries, settings: { wal_keep_size: '256MB' } })
    await using source = await createDatabase('create table row (id int primary key)', { server: primary.url })
    await using state = await createState()
    await using standby = await primary.standby()
    await using proxy = await NetProxy.start({ host: '127.0.0.1', port: primary.port })
    await using service = await Service.prepare({
      source: { ...source.connection, port: proxy.port },
      stateUrl: state.url,
      sinks: [{ name: 'rows', tables: ['public.row'] }],
    })
    await service.startReady()
    await using tally = new Tally({ service, sink: 'rows', rows: 300 })

    for (let id = 1; id <= 100; id++) await source.query('insert into row values ($1)', [id])
    await tally.drain(100)
    await source.query('checkpoint') // writes the slot to its file
    await untilReplayed(primary)
    await standby.stop('fast')
    execFileSync('cp', ['-a', join(primary.folder, 'pg_replslot', SLOT), join(standby.folder, 'pg_replslot', SLOT)]) // with their owner

    for (let id = 101; id <= 150; id++) await source.query('insert into row values ($1)', [id]) // the standby never has these
    await tally.drain(150)
    await primary.kill()
    await standby.start()
    proxy.target = { host: '127.0.0.1', port: standby.port }
    await untilWaitingFor(service, 'SOURCE_IN_RECOVERY') // its address may lead there before the promotion
    await standby.promote()

    await using promoted = await connectTo(standby, source.name)
    for (let id = 151; id <= 300; id++) await promoted.query('insert into row values ($1)', [id])
    await service.untilReady()
    await tally.drain(300)
    tally.assertComplete(1, 300)
  })
}

test('a state database that is read-only for a while, as after a switchover, stops nothing for good', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await using tally = new Tally({ service, sink: 'rows', rows: 300 })
  const draining = tally.drain(300)
  const insert = async (from: number, to: number) => {
    for (let id = from; id <= to; id++) await source.query('insert into row values ($1)', [id])
  }
  await insert(1, 100)
  const makeWritable = await state.makeReadOnly()
  await Promise.all([insert(101, 200), untilWaitingFor(service, 'STATE_UNAVAILABLE')])
  await makeWritable()
  await insert(201, 300)
  await draining
  tally.assertComplete(1, 300)
  await service.untilReady()
})

async function untilReplayed(primary: TestServer): Promise<void> {
  await using client = await connectTo(primary, 'postgres')
  await until('the standby follows', async () => {
    const { rows } = await client.query<{ done: boolean }>(
      'select bool_and(replay_lsn >= pg_current_wal_flush_lsn()) as done from pg_stat_replication where application_name = $1',
      ['walreceiver'],
    )
    return rows[0]?.done
  })
}

async function untilWaitingFor(service: Service, code: string): Promise<void> {
  let last: unknown
  await until(
    () => `it waits for ${code}: ${JSON.stringify(last)}`,
    async () => {
      const { waiting = [] } = (await service.get('/health/ready')).body as { waiting?: { state: string; code: string | null }[] }
      last = waiting[0]
      return waiting[0]?.code === code && waiting[0].state === 'waiting'
    },
    { service },
  )
}
