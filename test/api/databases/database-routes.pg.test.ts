/** Databases over the API of the real service, whose source begins and ends with what is said of them. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Service, TOKEN } from '../../faults/service.ts'
import { freePort } from '../../services/free-port.ts'
import { createDatabase, createState, startPostgres, type TestDatabase } from '../../services/postgres.ts'
import { pooler } from '../../services/pooler.ts'
import { gather, until } from '../../waiting.ts'
import { ERRORS } from '../../../engine/errors.ts'

const DATABASES = '/api/postgres_databases'

const started = new AsyncDisposableStack()
let first: TestDatabase
let service: Service

before(async () => {
  first = started.use(await createDatabase('create table goods (id int primary key)'))
  const state = started.use(await createState())
  service = started.use(await Service.prepare({ source: first.connection, stateUrl: state.url, sinks: [], slot: `s_${first.name}` }))
  await service.startReady()
})
after(() => started.disposeAsync())

type Shown = Readonly<{
  id: string
  name: string
  hostname: string
  port: number
  database: string
  username: string
  password: string
  ssl: boolean
  health: unknown
  replication_slots: readonly Readonly<Record<string, unknown>>[]
}>
type Refused = Readonly<{ summary: string; code: string; errors?: object; validation_errors?: Readonly<Record<string, unknown>> }>

const url = (name = '') => `${DATABASES}${name && '/'}${name}`
const create = async (body: object) => {
  const { status, body: answer } = await service.post(DATABASES, body)
  return { status, ...(answer as Shown & Refused) }
}
const patch = async (name: string, body: object) => {
  const { status, body: answer } = await service.patch(url(name), body)
  return { status, ...(answer as Shown & Refused) }
}
const get = async (name: string) => (await service.get(url(name))).body as Shown
/** A database without what changes by itself. */
const settings = <T extends Shown>({ health, replication_slots: slots, ...shown }: T) => {
  const states = slots.map(({ state }) => state)
  assert.ok(health && !states.includes(undefined))
  const names = slots.map((slot) => Object.fromEntries(Object.entries(slot).filter(([field]) => field !== 'state')))
  return { ...shown, replication_slots: names }
}

/** The body that creates a database. */
const bodyOf = (db: TestDatabase, name: string, slot: object = { create_if_not_exists: true }) => {
  const { hostname, port, database, username, password } = db.connection
  const names = { slot_name: `s_${db.name}`, publication_name: `p_${db.name}` }
  return { name, hostname, port, database, username, password, ssl: false, replication_slots: [{ ...names, ...slot }] }
}
const received = async (sink: string, enough: number) => {
  const next = async () => {
    const { body } = await service.post(`/api/http_pull_consumers/${sink}/receive`, { batch_size: 100, wait_for: 30_000 })
    return (body as { data: { record: { id: number }; metadata: { database: { name: string; annotations: object } } }[] }).data
  }
  return gather(`messages of ${sink}`, next, enough, { service })
}
const source = async (name: string) => {
  const { body } = await service.get('/info')
  const { actors } = (body as { nodes: { actors: Record<string, unknown>[] }[] }).nodes[0] ?? { actors: [] }
  return actors.find((actor) => actor['kind'] === 'source' && actor['name'] === name)
}

test('a database is created, streams at once, shows its password only in part, and is deleted when no sink uses it', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  const made = await create({ ...bodyOf(db, 'shop'), annotations: { team: 'search' } })
  assert.equal(made.status, 201, made.summary)
  const { status: _, id, replication_slots: [slot] = [], ...shown } = settings(made)
  const { hostname, port, database, username } = db.connection
  const secret = db.connection.password
  assert.deepEqual(shown, {
    ...{ name: 'shop', hostname, port, database, username, password: shown.password, ssl: false, ipv6: false, use_local_tunnel: false },
    ...{ pool_size: 10, queue_interval: 1000, queue_target: 50, annotations: { team: 'search' } },
  })
  assert.match(shown.password, /\*/)
  assert.deepEqual({ ...slot, id: '' }, { id: '', publication_name: `p_${db.name}`, slot_name: `s_${db.name}`, status: 'active' })
  for (const path of [url('shop'), url(id)])
    assert.deepEqual(settings((await service.get(path)).body as Shown), { ...shown, id, replication_slots: [slot] })
  const whole = (await service.get(`${url()}?show_sensitive=true`)).body as { data: Shown[] }
  assert.equal(whole.data.find(({ name }) => name === 'shop')?.password, secret)

  const sink = await service.post('/api/sinks', { name: 'goods', database: 'shop', destination: { type: 'sequin_stream' } })
  assert.equal(sink.status, 200)
  await db.query('insert into goods values (1)')
  const [message] = await received('goods', 1)
  assert.deepEqual(message?.metadata.database.annotations, { team: 'search' })

  const used = await service.delete(url('shop'))
  const said = 'the database "shop" is in use by the sink "goods"'
  assert.deepEqual(used, { status: 422, body: { success: false, summary: said, error: said, code: 'RESOURCE_IN_USE' } })
  await service.delete('/api/sinks/goods')
  assert.deepEqual(await service.delete(url('shop')), { status: 200, body: { success: true, id } })
  const gone = await service.get(url('shop'))
  const words = 'There is no database "shop".'
  assert.deepEqual(gone, {
    status: 404,
    body: { summary: words, code: 'NOT_FOUND', remedy: ERRORS.NOT_FOUND.remedy, errors: { detail: words } },
  })
  await until('nobody reads the slot', async () => {
    const rows = await db.query('select active from pg_replication_slots where slot_name = $1', [`s_${db.name}`])
    return rows.length === 1 && rows[0]?.['active'] === false
  })
})

test('an edit that does not concern the slot restarts nothing, and what was shown may be sent back', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  await create(bodyOf(db, 'calm'))
  await service.post('/api/sinks', { name: 'calm', database: 'calm', destination: { type: 'sequin_stream' } })
  const streaming = await until('it streams', async () => {
    const actor = await source('calm')
    return actor?.['state'] === 'streaming' ? actor : undefined
  })
  const shown = await get('calm')
  const { body } = await service.request('PUT', url('calm'), shown)
  assert.deepEqual(settings(body as Shown), settings(shown))
  const changes = { name: 'calmer', pool_size: 3, annotations: { a: 1 }, queue_interval: 2000, ipv6: true }
  assert.deepEqual(settings(await patch('calm', changes)), { status: 200, ...settings(shown), ...changes })
  assert.equal((await source('calmer'))?.['since'], streaming['since'])
  await db.query('insert into goods values (1)')
  const [message] = await received('calm', 1)
  assert.deepEqual([message?.metadata.database.name, message?.metadata.database.annotations], ['calmer', { a: 1 }])
  assert.equal(((await service.get('/api/sinks/calm')).body as { database: string }).database, 'calmer')
  assert.equal(((await service.get(`${url('calmer')}?show_sensitive=true`)).body as Shown).password, db.connection.password)
  assert.equal((await service.get(url('calm'))).status, 404)
})

test('a slot is switched off and on again, and its database may get another slot', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  const made = await create(bodyOf(db, 'switched'))
  await service.post('/api/sinks', { name: 'switched', database: 'switched', destination: { type: 'sequin_stream' } })
  const [{ id = '' } = {}] = made.replication_slots
  const readBy = async (slot: string) =>
    (await db.query<{ active: boolean }>('select active from pg_replication_slots where slot_name = $1', [slot]))[0]?.active
  await until('it is read', () => readBy(`s_${db.name}`))
  const off = await patch('switched', { replication_slots: [{ id, status: 'disabled' }] })
  assert.equal(off.replication_slots[0]?.['status'], 'disabled')
  await until('nobody reads the slot', async () => (await readBy(`s_${db.name}`)) === false)
  const { yaml } = (await service.get('/api/config/export')).body as { yaml: string }
  assert.match(yaml, /status: disabled/)
  const { changes } = (await service.post('/api/config/plan', { yaml })).body as { changes: unknown[] }
  assert.deepEqual(changes, [])
  await db.query('insert into goods values (1)')
  await patch('switched', { replication_slots: [{ id, status: 'active' }] })
  assert.deepEqual(
    (await received('switched', 1)).map(({ record }) => record.id),
    [1],
  )

  const refused = await patch('switched', { replication_slots: [{ slot_name: 'other' }] })
  assert.deepEqual([refused.status, Object.keys(refused.validation_errors ?? {})], [422, ['replication_slots']])
  const missing = await patch('switched', { replication_slots: [{ id, slot_name: `t_${db.name}` }] })
  assert.deepEqual([missing.status, missing.code], [422, 'SLOT_MISSING'])
  const moved = await patch('switched', { replication_slots: [{ id, slot_name: `t_${db.name}`, create_if_not_exists: true }] })
  assert.deepEqual([moved.status, moved.replication_slots[0]?.['slot_name']], [200, `t_${db.name}`], moved.summary)
  await until('the other slot is read', () => readBy(`t_${db.name}`))
})

test('what can not be read is refused with the reason, and nothing is stored or left on its server', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  const role = `r_${db.name}`
  await db.query(`create role ${role} login password 'secret-of-role'`)
  await using stack = new AsyncDisposableStack()
  stack.defer(async () => void (await db.query(`drop role ${role}`)))
  await db.query(`select pg_create_physical_replication_slot($1)`, [`y_${db.name}`])
  const whole = bodyOf(db, 'unfit')
  const slot = (names: object) => ({ ...whole, replication_slots: [{ ...whole.replication_slots[0], ...names }] })
  const refusals: readonly (readonly [body: object, code: string, words: RegExp])[] = [
    [{ ...whole, port: await freePort() }, 'SOURCE_UNREACHABLE', /ECONNREFUSED.*nothing listens there/],
    [{ ...whole, hostname: 'nowhere.invalid' }, 'SOURCE_UNREACHABLE', /the host name is not known/],
    [{ ...whole, hostname: '169.254.169.254' }, 'EGRESS_REFUSED', /link-local/],
    [{ ...whole, hostname: 'aws-0-eu.pooler.supabase.com' }, 'SOURCE_POOLED', /direct connection/],
    [{ ...whole, password: 'wrong' }, 'SOURCE_REFUSED', /password authentication failed.*28P01/],
    [{ ...whole, database: 'nowhere' }, 'SOURCE_REFUSED', /does not exist.*3D000/],
    [{ ...whole, username: role, password: 'secret-of-role' }, 'SOURCE_REFUSED', /alter role .* replication;/],
    [slot({ create_if_not_exists: false }), 'PUBLICATION_MISSING', /Run: create publication/],
    [slot({ slot_name: `y_${db.name}` }), 'SLOT_WRONG_PLUGIN', /is physical/],
    [slot({ slot_name: `s_${first.name}` }), 'SLOT_WRONG_DATABASE', /belongs to database/],
  ]
  for (const [body, code, words] of refusals) {
    const refused = await create(body)
    assert.deepEqual([refused.status, refused.code], [422, code], refused.summary)
    assert.match(refused.summary, words)
  }
  assert.equal((await service.get(url('unfit'))).status, 404)
  assert.deepEqual(await db.query('select from pg_publication'), [], 'what was created for it is dropped again')
  await db.query(`create publication p_${db.name} for all tables`)
  const missing = await create(slot({ create_if_not_exists: false }))
  assert.deepEqual([missing.status, missing.code], [422, 'SLOT_MISSING'])
  await db.query(/Run[^:]*: (.*;)$/.exec(missing.summary)?.[1] ?? assert.fail(missing.summary))
  assert.equal((await create(slot({ create_if_not_exists: false }))).status, 201)
  await service.delete(url('unfit'))
  await db.query('select pg_drop_replication_slot($1)', [`y_${db.name}`])
})

test('a body is refused with a reason for each field', async () => {
  await using db = await createDatabase()
  const whole = bodyOf(db, 'wrong')
  const { hostname: _h, port: _p, database: _d, username: _u, password: _w, ...rest } = whole
  const link = `postgresql://u:p@h:1/d`
  const refusals: readonly (readonly [body: object, fields: readonly string[]])[] = [
    [{}, ['name', 'username', 'password', 'hostname', 'database', 'replication_slots']],
    [{ ...whole, colour: 'red' }, ['colour']],
    [{ ...whole, url: link }, ['hostname', 'port', 'database', 'username', 'password']],
    [{ ...rest, url: `${link}?sslmode=require` }, ['url']],
    [{ ...whole, use_local_tunnel: true }, ['use_local_tunnel']],
    [{ ...whole, name: 'two words' }, ['name']],
    [{ ...whole, replication_slots: [] }, ['replication_slots']],
    [{ ...whole, primary: { hostname: 'h' } }, ['primary']],
    [{ ...whole, name: 'source' }, ['name']],
    [{ ...whole, password: 'abc******d' }, ['password']],
  ]
  for (const [body, fields] of refusals) {
    const refused = await create(body)
    assert.deepEqual([refused.status, Object.keys(refused.validation_errors ?? {}).sort()], [422, fields.toSorted()], refused.summary)
  }
  assert.match((await create({ ...whole, colour: 'red' })).summary, /colour is not a known field/)
  const shared = await create({ ...whole, ...first.connection, caCert: undefined, replication_slots: [{ slot_name: `s_${first.name}`, publication_name: `s_${first.name}_pub` }] }) // prettier-ignore
  assert.equal(shared.status, 422, 'a slot has one reader')
  const other = await fetch(`${service.origin}${url('source')}`, { headers: { authorization: `Bearer another-${TOKEN}` } })
  assert.equal(other.status, 401)
})

test('a url stands for the parts, and a connection may be changed by parts of it', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  const { hostname, port, database, username, password } = db.connection
  const { replication_slots } = bodyOf(db, 'linked')
  const link = `postgresql://${username}:${encodeURIComponent(password)}@${hostname}:${port}/${database}`
  const made = await create({ name: 'linked', url: link, replication_slots })
  assert.deepEqual([made.status, made.hostname, made.port, made.database, made.ssl], [201, hostname, port, database, false])
  const again = await patch('linked', { hostname: 'localhost' })
  assert.deepEqual([again.status, again.hostname, again.username], [200, 'localhost', username], again.summary)
  const refused = await patch('linked', { port: await freePort() })
  assert.deepEqual([refused.status, refused.code], [422, 'SOURCE_UNREACHABLE'])
  assert.equal((await get('linked')).port, port)
  assert.deepEqual(await service.post(url('linked/test_connection'), {}), { status: 200, body: { success: true } })
  await db.query(`alter role ${username} with password '${password}'`)
  assert.match(service.log(), /ssl is not set and the server offers no TLS/)
  assert.match(JSON.stringify((await get('linked')).health), /"code":"without_tls"/)
})

test('a connection is tested, with the reason and its code', async () => {
  await using server = await startPostgres()
  await using db = await createDatabase('', { server: server.url })
  await create(bodyOf(db, 'tested'))
  const tested = async () => service.post(url('tested/test_connection'), {})
  assert.deepEqual(await tested(), { status: 200, body: { success: true } }, 'its own source may read the slot')
  await db.query(`drop publication p_${db.name}`)
  const { status, body } = await tested()
  const { success, code, reason } = body as { success: boolean; code: string; reason: string }
  assert.deepEqual([status, success, code], [422, false, 'PUBLICATION_MISSING'])
  assert.match(reason, /Run: create publication/)
  assert.deepEqual(await service.post(url('tested/refresh_tables'), {}), { status: 200, body: { success: true } })
  await server.stop()
  assert.equal(((await tested()).body as { code: string }).code, 'SOURCE_UNREACHABLE')
  const refresh = await service.post(url('tested/refresh_tables'), {})
  assert.deepEqual([refresh.status, (refresh.body as { success: boolean }).success], [422, false])
  const tables = await service.get(url('tested/tables'))
  assert.deepEqual([tables.status, (tables.body as Refused).code], [422, 'SOURCE_UNREACHABLE'])
})

test('tables are listed with what decides how their changes come', async () => {
  await using db = await createDatabase(`create table goods (id int primary key, name text);
    create table wide (a int, b int, c text, primary key (a, b)); alter table wide replica identity full;
    create table keyless (v int);
    create unlogged table volatile (id int primary key);
    create schema other; create table other.parted (id int, y int, primary key (id, y)) partition by range (y);
    create table other.parted_1 partition of other.parted for values from (0) to (10);
    create table secured (id int primary key); alter table secured enable row level security`)
  await create({ ...bodyOf(db, 'tabled'), replication_slots: [{ ...bodyOf(db, 'x').replication_slots[0], init_sql: `create publication p_${db.name} for table goods, wide, other.parted with (publish_via_partition_root = true)` }] }) // prettier-ignore
  const { status, body } = await service.get(url('tabled/tables'))
  assert.equal(status, 200)
  const tables = (body as { data: Record<string, unknown>[] }).data
  const usual = { partitioned: false, partition_root: null, published: false, published_as: null, primary_key: ['id'], replica_identity: 'default', replica_identity_columns: ['id'], row_level_security: false, unlogged: false, may_select: true } // prettier-ignore
  assert.deepEqual(tables, [
    { schema: 'other', name: 'parted', ...usual, partitioned: true, published: true, primary_key: ['id', 'y'], replica_identity_columns: ['id', 'y'] }, // prettier-ignore
    { schema: 'other', name: 'parted_1', ...usual, partition_root: 'other.parted', published_as: 'other.parted', primary_key: ['id', 'y'], replica_identity_columns: ['id', 'y'] }, // prettier-ignore
    { schema: 'public', name: 'goods', ...usual, published: true },
    { schema: 'public', name: 'keyless', ...usual, primary_key: [], replica_identity_columns: [] },
    { schema: 'public', name: 'secured', ...usual },
    { schema: 'public', name: 'volatile', ...usual, unlogged: true },
    { schema: 'public', name: 'wide', ...usual, published: true, primary_key: ['a', 'b'], replica_identity: 'full', replica_identity_columns: ['a', 'b', 'c'] }, // prettier-ignore
  ])
})

test('a pooler that passes no replication on is told from a server, and one that does is taken', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  for (const [passesReplication, status] of [
    [false, 422],
    [true, 201],
  ] as const) {
    await using proxy = await pooler(db.connection, { passesReplication })
    const made = await create({ ...bodyOf(db, 'pooled'), port: proxy.port })
    assert.equal(made.status, status, made.summary)
    if (status === 422) assert.deepEqual([made.code, /is a connection pooler/.test(made.summary)], ['SOURCE_POOLED', true])
    else await service.delete(url('pooled'))
  }
})

test('slots are listed as a resource of their own, and there are no tunnels', async () => {
  const { id, replication_slots: [slot] = [] } = settings(await get('source'))
  const whole = { ...slot, postgres_database_id: id }
  const { data } = (await service.get('/api/postgres_replications')).body as { data: { id: string }[] }
  assert.deepEqual(
    data.find((one) => one.id === slot?.['id']),
    whole,
  )
  assert.deepEqual(await service.get(`/api/postgres_replications/${slot?.['id']}`), { status: 200, body: whole })
  assert.equal((await service.get('/api/postgres_replications/00000000-0000-4000-8000-000000000000')).status, 404)
  assert.deepEqual(await service.get('/api/local_tunnels'), { status: 200, body: { data: [] } })
})

test('what was made for a database whose creation was killed is dropped at the next start, and what is stored is not', async () => {
  await using db = await createDatabase('create table goods (id int primary key)')
  await using kept = await createDatabase('create table goods (id int primary key)')
  assert.equal((await create(bodyOf(kept, 'kept'))).status, 201)
  const made = (of: TestDatabase) =>
    of.query(
      `select 'slot' as kind from pg_replication_slots where slot_name = $1
       union all select 'publication' from pg_publication where pubname = $2`,
      [`s_${of.name}`, `p_${of.name}`],
    )
  await using stack = new AsyncDisposableStack()
  const open = stack.adopt(await db.connect(), (client) => client.end())
  await open.query('begin; insert into goods values (1)') // a slot waits for it
  const creating = create(bodyOf(db, 'killed')).catch((error: unknown) => error)
  await until('the slot is being made', async () => (await made(db)).length === 2)
  await service.kill()
  await open.query('commit') // the server goes on to make it
  assert.ok((await creating) instanceof Error)
  service.start()
  await until('slot and publication are gone', async () => (await made(db)).length === 0, { service })
  assert.equal((await made(kept)).length, 2)
})
