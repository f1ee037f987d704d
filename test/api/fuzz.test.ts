/** Whatever a client sends, it gets a clear answer: 2xx, or a 4xx in the shape that docs/pull-api.md shows; never a 5xx, a crash or a hang. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { Agent, request } from 'undici'
import { message, TOKEN } from './scripted-engine.ts'
import { serve, type Fixture } from './api-fixture.ts'
import { LONG } from '../faults/size.ts'
import fc from '../services/fast-check.ts'

const RECEIVE = '/api/http_pull_consumers/goods/receive'
const TARGETS = [
  ['POST', RECEIVE],
  ['POST', '/api/http_pull_consumers/goods/ack'],
  ['POST', '/api/sequin_streams/goods/nack'],
  ['PATCH', '/api/sinks/goods'],
  ['PUT', '/api/sinks/goods'],
] as const
const TIME_LIMIT_MS = 30_000
/** fast-check prints seed and path of a failing run: put them beside numRuns to replay it. */
const RUNS = { numRuns: LONG ? 150 : 60 }

type Sent = { method: string; path: string; body?: string | Uint8Array; headers?: Record<string, string>; query?: string }

async function expectClearAnswer(s: Fixture, { method, path, body, headers = {}, query }: Sent, dispatcher: Agent): Promise<void> {
  const answer = await request(`${s.api.url}${path}${query === undefined ? '' : `?${query}`}`, {
    method: method as 'POST',
    headers: { authorization: `Bearer ${TOKEN}`, ...headers },
    ...(body !== undefined && { body }),
    dispatcher,
    signal: AbortSignal.timeout(TIME_LIMIT_MS),
  })
  const text = await answer.body.text()
  assert.ok(answer.statusCode < 500, `${answer.statusCode} ${text.slice(0, 200)}`)
  if (answer.statusCode === 204) return
  const parsed = JSON.parse(text) as Record<string, unknown>
  if (answer.statusCode < 300) return
  assert.ok(answer.statusCode >= 400)
  assert.equal(typeof parsed['summary'], 'string')
  assert.equal(typeof parsed['code'], 'string')
  assert.equal(typeof parsed['remedy'], 'string')
  assert.ok(text.length < 20_000, 'an answer does not repeat what was sent')
  assert.doesNotMatch(text, /node_modules|\.ts:\d|at Object\./)
}

async function fuzz<T>(arbitrary: fc.Arbitrary<T>, toSent: (value: T) => Sent, numRuns: number = RUNS.numRuns): Promise<void> {
  await using s = await serve()
  await using agent = Object.assign(new Agent({ connections: 8 }), { [Symbol.asyncDispose]: () => agent.destroy() })
  await fc.assert(
    fc.asyncProperty(arbitrary, (value) => expectClearAnswer(s, toSent(value), agent)),
    { numRuns },
  )
  const after = await s.call('/health')
  assert.equal(after.status, 200)
}

const target = fc.constantFrom(...TARGETS)
const KEYS = [
  'batch_size',
  'max_batch_size',
  'shape',
  'ack_ids',
  'status',
  'name',
  'source',
  'tables',
  'actions',
  'annotations',
  'destination',
  'message_grouping',
  'max_retry_count',
  'database',
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  'health',
  'id',
]
// no wait_for that is valid and long: a wait is no hang
const waitFor = fc.oneof(
  fc.constantFrom('1h', '-1s', '5 s', '3ms', 2, -1, 1e9, null),
  fc.double(),
  fc.string().filter((text) => !/^\d+(ms|s|m)?$/.test(text)),
)
/** Values that are right often enough to reach what lies behind the checks. */
const plausible = fc.record(
  {
    batch_size: fc.oneof(fc.integer({ min: 1, max: 1_000 }), fc.constantFrom('7', '0', null)),
    shape: fc.constantFrom('flat', 'nested', 'wide'),
    ack_ids: fc.array(fc.string({ unit: 'binary', minLength: 1 }), { minLength: 1 }),
    status: fc.constantFrom('active', 'paused', 'disabled', 'off'),
    source: fc.oneof(
      fc.constant(null),
      fc.record({ include_tables: fc.array(fc.string()), exclude_schemas: fc.array(fc.string()) }, { requiredKeys: [] }),
    ),
    tables: fc.array(fc.record({ name: fc.string(), group_column_names: fc.option(fc.array(fc.string())) })),
    annotations: fc.dictionary(fc.string({ unit: 'binary' }), fc.jsonValue()),
    destination: fc.record({ type: fc.constantFrom('stream', 'sequin_stream', 'webhook') }),
    message_grouping: fc.constantFrom(true, false, 'true', 'maybe'),
  },
  { requiredKeys: [] },
)
const wild = fc
  .tuple(
    fc.dictionary(
      fc.oneof(fc.constantFrom(...KEYS), fc.string()),
      fc.oneof(fc.jsonValue(), fc.integer(), fc.string({ unit: 'binary' }), fc.array(fc.string())),
    ),
    fc.option(waitFor, { nil: undefined }),
  )
  .map(([body, wait]) => JSON.stringify({ ...body, wait_for: wait }))

const object = fc.oneof(
  wild,
  plausible.map((body) => JSON.stringify(body)),
)

test('random JSON under the keys we know and under others', () =>
  fuzz(fc.tuple(target, object), ([[method, path], body]) => ({ method, path, body })))

test('random JSON values as the whole body', () => fuzz(fc.tuple(target, fc.json()), ([[method, path], body]) => ({ method, path, body })))

test('JSON that was cut, doubled or has bytes changed', () =>
  fuzz(
    fc.tuple(target, object, fc.nat(), fc.nat({ max: 255 }), fc.constantFrom('cut', 'double', 'change')),
    ([[method, path], text, at, byte, how]) => {
      const bytes = Buffer.from(text)
      if (how === 'change') bytes[at % bytes.length] = byte
      return {
        method,
        path,
        body: how === 'cut' ? bytes.subarray(0, at % bytes.length) : how === 'double' ? Buffer.concat([bytes, bytes]) : bytes,
      }
    },
  ))

test('random bytes', () =>
  fuzz(fc.tuple(target, fc.uint8Array({ maxLength: 2_000 })), ([[method, path], body]) => ({ method, path, body })))

test('deep nesting, wide objects and long texts, up to the limit and beyond', () =>
  fuzz(
    fc.tuple(
      target,
      fc.constantFrom(60_000, 900_000, 1_100_000, 20_000_000),
      fc.constantFrom('arrays', 'objects', 'open', 'wide', 'text', 'ids', 'under a key'),
    ),
    ([[method, path], size, kind]) => {
      const levels = Math.floor(size / 6)
      const bodies: Record<typeof kind, () => string> = {
        arrays: () => '['.repeat(size / 2) + ']'.repeat(size / 2),
        objects: () => '{"a":'.repeat(levels) + '1' + '}'.repeat(levels),
        open: () => '['.repeat(size),
        wide: () => `{${Array.from({ length: size / 12 }, (_, i) => `"k${i}":1`).join(',')}}`,
        text: () => `{"name":"${'x'.repeat(size)}"}`,
        ids: () => `{"ack_ids":[${'"a",'.repeat(size / 4)}"b"]}`,
        'under a key': () => `{"annotations":${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}}`,
      }
      return { method, path, body: bodies[kind]() }
    },
    60,
  ))

test('random query strings and headers', () => {
  const headerValue = fc.string({ unit: fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code)) })
  const headers = fc.dictionary(
    fc.constantFrom(
      'accept',
      'accept-encoding',
      'content-type',
      'authorization',
      'x-other',
      'cookie',
      'accept-version',
      'prefer',
      'range',
      'if-match',
    ),
    headerValue,
  )
  const pair = fc.tuple(fc.oneof(fc.constantFrom('batch_size', 'shape', '__proto__', 'batch_size[]'), fc.string()), fc.string())
  const query = fc
    .array(pair)
    .map((pairs) =>
      pairs.map(([key, value]) => `${encodeURIComponent(key.toWellFormed())}=${encodeURIComponent(value.toWellFormed())}`).join('&'),
    )
  return fuzz(
    fc.tuple(fc.constantFrom('GET', 'POST', 'HEAD', 'OPTIONS', 'DELETE', 'TRACE', 'PROPFIND'), headers, query),
    ([method, sent, text]) => ({
      method: method === 'HEAD' ? 'GET' : method,
      path: RECEIVE,
      headers: { ...sent, ...('authorization' in sent && text.length % 2 === 0 && { authorization: `Bearer ${TOKEN}` }) },
      query: text,
    }),
  )
})

test('random paths', () =>
  fuzz(
    fc.tuple(
      fc.constantFrom('GET', 'POST', 'PATCH'),
      fc.array(
        fc.oneof(
          fc.constantFrom('api', 'sinks', 'goods', 'http_pull_consumers', 'receive', '..', '.', '%2e%2e', '%00', '%zz', ''),
          fc.webSegment(),
        ),
      ),
    ),
    ([method, segments]) => ({
      method,
      path: `/${segments.join('/')}`,
    }),
  ))

test('random bytes on the socket end in an answer or a closed connection, and the next client is served', async () => {
  await using s = await serve()
  s.goods.push(message('a1'))
  const port = Number(new URL(s.api.url).port)
  const start = fc.constantFrom(
    '',
    'GET ',
    'POST /api/sinks/goods HTTP/1.1\r\n',
    `POST ${RECEIVE} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`,
  )
  await fc.assert(
    fc.asyncProperty(start, fc.uint8Array({ maxLength: 500 }), async (first, bytes) => {
      const socket = connect({ port, host: '127.0.0.1' })
      socket.on('error', () => {})
      let text = ''
      socket.on('data', (chunk) => (text += String(chunk)))
      socket.write(first)
      socket.end(bytes)
      await once(socket, 'close')
      if (text !== '') assert.match(text, /^HTTP\/1\.1 [24]\d\d /)
    }),
    { numRuns: 100 },
  )
  assert.equal((await s.call(RECEIVE)).status, 200)
})
