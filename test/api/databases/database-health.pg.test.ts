/** The health of databases and their slots over the API, and their figures against those that are measured from outside. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Service } from '../../faults/service.ts'
import { freePort } from '../../services/free-port.ts'
import { createDatabase, createState, startPostgres } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

type Check = Readonly<{ name: string; status: string; error?: Readonly<{ code: string; message: string }> }>
type State = Readonly<{
  wal_status: string
  confirmed_lag_bytes: number
  restart_lag_bytes: number
  safe_wal_size: number | null
  seconds_until_lost: number | null
  oldest_transaction: Readonly<{ xid: string; pid: number; seconds: number }> | null
  spilled: Readonly<{ transactions: number; bytes: number }>
}>
type Shown = Readonly<{
  health: Readonly<{ name: string; status: string; checks: readonly Check[] }>
  replication_slots: readonly Readonly<{ id: string; slot_name: string; state: State | null }>[]
}>

const PATH = '/api/postgres_databases/source'
const shown = async (service: Service) => (await service.get(PATH)).body as Shown
const refresh = (service: Service) => service.post(`${PATH}/refresh_tables`, {})

/** Settles with the check when it is as expected, which is looked for each time anew. */
async function check(service: Service, name: string, status: string, code?: string): Promise<Check> {
  let last: unknown
  return until(
    () => `${name} is ${status} ${code}: ${JSON.stringify(last)}`,
    async () => {
      const { checks } = (await shown(service)).health
      last = checks
      const found = checks.find((one) => one.name === name)
      if (found?.status === status && (code === undefined || found.error?.code === code)) return found
      await refresh(service)
      return undefined
    },
    { service },
  )
}

test('each check of a database says what is wrong and what to do, and is healthy when that was done', async () => {
  await using server = await startPostgres({ isAnother: true })
  await using db = await createDatabase(
    `create table goods (id int primary key); alter table goods replica identity full; create table keyless (v int);
     create table secret (id int primary key); alter table secret replica identity full; alter table secret enable row level security;
     create role reader login replication password 'x'; grant all on all tables in schema public to reader`,
    { server: server.url },
  )
  await using state = await createState()
  const slot = `s_${db.name}`
  await db.query(`create publication ${slot}_pub for table goods`)
  await db.query(`select pg_create_logical_replication_slot('${slot}', 'pgoutput')`)
  const source = { ...db.connection, username: 'reader', password: 'x' }
  await using service = await Service.prepare({ source, stateUrl: state.url, slot, sinks: [{ name: 'goods' }] })
  await service.startReady()
  await check(service, 'Replication slot configuration', 'healthy')
  await check(service, 'Replication slot messages', 'healthy')
  const { health, replication_slots: [shownSlot] = [] } = await shown(service)
  assert.deepEqual(
    [health.name, health.status, health.checks.map(({ name, status }) => [name, status])],
    [
      'Database health',
      'healthy',
      ['reachability', 'slot configuration', 'slot connection', 'slot messages'].map((what) => [
        `${what.startsWith('slot') ? 'Replication' : 'Database'} ${what}`,
        'healthy',
      ]),
    ],
  )
  assert.deepEqual([shownSlot?.state?.wal_status, shownSlot?.state?.safe_wal_size], ['reserved', null])
  const { data } = (await service.get('/api/postgres_databases')).body as { data: Shown[] }
  assert.equal(data[0]?.health.status, 'healthy')

  await db.query(`alter publication ${slot}_pub add table keyless, secret`)
  const refused = await check(service, 'Replication slot configuration', 'warning', 'no_replica_identity')
  assert.match(refused.error?.message ?? '', /row-level security hides rows of public\.secret/)
  await assert.rejects(db.query('insert into keyless values (1); update keyless set v = 2'), 'as the check says')
  const [, sql = ''] = /Run, or add a primary key: (alter table .*? replica identity full;)/.exec(refused.error?.message ?? '') ?? []
  await db.query(sql)
  const hidden = await check(service, 'Replication slot configuration', 'notice', 'row_level_security')
  assert.match(hidden.error?.message ?? '', /bypassrls/)
  assert.equal((await shown(service)).health.status, 'healthy', 'a notice does not degrade')
  await db.query('alter role reader bypassrls')
  await check(service, 'Replication slot configuration', 'healthy')

  await db.query(`drop publication ${slot}_pub`)
  const missing = await check(service, 'Replication slot configuration', 'error', 'PUBLICATION_MISSING')
  assert.match(missing.error?.message ?? '', /Run: create publication/)

  await db.leave()
  await server.stop()
  await check(service, 'Replication slot connection', 'warning', 'SOURCE_UNREACHABLE')
  const away = await check(service, 'Database reachability', 'error', 'SOURCE_UNREACHABLE')
  assert.match(away.error?.message ?? '', /Check its address/)
  const id = (await shown(service)).replication_slots[0]?.id
  await server.start()
  await service.patch(PATH, { replication_slots: [{ id, status: 'disabled' }] })
  assert.deepEqual((await shown(service)).health, {
    ...{ name: 'Database health', status: 'paused' },
    checks: [{ name: 'Replication slot connection', status: 'paused' }],
  })
})

const WAL_MB = 40

test('lag and what is left of a slot are those that are measured from outside, within a tenth, in answers and metrics', async () => {
  await using server = await startPostgres({
    isAnother: true,
    settings: { max_slot_wal_keep_size: '400MB', logical_decoding_work_mem: '64kB' },
  })
  await using db = await createDatabase(
    'create table goods (id int primary key, body text); alter table goods alter body set storage external',
    { server: server.url },
  )
  await using state = await createState()
  const slot = `s_${db.name}`
  const metricsPort = await freePort()
  await using service = await Service.prepare({
    ...{ source: db.connection, stateUrl: state.url, slot },
    sinks: [{ name: 'full', max_backlog_mb: 1 }],
    env: { TAILRACE_METRICS_PORT: String(metricsPort) },
  })
  await service.startReady()
  const session = await db.connect()
  await session.query('begin; create table held ()')
  const write = (from: number, mb: number) =>
    db.query(`insert into goods select i, repeat(md5(i::text), 320) from generate_series(${from}::int, ${from + mb * 100 - 1}) i`) // 10 kB each
  await write(1, 20)
  const pauseCause = async () => {
    const { nodes } = (await service.get('/info')).body as {
      nodes: { actors: { kind: string; details: { pauseCause: string | null } }[] }[]
    }
    return nodes[0]?.actors.find(({ kind }) => kind === 'source')?.details.pauseCause
  }
  await until('the source reads no more, for its sink is full', pauseCause, { service })
  await write(10_001, WAL_MB)

  let last: unknown
  const isNear = (one: number, other: number) => Math.abs(one - other) <= Math.max(one, other) / 10
  await until(
    () => `both measure the same: ${JSON.stringify(last)}`,
    async () => {
      const [outside] = await db.query<{ confirmed: number; retained: number; safe: number }>(
        `select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::float8 as confirmed,
           pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 as retained, safe_wal_size::float8 as safe
         from pg_replication_slots where slot_name = $1`,
        [slot],
      )
      const { state: inside } = (await shown(service)).replication_slots[0] ?? {}
      const metrics = await metricsOf(metricsPort, slot)
      last = { outside, inside, metrics }
      if (!outside || !inside) return false
      return (
        outside.confirmed > WAL_MB * 1024 * 1024 * 0.5 &&
        [inside.confirmed_lag_bytes, metrics['tailrace_slot_confirmed_lag_bytes']].every((one) => isNear(one ?? NaN, outside.confirmed)) &&
        [inside.restart_lag_bytes, metrics['sequin_replication_slot_size'], metrics['tailrace_slot_restart_lag_bytes']].every((one) =>
          isNear(one ?? NaN, outside.retained),
        ) && // prettier-ignore
        [inside.safe_wal_size, metrics['tailrace_slot_safe_wal_bytes']].every((one) => isNear(one ?? NaN, outside.safe))
      )
    },
    { service },
  )
  const { state: now } = (await shown(service)).replication_slots[0] ?? {}
  const [{ pid } = { pid: 0 }] = (await session.query<{ pid: number }>('select pg_backend_pid() as pid')).rows
  assert.equal(now?.oldest_transaction?.pid, pid, 'it names the transaction that was open first')
  assert.ok(now.seconds_until_lost !== null && now.seconds_until_lost > 0, 'what was written meanwhile gives a rate')
  await session.query('rollback')
})

/** The figures of a slot, by the name of the metric. */
async function metricsOf(port: number, slot: string): Promise<Readonly<Record<string, number>>> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
  return Object.fromEntries(
    text.split('\n').flatMap((line) => {
      const [, name = '', value] = line.includes(`slot_name="${slot}"`) ? (/^(\w+)\{.*\} (\S+)$/.exec(line) ?? []) : []
      return name === '' ? [] : [[name, Number(value)]]
    }),
  )
}
