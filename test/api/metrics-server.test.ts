import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { createLogger } from '../../engine/logger.ts'
import { Metrics } from '../../engine/metrics.ts'
import { listenForMetrics, startMetricsServer } from '../../api/metrics-server.ts'

const metrics = new Metrics({ version: '9.9.9', processMetrics: false })
const logger = createLogger({ level: 'silent', format: 'json' })
const basic = (pair: string) => ({ headers: { authorization: `Basic ${Buffer.from(pair).toString('base64')}` } })

test('the figures are served as Prometheus text, and nothing else is', async () => {
  await using server = await listenForMetrics({ host: '127.0.0.1', port: 0, user: undefined, password: undefined, metrics, logger })
  const answer = await fetch(server.url)
  assert.equal(answer.status, 200)
  assert.match(answer.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/)
  assert.match(await answer.text(), /^tailrace_build_info\{version="9.9.9"\} 1$/m)
  assert.equal((await fetch(new URL('/', server.url))).status, 404)
  assert.equal((await fetch(server.url, { method: 'POST' })).status, 404)
  assert.equal((await fetch(server.url, { method: 'HEAD' })).status, 200)
})

test('with a user or a password set, only they are let in', async () => {
  await using server = await listenForMetrics({ host: '127.0.0.1', port: 0, user: 'prom', password: 'pass:word', metrics, logger })
  assert.equal((await fetch(server.url)).status, 401)
  for (const pair of ['prom:pass', 'other:pass:word', 'prom', '']) assert.equal((await fetch(server.url, basic(pair))).status, 401, pair)
  assert.equal((await fetch(server.url, basic('prom:pass:word'))).status, 200)
  await using passwordOnly = await listenForMetrics({ host: '127.0.0.1', port: 0, user: undefined, password: 'p', metrics, logger })
  assert.deepEqual([(await fetch(passwordOnly.url, basic(':p'))).status, (await fetch(passwordOnly.url)).status], [200, 401])
})

test('whoever opens connections and says nothing takes a hundred, and no more', async () => {
  await using server = await listenForMetrics({ host: '127.0.0.1', port: 0, user: undefined, password: undefined, metrics, logger })
  const open = () => connect({ port: Number(new URL(server.url).port), host: '127.0.0.1' }).on('error', () => undefined)
  const silent = Array.from({ length: 100 }, open)
  await Promise.all(silent.map((socket) => once(socket, 'connect')))
  const last = open()
  let answer = ''
  last.on('data', (chunk) => (answer += String(chunk))).write('GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n')
  await new Promise((closed) => last.once('close', closed))
  assert.equal(answer, '')
  for (const socket of silent) socket.destroy()
})

test('of requests one client has ten under way, and its connection is closed at one more', async () => {
  await using server = await listenForMetrics({ host: '127.0.0.1', port: 0, user: undefined, password: undefined, metrics, logger })
  const answers = async (count: number) => {
    const socket = connect({ port: Number(new URL(server.url).port), host: '127.0.0.1' })
    socket.end('GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n'.repeat(count))
    return (await text(socket).catch(() => '')).split('HTTP/1.1 200').length - 1
  }
  assert.equal(await answers(10), 10)
  assert.ok((await answers(11)) < 11)
  assert.equal(await answers(10), 10)
})

test('port 0 means none', async () => {
  assert.equal(await startMetricsServer({ host: '127.0.0.1', port: 0, user: undefined, password: undefined, metrics, logger }), undefined)
})
