/** The demo's account has a role of its own on the embedded server: it can neither get at the service's user nor at the state. */
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { Client } from 'pg'
import { createDemoTables, DEMO, fillDemoTables, writeDemoChanges } from '../../cli/demo-database.ts'
import { ensureDatabase, ensureDemo } from '../../cli/demo-set-up.ts'
import { saveDemoAccess, type DemoAccess } from '../../cli/demo.ts'
import { embeddedBinaries } from '../../engine/postgres/binaries.ts'
import { clientConfig, type Connection } from '../../engine/postgres/client-config.ts'
import { provision } from '../../engine/wal/connection/provision.ts'
import { PostgresServer } from '../../engine/postgres/server.ts'
import { ResourceStore } from '../../engine/state/resource-store.ts'
import { Vault } from '../../engine/state/secrets.ts'
import { openStore, type Store } from '../../engine/state/store.ts'
import { STORED_DESTINATIONS } from '../../sinks/destination-types.ts'

const parts = new AsyncDisposableStack()
const resources = new ResourceStore(new Vault(Buffer.alloc(32, 7)), { destinations: STORED_DESTINATIONS })
let folder: string
let server: PostgresServer
let store: Store

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'tailrace-demo-'))
  parts.defer(() => rm(folder, { recursive: true, force: true }))
  server = new PostgresServer({ binaries: embeddedBinaries(), folder: join(folder, 'postgres'), settings: { fsync: 'off' } })
  await server.start()
  parts.defer(() => server.stop('immediate'))
  await ensureDatabase(server.connection('postgres'), 'tailrace')
  store = parts.use(await openStore(server.connection('tailrace'), 2, () => undefined))
})
after(() => parts.disposeAsync())

const session = async (connection: Connection, more: object = {}): Promise<Client & AsyncDisposable> => {
  const client = new Client({ ...clientConfig(connection, 'test'), ...more })
  client.on('error', () => undefined)
  await client.connect()
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}
const setUp = async (): Promise<DemoAccess> => {
  const { token, databaseUrl } = await ensureDemo({ server, store, resources, folder })
  const access = { token, databaseUrl, serviceUrl: '' }
  await saveDemoAccess(folder, access)
  return access
}
const connectionOfAccount = async (): Promise<Connection> => {
  const { databases } = await resources.load(store.query)
  return databases[0]?.connection ?? assert.fail('no database')
}

test('a demo that an older version gave to the superuser becomes its role’s, with its token, its rows and what its user made', async () => {
  const superuser = server.connection(DEMO.database)
  await ensureDatabase(server.connection('postgres'), DEMO.database)
  await using client = await session(superuser)
  await createDemoTables(client)
  await fillDemoTables(client)
  await client.query('create schema mine; create table mine.own (id bigserial primary key); create view seen as select * from product')
  const wanted = { slot: { name: DEMO.slot, create: true }, publication: { name: DEMO.publication, create: true } }
  await provision(superuser, wanted)
  const url = `postgresql://postgres:${superuser.password}@127.0.0.1:${superuser.port}/demo`
  await saveDemoAccess(folder, { token: 'of-old', databaseUrl: url, serviceUrl: '' })

  const first = await setUp()
  assert.equal(first.token, 'of-old')
  assert.match(first.databaseUrl, /^postgresql:\/\/demo:/)
  assert.deepEqual(await setUp(), first, 'the connection string stays')
  await using demo = await session(await connectionOfAccount())
  assert.ok((await writeDemoChanges(demo)) > 0)
  await demo.query(
    'insert into mine.own default values; drop view seen; drop schema mine cascade; alter table customer add column more text',
  )
})

test('the demo’s role runs no program, reads no file, and connects to no other database', async () => {
  await setUp()
  const connection = await connectionOfAccount()
  assert.equal(connection.username, DEMO.role)
  const copied = join(folder, 'copied')
  const initSql = `copy (select 1) to program 'id > ${copied}'; create publication p`
  const wanted = { slot: { name: 's', create: true }, publication: { name: 'p', create: true, initSql } }
  await assert.rejects(provision(connection, wanted), {
    code: 'SOURCE_REFUSED',
    message: /pg_execute_server_program|COPY to or from an external program/,
  })
  await assert.rejects(readFile(copied), { code: 'ENOENT' })
  await using demo = await session(connection)
  for (const sql of [
    `select pg_read_file('../password')`,
    `select pg_ls_dir('.')`,
    `copy (select 1) to '${copied}'`,
    `create table f (t text); copy f from '${join(folder, 'postgres', 'password')}'`,
    `select lo_import('${join(folder, 'postgres', 'password')}')`,
    'select rolpassword from pg_authid',
    'alter role demo superuser',
    `alter system set archive_command = 'true'`,
  ])
    await assert.rejects(demo.query(sql), { code: '42501' }, sql)
  for (const database of ['tailrace', 'postgres', 'template1'])
    await assert.rejects(session({ ...connection, database }), { code: '42501' }, database)
  await assert.rejects(session({ ...connection, database: 'tailrace' }, { replication: 'database' }), { code: '42501' })
})
