/** `tailrace vault rotate`, as a user types it: against a service that runs, and killed in the midst. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { printOfKey, Vault } from '../../engine/state/secrets.ts'
import { Service } from '../faults/service.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { until } from '../waiting.ts'

const newKey = () => randomBytes(32)
const asText = (key: Buffer) => key.toString('base64')

function rotation(env: Readonly<Record<string, string>>) {
  const child = spawn(process.execPath, [COMMAND, 'vault', 'rotate'], { env: { ...process.env, ...env } })
  const ended = Promise.all([once(child, 'close') as Promise<[number | null]>, text(child.stdout), text(child.stderr)])
  return { child, ended: ended.then(([[code], out, err]) => ({ code, out, err })) }
}

async function stage(env: Readonly<Record<string, string>>) {
  await using stack = new AsyncDisposableStack()
  const source = stack.use(await createDatabase('create table goods (id int primary key)'))
  const state = stack.use(await createState())
  const endpoints = [{ name: 'hooks', url: 'http://127.0.0.1:9/', encrypted_headers: { 'x-key': 'a-header-secret' } }]
  const service = stack.use(
    await Service.prepare({ source: source.connection, stateUrl: state.url, endpoints, sinks: [{ name: 'goods' }], env }),
  )
  await service.startReady()
  const owned = stack.move()
  return { state, service, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

/** The secrets of the state database, opened by one key. */
async function opened(state: TestDatabase, key: Buffer): Promise<readonly string[]> {
  const rows = await state.query<{ secret: Buffer }>(
    'select password as secret from tailrace.source_database union all select encrypted_headers from tailrace.http_endpoint',
  )
  return rows.map(({ secret }) => new Vault(key).decrypt(secret))
}
const shownSecret = async (service: Service) => JSON.stringify((await service.get('/api/config/export?show-sensitive=true')).body)
const rename = (service: Service, secret: string) =>
  service.patch('/api/destinations/http_endpoints/hooks', { encrypted_headers: { 'x-key': secret } })

test('a key is changed while the service runs: both are accepted, what it stores from then on is by the new one, and that alone is needed later', async () => {
  const [old, next] = [newKey(), newKey()]
  await using s = await stage({ VAULT_KEY: asText(old), VAULT_KEY_OTHER: asText(next) })
  assert.equal((await opened(s.state, old)).length, 2)
  const env = { PG_URL: s.state.url, VAULT_KEY: asText(next), VAULT_KEY_OTHER: asText(old) }
  const { code, out, err } = await rotation(env).ended
  assert.deepEqual([code, err], [0, ''])
  assert.match(out, /^2 secrets are encrypted by the new key\. Start all processes/)
  assert.equal((await opened(s.state, next)).length, 2)
  assert.match(await shownSecret(s.service), /a-header-secret/)
  await rename(s.service, 'a-later-secret')
  assert.match(JSON.stringify(await opened(s.state, next)), /a-later-secret/)
  await s.service.stop()
  s.service.forgetConfigFile()
  s.service.setVariables({ VAULT_KEY: asText(next), VAULT_KEY_OTHER: '' })
  await s.service.startReady()
  assert.match(await shownSecret(s.service), /a-later-secret/)
})

test('the key of a data folder is changed while the service runs, and after a restart', async () => {
  await using s = await stage({})
  const env = { PG_URL: s.state.url, TAILRACE_DATA: s.service.dataFolder }
  const keyFile = async () => Buffer.from(await readFile(join(s.service.dataFolder, 'vault.key'), 'utf8'), 'base64')
  const before = await keyFile()
  assert.equal((await rotation(env).ended).code, 0)
  const after = await keyFile()
  assert.notDeepEqual(after, before)
  assert.equal((await opened(s.state, after)).length, 2)
  await rename(s.service, 'a-later-secret')
  assert.match(JSON.stringify(await opened(s.state, after)), /a-later-secret/)
  await s.service.stop()
  s.service.forgetConfigFile()
  await s.service.startReady()
  assert.match(await shownSecret(s.service), /a-later-secret/)
})

test('a rotation that is killed leaves all secrets by the old key or all by the new one, and the next one ends it', async () => {
  const [old, next] = [newKey(), newKey()]
  await using s = await stage({ VAULT_KEY: asText(old), VAULT_KEY_OTHER: asText(next) })
  const env = { PG_URL: s.state.url, VAULT_KEY: asText(next), VAULT_KEY_OTHER: asText(old) }
  await s.state.query(
    'create function tailrace.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(600); return new; end $$',
  )
  await s.state.query('create trigger slow before update on tailrace.http_endpoint for each row execute function tailrace.slow()')
  const killed = rotation(env)
  const sleeping = () =>
    s.state.query<{ pid: number }>(`select pid from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()`)
  await until('it is in the midst of it', async () => (await sleeping()).length === 1)
  killed.child.kill('SIGKILL')
  await killed.ended
  for (const { pid } of await sleeping()) await s.state.query('select pg_terminate_backend($1)', [pid])
  await s.state.query('drop trigger slow on tailrace.http_endpoint')
  assert.equal((await opened(s.state, old)).length, 2, 'nothing of it stays')
  assert.match(await shownSecret(s.service), /a-header-secret/)
  assert.equal((await rotation(env).ended).code, 0)
  assert.equal((await opened(s.state, next)).length, 2)
  const [row] = await s.state.query<{ print: string }>('select print from tailrace.vault_key')
  assert.equal(row?.print, printOfKey(next))
})

test('a rotation that lacks a key is refused, and so is one by keys that open nothing', async () => {
  const old = newKey()
  await using s = await stage({ VAULT_KEY: asText(old) })
  const env = { PG_URL: s.state.url, VAULT_KEY: asText(newKey()) }
  assert.match((await rotation(env).ended).err, /VAULT_KEY_OTHER is missing/)
  const wrong = await rotation({ ...env, VAULT_KEY_OTHER: asText(newKey()) }).ended
  assert.deepEqual([wrong.code, wrong.err.startsWith('SECRET_UNREADABLE')], [1, true])
  assert.equal((await opened(s.state, old)).length, 2)
})
