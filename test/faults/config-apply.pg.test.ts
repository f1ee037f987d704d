/** The process is killed in the midst of applying a configuration: after it, what is stored is the former one or the new one, whole. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Client } from 'pg'
import { parse, stringify } from 'yaml'
import { createDatabase, createState } from '../services/postgres.ts'
import { pass, until } from '../waiting.ts'
import { Service } from './service.ts'
import { LONG } from './size.ts'

/** In the order in which an apply writes them. */
const TABLES = ['function', 'sink', 'generation'] as const

const [SINKS, MORE] = LONG ? [12, 15] : [4, 5]
/** Of the time that an apply takes: when the service is killed. */
const SHARES = LONG ? [0.5, 0.85, 1] : [0.85]

const file = (state: 'old' | 'new', sinks: number) => ({
  http_endpoints: [{ name: 'hook', url: `http://127.0.0.1:9/${state}`, encrypted_headers: { 'x-key': `a-secret-of-${state}` } }],
  functions: [{ name: 'key', type: 'path', path: state === 'old' ? 'record.id' : 'record' }],
  sinks: Array.from({ length: sinks }, (_, i) => ({
    name: `s${i}`,
    database: 'source',
    source: { include_tables: ['public.goods'] },
    destination: { type: 'sequin_stream' },
    transform: 'key',
    annotations: { state },
    ...(state === 'new' && { message_grouping: false }), // begins a generation
  })),
})

test('killed in the midst of an apply, the service has all of the file or nothing of it, and takes it then', async () => {
  await using source = await createDatabase('create table goods (id int primary key)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'first', tables: ['public.goods'] }],
  })
  await service.startReady()
  service.forgetConfigFile()
  const apply = (config: object) => service.post('/api/config/apply', { yaml: stringify(config) })
  const stored = async () => {
    const { body } = await service.get('/api/config/export?show-sensitive=true')
    const { functions, http_endpoints, sinks } = parse((body as { yaml: string }).yaml) as Record<string, Readonly<{ name: string }>[]>
    return { functions, http_endpoints, sinks: sinks?.filter(({ name }) => name !== 'first') }
  }
  assert.equal((await apply(file('old', SINKS))).status, 200)
  const old = await stored()

  for (const table of TABLES) {
    // the apply waits at this table, with what stands before it written and not committed
    await using holder = await session(state.connection)
    await holder.query(`begin; lock table tailrace.${table} in exclusive mode`)
    const applying = apply(file('new', MORE)).catch(() => 'gone')
    await until(`an apply that waits for ${table}`, async () => {
      const waiting = await state.query(
        `select from pg_locks l join pg_class c on c.oid = l.relation where not l.granted and c.relname = $1`,
        [table],
      )
      return waiting.length > 0
    })
    await service.kill()
    assert.equal(await applying, 'gone')
    await holder.query('rollback')
    await service.startReady()
    assert.deepEqual(await stored(), old, `killed at ${table}`)
  }

  // at any moment: the answer may be lost, and what is stored is one of the two
  const tookMs = await (async () => {
    const began = performance.now()
    assert.equal((await apply(file('new', MORE))).status, 200)
    return performance.now() - began
  })()
  const made = await stored()
  assert.equal(made.sinks?.length, MORE)
  const drop = async () => {
    for (let i = SINKS; i < MORE; i++) assert.equal((await service.delete(`/api/sinks/s${i}`)).status, 200)
    assert.equal((await apply(file('old', SINKS))).status, 200)
  }
  for (const share of SHARES) {
    await drop()
    const applying = apply(file('new', MORE)).then(({ status }) => status, () => 0) // prettier-ignore
    await Promise.race([applying, pass(tookMs * share, 'an apply comes so far')])
    await service.kill()
    const status = await applying
    await service.startReady()
    const now = await stored()
    if (status === 200) assert.deepEqual(now, made, `answered, then killed`)
    else assert.ok([old, made].some((one) => isSame(one, now)), `killed after ${share} of it`) // prettier-ignore
    assert.equal((await apply(file('new', MORE))).status, 200)
    assert.deepEqual(await stored(), made)
  }
  await source.query('insert into goods values (1)')
  const { body } = await service.post(`/api/http_pull_consumers/s${MORE - 1}/receive`, { wait_for: 60_000 })
  assert.equal((body as { data: unknown[] }).data.length, 1)
})

const isSame = (a: object, b: object): boolean => {
  try {
    assert.deepEqual(a, b)
    return true
  } catch {
    return false
  }
}

async function session(connection: Readonly<Record<string, unknown>>) {
  const { hostname, username, caCert: _, ssl: _ssl, ...rest } = connection
  const client = new Client({ ...rest, host: String(hostname), user: String(username) })
  await client.connect()
  return { query: (sql: string) => client.query(sql), [Symbol.asyncDispose]: () => client.end() }
}
