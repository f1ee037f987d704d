import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect } from 'node:net'
import { test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { request } from 'undici'
import { EngineError } from '../../../engine/errors.ts'
import { GOODS_ID, message, OTHER, OTHER_TOKEN, TOKEN } from '../scripted-engine.ts'
import { serve, waitingCount } from '../api-fixture.ts'

const RECEIVE = '/api/http_pull_consumers/goods/receive'
const ACK = '/api/http_pull_consumers/goods/ack'
const NACK = '/api/http_pull_consumers/goods/nack'
const summaryOf = (body: unknown) => (body as { summary: string }).summary

test('receive by POST and by GET answers the sink’s bytes, flat on the path of pull consumers', async () => {
  await using s = await serve()
  s.goods.push(message('a1'), message('a2'), message('a3'))
  const first = await s.call(RECEIVE, { body: { batch_size: 2 } })
  assert.equal(first.status, 200)
  assert.equal(first.headers.get('content-type'), 'application/json; charset=utf-8')
  const { data } = first.body as { data: Record<string, unknown>[] }
  assert.deepEqual(
    data.map((item) => item['ack_id']),
    ['a1', 'a2'],
  )
  assert.deepEqual(data[0]?.['record'], { id: 7, title: 'Lamp' })
  assert.equal(data[0]?.['action'], 'insert')
  const second = await s.call(`${RECEIVE}?batch_size=5`)
  assert.deepEqual(
    (second.body as { data: { ack_id: string }[] }).data.map((item) => item.ack_id),
    ['a3'],
  )
  assert.deepEqual((await s.call(RECEIVE)).body, { data: [] })
})

test('the newer paths answer nested, and shape overrides both as query or as body key', async () => {
  await using s = await serve()
  const shapes = async (path: string, body?: unknown) => {
    s.goods.push(message('x'))
    const { body: answer } = await s.call(path, body === undefined ? {} : { body })
    return Object.keys((answer as { data: object[] }).data[0] ?? {}).includes('data') ? 'nested' : 'flat'
  }
  assert.equal(await shapes('/api/sequin_streams/goods/receive', {}), 'nested')
  assert.equal(await shapes('/api/tailrace_streams/goods/receive'), 'nested')
  assert.equal(await shapes('/api/sequin_streams/goods/receive?shape=flat'), 'flat')
  assert.equal(await shapes(RECEIVE, { shape: 'nested' }), 'nested')
  assert.equal(await shapes(`${RECEIVE}?shape=nested`, {}), 'nested')
})

test('max_batch_size is what clients of the original send, and they read nested messages: on the flat path too, unless shape says otherwise', async () => {
  await using s = await serve()
  const shapes = async (path: string, body?: unknown) => {
    s.goods.push(message('x'))
    const { body: answer } = await s.call(path, body === undefined ? {} : { body })
    return Object.keys((answer as { data: object[] }).data[0] ?? {}).includes('data') ? 'nested' : 'flat'
  }
  assert.equal(await shapes(RECEIVE, { max_batch_size: 1 }), 'nested')
  assert.equal(await shapes(RECEIVE, { max_batch_size: 1, batch_size: 1 }), 'nested')
  assert.equal(await shapes(`${RECEIVE}?max_batch_size=1`), 'nested')
  assert.equal(await shapes(RECEIVE, { max_batch_size: null, batch_size: 1 }), 'flat')
  assert.equal(await shapes(RECEIVE, { max_batch_size: 1, shape: 'flat' }), 'flat')
})

test('an id finds the sink in any case of its letters, and an unknown sink, another type or another account is 404', async () => {
  await using s = await serve()
  s.engine.add({ id: '55555555-5555-4555-8555-555555555555', name: 'theirs', accountId: OTHER.id })
  assert.equal((await s.call(`/api/http_pull_consumers/${GOODS_ID}/receive`)).status, 200)
  assert.equal((await s.call(`/api/http_pull_consumers/${GOODS_ID.toUpperCase()}/receive`)).status, 200)
  for (const [path, token] of [
    ['/api/http_pull_consumers/nothing/receive', TOKEN],
    ['/api/http_pull_consumers/theirs/receive', TOKEN],
    ['/api/http_pull_consumers/55555555-5555-4555-8555-555555555555/receive', TOKEN],
    [RECEIVE, OTHER_TOKEN],
    [`/api/http_pull_consumers/${'n'.repeat(900)}/receive`, TOKEN],
    [`/api/http_pull_consumers/${'n'.repeat(3_000)}/receive`, TOKEN],
  ] as const) {
    const { status, body } = await s.call(path, { token })
    assert.equal(status, 404, path)
    assert.equal((body as { code: string }).code, 'NOT_FOUND')
    assert.equal(typeof summaryOf(body), 'string')
  }
})

test('without a known Bearer token every call is 401, before its body is looked at', async () => {
  await using s = await serve()
  for (const authorization of [undefined, 'Bearer', 'Bearer wrong', 'Basic dG9rZW4=', TOKEN, `Bearer ${TOKEN} ${TOKEN}`, 'Bearer \u00e9']) {
    const { status, body, headers } = await s.call(ACK, {
      raw: '{not json',
      token: null,
      ...(authorization && { headers: { authorization } }),
    })
    assert.equal(status, 401, authorization)
    assert.deepEqual([Object.keys(body as object), (body as { code: string }).code], [['summary', 'code', 'remedy'], 'TOKEN_INVALID'])
    assert.equal(headers.get('www-authenticate'), 'Bearer')
  }
  const accepted = await s.call(RECEIVE, { token: null, headers: { authorization: `bearer   ${TOKEN}` } })
  assert.equal(accepted.status, 200)
})

test('receive takes digits and durations, and its alias of batch_size', async () => {
  await using s = await serve()
  const seen = async (path: string, body?: unknown) => {
    s.goods.push(message('x')) // so that no call waits
    const { status } = await s.call(path, body === undefined ? {} : { body })
    assert.equal(status, 200, `${path} ${JSON.stringify(body)}`)
    const { batchSize, waitMs } = s.goods.requests.at(-1) ?? {}
    return [batchSize, waitMs]
  }
  assert.deepEqual(await seen(RECEIVE), [1, 0])
  assert.deepEqual(await seen(RECEIVE, {}), [1, 0])
  assert.deepEqual(await seen(RECEIVE, { batch_size: 1000, wait_for: 300000 }), [1000, 300000])
  assert.deepEqual(await seen(RECEIVE, { batch_size: '7', wait_for: '5m' }), [7, 300000])
  assert.deepEqual(await seen(RECEIVE, { max_batch_size: 8, wait_for: '60s' }), [8, 60000])
  assert.deepEqual(await seen(RECEIVE, { max_batch_size: 8, batch_size: 3, wait_for: '5000ms' }), [3, 5000])
  assert.deepEqual(await seen(RECEIVE, { batch_size: null, wait_for: null }), [1, 0])
  assert.deepEqual(await seen(RECEIVE, { wait_for: '1500', unknown: 1 }), [1, 1500])
  assert.deepEqual(await seen(`${RECEIVE}?max_batch_size=9&wait_for=2s`), [9, 2000])
})

test('an ack_token is asked for by name, and stands among the ids of an ack for what it names', async () => {
  await using s = await serve()
  const asked = async (path: string, body?: unknown) => {
    s.goods.push(message('x')) // so that no call waits
    assert.equal((await s.call(path, body === undefined ? {} : { body })).status, 200)
    return s.goods.requests.at(-1)?.ackToken
  }
  assert.equal(await asked(RECEIVE), false)
  assert.equal(await asked(RECEIVE, { ack_token: true }), true)
  assert.equal(await asked(`${RECEIVE}?ack_token=true`), true)
  assert.equal(await asked(`${RECEIVE}?ack_token=true`, { ack_token: false }), false)
  assert.equal(await asked(RECEIVE, { ack_token: null }), false)
  for (const id of ['a', 'b', 'c']) s.goods.inFlight.set(id, message(id))
  await s.call(ACK, { body: { ack_ids: ['a', 'b;c'] } })
  assert.deepEqual(s.goods.acked, ['a', 'b', 'c'])
})

test('a wrong batch_size, wait_for or shape is 400 and the summary names it', async () => {
  await using s = await serve()
  const wrong: [string, unknown][] = [
    ...[0, -1, 1001, 1.5, 'ten', '', '1.0', '-5', true, [], {}, '99999999999999999999'].map((v): [string, unknown] => ['batch_size', v]),
    ...['1h', '5 s', '-1s', '1.5s', -1, 300001, '301s', '6m', 0.5, true, [1], {}, 's', '99999999999999999999'].map(
      (v): [string, unknown] => ['wait_for', v],
    ),
    ...['wide', 1, []].map((v): [string, unknown] => ['shape', v]),
    ...[0, 'x'].map((v): [string, unknown] => ['max_batch_size', v]),
    ...[1, 'yes', []].map((v): [string, unknown] => ['ack_token', v]),
  ]
  for (const [name, value] of wrong) {
    const { status, body } = await s.call(RECEIVE, { body: { [name]: value } })
    assert.equal(status, 400, `${name} ${JSON.stringify(value)}`)
    assert.ok(summaryOf(body).startsWith(`${name} must be`), summaryOf(body))
    assert.equal((body as { code: string }).code, 'REQUEST_INVALID')
  }
  for (const query of ['batch_size=0', 'batch_size=', 'batch_size=1&batch_size=2', 'wait_for=1h', 'wait_for=', 'shape=wide']) {
    assert.equal((await s.call(`${RECEIVE}?${query}`)).status, 400, query)
  }
})

test('a body is JSON whatever its content type; what is no JSON is 400 with both keys', async () => {
  await using s = await serve()
  for (const type of [
    'text/plain',
    'application/octet-stream',
    'application/x-www-form-urlencoded',
    'application/json; charset=latin1',
    ';;;',
    'x',
  ]) {
    const { status } = await s.call(ACK, { raw: '{"ack_ids":["a"]}', headers: { 'content-type': type } })
    assert.equal(status, 200, type)
  }
  const { statusCode } = await request(`${s.api.url}${ACK}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${TOKEN}` },
    body: Buffer.from('\ufeff{"ack_ids":["a"]}'),
  })
  assert.equal(statusCode, 200, 'no content type, and a byte order mark')
  for (const raw of ['{', '{"ack_ids":["a"', 'ack_ids=a', '\u0000', "{'ack_ids':[]}"]) {
    const { status, body } = await s.call(ACK, { raw })
    assert.equal(status, 400, raw)
    assert.deepEqual(body, {
      summary: 'The body is not valid JSON.',
      code: 'REQUEST_UNPARSABLE',
      remedy: 'Send a JSON object in UTF-8.',
      errors: { detail: 'Bad Request' },
    })
  }
  for (const raw of ['[]', '"text"', '7', 'null', 'true']) assert.equal((await s.call(ACK, { raw })).status, 400, raw)
})

test('ack and nack answer success, ignore unknown ids, and refuse anything but a list of texts', async () => {
  await using s = await serve()
  s.goods.push(message('a1'), message('a2'))
  await s.call(`${RECEIVE}?batch_size=2`)
  assert.deepEqual((await s.call(ACK, { body: { ack_ids: ['a1', 'never-seen'] } })).body, { success: true })
  const again = await s.call(ACK, { body: { ack_ids: ['a1'] } })
  assert.deepEqual([again.status, again.headers.get('content-type')], [200, 'application/json; charset=utf-8'])
  assert.deepEqual((await s.call('/api/tailrace_streams/goods/nack', { body: { ack_ids: ['a2'] } })).body, { success: true })
  assert.deepEqual([s.goods.acked, s.goods.nacked], [['a1'], ['a2']])
  for (const body of [
    {},
    { ack_ids: [] },
    { ack_ids: 'a1' },
    { ack_ids: null },
    { ack_ids: ['a', 1] },
    { ack_ids: [''] },
    { ack_ids: { 0: 'a' } },
    { ack_ids: [['a']] },
  ]) {
    for (const path of [ACK, NACK]) {
      const { status, body: answer } = await s.call(path, { body })
      assert.equal(status, 400, JSON.stringify(body))
      assert.match(summaryOf(answer), /^ack_ids/)
    }
  }
})

test('ack takes 10,000 ids of any length of ours; a body beyond 16 MB is 413', async () => {
  await using s = await serve()
  const ids = Array.from({ length: 10_000 }, (_, i) => `${i}-${'k'.repeat(60)}`)
  assert.equal((await s.call(ACK, { body: { ack_ids: ids } })).status, 200)
  const { status, body } = await s.call(ACK, { raw: JSON.stringify({ ack_ids: ['k'.repeat(17 * 1_048_576)] }) })
  assert.deepEqual([status, (body as { code: string }).code], [413, 'BODY_TOO_LARGE'])
})

test('GET on ack and nack, and any path that is not there, is 404 with errors.detail alone', async () => {
  await using s = await serve()
  for (const [path, method] of [
    [ACK, 'GET'],
    [NACK, 'GET'],
    [RECEIVE, 'DELETE'],
    ['/api/nothing', 'GET'],
    ['/nothing', 'GET'],
    ['/api/nothing', 'POST'],
  ] as const) {
    const { status, body } = await s.call(path, { method, ...(method === 'POST' && { raw: '{broken' }) })
    assert.partialDeepStrictEqual(
      { status, body },
      { status: 404, body: { code: 'ROUTE_NOT_FOUND', errors: { detail: 'Not Found' } } },
      `${method} ${path}`,
    )
    assert.match((body as { summary: string }).summary, /no such path/)
  }
})

test('HEAD never takes a message, and OPTIONS says the methods', async () => {
  await using s = await serve()
  s.goods.push(message('a1'))
  assert.equal((await s.call(RECEIVE, { method: 'HEAD' })).status, 404)
  assert.equal(s.goods.ready.length, 1)
  assert.equal((await s.call('/api/sinks', { method: 'HEAD' })).status, 200)
  assert.equal((await s.call('/health', { method: 'HEAD', token: null })).status, 200)
  const options = await s.call(RECEIVE, { method: 'OPTIONS', token: null })
  assert.deepEqual([options.status, options.headers.get('allow')], [204, 'GET, OPTIONS, POST'])
})

test('a waiting receive ends with the message, or with an empty list when the time is over', async () => {
  await using s = await serve()
  const waiting = s.call(RECEIVE, { body: { wait_for: '60s' } })
  await waitingCount(s.goods, 1)
  s.goods.push(message('late'))
  assert.deepEqual(
    ((await waiting).body as { data: { ack_id: string }[] }).data.map((item) => item.ack_id),
    ['late'],
  )
  assert.deepEqual((await s.call(RECEIVE, { body: { wait_for: 5 } })).body, { data: [] })
})

test('a client that leaves while it waits frees its place and takes nothing', async () => {
  await using s = await serve()
  const leave = new AbortController()
  const left = assert.rejects(s.call(RECEIVE, { body: { wait_for: '60s' }, signal: leave.signal }))
  await waitingCount(s.goods, 1)
  const free = waitingCount(s.goods, 0)
  leave.abort()
  await Promise.all([left, free])
  s.goods.push(message('a1'))
  assert.deepEqual([s.goods.ready.length, s.goods.inFlight.size], [1, 0])
  const half = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  half.write(`GET ${RECEIVE}?wait_for=60s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`)
  const [answer] = (await once(half, 'data')) as [Buffer]
  assert.match(answer.toString(), /"ack_id":"a1"/)
  half.write(`GET ${RECEIVE}?wait_for=60s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`)
  await waitingCount(s.goods, 1)
  const freeAgain = waitingCount(s.goods, 0)
  half.end() // only its sending side: it will hear nothing more either
  await freeAgain
  half.destroy()
})

test('a client that pipelines receives and leaves frees the place of each, also of those whose turn had not come', async () => {
  await using s = await serve()
  const client = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  client.on('error', () => {})
  client.write(`GET ${RECEIVE}?wait_for=60s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`.repeat(3))
  await waitingCount(s.goods, 3)
  const free = waitingCount(s.goods, 0)
  client.destroy()
  await free
  s.goods.push(message('a1'))
  assert.deepEqual([s.goods.ready.length, s.goods.inFlight.size], [1, 0])
})

test('an answer whose turn never came is given back when the connection ends', async () => {
  await using s = await serve()
  s.goods.push(message('a1'))
  const receive = s.goods.receive.bind(s.goods)
  const taken = Promise.withResolvers<void>()
  const returned = Promise.withResolvers<void>()
  s.goods.receive = async (asked) => {
    if (asked.batchSize === 2) return receive({ ...asked, waitMs: 60_000 })
    const receipt = await receive(asked)
    setImmediate(taken.resolve) // its answer then stands behind that of the one that waits
    return { body: receipt.body, count: receipt.count, giveBack: () => (receipt.giveBack(), returned.resolve()) }
  }
  const [held] = s.goods.ready.splice(0)
  const client = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  client.on('error', () => {})
  const head = `HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`
  client.write(`GET ${RECEIVE}?batch_size=2 ${head}`)
  await waitingCount(s.goods, 1)
  s.goods.ready.push(held as never)
  client.write(`GET ${RECEIVE}?batch_size=1 ${head}`)
  await taken.promise
  assert.equal(s.goods.inFlight.size, 1)
  client.destroy()
  await returned.promise
  assert.equal(s.goods.inFlight.size, 0)
})

test('messages whose answer could not be written are deliverable again at once', async () => {
  await using s = await serve()
  const taken = Promise.withResolvers<void>()
  const returned = Promise.withResolvers<void>()
  const receive = s.goods.receive.bind(s.goods)
  s.goods.receive = async (asked) => {
    const receipt = await receive(asked)
    taken.resolve()
    const written = () => returned.reject(new Error('its memory was to be used again while half of it was on its way'))
    return {
      body: Buffer.alloc(64 * 1_048_576, 0x20),
      count: receipt.count,
      written,
      giveBack: () => (receipt.giveBack(), returned.resolve()),
    }
  }
  s.goods.push(message('big'))
  const client = connect({ port: Number(new URL(s.api.url).port), host: '127.0.0.1' })
  client.on('error', () => {})
  client.write(`GET ${RECEIVE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`)
  await taken.promise
  await once(client, 'readable') // the answer is on its way, more than any buffer takes
  client.destroy()
  await returned.promise
  assert.deepEqual([s.goods.givenBack, s.goods.ready.length, s.goods.inFlight.size], [1, 1, 0])
})

test('messages that were taken just when the client had gone are given back', async () => {
  await using s = await serve()
  const asked = Promise.withResolvers<AbortSignal>()
  const release = Promise.withResolvers<void>()
  const returned = Promise.withResolvers<void>()
  s.goods.receive = async ({ signal }) => {
    asked.resolve(signal)
    await release.promise // an engine that doesn't hear the signal in time
    return { body: Buffer.from('{"data":[]}'), count: 1, giveBack: returned.resolve }
  }
  const leave = new AbortController()
  const left = assert.rejects(s.call(RECEIVE, { signal: leave.signal }))
  const signal = await asked.promise
  const aborted = once(signal, 'abort')
  leave.abort()
  await Promise.all([left, aborted])
  release.resolve()
  await returned.promise
})

test('too many waiting is 429, an ack that is not durable 503, an unknown failure 500 that says nothing of it', async () => {
  await using s = await serve()
  s.goods.maxWaiting = 0
  const full = await s.call(RECEIVE, { body: { wait_for: 1000 } })
  assert.deepEqual([full.status, (full.body as { code: string }).code, full.headers.get('retry-after')], [429, 'TOO_MANY_WAITING', '1'])
  s.goods.fail = new EngineError('ACK_NOT_DURABLE', 'lmdb said EIO on /var/lib/secret')
  const refused = await s.call(ACK, { body: { ack_ids: ['a'] } })
  assert.deepEqual([refused.status, (refused.body as { code: string }).code], [503, 'ACK_NOT_DURABLE'])
  assert.doesNotMatch(refused.text, /lmdb|secret/)
  s.goods.fail = new TypeError('cannot read "password" of undefined')
  const broken = await s.call(ACK, { body: { ack_ids: ['a'] } })
  assert.deepEqual(
    [broken.status, (broken.body as { code: string }).code, Object.keys(broken.body as object)],
    [500, 'INTERNAL', ['summary', 'code', 'remedy']],
  )
  assert.doesNotMatch(broken.text, /password|TypeError|\.ts/)
  assert.deepEqual(
    s.log.map((line) => (JSON.parse(line) as { level: string }).level),
    ['warn', 'error'],
    'what a repeat mends is no error',
  )
  assert.match(await s.metrics.text(), /tailrace_error_answers_count\{code="INTERNAL"\} 1/)
})

test('a sink that is off answers an empty list; an active one without an actor 503', async () => {
  await using s = await serve()
  s.engine.add({ id: '66666666-6666-4666-8666-666666666666', name: 'off', status: 'disabled', max_waiting: 1 }, { runs: false })
  s.engine.add({ id: '77777777-7777-4777-8777-777777777777', name: 'starting' }, { runs: false })
  assert.deepEqual((await s.call('/api/http_pull_consumers/off/receive')).body, { data: [] })
  assert.deepEqual((await s.call('/api/http_pull_consumers/off/receive?wait_for=20')).body, { data: [] })
  const leaving = new AbortController()
  const two = [0, 1].map(() => s.call('/api/http_pull_consumers/off/receive?wait_for=5m', { signal: leaving.signal }))
  assert.equal((await Promise.race(two)).status, 429, 'one is held, and counted as for a sink that is on')
  leaving.abort()
  await Promise.allSettled(two)
  const starting = await s.call('/api/http_pull_consumers/starting/receive')
  assert.deepEqual([starting.status, (starting.body as { code: string }).code], [503, 'SINK_NOT_RUNNING'])
})

test('a large answer is packed only for a client that asks for gzip', async () => {
  await using s = await serve()
  const encodingFor = async (accept: string | undefined) => {
    s.goods.push(message('big', 'x'.repeat(5_000)))
    const { headers, body } = await request(`${s.api.url}${RECEIVE}`, {
      headers: { authorization: `Bearer ${TOKEN}`, ...(accept && { 'accept-encoding': accept }) },
    })
    const bytes = Buffer.from(await body.arrayBuffer())
    const text = headers['content-encoding'] === 'gzip' ? gunzipSync(bytes).toString() : bytes.toString()
    assert.equal((JSON.parse(text) as { data: unknown[] }).data.length, 1)
    assert.equal(Number(headers['content-length']), bytes.length)
    return headers['content-encoding']
  }
  assert.equal(await encodingFor(undefined), undefined)
  assert.equal(await encodingFor('identity'), undefined)
  assert.equal(await encodingFor('gzip;q=0'), undefined)
  assert.equal(await encodingFor('br, gzip;q=0.8'), 'gzip')
  assert.equal(await encodingFor('gzip, deflate'), 'gzip')
})

test('an Accept header that leaves out JSON is 406', async () => {
  await using s = await serve()
  for (const accept of ['*/*', 'application/json', 'text/html, application/*;q=0.5', 'application/vnd.api+json', 'text/html, */*;q=0.1']) {
    assert.equal((await s.call(RECEIVE, { headers: { accept } })).status, 200, accept)
  }
  for (const accept of ['text/html', 'application/xml', 'application/json;q=0', 'nonsense']) {
    const { status, body } = await s.call(RECEIVE, { headers: { accept } })
    assert.deepEqual([status, (body as { code: string }).code], [406, 'NOT_ACCEPTABLE'], accept)
  }
})
