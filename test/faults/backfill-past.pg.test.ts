/**
 * The past of a source changes while it is backfilled: pages that never happened for the server that leads now are read again, and where
 * changes are missing all of them are.
 */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { test } from 'node:test'
import {
  connectTo,
  createDatabase,
  createState,
  machinePostgres,
  startPostgres,
  type TestDatabase,
  type TestServer,
} from '../services/postgres.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { receiveAll } from './backfill-scenario.ts'
import type { Row } from './json.ts'
import { LogFolder, untilRefused } from './memories.ts'
import { differences, type Told } from './mirror.ts'
import { NetProxy } from './net-proxy.ts'
import { Service, SLOT } from './service.ts'
import { until } from '../waiting.ts'

const ROWS = 8_000
/** A thousand rows take half a second and more. */
const SLOW = 'public.slowly(id)'
const TABLE = `create function slowly(int) returns boolean language plpgsql stable
  as $$ begin if $1 % 20 = 0 then perform pg_sleep(0.01); end if; return true; end $$;
  create table item (id int primary key, name text); insert into item select i, 'n' || i from generate_series(1, ${ROWS}) i; analyze item`
const FIRST = 1_000
const MAX_TIMEOUT_MS = 10_000

/** A service with one sink, and what that has brought. */
class Copying implements AsyncDisposable {
  readonly service: Service
  readonly state: TestDatabase
  /** rows by id, as they came last */
  readonly rows = new Map<string, Row>()
  readonly #over = new AbortController()
  #receiving: Promise<unknown> | undefined

  constructor(service: Service, state: TestDatabase) {
    this.service = service
    this.state = state
  }

  static async start(source: Connection, resources: AsyncDisposableStack, over: object = {}): Promise<Copying> {
    const state = resources.use(await createState())
    const options = { source, stateUrl: state.url, sinks: [{ name: 'items', tables: ['public.item'], partitions: 1, ...over }] }
    const service = resources.use(await Service.prepare(options))
    const copying = resources.use(new Copying(service, state))
    await service.startReady()
    return copying
  }

  /** Begins a slow backfill, of which the first page is durable. */
  async backfill(): Promise<void> {
    await this.post({ where: SLOW })
    await this.reached(FIRST)
  }

  async post(asked: object): Promise<void> {
    const all = { table: 'public.item', max_timeout_ms: MAX_TIMEOUT_MS, ...asked }
    const { status, body } = await this.service.post('/api/sinks/items/backfills', all)
    assert.ok(status < 300, JSON.stringify(body))
  }

  receive(): void {
    const take = ({ action, key, record }: Told) => void (action === 'delete' ? this.rows.delete(key) : this.rows.set(key, record))
    this.#receiving = receiveAll({ name: 'items', take, clients: 1 }, this.service, this.#over.signal)
    this.#receiving.catch(() => {}) // told at the end
  }

  /** @returns the last row that was read and is durable */
  async read(): Promise<number> {
    const [found] = await this.state.query<{ state: string; row: number }>(
      `select state, (pages -> -1 -> 'after' ->> 0)::int as row from tailrace.backfill`,
    )
    assert.equal(found?.state, 'active', this.service.failure('its backfill has ended: nothing is tested').message)
    return found?.row ?? 0
  }

  reached(row: number): Promise<boolean> {
    return until(`row ${row} is read`, async () => (await this.read()) >= row, { service: this.service })
  }

  async isDone(): Promise<boolean> {
    return (await this.state.query(`select from tailrace.backfill where state = 'completed'`)).length > 0
  }

  /** Settles when the backfill is completed and the rows are those of the table. */
  async holds(query: (sql: string) => Promise<readonly Row[]>): Promise<void> {
    await until('the backfill is completed', () => this.isDone(), { service: this.service })
    const table = await query('select id, name from item')
    let found: string[] = []
    await until(
      () => `the rows are the table:\n${found.join('\n')}`,
      () => (found = differences(this.rows, table)).length === 0,
      { service: this.service },
    )
  }

  /** The source refuses to go on, and somebody accepts what it says. */
  async accept(code: string): Promise<void> {
    this.service.start()
    assert.equal(await untilRefused(this.service), code)
    const { status, body } = await this.service.post('/api/postgres_databases/source/accept_gap', {})
    assert.equal(status, 200, JSON.stringify(body))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort()
    await this.#receiving?.catch(() => {})
  }
}

for (const binaries of machinePostgres().slice(-1))
  test('after a failover that lost pages of a backfill, these are read again as the new primary has them', async () => {
    await using resources = new AsyncDisposableStack()
    const primary = resources.use(await startPostgres({ binaries, settings: { wal_keep_size: '256MB' } }))
    const source = resources.use(await createDatabase(TABLE, { server: primary.url }))
    const standby = resources.use(await primary.standby())
    const proxy = resources.use(await NetProxy.start({ host: '127.0.0.1', port: primary.port }))
    const copying = await Copying.start({ ...source.connection, port: proxy.port }, resources)
    await copying.backfill()
    copying.receive()
    await source.query('checkpoint') // writes the slot to its file
    await untilReplayed(primary)
    await standby.stop('fast')
    execFileSync('cp', ['-a', join(primary.folder, 'pg_replslot', SLOT), join(standby.folder, 'pg_replslot', SLOT)])
    const lost = (await copying.read()) + 1_500 // the standby never has what is written from here on
    await source.query(`update item set name = 'lost' where id between $1 and $1 + 10`, [lost])
    await copying.reached(lost + 11)
    await primary.kill()
    await standby.start()
    proxy.target = { host: '127.0.0.1', port: standby.port }
    await standby.promote()
    await using promoted = await connectTo(standby, source.name)
    await copying.holds(async (sql) => (await promoted.query<Row>(sql)).rows)
  })

test('a row that gets a key of a place that was read comes, wherever the service is killed and whatever its sink takes', async () => {
  await using resources = new AsyncDisposableStack()
  const source = resources.use(await createDatabase(TABLE))
  const copying = await Copying.start(source.connection, resources, { actions: ['insert', 'delete'] })
  const { service, state } = copying
  await copying.backfill()
  const [backfill] = await state.query<{ id: string }>('select id from tailrace.backfill')
  const enter = async (name: string) =>
    assert.equal((await service.patch(`/api/sinks/items/backfills/${backfill?.id}`, { state: name })).status, 200)
  const confirmed = async () => {
    const [now] = await source.query<{ lsn: string }>('select pg_current_wal_lsn()::text as lsn')
    const sql = 'select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn >= $2::pg_lsn'
    await until('all is confirmed', async () => (await source.query(sql, [SLOT, now?.lsn])).length > 0, { service })
  }
  await source.query('update item set id = -id where id = $1', [ROWS]) // while pages are read
  await confirmed()
  await service.kill()
  await source.query('update item set id = -id where id = $1', [ROWS - 1]) // while nothing runs
  await service.startReady()
  await enter('paused')
  await source.query('update item set id = -id where id = $1', [ROWS - 2]) // while it is paused
  await confirmed()
  await service.kill()
  await service.startReady()
  await enter('active')
  copying.receive()
  await copying.holds((sql) => source.query<Row>(sql))
})

test('where a user accepts that changes are missing, a backfill begins anew', async () => {
  await using resources = new AsyncDisposableStack()
  const source = resources.use(await createDatabase(TABLE))
  const copying = await Copying.start(source.connection, resources)
  await copying.backfill()
  const { service } = copying
  copying.receive()
  await service.kill()
  await source.query(`update item set name = 'missed' where id <= 10`)
  await until('the slot is free', () =>
    source.query(`select pg_replication_slot_advance($1, pg_current_wal_lsn())`, [SLOT]).then(
      () => true,
      () => false,
    ),
  )
  await copying.accept('SLOT_GAP')
  await copying.holds((sql) => source.query<Row>(sql))
})

test('where the log was lost with rows that were not delivered, a backfill begins anew', async () => {
  await using resources = new AsyncDisposableStack()
  const source = resources.use(await createDatabase(TABLE))
  const copying = await Copying.start(source.connection, resources)
  await copying.backfill()
  await copying.service.kill()
  await new LogFolder(copying.service).lose()
  await copying.accept('LOG_CHANGED')
  copying.receive()
  await copying.holds((sql) => source.query<Row>(sql))
})

/** Of what commits wait for, a role may see all or only its own. */
const STREAMERS = [
  { by: 'this process', isRestarted: false, role: undefined },
  { by: 'a process that is gone', isRestarted: true, role: undefined },
  { by: 'a process that is gone, as a role that sees no waits', isRestarted: true, role: 'plain' },
] as const

for (const { by, isRestarted, role } of STREAMERS)
  test(`a row whose commit waits for a standby is read when it is visible, though it was streamed before by ${by}`, async () => {
    await using resources = new AsyncDisposableStack()
    const server = resources.use(await startPostgres())
    const source = resources.use(await createDatabase(TABLE, { server: server.url }))
    if (role)
      await source.query(
        `create role ${role} login replication password '${role}'; grant create on database ${source.name} to ${role};
         create publication "${SLOT}_pub" for all tables; alter table item owner to ${role}`,
      )
    const connection = role ? { ...source.connection, username: role, password: role } : source.connection
    const copying = await Copying.start(connection, resources)
    const { service } = copying
    copying.receive()
    const writer = await source.connect() // waits: others have to go on
    const letGo = async () => {
      await source.query('alter system reset synchronous_standby_names')
      await source.query('select pg_reload_conf()')
    }
    resources.defer(letGo)
    await source.query(`alter system set synchronous_standby_names = 'nobody'`)
    await source.query('select pg_reload_conf()')
    const shown = async () =>
      (await writer.query<{ all: string }>(`select current_setting('synchronous_standby_names') as all`)).rows[0]?.all
    await until('commits wait for a standby', async () => (await shown()) === 'nobody')
    const open = await source.connect()
    if (!role) await open.query('begin; select pg_current_xact_id()') // is not waited for, where it is seen that it waits for nothing
    const writing = writer.query(`update item set name = 'new' where id = 1`)
    await until('the row is streamed', () => copying.rows.get('1')?.['name'] === 'new', { service })
    if (isRestarted) {
      const [end] = await source.query<{ lsn: string }>('select pg_current_wal_lsn()::text as lsn')
      const confirmed = () =>
        source.query('select from pg_replication_slots where slot_name = $1 and confirmed_flush_lsn >= $2', [SLOT, end?.lsn])
      await until('it is confirmed', async () => (await confirmed()).length > 0, { service })
      await service.kill()
      await service.startReady()
    }
    await copying.post({})
    const looks = new Set<number>()
    await until(
      'the backfill has looked often',
      async () => {
        const [session] = await source.query<{ at: Date }>(
          `select query_start as at from pg_stat_activity where application_name like 'tailrace backfill%' and query_start is not null`,
        )
        if (session) looks.add(session.at.getTime())
        return looks.size > 20 || (await copying.isDone())
      },
      { service },
    )
    assert.deepEqual(await source.query('select name from item where id = 1'), [{ name: 'n1' }], 'it is not visible')
    assert.equal(copying.rows.size, 1, 'nothing is read yet')
    await letGo()
    await writing
    await copying.holds((sql) => source.query<Row>(sql))
  })

async function untilReplayed(primary: TestServer): Promise<void> {
  await using client = await connectTo(primary, 'postgres')
  const { rows } = await client.query<{ end: string }>('select pg_current_wal_flush_lsn()::text as end')
  await until('the standby follows', async () => {
    const replayed = await client.query(
      `select from pg_stat_replication where application_name = 'walreceiver' and replay_lsn >= $1::pg_lsn`,
      [rows[0]?.end],
    )
    return replayed.rowCount === 1
  })
}
