import assert from 'node:assert/strict'
import { test } from 'node:test'
import { actAs, pruneAudit, record } from '../../engine/state/audit.ts'
import { serveEverything, TOKENS } from './served-everything.ts'

const token = TOKENS.admin
type Served = Awaited<ReturnType<typeof serveEverything>>
const logged = async (s: Served, query = '') => (await s.call('GET', `/api/audit_log${query}`, { token })).body
const WEBHOOK = { name: 'hooks', url: 'http://127.0.0.1:9/in', encrypted_headers: { 'x-key': 'a-long-header-secret' } }

test('each change of a resource goes on record with who made it, from where, and what differs; secrets are hidden', async () => {
  await using s = await serveEverything()
  const headers = { 'user-agent': 'a-program/1' }
  const call = async (method: string, path: string, body?: unknown) =>
    assert.equal((await s.call(method, `/api/destinations/http_endpoints${path}`, { token: TOKENS.manage, body, headers })).status, 200)
  await call('POST', '', WEBHOOK)
  await call('PATCH', '/hooks', { url: 'http://127.0.0.1:9/out' })
  await call('PATCH', '/hooks', { encrypted_headers: { 'x-key': 'another-header-secret' } })
  await call('PATCH', '/hooks', {}) // nothing differs
  await call('DELETE', '/hooks')
  const { data } = await logged(s)
  const [first] = data
  const { rows } = await s.store.query(`select id from api_token where name = 'manage'`)
  assert.deepEqual(first.actor, { kind: 'token', id: rows[0]?.['id'], name: 'manage', address: '127.0.0.1', client: 'a-program/1' })
  assert.ok(Math.abs(Date.now() - Date.parse(first.at)) < 60_000)
  const HIDDEN = { 'x-key': '********' }
  const whole = { name: 'hooks', url: 'http://127.0.0.1:9/in', encrypted_headers: HIDDEN }
  const gone = { ...whole, url: 'http://127.0.0.1:9/out' }
  const fields = (form: object, side: 'old' | 'new') =>
    Object.fromEntries(Object.entries(form).map(([name, value]) => [name, { old: null, new: null, [side]: value }]))
  assert.deepEqual(
    data.map(({ action, kind, name, changes }: Record<string, unknown>) => ({ action, kind, name, changes })),
    [
      { action: 'delete', kind: 'http_endpoint', name: 'hooks', changes: fields(gone, 'old') },
      { action: 'update', changes: { encrypted_headers: { old: HIDDEN, new: { 'x-key': '******** (another one)' } } } },
      { action: 'update', changes: { url: { old: 'http://127.0.0.1:9/in', new: 'http://127.0.0.1:9/out' } } },
      { action: 'create', changes: fields(whole, 'new') },
    ].map((entry) => ({ kind: 'http_endpoint', name: 'hooks', ...entry })),
  )
  assert.doesNotMatch(JSON.stringify((await s.store.query('select * from audit_log')).rows), /header-secret/)
})

test('a change that is refused leaves no entry, and neither does a plan; an applied file does', async () => {
  await using s = await serveEverything()
  assert.equal((await s.call('PATCH', '/api/sinks/goods', { token, body: { batch_size: 0 } })).status, 422)
  assert.equal((await s.call('PATCH', '/api/sinks/goods', { token, body: { name: 'search' } })).status, 422)
  const yaml = 'http_endpoints: [{ name: hooks, url: "http://127.0.0.1:9/" }]\napi_tokens: [{ name: worker, token: a-token-of-worker }]'
  assert.equal((await s.call('POST', '/api/config/plan', { token, body: { yaml } })).status, 200)
  assert.deepEqual((await logged(s)).data, [])
  assert.equal((await s.call('POST', '/api/config/apply', { token, body: { yaml } })).status, 200)
  const entries = (await logged(s)).data.map(({ action, kind, name, actor }: any) => [action, kind, name, actor.name]) // oxlint-disable-line typescript/no-explicit-any
  assert.deepEqual(entries, [['create', 'http_endpoint', 'hooks', 'admin'], ['create', 'api_token', 'worker', 'admin']]) // prettier-ignore
  assert.equal((await s.call('POST', '/api/config/apply', { token, body: { yaml } })).status, 200)
  assert.equal((await logged(s)).data.length, 2, 'a file that changes nothing leaves none')
})

test('tokens, backfills and what is done to messages go on record, too; never the text of a token', async () => {
  await using s = await serveEverything()
  const { body: made } = await s.call('POST', '/api/api_keys', { token, body: { name: 'worker', scopes: ['read'] } })
  await s.call('DELETE', `/api/api_keys/${made.id}`, { token })
  await s.call('POST', '/api/sinks/goods/replay', { token, body: { time: '2025-02-03T04:05:06Z' } })
  await s.call('POST', '/api/sinks/goods/messages/discard', { token, body: { ids: ['a.1'] } })
  await s.call('POST', '/api/sinks/missing/messages/discard', { token, body: { ids: ['a.1'] } })
  await s.call('POST', '/api/postgres_databases/shop/retry', { token })
  const { data } = await logged(s)
  assert.deepEqual(
    data.map(({ action, kind, name }: Record<string, unknown>) => [action, kind, name]),
    [
      ['retry', 'database', 'shop'],
      ['discard messages', 'sink', 'goods'],
      ['replay', 'sink', 'goods'],
      ['delete', 'api_token', 'worker'],
      ['create', 'api_token', 'worker'],
    ],
  )
  assert.deepEqual(data[1].changes['ids'], { old: null, new: ['a.1'] })
  assert.ok(!JSON.stringify(data).includes(made.token))
})

test('the log is read in pages, of a kind and of a name, and each account sees its own', async () => {
  await using s = await serveEverything()
  const ids = (await s.store.query('select id, name from account order by name')).rows
  const [other, shop] = ids.map(({ id }) => String(id))
  for (let i = 1; i <= 5; i++)
    await record(s.store.query, [{ accountId: shop ?? '', action: 'create', kind: i % 2 === 0 ? 'sink' : 'function', name: `n${i}` }])
  await record(s.store.query, [{ accountId: other ?? '', action: 'create', kind: 'sink', name: 'theirs' }])
  const names = async (query: string) => (await logged(s, query)).data.map(({ name }: { name: string }) => name)
  const first = await logged(s, '?limit=2')
  assert.deepEqual(first.data.map(({ name }: { name: string }) => name), ['n5', 'n4']) // prettier-ignore
  assert.deepEqual(await names(`?limit=2&cursor=${first.next_cursor}`), ['n3', 'n2'])
  assert.deepEqual(await names('?kind=sink'), ['n4', 'n2'])
  assert.deepEqual(await names('?name=n3'), ['n3'])
  assert.equal((await logged(s, '?limit=5')).next_cursor, undefined)
  assert.deepEqual((await logged(s))['data'][0].actor, { kind: 'system', name: 'tailrace' })
  for (const query of ['?limit=0', '?limit=1001', '?limit=x', '?cursor=x'])
    assert.equal((await s.call('GET', `/api/audit_log${query}`, { token })).status, 400)
})

test('a change and its entry are stored together or not at all', async () => {
  await using s = await serveEverything()
  const account = (await s.store.query(`select id from account where name = 'shop'`)).rows[0]
  await assert.rejects(
    s.store.transaction(async (query) => {
      await actAs({ kind: 'token', name: 'x' }, () =>
        record(query, [{ accountId: String(account?.['id']), action: 'a', kind: 'k', name: 'n' }]),
      )
      throw new Error('undone')
    }),
  )
  assert.deepEqual((await logged(s)).data, [])
  await s.store.query(`alter table audit_log add constraint full_disk check (name <> 'goods')`)
  assert.notEqual((await s.call('PATCH', '/api/sinks/goods', { token, body: { batch_size: 7 } })).status, 200)
  assert.equal((await s.call('GET', '/api/sinks/goods', { token })).body.batch_size, 1)
})

test('entries that are older than they are kept are deleted, and no others', async () => {
  await using s = await serveEverything()
  await s.call('POST', '/api/api_keys', { token, body: { name: 'old' } })
  await s.store.query(`update audit_log set at = now() - interval '31 days'`)
  await s.call('POST', '/api/api_keys', { token, body: { name: 'new' } })
  await pruneAudit(s.store.query, 30)
  assert.deepEqual((await logged(s)).data.map(({ name }: { name: string }) => name), ['new']) // prettier-ignore
})

test('behind a proxy that is trusted the address is the client’s, and behind any other the proxy’s', async () => {
  for (const [trustedProxies, address] of [
    [['127.0.0.1'], '198.51.100.7'],
    [['10.0.0.0/8'], '127.0.0.1'],
  ] as const) {
    await using s = await serveEverything({ trustedProxies })
    const headers = { 'x-forwarded-for': '203.0.113.9, not-an-address, 198.51.100.7' }
    assert.equal((await s.call('POST', '/api/destinations/http_endpoints', { token, body: WEBHOOK, headers })).status, 200)
    assert.equal((await logged(s)).data[0].actor.address, address)
  }
})
