/** Whose word counts about where a request comes from. */
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import Fastify from 'fastify'
import { TrustedProxies } from '../../../api/http/proxies.ts'
import { serve } from '../api-fixture.ts'

/** @returns the address and the protocol that a request is taken to have, from 127.0.0.1 with these headers */
async function taken(ranges: readonly string[], headers: Readonly<Record<string, string>>): Promise<readonly [string, string]> {
  const proxies = new TrustedProxies(ranges)
  const app = Fastify({ trustProxy: (address: string) => proxies.trusts(address) })
  app.addHook('onRequest', (request, reply, done) => {
    proxies.tidy(request.raw.headers)
    void reply.send([request.ip, request.protocol])
    done()
  })
  const answer = await app.inject({ url: '/', headers, remoteAddress: '127.0.0.1' })
  await app.close()
  return answer.json<[string, string]>()
}

test('what is forwarded counts from the proxies that are named, and from nobody else', async () => {
  const said = { 'x-forwarded-for': '198.51.100.7', 'x-forwarded-proto': 'https' }
  assert.deepEqual(await taken([], said), ['127.0.0.1', 'http'])
  assert.deepEqual(await taken(['10.0.0.0/8', '::1'], said), ['127.0.0.1', 'http'])
  assert.deepEqual(await taken(['127.0.0.1'], said), ['198.51.100.7', 'https'])
  assert.deepEqual(await taken(['127.0.0.0/8'], {}), ['127.0.0.1', 'http'])
})

test('of several, the client is the last that is no proxy, whatever it wrote itself', async () => {
  const proxies = ['127.0.0.1', '10.0.0.0/8', '2001:db8::/32']
  const client = async (forwarded: string) => (await taken(proxies, { 'x-forwarded-for': forwarded }))[0]
  assert.equal(await client('203.0.113.9, 198.51.100.7, 10.1.2.3'), '198.51.100.7')
  assert.equal(await client('203.0.113.9, 198.51.100.7:41234, 10.1.2.3:80'), '198.51.100.7')
  assert.equal(await client('[2001:db9::1]:443, 2001:db8::5'), '2001:db9::1')
  assert.equal(await client('203.0.113.9, <script>, 10.1.2.3'), '10.1.2.3')
  assert.equal(await client('unknown'), '127.0.0.1')
  assert.equal(await client('::ffff:10.1.2.3'), '::ffff:10.1.2.3', 'a proxy that asks itself')
})

test('clients behind a proxy are counted one by one', async () => {
  await using s = await serve({ strangeRequests: 1, strangers: 1 }, { trustedProxies: ['127.0.0.1'] })
  const ask = (client: string) => s.call('/health', { token: null, headers: { 'x-forwarded-for': client } })
  const all = await Promise.all(Array.from({ length: 20 }, (_, i) => ask(`198.51.100.${i}`)))
  assert.ok(all.every(({ status }) => status === 200))
  const socket = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  socket.on('error', () => undefined)
  socket.write('GET /health HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 198.51.100.7\r\n\r\n'.repeat(4))
  assert.ok((await text(socket).catch(() => '')).split('HTTP/1.1 200').length < 5, 'of one client one at a time')
})

test('the log names the client behind a proxy that tries tokens', async () => {
  await using s = await serve({}, { trustedProxies: ['127.0.0.1'] })
  const { status } = await s.call('/api/sinks', { token: 'a-wrong-one', headers: { 'x-forwarded-for': '203.0.113.1, 198.51.100.7' } })
  assert.equal(status, 401)
  assert.match(s.log.join(''), /"from":"198\.51\.100\.7"/)
})
