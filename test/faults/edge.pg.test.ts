/**
 * Whoever breaks HTTP, or is slow on purpose, or opens connections for nothing: each gets a clear refusal, or its connection is closed, while
 * another client's calls are answered and another account's rows arrive (hostile.ts).
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { after, before, test } from 'node:test'
import { HostileService } from './hostile.ts'
import { TOKEN } from './service.ts'
import { pass } from '../waiting.ts'

const HEADERS_MS = 2_000
const REQUEST_MS = 3_000
/** how often the server looks, and some more on a busy machine */
const LOOK_MS = 20_000
const ROUNDS = 50
const SLOW = 200
const IDLE = 10_000
const ADDRESSES = 10
/** under the bound of requests without a token of one address */
const AT_ONCE = 40

let hostile: HostileService
before(async () => {
  const env = { TAILRACE_HTTP_HEADERS_MS: String(HEADERS_MS), TAILRACE_HTTP_REQUEST_MS: String(REQUEST_MS) }
  hostile = await HostileService.start('create table item (id int primary key)', { sinks: [{ name: 'goods' }], env })
})
after(() => hostile[Symbol.asyncDispose]())

function opened(localAddress?: string): Socket {
  const { port } = new URL(hostile.service.origin)
  return connect({ port: Number(port), host: '127.0.0.1', ...(localAddress !== undefined && { localAddress }) }).on(
    'error',
    () => undefined,
  )
}

/** What comes until the server closes the connection. */
async function answerTo(text: string | Buffer, socket = opened()): Promise<string> {
  let answer = ''
  socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')))
  socket.write(text)
  await once(socket, 'close')
  return answer
}

const summaryOf = (answer: string) => {
  const [head = '', body = ''] = answer.split('\r\n\r\n', 2)
  const isJson = /content-type: application\/json/i.test(head)
  return [
    Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1]),
    isJson && body !== '' ? ((JSON.parse(body) as { code?: string }).code ?? 'without code') : 'no JSON',
    answer.split('HTTP/1.1 ').length - 1,
  ]
}

const AUTH = `authorization: Bearer ${TOKEN}`
const CLOSE = 'connection: close'
const request = (line: string, ...headers: string[]) => `${line} HTTP/1.1\r\n${['host: x', AUTH, ...headers].join('\r\n')}\r\n\r\n`
const get = (path: string, ...headers: string[]) => request(`GET ${path}`, CLOSE, ...headers)
const SMUGGLED = request('GET /api/sinks')
const CHUNKED = `5\r\n{"a":\r\n0\r\n\r\n`

const REFUSED: Readonly<Record<string, readonly [text: string | Buffer, status: number, code: string]>> = {
  'dot segments, encoded': [get('/api/%2e%2e/health'), 404, 'ROUTE_NOT_FOUND'],
  'dot segments': [get('/api/../health'), 404, 'ROUTE_NOT_FOUND'],
  'an encoded slash': [get('/api/sinks/..%2f..%2fhealth'), 404, 'NOT_FOUND'],
  'a double slash': [get('//api//sinks'), 404, 'ROUTE_NOT_FOUND'],
  'an encoded null byte': [get('/api/sinks/goods%00'), 404, 'NOT_FOUND'],
  'a null byte': [Buffer.from(get('/api/sinks/goods\0')), 400, 'REQUEST_INVALID'],
  'a half escape': [get('/api/sinks/%zz'), 400, 'REQUEST_INVALID'],
  'no UTF-8': [get('/api/sinks/%ff'), 400, 'REQUEST_INVALID'],
  'a long name': [get(`/api/sinks/${'a'.repeat(5_000)}`), 404, 'NOT_FOUND'],
  'a very long path': [get(`/api/sinks/${'a'.repeat(100_000)}`), 431, 'HEADERS_TOO_LARGE'],
  'a path that is none': [get('api/sinks'), 400, 'REQUEST_INVALID'],
  'a line in a header': [get('/api/sinks', 'x-a: b\rx-b: c'), 400, 'REQUEST_INVALID'],
  'a null byte in a header': [get('/api/sinks', 'x-a: b\0c'), 400, 'REQUEST_INVALID'],
  'a name of a header with a space': [get('/api/sinks', 'x a: b'), 400, 'REQUEST_INVALID'],
  'large headers': [get('/api/sinks', `x-a: ${'b'.repeat(20_000)}`), 431, 'HEADERS_TOO_LARGE'],
  'both lengths': [
    request('POST /api/sinks', 'content-length: 5', 'transfer-encoding: chunked') + CHUNKED + SMUGGLED,
    400,
    'REQUEST_INVALID',
  ],
  'both lengths, the other way round': [
    request('POST /api/sinks', 'transfer-encoding: chunked', 'content-length: 5') + CHUNKED + SMUGGLED,
    400,
    'REQUEST_INVALID',
  ],
  'two lengths': [request('POST /api/sinks', 'content-length: 5', 'content-length: 6') + SMUGGLED, 400, 'REQUEST_INVALID'],
  'a coding that is none': [request('POST /api/sinks', 'transfer-encoding: xchunked') + CHUNKED + SMUGGLED, 400, 'REQUEST_INVALID'],
  'a space before the colon': [request('POST /api/sinks', 'transfer-encoding : chunked') + CHUNKED + SMUGGLED, 400, 'REQUEST_INVALID'],
  'a length of a chunk that is none': [
    request('POST /api/sinks', 'transfer-encoding: chunked') + `zz\r\n${SMUGGLED}`,
    400,
    'REQUEST_INVALID',
  ],
  'a body over the limit': [request('POST /api/sinks', 'content-length: 100000000', CLOSE), 413, 'BODY_TOO_LARGE'],
  'chunks over the limit': [
    request('POST /api/http_pull_consumers/goods/receive', 'transfer-encoding: chunked', CLOSE) +
      `100000\r\n${'x'.repeat(1_048_576)}\r\n0\r\n\r\n`,
    413,
    'BODY_TOO_LARGE',
  ],
}

test('what breaks HTTP, or is over a limit, is refused with a code, and nothing behind it is taken for a request', async (context) => {
  const seen: Record<string, unknown> = {}
  await hostile.proof(context, async () => {
    for (let round = 0; round < ROUNDS; round++)
      await Promise.all(
        Object.entries(REFUSED).map(async ([what, [text]]) => {
          seen[what] = summaryOf(await answerTo(text))
        }),
      )
  })
  assert.deepEqual(seen, Object.fromEntries(Object.entries(REFUSED).map(([what, [, status, code]]) => [what, [status, code, 1]])))
})

test('slow headers and slow bodies are cut with 408, however many', async (context) => {
  const body = `POST /api/http_pull_consumers/goods/receive HTTP/1.1\r\nhost: x\r\n${AUTH}\r\ncontent-length: 1000\r\n\r\n`
  await hostile.proof(context, async () => {
    const over = AbortSignal.timeout(REQUEST_MS + LOOK_MS)
    const slow = async (start: string) => {
      const socket = opened()
      const answer = answerTo(start, socket)
      const dripping = (async () => {
        while (!over.aborted && !socket.closed) {
          await pass(100, 'a client that is slow on purpose', over)
          if (socket.writable) socket.write('x')
        }
      })()
      const text = await answer
      await dripping
      return text
    }
    const answers = await Promise.all(
      Array.from({ length: SLOW }, (_, i) => slow(i % 2 === 0 ? 'GET /health HTTP/1.1\r\nhost: x\r\nx-a: ' : body)),
    )
    assert.ok(!over.aborted, 'all were cut in time')
    for (const answer of answers) assert.deepEqual(summaryOf(answer), [408, 'REQUEST_TOO_SLOW', 1])
  })
})

test(
  `${IDLE} connections that say nothing more hold up nobody`,
  { skip: process.platform !== 'linux' && 'only there all of 127.0.0.0/8 is this machine' },
  async (context) => {
    const sockets: Socket[] = []
    const open = async (address: string) => {
      const socket = opened(address)
      sockets.push(socket)
      await once(socket, 'connect')
      socket.write('GET /health HTTP/1.1\r\nhost: x\r\n\r\n')
      await once(socket, 'data')
    }
    try {
      await hostile.proof(context, async () => {
        for (let i = 0; i < IDLE / ADDRESSES; i += AT_ONCE)
          await Promise.all(Array.from({ length: ADDRESSES * AT_ONCE }, (_, j) => open(`127.0.1.${1 + (j % ADDRESSES)}`)))
        assert.equal(sockets.filter(({ closed }) => !closed).length, IDLE)
        const { status } = await hostile.service.get('/api/sinks')
        assert.equal(status, 200)
        const more = opened('127.0.1.1')
        await once(more, 'close') // of one address no more than so many
      })
    } finally {
      for (const socket of sockets) socket.destroy()
    }
  },
)
