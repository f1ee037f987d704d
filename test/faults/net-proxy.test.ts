import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { CALM, NetProxy } from './net-proxy.ts'
import { pass } from '../waiting.ts'

test('what goes in comes out, both ways, also a lot of it', async () => {
  await using echo = await startEcho()
  await using proxy = await NetProxy.start(echo)
  const socket = connect(proxy.port, '127.0.0.1')
  const sent = Buffer.alloc(4_000_000, 'abc')
  socket.end(sent)
  const received = await buffer(socket)
  assert.ok(received.equals(sent))
})

test('reset and cut end connections; a cut refuses new ones until it is healed', async () => {
  await using echo = await startEcho()
  await using proxy = await NetProxy.start(echo)
  const socket = await connected(proxy)
  proxy.cut()
  await assert.rejects(once(socket, 'data'), { code: 'ECONNRESET' })
  await assert.rejects(connected(proxy), { code: 'ECONNRESET' })
  proxy.heal()
  ;(await connected(proxy)).destroy()
})

const nothing = () => pass(100, 'what a line lets through has come by then').then(() => 'nothing')

test('a silent line passes nothing and ends nothing, and stays so after it is healed; a new one works', async () => {
  await using echo = await startEcho()
  await using proxy = await NetProxy.start(echo)
  const socket = await connected(proxy)
  proxy.fallSilent()
  socket.write('lost')
  const news = once(socket, 'data').then(() => 'data')
  const end = once(socket, 'close').then(() => 'close')
  assert.equal(await Promise.race([news, end, nothing()]), 'nothing')
  proxy.heal()
  socket.write('lost as well')
  assert.equal(await Promise.race([news, end, nothing()]), 'nothing')
  ;(await connected(proxy)).destroy()
  socket.destroy()
})

test('what is on its way over a line that falls silent does not arrive once it is healed', async () => {
  await using echo = await startEcho()
  await using proxy = await NetProxy.start(echo)
  const socket = await connected(proxy)
  proxy.weather = { delayMs: 50, bytesPerSecond: Infinity }
  socket.write('lost')
  await pass(10, 'it is with the proxy by then; if it is not, it is not read any more')
  proxy.fallSilent()
  proxy.heal()
  const later = await connected(proxy) // there and back takes longer than what is on its way
  assert.deepEqual(echo.received, ['hello', 'hello'])
  for (const one of [socket, later]) one.destroy()
})

test('weather delays and throttles, in order', async () => {
  await using echo = await startEcho()
  await using proxy = await NetProxy.start(echo)
  proxy.weather = { delayMs: 20, bytesPerSecond: 1_000_000 }
  const started = performance.now()
  const socket = connect(proxy.port, '127.0.0.1')
  const sent = Buffer.from(Array.from({ length: 50_000 }, (_, at) => at % 251))
  socket.end(sent)
  const received = await buffer(socket)
  assert.ok(received.equals(sent))
  assert.ok(performance.now() - started > 100, '100,000 bytes both ways at 1 MB/s take 100 ms')
  proxy.weather = CALM
})

async function connected(proxy: NetProxy): Promise<Socket> {
  const socket = connect(proxy.port, '127.0.0.1')
  socket.write('hello')
  await once(socket, 'data')
  return socket
}

async function startEcho(): Promise<AsyncDisposable & { host: string; port: number; received: string[] }> {
  const received: string[] = []
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('data', (chunk: Buffer) => received.push(String(chunk)))
    socket.on('error', () => {}).pipe(socket)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  return { host: '127.0.0.1', port, received, [Symbol.asyncDispose]: async () => void server.close() }
}
