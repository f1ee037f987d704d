/** What an Elasticsearch sink sends, and what it makes of answers that a real server can't be brought to give. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ACTION, MESSAGE_FLAG } from '../../engine/log/pack.ts'
import { PART } from '../../engine/position.ts'
import { elasticsearch } from '../../sinks/elasticsearch.ts'
import { HttpReceiver, type Received } from '../services/http-receiver.ts'
import { authority } from '../services/tls-postgres.ts'
import { conforms, SECRET } from './conformance.ts'
import { destination, wordsOf } from './elasticsearch-bench.ts'
import { enriched, madeInto, keys, batchOf, NEVER, wireOf } from './batch.ts'

type Action = Readonly<{ _id: string; version?: number }>
type Line = Readonly<{ index?: Action; delete?: Action }>
/** What is asked of the answer. */
const WANTED = 'filter_path=errors,items.*._id,items.*.status,items.*.error'
/** The action lines of a bulk request; its documents have no such member in front. */
const actionsOf = ({ path, body }: Received): readonly Line[] =>
  path.includes('/_bulk?')
    ? body
        .toString()
        .split('\n')
        .filter((line) => /^\{"(?:index|delete)":/.test(line))
        .map((line) => JSON.parse(line) as Line)
    : []
const idsOf = (request: Received) =>
  actionsOf(request).map((line) => {
    const { _id: id = '' } = line.index ?? line.delete ?? {}
    return id
  })
const allDone = (request: Received) => {
  const items = actionsOf(request).map((line) =>
    line.index ? { index: { ...line.index, status: 201 } } : { delete: { ...line.delete, status: 200 } },
  )
  return JSON.stringify({ errors: false, took: 1, items })
}
const open = (url: string, settings: Parameters<typeof destination>[1] = {}, options: Parameters<typeof wireOf>[3] = {}) =>
  wireOf(elasticsearch, destination(url, { auth_type: 'api_key', auth_value: SECRET, timeout_seconds: 30, ...settings }), {}, options)

conforms({
  type: elasticsearch,
  open: (url, timeoutMs, egress) => open(url, { timeout_seconds: timeoutMs / 1_000 }, egress && { egress }),
  answer: allDone,
  keysOf: idsOf,
})

test('each line names index, document and version; documents are the messages, and what a function made stands as it is', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  await using wire = open(`${receiver.url}/behind/`, { index_name: 'goods/2026 ü' })
  const load = batchOf(
    [
      { key: ['7'], record: { id: 7, name: 'größe' }, lsn: 4096n },
      { key: ['a"\\b'], lsn: 4096n },
      { key: ['7'], action: ACTION.delete, lsn: 8192n },
      { key: ['8'], action: ACTION.delete, part: PART.tombstone, flags: MESSAGE_FLAG.tombstone, lsn: 8192n },
    ],
    3,
  )
  const payloads = [undefined, Buffer.from('{"made":[1,{"a":null}]}'), undefined, undefined]
  assert.equal((await wire.send(madeInto(load, payloads), NEVER)).kind, 'delivered')
  const [{ method, path, headers, body }] = receiver.requests as [Received]
  assert.deepEqual([method, path], ['POST', `/behind/goods%2F2026%20%C3%BC/_bulk?${WANTED}`])
  assert.deepEqual([headers['content-type'], headers.authorization], ['application/x-ndjson', `ApiKey ${SECRET}`])
  const lines = body.toString().split('\n')
  const [first, later] = [4096n, 8192n].map((lsn) => (3n << 56n) + lsn)
  const line = (kind: string, id: string, version = first) =>
    `{"${kind}":{"_index":"goods/2026 ü","_id":${id},"version":${version},"version_type":"external_gte"}}`
  assert.deepEqual(
    lines.filter((_, i) => i !== 1),
    [
      line('index', '"7"'),
      line('index', String.raw`"a\"\\b"`),
      '{"made":[1,{"a":null}]}',
      line('delete', '"7"', later),
      line('delete', '"8"', later),
      '',
    ],
  )
  const document = JSON.parse(lines[1] ?? '') as { record: object; metadata: { consumer: { name: string } } }
  assert.deepEqual([document.record, document.metadata.consumer.name], [{ id: 7, name: 'größe' }, 'orders'])
})

test('every kind of login goes out as its header, with user and password or key in either form', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  const base64 = Buffer.from('jo:secret').toString('base64')
  const cases = [
    ['none', null, undefined],
    ['api_key', base64, `ApiKey ${base64}`],
    ['api_key', 'jo:secret', `ApiKey ${base64}`],
    ['basic', 'jo:secret', `Basic ${base64}`],
    ['basic', base64, `Basic ${base64}`],
    ['bearer', 'to:ken', 'Bearer to:ken'],
  ] as const
  for (const [auth_type, auth_value, header] of cases) {
    await using wire = open(receiver.url, { auth_type, auth_value })
    await wire.send(batchOf(keys('1')), NEVER)
    assert.equal(receiver.requests.at(-1)?.headers.authorization, header, `${auth_type} ${auth_value}`)
  }
})

test('of a login no part is kept of what an answer repeats', async () => {
  const base64 = Buffer.from('jo:secret-word').toString('base64')
  await using receiver = await HttpReceiver.start(() => ({ status: 401, body: `no: jo:secret-word, secret-word, ${base64}` }))
  for (const auth_value of ['jo:secret-word', base64]) {
    await using wire = open(receiver.url, { auth_type: 'basic', auth_value })
    assert.equal(wordsOf(await wire.send(batchOf(keys('1')), NEVER)), 'refused: status 401: no: [secret], [secret], [secret]')
  }
})

test('versioning none leaves versions out, and a conflict is a failure then', async () => {
  const item = { _id: '1', status: 409, error: { type: 'version_conflict_engine_exception', reason: 'newer' } }
  await using receiver = await HttpReceiver.start(() => ({ body: JSON.stringify({ errors: true, items: [{ index: item }] }) }))
  await using without = open(receiver.url, { versioning: 'none' })
  assert.deepEqual(wordsOf(await without.send(batchOf(keys('1')), NEVER)), [
    'message: index of document "1": version_conflict_engine_exception: newer',
  ])
  assert.equal(actionsOf(receiver.requests[0] as Received)[0]?.index?.version, undefined)
  await using versioned = open(receiver.url)
  assert.equal((await versioned.send(batchOf(keys('1')), NEVER)).kind, 'delivered')
})

test('what is said of an item says whose matter it is', async () => {
  type Said = Readonly<{ status: number; type?: string }>
  let said: Said = { status: 200 }
  await using receiver = await HttpReceiver.start((request) => {
    const items = actionsOf(request).map((line) => {
      const item = { status: said.status, ...(said.type !== undefined && { error: { type: said.type, reason: 'so it is' } }) }
      return line.index ? { index: { ...line.index, ...item } } : { delete: { ...line.delete, ...item } }
    })
    const isGone = said.status === 404 && items.every((item) => 'delete' in item)
    return { body: JSON.stringify({ took: 1, errors: said.type !== undefined || (said.status > 299 && !isGone), items }) }
  })
  await using wire = open(receiver.url)
  const ruled = async (action: typeof ACTION.insert | typeof ACTION.delete, status: number, type?: string) => {
    said = { status, ...(type !== undefined && { type }) }
    const outcome = await wire.send(batchOf([{ key: ['1'], action }]), NEVER)
    if (outcome.kind !== 'each') return outcome.kind
    const [failure] = outcome.failures
    return `${failure?.blame}${failure?.isOfPlace ? ' of the place' : ''}`
  }
  for (const [action, status, type, expected] of [
    [ACTION.insert, 200, undefined, 'delivered'],
    [ACTION.insert, 201, undefined, 'delivered'],
    [ACTION.delete, 200, undefined, 'delivered'],
    [ACTION.delete, 404, undefined, 'delivered'], // it is gone
    [ACTION.delete, 404, 'index_not_found_exception', 'refused of the place'],
    [ACTION.delete, 409, 'version_conflict_engine_exception', 'delivered'],
    [ACTION.insert, 409, 'version_conflict_engine_exception', 'delivered'],
    [ACTION.insert, 409, 'another_exception', 'message'],
    [ACTION.insert, 404, undefined, 'message'],
    [ACTION.insert, 404, 'index_not_found_exception', 'refused of the place'],
    [ACTION.insert, 400, 'index_closed_exception', 'refused of the place'],
    [ACTION.insert, 400, 'invalid_index_name_exception', 'refused of the place'],
    [ACTION.insert, 401, 'any_exception', 'refused of the place'],
    [ACTION.insert, 403, 'any_exception', 'refused of the place'],
    [ACTION.insert, 403, 'cluster_block_exception', 'refused of the place'],
    [ACTION.insert, 429, 'cluster_block_exception', 'refused of the place'], // its disk is full
    [ACTION.insert, 429, 'es_rejected_execution_exception', 'throttled'],
    [ACTION.insert, 429, 'circuit_breaking_exception', 'throttled'],
    [ACTION.insert, 408, 'any_exception', 'unavailable'],
    [ACTION.insert, 500, 'any_exception', 'unavailable'],
    [ACTION.insert, 503, 'unavailable_shards_exception', 'unavailable'],
    [ACTION.insert, 400, 'document_parsing_exception', 'message'],
    [ACTION.insert, 413, 'any_exception', 'message'],
  ] as const)
    assert.equal(await ruled(action, status, type), expected, `${action} ${status} ${type}`)
})

test('what caused a failure is told with it, and a whole request refused in any words at all', async () => {
  const caused_by = { type: 'number_format_exception', reason: 'For input string: "x"' }
  const error = { type: 'document_parsing_exception', reason: 'failed to parse', caused_by }
  const items = [{ index: { _id: '1', status: 400, error } }]
  await using receiver = await HttpReceiver.start(() => ({ body: JSON.stringify({ errors: true, items }) }))
  await using wire = open(receiver.url)
  assert.deepEqual(wordsOf(await wire.send(batchOf(keys('1')), NEVER)), [
    'message: index of document "1": document_parsing_exception: failed to parse; caused by number_format_exception: For input string: "x"',
  ])
  for (const [status, body, words] of [
    [
      406,
      '{"error":"Content-Type header [] is not supported","status":406}',
      'refused: status 406: Content-Type header [] is not supported',
    ],
    [405, 'not so', 'refused: status 405: not so'],
    [415, '', 'refused: status 415'],
    [400, '{"error":{"type":"parse_exception","reason":"no body"}}', 'rejected: status 400: parse_exception: no body'],
  ] as const) {
    receiver.handler = () => ({ status, body })
    assert.equal(wordsOf(await wire.send(batchOf(keys('1')), NEVER)), words)
  }
})

test('an answer that tells of fewer items than were sent leaves the others undelivered', async () => {
  const item = (id: string) => ({ index: { _id: id, status: 201 } })
  for (const errors of [false, true]) {
    await using receiver = await HttpReceiver.start(() => ({ body: JSON.stringify({ errors, took: 3, items: [item('1'), item('2')] }) }))
    await using wire = open(receiver.url)
    const words = wordsOf(await wire.send(batchOf(keys('1', '2', '3')), NEVER))
    assert.deepEqual(words, [undefined, undefined, 'unavailable: index of document "3": the answer has no result for it'])
  }
})

test('an answer that is none of a bulk request delivers nothing', async () => {
  for (const body of ['', 'ok', '{}', '{"errors":false}', '[]', '{"items":7}']) {
    await using receiver = await HttpReceiver.start(() => ({ body }))
    await using wire = open(receiver.url)
    assert.match(String(wordsOf(await wire.send(batchOf(keys('1')), NEVER))), /^refused: .*is this an Elasticsearch\?$/, body)
  }
})

test('an answer longer than one about so many documents is refused, and no more of its items are read than were sent', async () => {
  let body = `{"errors":true,"items":[${'[],'.repeat(60_000)}[]]}`
  await using receiver = await HttpReceiver.start(() => ({ body }))
  await using wire = open(receiver.url)
  const send = async () => wordsOf(await wire.send(batchOf(keys('1', '2')), NEVER))
  assert.match(String(await send()), /^refused: .*the answer is longer than 73728 bytes, for 2 documents/)
  body = `{"errors":true,"items":[${'[],'.repeat(20_000)}no JSON any more`
  assert.deepEqual(await send(), [1, 2].map((id) => `unavailable: index of document "${id}": the answer has no result for it`)) // prettier-ignore
  body = `{"errors":true,"items":[{"index":{"status":400,"error":[${'[],'.repeat(22_000)}[]]}}]}`
  assert.match(String(await send()), /^refused: .*is this an Elasticsearch\?$/)
})

test('a document that holds the words of a success does not make one of a failure', async () => {
  const reason = '"errors":false "_id": {"_id":1}'
  const item = { index: { _id: '1', status: 400, error: { type: 'document_parsing_exception', reason } } }
  await using receiver = await HttpReceiver.start(() => ({ body: JSON.stringify({ took: 1, errors: true, items: [item] }) }))
  await using wire = open(receiver.url)
  assert.deepEqual(wordsOf(await wire.send(batchOf(keys('1')), NEVER)), [
    `message: index of document "1": document_parsing_exception: ${reason}`,
  ])
})

test('messages that no document can be named after, or made of, fail alone and are not sent', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  await using wire = open(receiver.url)
  const load = batchOf([{ key: ['1'] }, { key: [] }, { key: [''] }, { key: ['ü'.repeat(257)] }, { key: ['x'.repeat(512)] }, { key: ['5'] }])
  const payloads = [undefined, undefined, undefined, undefined, undefined, Buffer.from('[1]')]
  assert.deepEqual(wordsOf(await wire.send(madeInto(load, payloads), NEVER)), [
    undefined,
    'message: the document of this row has no _id: its table has no primary key',
    'message: the primary key of the row is empty: Elasticsearch takes no document with an empty _id',
    'message: the primary key of the row has 514 bytes; Elasticsearch takes an _id of at most 512 bytes',
    undefined,
    'message: the function returned no object: a document must be an object',
  ])
  assert.deepEqual(receiver.requests.map(idsOf), [['1', 'x'.repeat(512)]])
})

test('a key of several columns is joined with "-"; that two texts may collide is told once', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  const told: string[] = []
  await using wire = wireOf(elasticsearch, destination(receiver.url), {}, { warn: (text) => void told.push(text) })
  const uuid = '6f1d5bb8-4a8e-4f0e-9d0c-0d6f5c1f0a01'
  await wire.send(batchOf([{ key: ['a', '7'] }, { key: ['-1', uuid] }, { key: [null, 'b'] }]), NEVER)
  assert.deepEqual(told, [])
  await wire.send(batchOf([{ key: ['a-b', 'c'] }, { key: ['a', 'b"c'] }]), NEVER)
  assert.equal(told.length, 1)
  assert.deepEqual(receiver.requests.flatMap(idsOf), ['a-7', `-1-${uuid}`, '-b', 'a-b-c', 'a-b"c'])
})

test('what has become larger than one request may be goes in several, in order', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  await using wire = open(receiver.url, { timeout_seconds: 30 })
  const load = batchOf(keys('1', '2', '3'))
  const payloads = load.messages.map(() => Buffer.from(JSON.stringify({ pad: 'x'.repeat(6 * 1024 * 1024) })))
  assert.equal((await wire.send(madeInto(load, payloads), NEVER)).kind, 'delivered')
  assert.deepEqual(receiver.requests.map(idsOf), [['1', '2'], ['3']])
})

test('an index that a function names is trouble for its messages alone', async () => {
  const error = { type: 'index_not_found_exception', reason: 'no such index [x]' }
  await using receiver = await HttpReceiver.start(({ path }) => {
    const index = path.split('/')[1]
    return { body: JSON.stringify({ errors: true, items: [{ index: { _index: index, _id: '1', status: 404, error } }] }) }
  })
  await using wire = open(receiver.url)
  assert.match(String(wordsOf(await wire.send(batchOf(keys('1')), NEVER))), /^refused: /)
  const outcome = await wire.send({ ...batchOf(keys('1')), route: { index_name: 'x' } }, NEVER)
  assert.match(String(wordsOf(outcome)), /^message: /)
  assert.equal(outcome.kind === 'each' && outcome.failures[0]?.isOfPlace, true, 'which is no reason to give one up')
  assert.deepEqual(
    receiver.requests.map(({ path }) => path),
    [`/items/_bulk?${WANTED}`, `/x/_bulk?${WANTED}`],
  )
  receiver.handler = () => ({ status: 403, body: JSON.stringify({ error: { ...error, type: 'security_exception' } }) })
  const whole = await wire.send({ ...batchOf(keys('1')), route: { index_name: 'x' } }, NEVER)
  assert.ok(whole.kind === 'failed')
  assert.deepEqual([whole.failure.blame, whole.failure.isOfPlace], ['rejected', true])
})

test('what a login may not do is no reason to give a message up, though others beside it were taken', async () => {
  const error = { type: 'security_exception', reason: 'delete is unauthorized' }
  const items = [{ index: { _id: '1', status: 201 } }, { delete: { _id: '2', status: 403, error } }, { delete: { _id: '3', status: 404 } }]
  await using receiver = await HttpReceiver.start(() => ({ body: JSON.stringify({ errors: true, items }) }))
  await using wire = open(receiver.url)
  const deletes = ['2', '3'].map((key) => ({ key: [key], action: ACTION.delete }))
  const outcome = await wire.send(batchOf([{ key: ['1'] }, ...deletes]), NEVER)
  assert.ok(outcome.kind === 'each')
  const [done, refused, gone] = outcome.failures
  assert.deepEqual([done, refused?.blame, refused?.isOfPlace, gone], [undefined, 'refused', true, undefined])
})

test('where neither function nor sink names an index, each table has its own', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  await using wire = open(receiver.url, { index_name: null })
  assert.equal((await wire.send({ ...batchOf(keys('1', '2')), route: {} }, NEVER)).kind, 'delivered')
  assert.deepEqual(
    receiver.requests.map(({ path }) => path),
    [`/sequin.shop.public.item/_bulk?${WANTED}`],
  )
})

test('a row that enriches a message is in its document, where the index is named by the table too', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }))
  for (const index_name of ['goods', null]) {
    await using wire = open(receiver.url, { index_name })
    await wire.send(enriched(batchOf(keys('1', '2')), [undefined, Buffer.from('{"region":"North"}')]), NEVER)
    const documents = receiver.requests.at(-1)?.body.toString().split('\n') ?? []
    const enrichment = (document = '') => (JSON.parse(document) as { metadata: { enrichment: unknown } }).metadata.enrichment
    assert.deepEqual([enrichment(documents[1]), enrichment(documents[3])], [null, { region: 'North' }], String(index_name))
  }
})

test('without an index the connection is tested by the login alone', async () => {
  let status = 200
  await using receiver = await HttpReceiver.start(() => ({ status, body: '{"error":{"reason":"unable to authenticate"}}' }))
  await using wire = open(receiver.url, { index_name: null })
  assert.equal(await wire.test(NEVER), undefined)
  status = 401
  assert.match(String((await wire.test(NEVER))?.message), /unable to authenticate/)
  status = 403
  assert.equal(await wire.test(NEVER), undefined, 'it may write, and not ask who the server is')
  assert.deepEqual(
    receiver.requests.map(({ method, path }) => `${method} ${path}`),
    ['GET /', 'GET /', 'GET /'],
  )
})

test('a server with a certificate of one’s own is trusted by its authority, and by no other', async () => {
  await using receiver = await HttpReceiver.start((request) => ({ body: allDone(request) }), { secure: 'server' })
  const outcomes = []
  for (const name of [undefined, 'other-ca', 'ca'] as const) {
    await using wire = open(receiver.url, { ca_cert: name ? await authority(name) : null, timeout_seconds: 5 })
    outcomes.push(wordsOf(await wire.send(batchOf(keys('1')), NEVER)))
  }
  assert.match(String(outcomes[0]), /^unreachable: .*(?:certificate|self|UNABLE)/i)
  assert.match(String(outcomes[1]), /^unreachable: /)
  assert.equal(outcomes[2], 'delivered')
})

test('a connection is tested by a search that finds nothing', async () => {
  await using receiver = await HttpReceiver.start(() => ({ body: '{"hits":{}}' }))
  await using wire = open(receiver.url)
  assert.equal(await wire.test(NEVER), undefined)
  const [{ method, path, body }] = receiver.requests as [Received]
  assert.deepEqual([method, path, body.toString()], ['POST', '/items/_search', '{"size":0}'])
})
