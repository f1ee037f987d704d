import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeTestUrl } from '../../../api/sinks/test-endpoint.ts'
import { Egress } from '../../../engine/net/egress.ts'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { serve, type CallOptions } from '../api-fixture.ts'
import { OTHER_TOKEN } from '../scripted-engine.ts'

const PATH = '/api/destinations/http_endpoints'
type Endpoint = { id: string; name: string; url: string; headers: Record<string, string>; encrypted_headers: Record<string, string> }
const HOOKS = {
  name: 'hooks',
  url: 'https://Hooks.example.com:8443/in?x=1#y',
  headers: { 'X-A': '1' },
  encrypted_headers: { Authorization: 'Bearer 0123456789' },
}

async function served() {
  const s = await serve()
  const created = await s.call(PATH, { body: HOOKS })
  assert.equal(created.status, 200, created.text)
  return { ...s, hooks: created.body as Endpoint, [Symbol.asyncDispose]: s[Symbol.asyncDispose] }
}

test('an HTTP endpoint is created, listed, read by id and name, updated and deleted; only its own account sees it', async () => {
  await using s = await served()
  const { hooks } = s
  assert.deepEqual(hooks, { id: hooks.id, ...HOOKS, encrypted_headers: { Authorization: 'Bea*************9' } })
  assert.deepEqual((await s.call(PATH)).body, { data: [hooks] })
  assert.deepEqual((await s.call(`${PATH}/hooks`)).body, hooks)
  assert.deepEqual((await s.call(`${PATH}/${hooks.id}`)).body, hooks)
  assert.equal((await s.call(`${PATH}/hooks`, { token: OTHER_TOKEN })).status, 404)
  assert.deepEqual((await s.call(PATH, { token: OTHER_TOKEN })).body, { data: [] })
  for (const method of ['PATCH', 'PUT'])
    assert.deepEqual((await s.call(`${PATH}/hooks`, { method, body: { url: 'http://b.example.com' } })).body, {
      ...hooks,
      url: 'http://b.example.com',
    })
  assert.deepEqual((await s.call(`${PATH}/hooks`, { method: 'DELETE' })).body, { id: hooks.id, deleted: true })
  assert.equal((await s.call(`${PATH}/hooks`)).status, 404)
})

test('user and password of a URL become an encrypted header, and keys in its query are shown in part', async () => {
  await using s = await served()
  const stored = () => [...s.engine.endpoints.values()].find(({ name }) => name === 'shop')
  const secrets = ['us@er', 'pa ssword', 'pa%20ssword', 'key-in-the-query', Buffer.from('us@er:pa ssword').toString('base64')]
  const url = 'http://us%40er:pa%20ssword@shop.test/in?a=1&api_key=key-in-the-query#x'
  const made = await s.call(PATH, { body: { name: 'shop', url } })
  for (const secret of secrets) assert.ok(!made.text.includes(secret), `${secret} in ${made.text}`)
  const shown = made.body as Endpoint
  assert.equal(shown.url, 'http://shop.test/in?a=1&api_key=key************y#x')
  const authorization = `Basic ${secrets[4]}`
  const whole = 'http://shop.test/in?a=1&api_key=key-in-the-query#x'
  assert.deepEqual([stored()?.url, stored()?.encryptedHeaders], [whole, { authorization }])
  assert.deepEqual((await s.call(`${PATH}/shop`, { method: 'PUT', body: made.body as object })).body, shown)
  assert.deepEqual([stored()?.url, stored()?.encryptedHeaders], [whole, { authorization }])
  const other = { url: shown.url.replace('key*', 'kex*') }
  assert.match((await s.call(`${PATH}/shop`, { method: 'PATCH', body: other })).text, /url has a shortened key, as answers show keys/)
  await s.call(`${PATH}/shop`, { method: 'PATCH', body: { url: 'http://a:b@shop.test' } })
  assert.deepEqual([stored()?.url, stored()?.encryptedHeaders], ['http://shop.test', { authorization: 'Basic YTpi' }])
  // a header that is given goes before the login, as it always did
  await s.call(`${PATH}/shop`, { method: 'PATCH', body: { url: 'http://a:b@shop.test', encrypted_headers: { Authorization: 'Bearer x' } } })
  assert.deepEqual([stored()?.url, stored()?.encryptedHeaders], ['http://shop.test', { Authorization: 'Bearer x' }])
})

test('headers come as an object or a list, a map is replaced as a whole, and an encrypted value sent back as shown stays', async () => {
  await using s = await served()
  const body = { headers: [{ key: 'x-b', value: '2' }], encrypted_headers: { ...s.hooks.encrypted_headers, 'X-Key': 'secret' } }
  const updated = (await s.call(`${PATH}/hooks`, { method: 'PATCH', body })).body as Endpoint
  assert.deepEqual(updated.headers, { 'x-b': '2' })
  assert.deepEqual(updated.encrypted_headers, { Authorization: 'Bea*************9', 'X-Key': 's****t' })
  assert.deepEqual([...s.engine.endpoints.values()][0]?.encryptedHeaders, { Authorization: 'Bearer 0123456789', 'X-Key': 'secret' })
  const foreign = { encrypted_headers: { Authorization: 'Bez*************9', 'X-Key': 's****t' } }
  const refused = await s.call(`${PATH}/hooks`, { method: 'PATCH', body: foreign })
  assert.equal(refused.status, 422)
  assert.match(
    refused.text,
    /encrypted_headers is a shortened secret, as answers show secrets, and not of the stored one: give the whole secret/,
  )
  // an output sent back whole, and the older form of encrypted headers, change nothing
  assert.deepEqual((await s.call(`${PATH}/hooks`, { method: 'PUT', body: updated })).body, updated)
  const summary = {
    encrypted_headers: '(2 encrypted header(s)) - sha256sum: 12345678',
    inserted_at: '2025-01-01',
    updated_at: null,
    account_id: 'x',
  }
  assert.deepEqual((await s.call(`${PATH}/hooks`, { method: 'PUT', body: summary })).body, updated)
  assert.deepEqual([...s.engine.endpoints.values()][0]?.encryptedHeaders, { Authorization: 'Bearer 0123456789', 'X-Key': 'secret' })
})

test('what an endpoint may not be is 422, at its field', async () => {
  await using s = await served()
  const refused = async (body: object, field: string, options: CallOptions & { path?: string } = {}) => {
    const answer = await s.call(options.path ?? PATH, { body, ...options })
    assert.equal(answer.status, 422, `${JSON.stringify(body)}: ${answer.text}`)
    const { validation_errors: errors } = answer.body as { validation_errors: Record<string, unknown> }
    assert.ok(field in errors, `${field} in ${answer.text}`)
  }
  const fine = { name: 'a', url: 'https://example.com' }
  for (const url of [
    '',
    'ftp://x',
    'x.example.com',
    'http://',
    'http://ex ample.com',
    'http://exa_mple.com',
    'http://a:0',
    'http://a:99999',
    'http://a:b',
    7,
  ])
    await refused({ ...fine, url }, 'url')
  await refused({ url: fine.url }, 'name')
  await refused({ ...fine, name: 'a b' }, 'name')
  await refused({ name: 'a' }, 'url')
  await refused({ ...fine, colour: 'red' }, 'colour')
  for (const headers of [7, 'x', ['x'], { a: { b: 1 } }, { 'bad name': 'x' }, { a: 'line\nbreak' }, { 'content-length': '5' }])
    await refused({ ...fine, headers }, 'headers')
  await refused({ ...fine, local: true }, 'url')
  await refused({ ...fine, path: '/x' }, 'path')
  await refused({ ...fine, 'webhook.site': true }, 'webhook')
  await refused({ local: true }, 'local', { method: 'PATCH', path: `${PATH}/hooks` })
})

test('a local endpoint has a path instead of a URL', async () => {
  await using s = await serve()
  for (const local of [true, 'true']) {
    const { body } = await s.call(PATH, { body: { name: `dev-${String(local).length}-${typeof local}`, local, path: '/hooks' } })
    const { id, name, ...rest } = body as Endpoint
    assert.ok(id && name)
    assert.deepEqual(rest, { local: true, path: '/hooks', headers: {}, encrypted_headers: {} })
  }
})

test('an endpoint that a sink sends to is not deleted', async () => {
  await using s = await served()
  s.engine.add({
    id: '99999999-9999-4999-8999-999999999999',
    name: 'partner',
    destination: { type: 'webhook', http_endpoint: 'hooks', batch: true, item_results: false },
  })
  const { status, body } = await s.call(`${PATH}/hooks`, { method: 'DELETE' })
  assert.equal(status, 400)
  assert.match((body as { summary: string }).summary, /in use/)
})

test('a test of the connection says yes, or what is wrong', async () => {
  await using s = await served()
  assert.deepEqual((await s.call(`${PATH}/hooks/test_connection`, { method: 'POST' })).body, { success: true })
  s.engine.troubles.set(s.hooks.id, 'ENOTFOUND: no such host')
  const { status, body } = await s.call(`${PATH}/hooks/test_connection`, { method: 'POST' })
  assert.deepEqual([status, body], [422, { success: false, reason: 'ENOTFOUND: no such host' }])
})

test('the public test service makes an address, and what it says otherwise is told', async () => {
  await using service = await HttpReceiver.start(() => ({ body: '{"uuid":"0b5c8a3e-0000-4000-8000-000000000001","other":1}' }))
  const egress = new Egress({ mode: 'private' })
  assert.equal(await makeTestUrl(egress, service.url), `${service.url}/0b5c8a3e-0000-4000-8000-000000000001`)
  assert.deepEqual(
    service.requests.map(({ method, path }) => `${method} ${path}`),
    ['POST /token'],
  )
  service.handler = () => ({ status: 429 })
  await assert.rejects(makeTestUrl(egress, service.url), /answers with status 429/)
  await using s = await serve()
  assert.equal((await s.call(PATH, { body: { name: 'a', 'webhook.site': true } })).status, 422)
})
