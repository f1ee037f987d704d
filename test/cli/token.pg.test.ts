/** `tailrace token`, as a user types it, against the real service. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { Service, TOKEN } from '../faults/service.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { saveToken } from '../../engine/state/token-store.ts'
import { openStore } from '../../engine/state/store.ts'
import { addUser } from '../../engine/state/users.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { printed, type Listed } from './command.ts'

type Made = Readonly<{ id: string; name: string; scopes: readonly string[]; expires_at: string; made_by: string }>

const started = new AsyncDisposableStack()
let service: Service
before(async () => {
  const source = started.use(await createDatabase('create table goods (id int primary key)'))
  const state = started.use(await createState())
  await addAccounts(state)
  service = started.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'goods' }] }))
  await service.startReady()
})
after(() => started.disposeAsync())

/** Beside that of the file: one with nothing but an expired token, and one that has a user. */
async function addAccounts(state: TestDatabase) {
  await using store = await openStore(state.connection, 1, () => undefined)
  const add = async (name: string) => {
    const { rows } = await store.query('insert into account (name) values ($1) returning id', [name])
    return { id: String(rows[0]?.['id']), name }
  }
  await saveToken(store.query, await add('closed'), { name: 'old', token: 'an-expired-token', expiresAt: new Date(0) })
  await addUser(store.query, await add('peopled'), { email: 'a@example.com', role: 'viewer' })
}

async function token(...args: readonly string[]) {
  const env = { ...process.env, TAILRACE_DATA: service.dataFolder, TAILRACE_TOKEN: TOKEN }
  const child = spawn(process.execPath, [COMMAND, 'token', ...args, '--url', service.origin], { env })
  const [[code], out, err] = await Promise.all([once(child, 'close') as Promise<[number]>, text(child.stdout), text(child.stderr)])
  return { code, out, err }
}
const status = async (path: string, given: string) =>
  (await fetch(`${service.origin}/api${path}`, { headers: { authorization: `Bearer ${given}` } })).status

test('a token is created with its text on the standard output alone, listed, and revoked', async () => {
  const made = await token('create', 'worker', '--scopes', 'receive', '--sinks', 'goods')
  assert.deepEqual([made.code, made.err], [0, 'The API token "worker" (receive of goods) is shown once:\n'])
  const given = made.out.trim()
  assert.match(given, /^tr_\S{32}$/)
  assert.equal(await status('/http_pull_consumers/goods/receive', given), 200)
  assert.equal(await status('/sinks', given), 403)
  const { out } = await token('ls')
  assert.match(out, /worker {2}receive of goods {2,}since \d{4}-\d\d-\d\d, used \d{4}-/)
  assert.ok(!out.includes(given))
  const revoked = await token('revoke', 'worker')
  assert.deepEqual([revoked.code, revoked.out], [0, 'The API token "worker" is revoked: it works no more.\n'])
  assert.equal(await status('/http_pull_consumers/goods/receive', given), 401)
})

test('with --json it prints what the API answers', async () => {
  const made = printed<Made>(await token('create', 'machine', '--scopes', 'read,manage', '--expires', '2090-01-01T00:00:00Z', '--json'))
  assert.deepEqual([made.name, made.scopes, made.expires_at], ['machine', ['read', 'manage'], '2090-01-01T00:00:00.000Z'])
  const { data } = printed<Listed<Made>>(await token('ls', '--json'))
  assert.ok(data.some((one) => one.id === made.id && one.made_by === 'api'))
  assert.deepEqual(printed(await token('revoke', made.id, '--json')), { success: true })
})

test('what is wrong is told: no name, an unknown token, a scope that is none', async () => {
  assert.equal((await token('create')).code, 2)
  assert.match((await token('revoke', 'nobody')).err, /There is no API token "nobody"/)
  const wrong = await token('create', 'x', '--scopes', 'everything')
  assert.deepEqual([wrong.code, /scopes/.test(wrong.err)], [1, true])
})

test('a start warns of accounts that have neither a valid token nor a user, and says what to do', () => {
  const told = service.log().match(/^.*neither an API token.*$/gm) ?? []
  assert.equal(told.length, 1)
  const { level, accounts, message } = JSON.parse(told[0] ?? '') as Readonly<Record<string, unknown>>
  assert.deepEqual([level, accounts], ['warn', ['closed']])
  assert.match(String(message), /api_tokens or users into the configuration file.*; or make the first admin: .*tailrace user setup-code/)
})
