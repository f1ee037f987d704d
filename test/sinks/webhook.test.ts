import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { test } from 'node:test'
import type { Batch } from '../../engine/dispatch/batch.ts'
import type { WebhookDestination } from '../../sinks/webhook-settings.ts'
import { webhook } from '../../sinks/webhook.ts'
import { Signer } from '../../sinks/webhook-signature.ts'
import { HttpReceiver, jsonOf, type Received } from '../services/http-receiver.ts'
import { DATABASE, SINK } from '../actors/sink-fixture.ts'
import { conforms, SECRET } from './conformance.ts'
import { enriched, endpoint, keys, batchOf, madeInto, NEVER, wireOf } from './batch.ts'

const HOOK: WebhookDestination = { type: 'webhook', http_endpoint: 'hooks', batch: true, item_results: false }
type Message = { record: { id: string }; metadata: Record<string, unknown> }
const dataOf = (request: Received) => (jsonOf(request) as { data: Message[] }).data

conforms({
  type: webhook,
  open: (url, timeoutMs, egress) =>
    wireOf(
      webhook,
      HOOK,
      { ack_wait_ms: timeoutMs },
      {
        ...(egress && { egress }),
        endpoint: endpoint(url, {
          encryptedHeaders: { authorization: `Bearer ${SECRET}`, 'x-key': Buffer.from(SECRET).toString('base64') },
        }),
      },
    ),
  answer: () => '',
  keysOf: (request) => dataOf(request).map(({ record }) => record.id),
})

test('a batch is {"data":[…]} also for one message, and a single message stands alone', async () => {
  await using receiver = await HttpReceiver.start()
  await using batches = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url) })
  await using singles = wireOf(webhook, { ...HOOK, batch: false }, { batch_size: 1 }, { endpoint: endpoint(receiver.url) })
  assert.equal(singles.maxMessages, 1)
  await batches.send(batchOf(keys('7')), NEVER)
  await singles.send(batchOf(keys('7')), NEVER)
  const [batch, single] = receiver.bodies as [{ data: [Message] }, Message]
  assert.deepEqual(Object.keys(batch), ['data'])
  assert.deepEqual(batch.data, [single])
  assert.deepEqual(single.record, { id: '7' })
  assert.deepEqual(single.metadata['consumer'], { id: SINK.id, name: SINK.name, annotations: SINK.annotations })
  assert.equal((single.metadata['database'] as { name: string }).name, DATABASE.name)
  assert.deepEqual(
    receiver.requests.map(({ method, headers }) => [method, headers['content-type']]),
    [
      ['POST', 'application/json'],
      ['POST', 'application/json'],
    ],
  )
})

test('a local endpoint is not sent to while no tunnel is open', () => {
  const local = endpoint('http://127.0.0.1:1', { kind: 'local' })
  assert.throws(() => wireOf(webhook, HOOK, {}, { endpoint: local }), { code: 'DESTINATION_UNREACHABLE' })
})

test('the path is the URL’s with the sink’s behind it; a query stays, a fragment is not sent', async () => {
  await using receiver = await HttpReceiver.start()
  for (const [base, path, asked] of [
    ['', undefined, '/'],
    ['', '/in', '/in'],
    ['/hooks', '/in', '/hooks/in'],
    ['/hooks/', undefined, '/hooks/'],
    ['/hooks', '?a=1', '/hooks?a=1'],
    ['', '?a=1', '/?a=1'],
    ['/hooks?a=1#x', undefined, '/hooks?a=1'],
    ['/hooks', '#x', '/hooks'],
  ] as const) {
    await using wire = wireOf(
      webhook,
      { ...HOOK, ...(path === undefined ? {} : { http_endpoint_path: path }) },
      {},
      { endpoint: endpoint(receiver.url + base) },
    )
    await wire.send(batchOf(keys('1')), NEVER)
    assert.equal(receiver.requests.at(-1)?.path, asked)
  }
})

test('what is got has no body: a routing function may say GET and HEAD', async () => {
  await using receiver = await HttpReceiver.start()
  await using wire = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url) })
  for (const method of ['get', 'HEAD', 'DELETE', 'PATCH'])
    assert.equal((await wire.send({ ...batchOf(keys('1')), route: { method } }, NEVER)).kind, 'delivered', method)
  assert.deepEqual(
    receiver.requests.map(({ method, body }) => [method, body.length > 0]),
    [['GET', false], ['HEAD', false], ['DELETE', true], ['PATCH', true]], // prettier-ignore
  )
})

test('the row that enriches a message stands in its metadata, in the place of null', async () => {
  await using receiver = await HttpReceiver.start()
  await using wire = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url) })
  const row = Buffer.from('{"id":1,"name":"North"}')
  await wire.send(enriched(batchOf(keys('1', '2')), [row, undefined]), NEVER)
  const [{ data }] = receiver.bodies as [{ data: { metadata: { enrichment: unknown; database_name: string } }[] }]
  assert.deepEqual(
    data.map(({ metadata }) => [metadata.enrichment, metadata.database_name]),
    [
      [{ id: 1, name: 'North' }, 'shop'],
      [null, 'shop'],
    ],
  )
})

test('headers are the endpoint’s, then the encrypted ones, then those of the route; later ones win in any spelling', async () => {
  await using receiver = await HttpReceiver.start()
  const headers = { 'X-A': 'plain', 'x-b': 'plain', 'x-c': 'plain', 'Content-Type': 'application/vnd.x+json' }
  await using wire = wireOf(
    webhook,
    HOOK,
    {},
    { endpoint: endpoint(receiver.url, { headers, encryptedHeaders: { 'x-B': 'secret', 'x-C': 'secret' } }) },
  )
  await wire.send({ ...batchOf(keys('1')), route: { method: 'put', endpoint_path: '/routed?x=1', headers: { 'X-c': 'routed' } } }, NEVER)
  const [request] = receiver.requests as [Received]
  assert.equal(request.method, 'PUT')
  assert.equal(request.path, '/routed?x=1')
  assert.deepEqual(
    [request.headers['x-a'], request.headers['x-b'], request.headers['x-c'], request.headers['content-type']],
    ['plain', 'secret', 'routed', 'application/vnd.x+json'],
  )
})

test('a user in the URL is a login, and never shown', async () => {
  await using receiver = await HttpReceiver.start(({ headers }) => ({ status: 400, body: String(headers.authorization) }))
  await using wire = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url.replace('//', '//us%40er:pa%20ssword@')) })
  const outcome = await wire.send(batchOf(keys('1')), NEVER)
  assert.equal(receiver.requests[0]?.headers.authorization, `Basic ${Buffer.from('us@er:pa ssword').toString('base64')}`)
  assert.ok(outcome.kind === 'failed' && outcome.failure.answer.message === 'status 400: Basic [secret]', JSON.stringify(outcome))
})

test('content-encoding gzip compresses the body, and another one goes out as a header with a warning', async () => {
  await using receiver = await HttpReceiver.start()
  const warnings: string[] = []
  const warn = (text: string) => void warnings.push(text)
  await using packed = wireOf(webhook, HOOK, {}, { warn, endpoint: endpoint(receiver.url, { headers: { 'Content-Encoding': 'gzip' } }) })
  await packed.send(batchOf(keys('1')), NEVER)
  assert.deepEqual(warnings, [])
  assert.equal(receiver.requests[0]?.headers['content-encoding'], 'gzip')
  assert.equal(dataOf(receiver.requests[0]!)[0]?.record.id, '1')
  await using other = wireOf(webhook, HOOK, {}, { warn, endpoint: endpoint(receiver.url, { headers: { 'content-encoding': 'br' } }) })
  await other.send(batchOf(keys('2')), NEVER)
  assert.equal(receiver.requests[1]?.headers['content-encoding'], 'br')
  assert.equal(JSON.parse(receiver.requests[1]!.body.toString()).data[0].record.id, '2')
  assert.equal(warnings.length, 1)
})

test('what functions made is freed when it is delivered: kept of what fails, and of what the server may still read', async () => {
  const freed: string[] = []
  const made = (name: string): Batch => {
    const { messages, ...batch } = madeInto(batchOf(keys('1')), [Buffer.from(`{"is":"${name}"}`)])
    return { ...batch, messages: messages.map((m) => ({ ...m, payload: m.payload && { ...m.payload, done: () => freed.push(name) } })) }
  }
  await using receiver = await HttpReceiver.start(({ body }) => ({ status: body.includes('bad') ? 500 : 200 }))
  const gzip = endpoint(receiver.url, { headers: { 'content-encoding': 'gzip' } })
  for (const batch of [true, false]) {
    await using plain = wireOf(webhook, { ...HOOK, batch }, {}, { endpoint: endpoint(receiver.url) })
    await using packed = wireOf(webhook, { ...HOOK, batch }, {}, { endpoint: gzip })
    for (const name of ['good', 'bad', 'fine']) await plain.send(made(name), NEVER)
    await packed.send(made('packed'), NEVER)
  }
  assert.deepEqual(freed, ['good', 'fine', 'packed', 'good', 'fine', 'packed'])

  const early = createServer((socket) => {
    socket.once('readable', () => socket.write('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n')) // and reads no further
  }).listen(0, '127.0.0.1')
  await once(early, 'listening')
  await using alone = wireOf(
    webhook,
    { ...HOOK, batch: false },
    {},
    { endpoint: endpoint(`http://127.0.0.1:${(early.address() as AddressInfo).port}`) },
  )
  const { messages, ...batch } = madeInto(batchOf(keys('1')), [Buffer.alloc(16 * 1024 * 1024, '1')]) // more than a connection holds
  const large = messages.map((m) => ({ ...m, payload: m.payload && { ...m.payload, done: () => freed.push('unread') } }))
  assert.equal((await alone.send({ ...batch, messages: large }, NEVER)).kind, 'delivered')
  assert.equal(freed.includes('unread'), false)
  early.close()
})

test('signed requests can be verified with any of the secrets, and a request that is sent again has the same id', async () => {
  await using receiver = await HttpReceiver.start()
  const keysOfSecrets = [Buffer.alloc(32, 1), Buffer.alloc(24, 2)]
  const signing_secrets = keysOfSecrets.map((key) => `whsec_${key.toString('base64')}`)
  await using wire = wireOf(
    webhook,
    { ...HOOK, signing_secrets },
    {},
    { endpoint: endpoint(receiver.url, { headers: { 'content-encoding': 'gzip' } }) },
  )
  for (const names of [['1'], ['1'], ['1', '2'], ['1', '2'], ['1', '2', '3']]) await wire.send(batchOf(keys(...names)), NEVER)
  const ids = receiver.requests.map((request) => {
    const id = request.headers['webhook-id'] as string
    const seconds = request.headers['webhook-timestamp'] as string
    const signatures = (request.headers['webhook-signature'] as string).split(' ')
    assert.ok(Math.abs(Number(seconds) - Date.now() / 1000) < 30)
    const content = `${id}.${seconds}.${JSON.stringify(jsonOf(request))}` // the body before compression
    assert.deepEqual(
      signatures,
      keysOfSecrets.map((key) => `v1,${createHmac('sha256', key).update(content).digest('base64')}`),
    )
    return id
  })
  assert.deepEqual([ids[0], ids[2]], [ids[1], ids[3]])
  assert.equal(new Set(ids).size, 3)
  for (const id of ids) assert.match(id, /^msg_[\w-]+$/)
})

test('a signature is that of the example which the specification publishes for libraries', () => {
  const signer = new Signer(['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'])
  const headers = signer.headers('msg_p5jXN8AQM9LWM0D4loKWxJek', Buffer.from('{"test": 2432232314}'), 1_614_265_330_000)
  assert.deepEqual(headers.slice(3), ['1614265330', 'webhook-signature', 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='])
})

test('with item_results the answer may name the messages that failed', async () => {
  await using receiver = await HttpReceiver.start(() => ({
    status: 207,
    body: JSON.stringify({ failures: [{ index: 1, error: 'no such customer' }, { index: 9 }, null] }),
  }))
  const load = batchOf(keys('1', '2', '3'))
  await using wire = wireOf(webhook, { ...HOOK, item_results: true }, {}, { endpoint: endpoint(receiver.url) })
  const outcome = await wire.send(load, NEVER)
  assert.ok(outcome.kind === 'each')
  assert.deepEqual(
    outcome.failures.map((failure) => failure && [failure.blame, failure.answer.message]),
    [undefined, ['message', 'no such customer'], undefined],
  )
  for (const body of ['', 'ok', '[]', '{"failures":[]}', 'null']) {
    receiver.handler = () => ({ body })
    assert.equal((await wire.send(load, NEVER)).kind, 'delivered', body)
  }
  receiver.handler = () => ({ status: 207, body: JSON.stringify({ failures: [{ index: 0 }] }) })
  await using plain = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url) })
  assert.equal((await plain.send(load, NEVER)).kind, 'delivered', 'only for those who asked for it')
})

test('with item_results an answer that says more than there is to say of the messages is none', async () => {
  const entry = JSON.stringify({ index: 0, error: 'no' })
  const tooMany = `{"failures":[${Array.from({ length: 4 }, () => entry).join()}]}`
  const empties = `{"failures":[${'[],'.repeat(30_000)}[]]}`
  const tooLong = `{"failures":[${entry.slice(0, -2)}${'o'.repeat(70_000)}"}]}`
  await using receiver = await HttpReceiver.start()
  await using wire = wireOf(webhook, { ...HOOK, item_results: true }, {}, { endpoint: endpoint(receiver.url) })
  for (const body of [tooMany, empties, tooLong]) {
    receiver.handler = () => ({ body })
    const outcome = await wire.send(batchOf(keys('1', '2', '3')), NEVER)
    assert.ok(outcome.kind === 'failed', body.slice(0, 40))
    assert.equal(outcome.failure.blame, 'refused')
    assert.match(outcome.failure.answer.message, /the answer to 3 messages is too long/)
  }
})

test('what is everybody’s trouble, and what is most likely the messages’: by status, and by who chose the path', async () => {
  let status = 0
  await using receiver = await HttpReceiver.start(() => ({ status }))
  await using wire = wireOf(webhook, HOOK, {}, { endpoint: endpoint(receiver.url) })
  const blames = async (codes: readonly number[], route?: Record<string, unknown>) => {
    const found = new Set<string>()
    for (status of codes) {
      const outcome = await wire.send({ ...batchOf(keys('1')), ...(route ? { route } : {}) }, NEVER)
      found.add(outcome.kind === 'failed' ? outcome.failure.blame : outcome.kind)
    }
    return [...found]
  }
  assert.deepEqual(await blames([200, 201, 202, 204, 226]), ['delivered'])
  assert.deepEqual(await blames([401, 402, 403, 404, 405, 407, 410, 421]), ['refused'])
  assert.deepEqual(await blames([400, 406, 409, 413, 415, 422, 428, 431, 451, 500, 501, 505, 507]), ['rejected'])
  const route = { endpoint_path: '/items/7', method: 'PUT' }
  assert.deepEqual(await blames([404, 405, 410], route), ['rejected'])
  assert.deepEqual(await blames([401, 403, 407], route), ['refused'])
})
