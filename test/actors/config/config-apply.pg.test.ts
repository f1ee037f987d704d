import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { SinkFunctions } from '../../../actors/sink/sink-functions.ts'
import { applyConfig } from '../../../actors/config/config-apply.ts'
import { parseConfig } from '../../../actors/config/config-document.ts'
import { ResourceCache } from '../../../engine/state/resource-cache.ts'
import { ResourceStore } from '../../../engine/state/resource-store.ts'
import { Vault } from '../../../engine/state/secrets.ts'
import { openStore } from '../../../engine/state/store.ts'
import { allTokens } from '../../../engine/state/token-store.ts'
import { hashToken } from '../../../engine/state/tokens.ts'
import type { FunctionPool } from '../../../transforms/sandbox/pool.ts'
import { NetProxy } from '../../faults/net-proxy.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { STORED_DESTINATIONS } from '../../../sinks/destination-types.ts'

/** Builds nothing: a path or Elixir needs none. */
const refused = async () => assert.fail('nothing is to be built')
const NO_SANDBOX = { check: refused, test: refused, forget: () => undefined }

/** What every file beside the document holds. */
const NO_QUERY = 'select 1'

async function stage() {
  const stack = new AsyncDisposableStack()
  const source = stack.use(await createDatabase('create table goods (id int primary key)'))
  const state = stack.use(await createState())
  const store = stack.use(await openStore(state.connection, 3, () => {}))
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  const apply = (text: string, signal = new AbortController().signal) =>
    applyConfig(
      parseConfig(text, 'shop.yaml', {}, () => NO_QUERY),
      { store, resources, signal, pool: NO_SANDBOX },
    ).then(({ notices }) => notices)
  const load = async () => new ResourceCache(await resources.load(store.query))
  return { source, state, store, apply, load, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}

const config = ({ connection: c }: TestDatabase, slot: string, more = '') => `
account: { name: shop }
api_tokens: [{ name: main, token: first-token }]
databases:
  - name: shop
    hostname: ${c.hostname}
    port: ${c.port}
    database: ${c.database}
    username: ${c.username}
    password: ${JSON.stringify(c.password)}
    ssl: false
    slot: { name: ${slot}, create_if_not_exists: true }
    publication: { name: ${slot}, create_if_not_exists: true }
sinks:
  - { name: goods, database: shop, source: {}, destination: { type: sequin_stream }, annotations: { team: search } }
${more}`

const slotsOf = (db: TestDatabase) =>
  db.query<{ slot_name: string }>('select slot_name from pg_replication_slots where database = $1', [db.name])
const publicationsOf = (db: TestDatabase) => db.query('select pubname, pubviaroot from pg_publication')

test('a file makes publication and slot, and its resources are there after a restart', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  await s.apply(config(s.source, slot))
  assert.deepEqual(await slotsOf(s.source), [{ slot_name: slot }])
  assert.deepEqual(await publicationsOf(s.source), [{ pubname: slot, pubviaroot: true }])
  const cache = await s.load()
  const account = (await allTokens(s.store.query)).get(hashToken('first-token'))?.account
  assert.equal(account?.name, 'shop')
  const sink = cache.find('sink', account.id, 'goods')
  assert.deepEqual(sink?.annotations, { team: 'search' })
  assert.equal(cache.find('sink', account.id, sink.id.toUpperCase())?.name, 'goods')
  assert.equal(cache.database(sink.databaseId)?.connection.password, s.source.connection.password)
  const [stored] = await s.state.query<{ password: Buffer; hash: Buffer }>(
    'select password, hash from tailrace.source_database, tailrace.api_token',
  )
  assert.ok(!stored?.password.includes(s.source.connection.password), 'the password is encrypted')
  assert.ok(!stored?.hash.includes('first-token'), 'the token is hashed')
})

test('applying the same file again changes nothing, and an edited one updates by name', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  await s.apply(config(s.source, slot))
  const before = (await s.load()).sinks
  await s.apply(config(s.source, slot))
  assert.deepEqual((await s.load()).sinks, before)
  await s.apply(config(s.source, slot).replace('team: search', 'team: shop'))
  const [after] = (await s.load()).sinks
  assert.equal(after?.id, before[0]?.id)
  assert.deepEqual(after?.annotations, { team: 'shop' })
})

test('another slot or publication under a known database is refused: what waits under the former one would be left out', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  await s.apply(config(s.source, slot))
  const renamed = (what: string) => config(s.source, slot).replace(`${what}: { name: ${slot},`, `${what}: { name: ${slot}_2,`)
  for (const what of ['slot', 'publication'])
    await assert.rejects(s.apply(renamed(what)), { message: /can't be renamed by a file \(they are "/ })
  assert.deepEqual(await slotsOf(s.source), [{ slot_name: slot }])
  assert.deepEqual(await publicationsOf(s.source), [{ pubname: slot, pubviaroot: true }])
  const [database] = (await s.load()).databases
  assert.deepEqual([database?.slot.name, database?.slot.publication], [slot, slot])
})

test('when a part fails nothing of the file stays: no resource, no slot, no publication', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const broken = config(s.source, slot, '  - { name: other, database: elsewhere, source: {}, destination: { type: sequin_stream } }')
  await assert.rejects(s.apply(broken), {
    code: 'CONFIG_INVALID',
    message: /^shop\.yaml:16: sink "other": there is no database "elsewhere"$/,
  })
  const named = `${config(s.source, slot)}functions:\n  - { name: names, type: enrichment, file: names.sql }\n`
  await assert.rejects(s.apply(named), {
    code: 'CONFIG_INVALID',
    message: /^shop\.yaml:17:44: function "names": names\.sql: code must contain \$1/,
  })
  assert.deepEqual(await slotsOf(s.source), [])
  assert.deepEqual(await publicationsOf(s.source), [])
  assert.deepEqual((await s.load()).sinks, [])
  assert.deepEqual(await s.state.query('select * from tailrace.account'), [])
})

test('all that fails is told at once, in the order of the file', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const file = config(s.source, slot, '  - { name: other, database: elsewhere, source: {}, destination: { type: sequin_stream } }')
    .replace('source: {},', 'source: { include_tables: [goodz] },')
    .replace('sinks:', `  - { name: away, url: "postgresql://u:p@127.0.0.1:1/d", slot_name: a, publication_name: a }\nsinks:`)
  await assert.rejects(s.apply(file), (error: Error) => {
    const lines = error.message.split('\n')
    assert.match(lines[0] ?? '', /^shop\.yaml:14: database "away": the database d at 127\.0\.0\.1:1: connect ECONNREFUSED/)
    assert.match(lines[1] ?? '', /^shop\.yaml:16: sink "\w+": .*public\.goodz, which the source database does not have/)
    assert.match(lines[2] ?? '', /^shop\.yaml:17: sink "other": there is no database "elsewhere"$/)
    assert.equal(lines.length, 3)
    return true
  })
  assert.deepEqual([await slotsOf(s.source), await publicationsOf(s.source)], [[], []])
})

test('a slot or publication that may not be created is told with the SQL that makes it', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const neither = config(s.source, slot).replaceAll('create_if_not_exists: true', 'create_if_not_exists: false')
  await assert.rejects(s.apply(neither), {
    message: new RegExp(`shop.yaml:5: database "shop": database ".*" has no publication "${slot}". Run: create publication "${slot}"`),
  })
  await s.source.query(`create publication "${slot}" for table goods`)
  await assert.rejects(s.apply(neither), {
    message: /there is no replication slot .*Run, in database ".*": select pg_create_logical_replication_slot/,
  })
  await s.apply(config(s.source, slot))
  assert.deepEqual(await publicationsOf(s.source), [{ pubname: slot, pubviaroot: false }])
})

test('a sink that names what its source does not have is refused with its line; what has gone since is a notice', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const sink = (fields: string) => config(s.source, slot).replace('source: {}', fields)
  for (const [fields, reason] of [
    [
      'source: { include_tables: [public.goods, public.goodz] }',
      'source.include_tables names the table public.goodz, which the source database does',
    ],
    ['source: { exclude_tables: [goodz] }', 'source.exclude_tables names the table public.goodz, which the source database does'],
    ['source: { include_schemas: [pubic] }', 'source.include_schemas names the schema pubic, which the source database does'],
    ['source: {}, tables: [{ name: goods, group_column_names: [id, colour] }]', 'tables names the column colour, which public.goods does'],
  ] as const)
    await assert.rejects(s.apply(sink(fields)), {
      code: 'CONFIG_INVALID',
      message: new RegExp(`^shop\\.yaml:15: .*${reason.replaceAll('.', '\\.')} not have`),
    })
  assert.deepEqual([await slotsOf(s.source), (await s.load()).sinks], [[], []])
  const right = sink('source: { include_tables: [goods], exclude_schemas: [public] }, tables: [{ name: goods, group_column_names: [id] }]')
  assert.deepEqual(await s.apply(right), [])
  await s.source.query('alter table goods rename to wares')
  const notices = await s.apply(right)
  assert.match(notices[0] ?? '', /^shop\.yaml:15: the sink "goods" names the table public\.goods, which the source database does not have/)
  await assert.rejects(s.apply(right.replace('include_tables: [goods]', 'include_tables: [goods, more]')), /public\.more/)
})

test('a source is asked once for the names of all its sinks, and each that is missing is told at its sink', async () => {
  await using s = await stage()
  await using proxy = await NetProxy.start({ host: '127.0.0.1', port: s.source.connection.port })
  const through = { ...s.source, connection: { ...s.source.connection, port: proxy.port } }
  const sink = (name: string, table: string) =>
    `  - { name: ${name}, database: shop, source: { include_tables: [public.${table}] }, destination: { type: sequin_stream } }\n`
  const slot = `s_${s.source.name}`
  const sinks = Array.from({ length: 20 }, (_, i) => sink(`s${i}`, 'goods')).join('')
  await assert.rejects(s.apply(config(through, slot, sinks + sink('bad', 'typo') + sink('worse', 'missing'))), {
    message: /shop.yaml:\d+: .*public\.typo.*shop.yaml:\d+: .*public\.missing/s,
  })
  const asked = proxy.connections
  await s.apply(config(through, slot, sinks))
  assert.ok(proxy.connections - asked <= 3, `${proxy.connections - asked} sessions`)
})

test('a sink that keeps documents and groups by columns that Postgres does not tell of deleted rows is paused, until they are told', async () => {
  await using s = await stage()
  const destination = '{ type: elasticsearch, endpoint_url: "http://x", index_name: goods, auth_type: none }'
  await s.source.query('alter table goods add name text')
  const yaml = config(s.source, `s_${s.source.name}`).replace(
    'source: {}, destination: { type: sequin_stream }',
    `source: {}, tables: [{ name: goods, group_column_names: [name] }], destination: ${destination}`,
  )
  const told = /Remedy: alter table public\.goods replica identity full/
  const status = async () => (await s.load()).sinks[0]?.status
  const paused = async () => {
    const notices = await s.apply(yaml)
    assert.equal(notices.length, 1)
    assert.match(notices[0] ?? '', /^shop\.yaml:15: the sink "goods" is paused: it groups by the column name, /)
    assert.match(notices[0] ?? '', told)
    assert.equal(await status(), 'paused')
  }
  await paused()
  await paused()
  await s.apply(yaml.replace('[name]', '[id]'))
  assert.equal(await status(), 'active')
  await paused()
  await s.source.query('alter table goods replica identity full')
  assert.deepEqual(await s.apply(yaml), [])
  assert.equal(await status(), 'active')
  await s.source.query('alter table goods replica identity default')
  const [notice] = await s.apply(yaml)
  assert.match(notice ?? '', /the sink "goods" groups by the column name/)
  assert.equal(await status(), 'active', 'one that works goes on')
})

test('a server that can not be reached is told with its address', async () => {
  await using s = await stage()
  const unreachable = config(s.source, 'slot').replace(`port: ${s.source.connection.port}`, 'port: 1')
  await assert.rejects(s.apply(unreachable), {
    code: 'CONFIG_INVALID',
    message: /shop\.yaml:5: database "shop": the database .* at .*:1: connect ECONNREFUSED/,
  })
})

test('the wait for a server that is still starting ends when the start is called off', async () => {
  await using s = await stage()
  const file = config(s.source, 'slot').replace(`port: ${s.source.connection.port}`, 'port: 1')
  const waiting = file.replace('ssl: false', 'ssl: false\n    await_database: { timeout_ms: 300000, interval_ms: 200000 }')
  await assert.rejects(s.apply(waiting, AbortSignal.timeout(200)), { code: 'STOPPING' })
})

test('a known database whose server is down, or whose slot is gone, does not stop the start: its slot is never made anew', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const file = config(s.source, slot)
  await s.apply(file)
  await s.apply(file.replace(`port: ${s.source.connection.port}`, 'port: 1'))
  assert.equal((await s.load()).databases[0]?.connection.port, 1)
  await s.source.query('select pg_drop_replication_slot($1)', [slot])
  await s.apply(file)
  assert.deepEqual(await slotsOf(s.source), [])
})

test('a known database that refuses what it took before does not stop the others; what the file says anew has to work', async () => {
  await using s = await stage()
  await using other = await createDatabase()
  const [slot, role] = [`s_${s.source.name}`, `r_${s.source.name}`]
  await s.source.query(`create role ${role} superuser login password 'first'`)
  await using _ = { [Symbol.asyncDispose]: () => s.source.query(`drop owned by ${role}; drop role ${role}`).then(() => undefined) }
  const more = config(other, `s_${other.name}`)
    .match(/ {2}- name: shop[^]*(?=sinks:)/)?.[0]
    .replace('name: shop', 'name: other')
  const file = config({ ...s.source, connection: { ...s.source.connection, username: role, password: 'first' } }, slot)
  await s.apply(file)
  await s.source.query(`alter role ${role} password 'second'`)
  const [notice] = await s.apply(file.replace('sinks:', `${more}sinks:`))
  assert.match(
    notice ?? '',
    /^shop\.yaml:5: the database .*: password authentication failed .*; all else goes on without its source "shop"/,
  )
  assert.deepEqual(
    (await s.load()).databases.map(({ name }) => name),
    ['other', 'shop'],
  )
  await assert.rejects(s.apply(file.replace('"first"', '"third"')), { message: /^shop\.yaml:5: .*password authentication failed/ })
  assert.deepEqual(await s.apply(file.replace('"first"', '"second"')), [])
})

test('a state that a newer version has written is refused', async () => {
  await using s = await stage()
  await s.store.query(`insert into tailrace.migration (number, name) values (999, 'later')`)
  await assert.rejects(
    openStore(s.state.connection, 1, () => {}),
    { code: 'STATE_TOO_NEW' },
  )
})

test('a file with all secrets puts them in the place of those that were stored under another key', async () => {
  await using s = await stage()
  const endpoint = `http_endpoints: [{ name: hook, url: "http://127.0.0.1/in", encrypted_headers: { x-key: a-secret } }]`
  const text = config(s.source, `s_${s.source.name}`, endpoint)
  await s.apply(text)
  const [before] = (await s.load()).sinks
  const resources = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  await assert.rejects(resources.load(s.store.query), { code: 'SECRET_UNREADABLE' })
  const { signal } = new AbortController()
  await applyConfig(parseConfig(text, 'shop.yaml', {}), { store: s.store, resources, signal, pool: NO_SANDBOX })
  const { databases, endpoints, sinks } = await resources.load(s.store.query)
  assert.equal(databases[0]?.connection.password, s.source.connection.password)
  assert.deepEqual(endpoints[0]?.encryptedHeaders, { 'x-key': 'a-secret' })
  assert.deepEqual(sinks, [before])
  await s.source.query('select pg_drop_replication_slot($1)', [`s_${s.source.name}`])
  const yetAnother = new ResourceStore(new Vault(randomBytes(32)), { destinations: STORED_DESTINATIONS })
  const given = { store: s.store, resources: yetAnother, signal, pool: NO_SANDBOX }
  const { notices } = await applyConfig(parseConfig(text, 'shop.yaml', {}), given)
  assert.match(notices.join(), /all else goes on without its source "shop"/)
  assert.deepEqual(await slotsOf(s.source), [], 'a known database is known without its password, too')
})

test('a secret does not open with another key', () => {
  const secret = new Vault(randomBytes(32)).encrypt('hidden')
  assert.throws(() => new Vault(randomBytes(32)).decrypt(secret), { code: 'SECRET_UNREADABLE' })
})

test('a file with functions in Elixir is taken: whoever has one is paused, says why, and stays so until it is ported and resumed', async () => {
  await using s = await stage()
  const slot = `s_${s.source.name}`
  const base = config(s.source, slot).trimEnd()
  const old = '  - { name: old, database: shop, source: {}, destination: { type: sequin_stream }, filter: adults, transform: age }'
  const withElixir = `${base}
  - { name: ported, database: shop, source: {}, destination: { type: sequin_stream }, transform: key }
${old}
  - { name: aged, database: shop, source: {}, destination: { type: sequin_stream }, transform: age }
functions:
  - { name: key, type: path, path: record.id }
  - name: age
    type: transform
    code: |
      def transform(action, record, changes, metadata) do
        record["age"]
      end
  - name: adults
    type: filter
    code: |
      def filter(action, record, changes, metadata) do
        record["age"] >= 18
      end
`
  const notices = await s.apply(withElixir)
  const both = /functions "adults", "age" look like Elixir; .*docs\/functions\.md/
  const isHeld = new RegExp(`shop\\.yaml:\\d+: the sink "old" is paused: its ${both.source}`)
  assert.match(notices.join('\n'), isHeld)
  const { sinks, functions } = await s.load()
  assert.deepEqual(
    sinks.map(({ name, status }) => [name, status]),
    [
      ['aged', 'paused'],
      ['goods', 'active'],
      ['old', 'paused'],
      ['ported', 'active'],
    ],
  )
  const stages = new SinkFunctions({} as FunctionPool, () => functions)
  const checks = sinks.map((sink) => stages.check(sink))
  assert.deepEqual(
    checks.map((check) => check && [check.status, check.error?.code]),
    [['error', 'FUNCTION_INVALID'], undefined, ['error', 'FUNCTION_INVALID'], undefined],
  )
  assert.match(checks[2]?.error?.message ?? '', both)

  // a file that has the sink without its functions
  assert.match((await s.apply(`${base}\n${old}`)).join('\n'), isHeld)
  // files that port one function without its sinks, and take the other from a sink that is to stay paused
  const ported = `${base}\nfunctions:\n  - { name: age, type: path, path: record.age }\n`
  const stays = (sink: string) => `the sink "${sink}" stays paused, though what it was paused for is mended: tailrace sinks resume ${sink} (or status: active in the file) has it go on` // prettier-ignore
  assert.deepEqual(await s.apply(ported), [`shop.yaml: ${stays('aged')}`])
  assert.deepEqual(await s.apply(ported), [])
  const [told, ...more] = await s.apply(`${base}\n${old.replace('filter: adults', 'filter: none, status: paused')}`)
  assert.deepEqual([told?.replace(/^shop\.yaml:\d+: /, ''), more], [stays('old'), []])
  assert.deepEqual(await s.apply(`${base}\n${old.replace('filter: adults', 'filter: none')}`), [])
  assert.deepEqual(
    (await s.load()).sinks.map(({ name, status }) => [name, status]),
    [
      ['aged', 'paused'],
      ['goods', 'active'],
      ['old', 'active'],
      ['ported', 'active'],
    ],
  )
})
