/** Every way to ask for TLS, of both kinds of connection, against servers that offer it, don't, or are somebody else. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Client } from 'pg'
import { EngineError } from '../../../engine/errors.ts'
import { clientConfig, type Connection } from '../../../engine/postgres/client-config.ts'
import { provision } from '../../../engine/wal/connection/provision.ts'
import { withTlsChosen } from '../../../engine/postgres/tls-choice.ts'
import { openStore } from '../../../engine/state/store.ts'
import { NetProxy } from '../../faults/net-proxy.ts'
import { reaches, SourceFixture } from '../wal/source-fixture.ts'
import { createDatabase, type TestServer } from '../../services/postgres.ts'
import { authority, startTlsPostgres } from '../../services/tls-postgres.ts'

let server: TestServer
let elsewhere: TestServer
const [ca, otherCa] = await Promise.all([authority('ca'), authority('other-ca')])
before(async () => {
  ;[server, elsewhere] = await Promise.all([startTlsPostgres('server'), startTlsPostgres('elsewhere')])
})
after(() => Promise.all([server[Symbol.asyncDispose](), elsewhere[Symbol.asyncDispose]()]))

type Ssl = Connection['ssl']
const to = (at: TestServer, ssl: Ssl, caCert?: string, hostname = '127.0.0.1'): Connection => ({
  ...at.connection('postgres'),
  hostname,
  ssl,
  ...(caCert === undefined ? {} : { caCert }),
})

/** @returns whether the session is encrypted, or the code of the refusal with its message */
async function connecting(connection: Connection): Promise<boolean | EngineError> {
  const client = new Client(clientConfig(connection, 'test'))
  client.on('error', () => undefined)
  try {
    await client.connect()
    const { rows } = await client.query<{ ssl: boolean }>('select ssl from pg_stat_ssl where pid = pg_backend_pid()')
    return rows[0]?.ssl ?? false
  } finally {
    await client.end()
  }
}

const refusal = async (work: Promise<unknown>): Promise<EngineError> => {
  const error: unknown = await work.then(
    () => assert.fail('it was not refused'),
    (reason: unknown) => reason,
  )
  assert.ok(error instanceof EngineError, String(error))
  assert.equal(error.code, 'TLS_REFUSED', error.message)
  return error
}

/** Both kinds: what a configuration file names, and the state database. */
async function refusedEverywhere(connection: Connection, message: RegExp): Promise<void> {
  const wanted = { slot: { name: 's', create: false }, publication: { name: 'p', create: false } }
  assert.match((await refusal(provision(connection, wanted))).message, message)
  assert.match((await refusal(openStore(connection, 1, () => undefined))).message, message)
}

test('every mode that is met connects, encrypted unless it says disable', async () => {
  for (const ssl of [false, 'disable'] as const) assert.equal(await connecting(to(server, ssl)), false, `ssl: ${ssl}`)
  for (const ssl of [true, 'require'] as const) {
    assert.equal(await connecting(to(server, ssl)), true, `ssl: ${ssl}`)
    assert.equal(await connecting(to(server, ssl, ca)), true, `ssl: ${ssl}, ca_cert`)
    assert.equal(await connecting(to(elsewhere, ssl)), true, `ssl: ${ssl} checks nothing`)
  }
  assert.equal(await connecting(to(server, 'verify-ca', ca)), true)
  assert.equal(await connecting(to(elsewhere, 'verify-ca', ca)), true, 'verify-ca looks at no name')
  assert.equal(await connecting(to(server, 'verify-full', ca)), true, 'by address')
  assert.equal(await connecting(to(server, 'verify-full', ca, 'localhost')), true, 'by name')
})

test('the state database is reached over TLS', async () => {
  await using db = await createDatabase(undefined, { server: server.url })
  await using store = await openStore({ ...to(server, 'verify-full', ca), database: db.name }, 1, assert.fail)
  assert.deepEqual((await store.query('select ssl from pg_stat_ssl where pid = pg_backend_pid()')).rows, [{ ssl: true }])
})

test('a certificate of another authority is refused by each mode that has one to check with, with the remedy', async () => {
  const untrusted = /not signed by an authority that is known here.*ca_cert/
  for (const ssl of [true, 'require', 'verify-ca', 'verify-full'] as const) await refusedEverywhere(to(server, ssl, otherCa), untrusted)
  for (const ssl of ['verify-ca', 'verify-full'] as const) await refusedEverywhere(to(server, ssl), untrusted)
})

test('a certificate for another host is refused by verify-full, with the names it is for', async () => {
  await refusedEverywhere(to(elsewhere, 'verify-full', ca), /not for 127\.0\.0\.1.*elsewhere\.example.*verify-ca/)
  await refusedEverywhere(to(elsewhere, 'verify-full', ca, 'localhost'), /not for localhost.*elsewhere\.example/)
})

test('a server that offers no TLS is told from one that is away', async () => {
  await using plain = await createDatabase()
  for (const ssl of [true, 'require', 'verify-ca', 'verify-full'] as const)
    await refusedEverywhere({ ...plain.connection, ssl }, /does not offer TLS.*ssl: disable/)
})

test('where it is left open the server is asked once: TLS if it offers that, and none is taken away later', async () => {
  await using plain = await createDatabase()
  const encrypted = await withTlsChosen(to(server, 'prefer'))
  assert.deepEqual([encrypted.withoutTls, await connecting(encrypted)], [undefined, true])
  const open = await withTlsChosen({ ...plain.connection, ssl: 'prefer' })
  assert.deepEqual([open.withoutTls, await connecting(open)], [true, false])
  assert.equal((await withTlsChosen({ ...to(server, 'prefer'), withoutTls: true })).withoutTls, undefined, 'it offers TLS by now')
  const away = { ...to(server, 'prefer'), port: 1 }
  assert.equal(await withTlsChosen(away), away)
  await refusedEverywhere({ ...encrypted, ...hostOf(plain.connection) }, /does not offer TLS/)
  const chosen = to(server, 'require')
  assert.equal(await withTlsChosen(chosen), chosen)
})
const hostOf = ({ hostname, port }: Connection) => ({ hostname, port })

test('the stream comes over TLS, rows greater than a TLS record too, and pausing holds it', async () => {
  await using it = await SourceFixture.create({ ddl: 'create table item (id int primary key, name text)', server: server.url })
  const connection = { ...to(server, 'verify-full', ca), database: it.db.name }
  const actor = it.start({}, { database: it.database(connection) })
  await reaches(actor, 'streaming')
  const encrypted = await it.db.query(
    `select distinct s.ssl from pg_stat_ssl s join pg_stat_activity a using (pid) where a.application_name like 'tailrace %' and a.datname = $1`,
    [it.db.name],
  )
  assert.deepEqual(encrypted, [{ ssl: true }])
  const letGo = actor.gate.hold('the test')
  await it.db.query(
    `insert into item select i, repeat(md5(i::text), case when i % 50 = 0 then 10000 else 10 end) from generate_series(1, 1000) i`,
  )
  letGo()
  const seen = await it.until((s) => s.length >= 1000)
  const expected = await it.db.query<{ id: number; name: string }>('select id, name from item order by id')
  assert.deepEqual(
    seen.map((m) => m.json.record),
    expected,
  )
})

test('a source that can not trust its server says so with the remedy, and streams once the right one answers', async () => {
  await using it = await SourceFixture.create({ ddl: 'create table item (id int primary key)', server: server.url })
  await using proxy = await NetProxy.start({ host: '127.0.0.1', port: elsewhere.port })
  const connection = { ...to(server, 'verify-full', ca), port: proxy.port, database: it.db.name }
  const actor = it.start({}, { database: it.database(connection) })
  await reaches(actor, 'waiting')
  assert.equal(actor.lastError?.code, 'TLS_REFUSED')
  assert.match(actor.lastError.message, /verify-ca/)
  proxy.target = { host: '127.0.0.1', port: server.port }
  await reaches(actor, 'streaming')
})
