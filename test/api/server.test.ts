import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { test } from 'node:test'
import { Agent, request } from 'undici'
import { createLogger } from '../../engine/logger.ts'
import { EngineError } from '../../engine/errors.ts'
import { startApi } from '../../api/server.ts'
import { message, ScriptedEngine, TOKEN } from './scripted-engine.ts'
import { serve, waitingCount, type Fixture } from './api-fixture.ts'
import { until } from '../waiting.ts'

const RECEIVE = '/api/http_pull_consumers/goods/receive'
const ACK = '/api/http_pull_consumers/goods/ack'
const authorization = `Bearer ${TOKEN}`

async function raw(s: Fixture, text: string | Buffer): Promise<string> {
  const socket = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  socket.on('error', () => {})
  let answer = ''
  socket.on('data', (chunk) => (answer += String(chunk)))
  socket.write(text)
  await new Promise((closed) => socket.once('close', closed))
  return answer
}

test('a stop answers the receives that wait, finishes what is under way, and closes the connections', async () => {
  await using s = await serve()
  await using agent = Object.assign(new Agent(), { [Symbol.asyncDispose]: () => agent.close() })
  const settle = Promise.withResolvers<void>()
  const acking = Promise.withResolvers<void>()
  s.goods.ack = async (ids) => {
    acking.resolve()
    await settle.promise
    s.goods.acked.push(...ids)
  }
  const options = { method: 'POST', headers: { authorization }, dispatcher: agent } as const
  await request(`${s.api.url}${RECEIVE}`, options).then(({ body }) => body.text()) // a connection that idles
  const waiting = request(`${s.api.url}${RECEIVE}`, { ...options, body: '{"wait_for":"5m"}' })
  const underWay = request(`${s.api.url}${ACK}`, { ...options, body: '{"ack_ids":["a1"]}' })
  await Promise.all([waitingCount(s.goods, 1), acking.promise])
  let stopped = false
  const stop = s.api.stop(60_000).then(() => (stopped = true))
  const ended = await waiting
  assert.deepEqual([ended.statusCode, await ended.body.json(), ended.headers.connection], [200, { data: [] }, 'close'])
  await assert.rejects(fetch(`${s.api.url}/health`), 'no new connection')
  assert.equal(stopped, false, 'an ack is under way')
  settle.resolve()
  const acked = await underWay
  assert.deepEqual([acked.statusCode, await acked.body.json(), s.goods.acked], [200, { success: true }, ['a1']])
  await stop
})

test('what is still open after the grace of a stop is cut', async () => {
  await using s = await serve()
  s.goods.ack = () => new Promise(() => {})
  const hanging = assert.rejects(s.call(ACK, { body: { ack_ids: ['a'] } }))
  const asked = Promise.withResolvers<void>()
  s.goods.receive = async () => (asked.resolve(), { body: Buffer.from('{"data":[]}'), count: 0, giveBack: () => {} })
  await s.call(RECEIVE)
  await asked.promise
  await s.api.stop(50)
  await hanging
})

test('a receive that comes while the service stops is told to try again', async () => {
  await using s = await serve()
  const socket = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  const hold = Promise.withResolvers<void>()
  s.goods.ack = () => hold.promise
  const body = '{"ack_ids":["a"]}'
  socket.write(`POST ${ACK} HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
  await s.call('/health') // the ack was read before this was
  const stop = s.api.stop()
  socket.write(`GET ${RECEIVE} HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\n\r\n`)
  let text = ''
  socket.on('data', (chunk) => (text += String(chunk)))
  await until('the server has read it', () => s.log.some((line) => line.includes('STOPPING')))
  hold.resolve()
  await once(socket, 'close')
  await stop
  assert.match(text, /^HTTP\/1\.1 200 OK[\s\S]*\{"success":true\}HTTP\/1\.1 503 [\s\S]*"code":"STOPPING"/)
})

test('broken HTTP gets an answer in JSON and the connection ends', async () => {
  await using s = await serve()
  assert.match(await raw(s, 'GARBAGE\r\n\r\n'), /^HTTP\/1\.1 400 [\s\S]*"code":"REQUEST_INVALID","remedy":"[^"]+"\}$/)
  assert.match(
    await raw(s, `GET / HTTP/1.1\r\nhost: x\r\nx: ${'x'.repeat(20_000)}\r\n\r\n`),
    /^HTTP\/1\.1 431 [\s\S]*"code":"HEADERS_TOO_LARGE","remedy":"[^"]+"\}$/,
  )
  assert.match(await raw(s, 'POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n'), /^HTTP\/1\.1 400 /)
  assert.equal((await s.call('/health')).status, 200)
})

test('a client that sends a byte now and then is cut with 408; one that waits for its answer is not', async () => {
  await using s = await serve({ headersMs: 100, requestMs: 150, checkEveryMs: 20 })
  const waiting = s.call(RECEIVE, { body: { wait_for: '60s' } })
  await waitingCount(s.goods, 1)
  assert.match(await raw(s, 'GET /health HTTP/1.1\r\nhost'), /^HTTP\/1\.1 408 [\s\S]*"code":"REQUEST_TOO_SLOW","remedy":"[^"]+"\}$/)
  const body = await raw(s, `POST ${ACK} HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\ncontent-length: 100\r\n\r\n{"ack_ids":`)
  assert.match(body, /^HTTP\/1\.1 408 /)
  s.goods.push(message('late')) // after both were cut, so after longer than either limit
  assert.deepEqual(
    ((await waiting).body as { data: { ack_id: string }[] }).data.map((item) => item.ack_id),
    ['late'],
  )
})

test('one address has few connections without a token, and they leave room for those with one', async () => {
  await using s = await serve({ strangers: 2 })
  const health = 'GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n'
  const opened = async () => {
    const socket = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
    socket.on('error', () => {})
    await once(socket, 'connect')
    return socket
  }
  const known = await opened()
  known.write(`GET /api/sinks HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\n\r\n`)
  const said = (socket: Socket) =>
    new Promise<string>((resolve) => socket.once('data', (text) => resolve(String(text))).once('close', () => resolve('closed')))
  assert.match(await said(known), /^HTTP\/1\.1 200 /) // it stays open, and counts no more
  const silent = await opened()
  silent.write('GET /hea')
  const guessing = await opened()
  guessing.write('GET /api/sinks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n\r\n')
  assert.match(await said(guessing), /^HTTP\/1\.1 401 /)
  assert.equal(await raw(s, health), '', 'the third without a token')
  silent.destroy()
  const answer = await until('the server knows that one has gone', () => raw(s, health))
  assert.match(answer, /^HTTP\/1\.1 200 /)
  for (const socket of [known, guessing]) socket.destroy()
})

test('of requests without a token one client has few under way, and its connection is closed at one more; those with one are served', async () => {
  await using s = await serve({ strangeRequests: 3 })
  const last = 'connection: close\r\n'
  const strange = (path: string, end = '') => `GET ${path} HTTP/1.1\r\nhost: x\r\n${end}\r\n`
  const known = (end = '') => strange('/api/sinks', `authorization: ${authorization}\r\n${end}`)
  const statuses = (text: string) => text.match(/(?<=HTTP\/1\.1 )\d+/g) ?? []
  const served = await raw(s, strange('/health').repeat(3) + known().repeat(5) + known(last))
  assert.deepEqual(statuses(served), Array(9).fill('200'))
  for (const path of ['/health', '/api/openapi.json', '/api/sinks', '/nosuch', '/api/sinks/%zz', '/internal/peer/report']) {
    assert.ok(statuses(await raw(s, strange(path).repeat(3) + strange(path, last))).length < 4, path)
    assert.equal((await s.call('/health', { token: null })).status, 200, `those of ${path} still count`)
  }
})

test('of all connections there are so many and no more', async () => {
  await using s = await serve({ connections: 2 })
  const open = [0, 1].map(() => connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' }))
  await Promise.all(open.map((socket) => once(socket, 'connect')))
  assert.equal(await raw(s, `GET /api/sinks HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\nconnection: close\r\n\r\n`), '')
  for (const socket of open) socket.destroy()
})

test('a path that can’t be decoded is 400', async () => {
  await using s = await serve()
  const answer = await raw(s, `GET /api/sinks/%zz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`)
  assert.match(answer, /^HTTP\/1\.1 400 [\s\S]*"code":"REQUEST_INVALID"/)
})

test('a client that pipelines gets its answers in order', async () => {
  await using s = await serve()
  s.goods.push(message('a1'), message('a2'))
  const one = `GET ${RECEIVE} HTTP/1.1\r\nhost: x\r\nauthorization: ${authorization}\r\n`
  const answer = await raw(s, `${one}\r\n${one}\r\n${one}connection: close\r\n\r\n`)
  assert.deepEqual(
    [...answer.matchAll(/"ack_id":"(\w+)"|\{"data":\[\]\}/g)].map(([, id]) => id),
    ['a1', 'a2', undefined],
  )
})

test('a port that is taken is named, with the variable that sets another', async () => {
  await using s = await serve()
  const engine = new ScriptedEngine()
  const logger = createLogger({ level: 'silent', format: 'json' })
  const start = startApi({
    host: '127.0.0.1',
    port: Number(new URL(s.api.url).port),
    engine,
    resources: engine,
    tokens: engine.tokens,
    edits: engine.resourceEdits,
    logger,
    identity: { version: '1', nodeId: 'i', nodeName: 'n' },
  })
  await assert.rejects(
    start,
    (error: unknown) => error instanceof EngineError && error.code === 'PORT_UNAVAILABLE' && /SERVER_PORT/.test(error.message),
  )
})

test('an address that this machine does not have is named, with the variable that sets another', async () => {
  const engine = new ScriptedEngine()
  const logger = createLogger({ level: 'silent', format: 'json' })
  const identity = { version: '1', nodeId: 'i', nodeName: 'n' }
  await assert.rejects(
    startApi({
      host: '192.0.2.1',
      port: 0,
      engine,
      resources: engine,
      tokens: engine.tokens,
      edits: engine.resourceEdits,
      logger,
      identity,
    }),
    {
      code: 'PORT_UNAVAILABLE',
      message: /no such address; SERVER_HOST names another/,
    },
  )
})
