/** What becomes of messages in Meilisearch, against the server that stands in for it. */
import type { Batch } from '../../engine/dispatch/batch.ts'
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ACTION, MESSAGE_FLAG } from '../../engine/log/pack.ts'
import { PART } from '../../engine/position.ts'
import { meilisearch } from '../../sinks/meilisearch.ts'
import { calmMs } from '../services/calm-clock.ts'
import { Meilisearch } from '../services/meilisearch.ts'
import { HttpReceiver, type Received } from '../services/http-receiver.ts'
import { conforms, SECRET } from './conformance.ts'
import { destination, failureOf, ids, madeOf, open, stored, wordsOf, writes } from './meilisearch-bench.ts'
import { madeInto, keys, batchOf, NEVER, wireOf, type Row } from './batch.ts'

const BAD_ID =
  'is invalid. A document identifier can be of type integer or string, only composed of alphanumeric characters (a-z A-Z 0-9), hyphens (-) and underscores (_), and can not be more than 511 bytes.'

conforms({
  type: meilisearch,
  open: (url, timeoutMs, egress) => wireOf(meilisearch, destination(url, { timeout_seconds: timeoutMs / 1_000 }), {}, egress && { egress }),
  answer: ({ method, path }) => {
    const uids = new URL(path, 'http://x').searchParams.get('uids')?.split(',')
    return method === 'POST'
      ? '{"taskUid":7}'
      : JSON.stringify({ results: uids?.map((uid) => ({ uid: Number(uid), status: 'succeeded' })) })
  },
  keysOf: ({ method, body }: Received) =>
    method === 'POST'
      ? body
          .toString()
          .trimEnd()
          .split('\n')
          .map((line) => (JSON.parse(line) as { id: string }).id)
      : [],
})

test('the document is the message with the key in front, and what a function made stands as it is', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const delivered = await wire.send(batchOf([{ key: ['7'], record: { id: 7, name: 'größe' } }]), NEVER)
  assert.equal(delivered.kind, 'delivered')
  const [document] = stored(server)
  assert.deepEqual(Object.keys(document ?? {}), ['id', 'record', 'changes', 'action', 'metadata'])
  assert.deepEqual([document?.['id'], document?.['record'], document?.['action']], [7, { id: 7, name: 'größe' }, 'insert'])
  assert.equal((document?.['metadata'] as { consumer: { name: string } }).consumer.name, 'orders')
  await wire.send(madeOf([{ id: 8, tags: [1, { a: null }] }]), NEVER)
  assert.deepEqual(stored(server)[1], { id: 8, tags: [1, { a: null }] })
  const [write] = writes(server)
  assert.deepEqual(
    [write?.path, write?.query.get('primaryKey'), write?.authorization],
    ['/indexes/items/documents', 'id', `Bearer ${SECRET}`],
  )
})

test('digits are not lost, neither of keys nor of values', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const load = madeOf(['{"id":9223372036854775807,"n":18446744073709551615}'])
  assert.equal((await wire.send(load, NEVER)).kind, 'delivered')
  assert.deepEqual(stored(server), [{ id: 9223372036854775807n, n: 18446744073709551615n }])
})

test('an identifier of millions of digits is none, which is seen without reading it as a number', async () => {
  await using server = await HttpReceiver.start(() => ({ status: 400, body: '{"message":"no","code":"invalid_document_id"}' }))
  await using wire = open(server)
  const load = madeOf([`{"id":${'7'.repeat(15_000_000)}}`], [{ action: ACTION.delete }])
  const ms = await calmMs(async () => assert.equal((await wire.send(load, NEVER)).kind, 'failed'))
  assert.ok(ms < 2_000, `${ms} ms`)
})

test('one rule names the document for index and delete: the field, the column, or the primary key joined with "-"', async () => {
  const cases: readonly (readonly [what: string, row: Partial<Row>, deleted: Partial<Row>, id: string, key?: string, made?: unknown])[] = [
    ['a column', { record: { id: 5 } }, { record: { id: 5 } }, '5'],
    ['another column', { record: { id: 5, sku: 's-1' } }, { record: { id: 5, sku: 's-1' } }, 's-1', 'sku'],
    ['a composite key', { key: ['3', 'a'], record: { t: 3, u: 'a' } }, { key: ['3', 'a'], record: { t: 3, u: 'a' } }, '3-a'],
    ['one column with another name', { key: ['9'], record: { nr: 9 } }, { key: ['9'], record: { nr: 9 } }, '9'],
    ['what a function made', { key: ['5'] }, { key: ['5'] }, 'p_5', 'id', { id: 'p_5', name: 'x' }],
  ]
  for (const [what, row, deleted, id, key = 'id', made] of cases) {
    await using server = await Meilisearch.start()
    await using wire = open(server, { primary_key: key })
    const payload = made === undefined ? undefined : Buffer.from(JSON.stringify(made))
    const one = (change: Partial<Row>): Batch => madeInto(batchOf([{ key: ['1'], ...change }]), [payload])
    await wire.send(one(row), NEVER)
    assert.deepEqual(ids(server), [id], what)
    await wire.send(one({ ...deleted, action: ACTION.delete }), NEVER)
    assert.deepEqual(ids(server), [], what)
  }
})

test('a deleted row that does not tell the field is named by its primary key, with one warning', async () => {
  await using server = await Meilisearch.start()
  const warnings: string[] = []
  await using wire = open(server, { primary_key: 'sku' }, {}, { warn: (text) => void warnings.push(text) })
  const gone = { record: { id: 1, sku: null }, action: ACTION.delete }
  for (const key of ['1', '2']) assert.equal((await wire.send(batchOf([{ ...gone, key: [key] }]), NEVER)).kind, 'delivered')
  assert.equal(writes(server)[0]?.body.toString(), '["1"]')
  assert.equal(warnings.length, 1)
  assert.match(warnings[0] ?? '', /"sku".*REPLICA IDENTITY FULL/)
})

test('the tombstone of a former key is a delete, whatever a routing function says', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  await wire.send(batchOf([{ key: ['1'], record: { id: 1 } }]), NEVER)
  const moved: Row[] = [
    { key: ['1'], record: { id: 1, name: null }, action: ACTION.delete, part: PART.tombstone, flags: MESSAGE_FLAG.tombstone },
    { key: ['2'], record: { id: 2, name: 'x' }, action: ACTION.update },
  ]
  await wire.send({ ...batchOf(moved), route: { action: 'index' } }, NEVER)
  assert.deepEqual(ids(server), ['2'])
})

test('inserts, updates and deletes of one load leave what the last of each key says', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const rows: Row[] = [
    ...[1, 2, 3].map((id) => ({ key: [String(id)], record: { id, n: 1 } })),
    { key: ['1'], record: { id: 1, n: 2 }, action: ACTION.update },
    { key: ['2'], record: { id: 2, n: null }, action: ACTION.delete },
    { key: ['3'], record: { id: 3, n: null }, action: ACTION.delete },
    { key: ['3'], record: { id: 3, n: 3 } },
  ]
  assert.equal((await wire.send(batchOf(rows), NEVER)).kind, 'delivered')
  assert.deepEqual(
    stored(server).map(({ record }) => record),
    [
      { id: 1, n: 2 },
      { id: 3, n: 3 },
    ],
  )
  assert.deepEqual(
    writes(server).map(({ path }) => path),
    ['/indexes/items/documents', '/indexes/items/documents/delete-batch'],
  )
})

test('a routing function names the index and the operation, in any spelling', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  await wire.send({ ...batchOf(keys('1', '2')), route: { index_name: 'tenant_7' } }, NEVER)
  assert.deepEqual(ids(server, 'tenant_7'), ['1', '2'])
  await wire.send({ ...batchOf(keys('1')), route: { index_name: 'tenant_7', action: 'Delete' } }, NEVER)
  assert.deepEqual(ids(server, 'tenant_7'), ['2'])
  await wire.send({ ...madeOf([{ id: '9', gone: true }], [{ action: ACTION.delete }]), route: { action: 'index' } }, NEVER)
  assert.deepEqual(stored(server), [{ id: '9', gone: true }])
  assert.deepEqual(stored(server, 'items').length, 1)
  await using nameless = open(server, { index_name: null })
  const { blame, answer } = failureOf(await nameless.send(batchOf(keys('1')), NEVER))
  assert.deepEqual([blame, answer.code], ['message', 'MESSAGE_UNDELIVERABLE'])
})

test('a deleted row that the transform said nothing of is deleted by its key, and never put in as it is', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server, {}, { transform: 'masked' })
  await wire.send(madeOf([{ id: 'r1' }], [{ key: ['1'] }]), NEVER)
  const gone = batchOf([{ key: ['r1'], record: { email: 'a@b.c' }, action: ACTION.delete }])
  const { blame, answer } = failureOf(await wire.send({ ...gone, route: { action: 'index' } }, NEVER))
  assert.deepEqual([blame, answer.code], ['message', 'MESSAGE_UNDELIVERABLE'])
  assert.deepEqual(stored(server), [{ id: 'r1' }])
  assert.equal((await wire.send(gone, NEVER)).kind, 'delivered')
  assert.deepEqual(stored(server), [])
})

test('an index that is missing means that a deleted document is gone', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  assert.equal((await wire.send(batchOf([{ key: ['1'], action: ACTION.delete }]), NEVER)).kind, 'delivered')
  assert.equal(server.tasks[0]?.error?.code, 'index_not_found')
})

test('what cannot be a document is never sent, and the others are delivered', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const load = madeOf([
    '{"id":1}',
    '{"name":"x"}',
    '[1]',
    '{"id":2,"n":1e400}',
    `{"id":3,"n":[${'9'.repeat(400)}]}`,
    '{"id":4,"_vectors":[1]}',
    '{"id":5,"n":1e30}',
  ])
  const words = wordsOf(await wire.send(load, NEVER))
  assert.deepEqual(
    words.map((word) => word?.[0]),
    [undefined, 'message', 'message', 'message', 'message', 'message', undefined],
  )
  assert.match(words[1]?.[1] ?? '', /no field "id"/)
  assert.match(words[2]?.[1] ?? '', /no object/)
  assert.match(words[3]?.[1] ?? '', /number/)
  assert.match(words[5]?.[1] ?? '', /_vectors/)
  assert.deepEqual(ids(server), ['1', '5'])
  assert.equal(failureOf(await wire.send(madeOf([{ name: 'x' }]), NEVER)).blame, 'message')
  assert.equal(writes(server).length, 1)
})

test('a document that Meilisearch refuses fails alone and in its words, and costs the others one task', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const load = madeOf([{ id: 1 }, { id: 'a@b.c' }, { id: 2 }, { id: null }])
  const words = wordsOf(await wire.send(load, NEVER))
  assert.deepEqual(words, [
    undefined,
    ['message', `Document identifier \`"a@b.c"\` ${BAD_ID}`],
    undefined,
    ['message', `Document identifier \`null\` ${BAD_ID}`],
  ])
  assert.deepEqual(ids(server), ['1', '2'])
  assert.deepEqual(JSON.parse(writes(server)[0]?.body.toString().split('\n')[1] ?? ''), { id: 2 })
})

test('a body that can not be read is halved until only the document fails that is to blame', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const documents: string[] = Array.from({ length: 50 }, (_, id) => `{"id":${id}}`)
  documents[17] = '{"id":17,"t":"\\ud800"}' // half of a character: a function can make it
  const words = wordsOf(await wire.send(madeOf(documents), NEVER))
  assert.deepEqual(
    words.flatMap((word, i) => (word ? [i] : [])),
    [17],
  )
  assert.match(
    words[17]?.[1] ?? '',
    /^status 400: The `ndjson` payload provided is malformed\. `Couldn't serialize document value: lone leading surrogate/,
  )
  assert.equal(server.documents('items').size, 49)
})

test('deep nesting is sent apart', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const words = wordsOf(await wire.send(madeOf(['{"id":1}', `{"id":2,"a":${'['.repeat(130)}${']'.repeat(130)}}`]), NEVER))
  assert.match(words[1]?.[1] ?? '', /recursion limit exceeded/)
  assert.deepEqual(ids(server), ['1'])
  assert.equal(writes(server).length, 2)
})

test('when nothing is taken it is not told of single messages', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server)
  const load = madeOf(Array.from({ length: 64 }, (_, i) => ({ id: `no good ${i}` })))
  const { blame, answer } = failureOf(await wire.send(load, NEVER))
  assert.equal(blame, 'rejected')
  assert.match(answer.message, /^Document identifier `"no good \d+"` is invalid/)
  assert.ok(writes(server).length <= 16, `${writes(server).length} requests`)
})

test('another primary key of the index fails verbatim, and so do a wrong key, a missing right and a bad name', async () => {
  await using server = await Meilisearch.start({
    masterKey: SECRET,
    keys: [{ key: 'adds-only', actions: ['documents.add'], indexes: ['*'] }],
  })
  await using wire = open(server)
  await wire.send(batchOf(keys('1')), NEVER)
  await using other = open(server, { primary_key: 'sku' })
  const differing = failureOf(await other.send(madeOf([{ sku: 1 }]), NEVER))
  assert.deepEqual([differing.blame, differing.answer.message], ['refused', 'Index already has a primary key: `id`.'])
  await using stranger = open(server, { api_key: 'wrong-key' })
  const refused = failureOf(await stranger.send(batchOf(keys('1')), NEVER))
  assert.deepEqual(
    [refused.blame, refused.answer.status, refused.answer.message],
    ['refused', 403, 'status 403: The provided API key is invalid.'],
  )
  await using blind = open(server, { api_key: 'adds-only' })
  assert.equal(failureOf(await blind.send(batchOf(keys('1')), NEVER)).blame, 'refused')
  const named = { ...batchOf(keys('1')), route: { index_name: 'no name' } }
  const routed = failureOf(await wire.send(named, NEVER))
  assert.deepEqual([routed.blame, routed.isOfPlace], ['rejected', true], 'which is no reason to give one up')
  assert.match(routed.answer.message, /^status 400: `no name` is not a valid index uid\./)
})

test('a body that is too large is told as such, by its inflated size', async () => {
  await using server = await Meilisearch.start({ payloadLimit: 2_000 })
  await using wire = open(server)
  const documents = Array.from({ length: 30 }, (_, id) => ({ id, t: 'x'.repeat(100) }))
  const { blame, answer } = failureOf(await wire.send(madeOf(documents), NEVER))
  assert.equal(blame, 'tooLarge')
  assert.match(answer.message, /^status 413: The provided payload reached the size limit\./)
})

test('a test of the connection asks for the index, and passes on what it is told', async () => {
  await using server = await Meilisearch.start({ masterKey: SECRET })
  await using wire = open(server)
  assert.equal((await wire.test(NEVER))?.message, 'status 404: Index `items` not found.')
  await wire.send(batchOf(keys('1')), NEVER)
  assert.equal(await wire.test(NEVER), undefined)
  await using stranger = open(server, { api_key: 'wrong-key' })
  assert.equal((await stranger.test(NEVER))?.message, 'status 403: The provided API key is invalid.')
  assert.deepEqual(
    [...new Set(server.requests.map(({ method, path }) => `${method} ${path}`))],
    ['GET /indexes/items', 'POST /indexes/items/documents', 'GET /tasks'],
  )
})

test('an address with a path of its own is asked below it', async () => {
  await using server = await Meilisearch.start()
  await using wire = wireOf(meilisearch, destination(`${server.url}/search/`))
  assert.equal(failureOf(await wire.send(batchOf(keys('1')), NEVER)).blame, 'refused')
  assert.equal(server.requests[0]?.path, '/search/indexes/items/documents')
})

test('documents are compared with what messages make of them: by what a function made, or by the row', async () => {
  await using server = await Meilisearch.start()
  await using wire = open(server, {}, { transform: 'made' })
  const made = madeOf([{ id: 1, n: 1.1, big: 1 }, { id: 2 }, { id: 3, list: [1, { a: null }] }, { id: 'a b' }])
  await wire.send({ ...made, messages: made.messages.slice(0, 3) }, NEVER)
  const { comparing } = wire
  assert.ok(comparing)
  const states = async (batch: Batch) =>
    (await comparing.compare(batch, NEVER)).found?.map((standing) => standing && [standing.id, standing.state])
  assert.deepEqual(await states(made), [['1', 'same'], ['2', 'same'], ['3', 'same'], undefined])
  const documents = server.documents('items') as Map<string, Record<string, unknown>>
  documents.set('1', { id: 1, n: 1.2, big: 1 })
  documents.delete('2')
  assert.deepEqual(await states(made), [['1', 'different'], ['2', 'missing'], ['3', 'same'], undefined])
  assert.deepEqual(await states({ ...made, route: { action: 'delete' } }), [
    ['1', 'extra'],
    ['2', 'same'],
    ['3', 'extra'],
    ['"a b"', 'same'],
  ])
  assert.deepEqual(await states({ ...made, route: { action: 'function' } }), [undefined, undefined, undefined, undefined])
  const page = (await comparing.stored(undefined, 1, NEVER)).found
  assert.deepEqual(page, { documents: [{ id: '1', key: undefined, table: undefined }], next: '1' })
  assert.deepEqual((await comparing.present(['3', '2'], NEVER)).found, ['3'])
  assert.deepEqual([(await comparing.count(NEVER)).found, comparing.namesByKey(['id']), comparing.namesByKey(['sku'])], [2, true, false])
  const gone = await comparing.compare({ ...made, route: { index_name: 'gone' } }, NEVER)
  assert.match(gone.answer?.message ?? '', /Index `gone` not found/)
})
