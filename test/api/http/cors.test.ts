/** What browsers are told about pages of other origins. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serve } from '../api-fixture.ts'

const SHOP = 'https://shop.example'
const ours = (headers: Headers) => Object.fromEntries([...headers].filter(([name]) => name === 'vary' || name.startsWith('access-control')))
const preflight = (origin: string) => ({
  method: 'OPTIONS',
  token: null,
  headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization' },
})

test('without the setting no page of another origin is told anything', async () => {
  await using s = await serve()
  for (const options of [{ headers: { origin: SHOP } }, preflight(SHOP)])
    assert.deepEqual(ours((await s.call('/api/sinks', options)).headers), {})
})

test('a named origin may ask with a token and never by cookies, and reads errors too; others may not', async () => {
  await using s = await serve({}, { corsOrigins: [SHOP] })
  const allowed = { 'access-control-allow-origin': SHOP, vary: 'origin' }
  const asked = await s.call('/api/sinks', preflight(SHOP))
  assert.deepEqual([asked.status, asked.text], [204, ''])
  assert.deepEqual(ours(asked.headers), {
    ...allowed,
    'access-control-allow-methods': 'GET, HEAD, POST, PUT, PATCH, DELETE',
    'access-control-allow-headers': 'authorization, content-type, traceparent, tracestate',
    'access-control-max-age': '600',
  })
  const readable = { ...allowed, 'access-control-expose-headers': 'retry-after' }
  for (const [path, token, status] of [
    ['/api/sinks', undefined, 200],
    ['/api/sinks', null, 401],
    ['/api/sinks/none', undefined, 404],
    ['/api/sinks/%zz', undefined, 400],
  ] as const) {
    const answer = await s.call(path, { headers: { origin: SHOP }, ...(token === null && { token }) })
    assert.equal(answer.status, status, path)
    assert.deepEqual(ours(answer.headers), readable, path)
  }
  for (const origin of ['https://shop.example.evil.example', 'http://shop.example', 'null', `${SHOP}:444`]) {
    assert.deepEqual(ours((await s.call('/api/sinks', preflight(origin))).headers), { vary: 'origin' }, origin)
    assert.deepEqual(ours((await s.call('/api/sinks', { headers: { origin } })).headers), { vary: 'origin' }, origin)
  }
  assert.equal((await s.call('/nosuch', preflight(SHOP))).status, 404)
})

test('with * any origin may ask with a token, and none with cookies', async () => {
  await using s = await serve({}, { corsOrigins: ['*'] })
  const { headers } = await s.call('/api/sinks', { headers: { origin: SHOP } })
  assert.deepEqual(ours(headers), { 'access-control-allow-origin': '*', 'access-control-expose-headers': 'retry-after' })
})
