import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer as createHttpServer } from 'node:http'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { test } from 'node:test'
import { Egress } from '../../../engine/net/egress.ts'
import { HttpPool, type HttpRequest } from '../../../engine/net/http-pool.ts'
import { HttpReceiver } from '../../services/http-receiver.ts'
import { authority } from '../../services/tls-postgres.ts'

const EVERYWHERE = new Egress({ mode: 'private' })
const REQUEST: HttpRequest = {
  method: 'POST',
  path: '/in',
  headers: ['x-a', '1'],
  body: Buffer.from('hello'),
  timeoutMs: 5_000,
  keepBytes: 1_000,
}

async function pool(origin: string, options: { connections?: number; caCert?: string; egress?: Egress } = {}) {
  const made = new HttpPool({ origin, connections: 2, egress: EVERYWHERE, ...options })
  return Object.assign(made, { [Symbol.asyncDispose]: () => made.close() })
}

test('a request brings its answer, over connections that stay open and are no more than asked for', async () => {
  await using receiver = await HttpReceiver.start(({ body }) => ({ status: 201, headers: { 'x-b': '2' }, body, delayMs: 5 }))
  await using http = await pool(receiver.url)
  const results = await Promise.all(Array.from({ length: 20 }, () => http.request(REQUEST)))
  for (const { answer } of results) {
    assert.equal(answer?.status, 201)
    assert.equal(answer.headers['x-b'], '2')
    assert.equal(answer.body.toString(), 'hello')
    assert.equal(answer.isCut, false)
  }
  assert.equal(receiver.connections, 2)
  assert.equal(receiver.requests[0]?.headers['x-a'], '1')
})

test('requests that follow each other use no more connections than there are requests at once', async () => {
  await using receiver = await HttpReceiver.start()
  await using http = await pool(receiver.url, { connections: 20 })
  const oneAfterAnother = async () => {
    for (let i = 0; i < 50; i++) await http.request(REQUEST)
  }
  await Promise.all([oneAfterAnother(), oneAfterAnother(), oneAfterAnother()])
  assert.equal(receiver.requests.length, 150)
  assert.equal(receiver.connections, 3)
})

test('a request that is begun when an answer is told goes out on the connection that brought it', async () => {
  await using receiver = await HttpReceiver.start()
  await using http = await pool(receiver.url, { connections: 20 })
  const { promise, resolve } = Promise.withResolvers<void>()
  const told: (number | string | undefined)[] = []
  const begin = (left: number) =>
    http.begin(REQUEST, ({ answer, failure }) => {
      told.push(answer?.status ?? failure?.phase)
      if (left > 0) begin(left - 1)
      else resolve()
    })
  begin(20)
  assert.deepEqual(told, [])
  await promise
  assert.deepEqual(new Set(told), new Set([200]))
  assert.equal(receiver.requests.length, 21)
  assert.equal(receiver.connections, 1)
})

test('nothing is told of a request before it has been begun, though it is refused at once', async () => {
  await using receiver = await HttpReceiver.start()
  await using http = await pool(receiver.url)
  const refused = [
    { ...REQUEST, headers: ['a\n', 'b'] },
    { ...REQUEST, signal: AbortSignal.abort() },
  ]
  for (const request of refused) {
    const { promise, resolve } = Promise.withResolvers<string | undefined>()
    let hasBegun = false
    http.begin(request, ({ failure }) => resolve(hasBegun ? failure?.phase : 'told too early'))
    hasBegun = true
    assert.equal(await promise, request === refused[0] ? 'connect' : 'aborted')
  }
  assert.equal(receiver.requests.length, 0)
})

test('the memory of a body may be used again when the answer comes, but not where the server answered before it had read it', async () => {
  await using receiver = await HttpReceiver.start()
  await using http = await pool(receiver.url)
  const told: string[] = []
  const { promise, resolve } = Promise.withResolvers<void>()
  http.begin({ ...REQUEST, bodySent: () => told.push('body') }, () => {
    told.push('answer')
    resolve()
  })
  await promise
  assert.deepEqual(told, ['body', 'answer'])

  const body = Buffer.alloc(16 * 1024 * 1024, 'a') // more than both ends of a connection hold
  const [head, whole] = [Promise.withResolvers<Socket>(), Promise.withResolvers<Buffer>()]
  const server = createServer((socket) => socket.once('readable', () => head.resolve(socket))).listen(0, '127.0.0.1')
  await once(server, 'listening')
  await using early = await pool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  const answered = early.request({ ...REQUEST, body, bodySent: () => body.fill('b') })
  const socket = await head.promise
  socket.write('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')
  assert.equal((await answered).answer?.status, 200)
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => {
    chunks.push(chunk)
    if (chunks.reduce((sum, { length }) => sum + length, 0) > body.length) whole.resolve(Buffer.concat(chunks))
  })
  const read = await whole.promise
  assert.equal(read.indexOf('b', read.indexOf('\r\n\r\n')), -1, 'what the server reads later is what was sent')
  socket.destroy()
  server.close()
})

test('of a long answer only what was asked for is kept', async () => {
  await using receiver = await HttpReceiver.start(() => ({ body: 'x'.repeat(1_000_000) }))
  await using http = await pool(receiver.url)
  const { answer } = await http.request(REQUEST)
  assert.equal(answer?.body.length, 1_000)
  assert.equal(answer.isCut, true)
})

test('of an answer that is much longer the rest is not read: the next request has another connection', async () => {
  let [sent, connections] = [0, 0]
  const server = createHttpServer((_, response) => {
    if (sent > 0) return void response.end('short')
    const more = () => {
      while (!response.destroyed) {
        sent += 65_536
        if (!response.write(Buffer.alloc(65_536, 'x'))) break
      }
    }
    response.on('drain', more)
    more()
  })
  server.on('connection', () => connections++).listen(0, '127.0.0.1')
  await once(server, 'listening')
  await using http = await pool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  const { answer } = await http.request(REQUEST) // it has no end
  assert.deepEqual([answer?.status, answer?.isCut, answer?.body.toString()], [200, true, 'x'.repeat(REQUEST.keepBytes)])
  const next = await http.request(REQUEST)
  assert.deepEqual([next.answer?.isCut, next.answer?.body.toString(), connections], [false, 'short', 2])
  server.close()
})

test('a redirect is an answer, not followed', async () => {
  await using receiver = await HttpReceiver.start(() => ({ status: 307, headers: { location: '/elsewhere' } }))
  await using http = await pool(receiver.url)
  assert.equal((await http.request(REQUEST)).answer?.status, 307)
  assert.equal(receiver.requests.length, 1)
})

test('a failure says whether anything may have arrived', async () => {
  await using receiver = await HttpReceiver.start(({ path }) => (path === '/half' ? 'half' : path === '/reset' ? 'reset' : 'hang'))
  await using http = await pool(receiver.url)
  assert.equal((await http.request({ ...REQUEST, path: '/half' })).failure?.phase, 'broken')
  assert.equal((await http.request({ ...REQUEST, path: '/reset' })).failure?.phase, 'broken')
  const { failure } = await http.request({ ...REQUEST, timeoutMs: 50 })
  assert.deepEqual(failure, { phase: 'timeout', code: 'TIMEOUT', message: 'no answer within 50 ms' })
  const away = new AbortController()
  const called = http.request({ ...REQUEST, signal: away.signal })
  away.abort()
  assert.equal((await called).failure?.phase, 'aborted')
  assert.equal((await http.request({ ...REQUEST, headers: ['bad header', 'x'] })).failure?.phase, 'connect')

  const closed = createServer().listen(0, '127.0.0.1')
  await once(closed, 'listening')
  const { port } = closed.address() as { port: number }
  closed.close()
  await using nobody = await pool(`http://127.0.0.1:${port}`)
  const refused = (await nobody.request(REQUEST)).failure
  assert.equal(refused?.phase, 'connect')
  assert.equal(refused.code, 'ECONNREFUSED')
})

test('a request that waits for a connection longer than its time ends without one, and is never sent', async () => {
  await using receiver = await HttpReceiver.start(() => 'hang')
  await using http = await pool(receiver.url, { connections: 1 })
  const first = http.request({ ...REQUEST, timeoutMs: 1_000 })
  const second = await http.request({ ...REQUEST, path: '/second', timeoutMs: 50 })
  assert.equal(second.failure?.phase, 'timeout')
  await first
  assert.deepEqual(
    receiver.requests.map(({ path }) => path),
    ['/in'],
  )
})

test('TLS takes an authority of its own, and no certificate that is another host’s or another authority’s', async () => {
  await using good = await HttpReceiver.start(() => ({}), { secure: 'server' })
  await using elsewhere = await HttpReceiver.start(() => ({}), { secure: 'elsewhere' })
  const [caCert, other] = await Promise.all([authority('ca'), authority('other-ca')])
  await using trusting = await pool(good.url, { caCert })
  assert.equal((await trusting.request(REQUEST)).answer?.status, 200)
  for (const [origin, ca] of [
    [good.url, other],
    [good.url, undefined],
    [elsewhere.url, caCert],
  ] as const) {
    await using http = await pool(origin, ca === undefined ? {} : { caCert: ca })
    const { failure } = await http.request(REQUEST)
    assert.equal(failure?.phase, 'connect', `${origin} ${failure?.message}`)
  }
})

test('an address that the egress guard refuses is not connected to, written as a number or found by name', async () => {
  await using receiver = await HttpReceiver.start()
  for (const [host, egress] of [
    [`127.0.0.1`, new Egress({ mode: 'public' })],
    [`hooks.example.com`, new Egress({ mode: 'public', resolve: async () => [{ address: '127.0.0.1', family: 4 }] })],
  ] as const) {
    await using http = await pool(`http://${host}:${receiver.port}`, { egress })
    const { failure } = await http.request(REQUEST)
    assert.equal(failure?.phase, 'connect')
    assert.equal(failure.code, 'EGRESS_REFUSED')
  }
  assert.equal(receiver.connections, 0)
})

test('a name is resolved once: the connection goes to the address that was checked', async () => {
  await using receiver = await HttpReceiver.start()
  let asked = 0
  const egress = new Egress({
    mode: 'private',
    resolve: async () => [{ address: asked++ === 0 ? '127.0.0.1' : '169.254.169.254', family: 4 }],
  })
  await using http = await pool(`http://hooks.example.com:${receiver.port}`, { egress, connections: 1 })
  assert.equal((await http.request(REQUEST)).answer?.status, 200)
  assert.equal(asked, 1)
  assert.equal(receiver.requests[0]?.headers.host, `hooks.example.com:${receiver.port}`)
})
