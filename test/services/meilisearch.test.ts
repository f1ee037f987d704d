/** What was seen of a real Meilisearch 1.50, asked of the one that stands in for it: answers, tasks, faults. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { add, ask, ended, stored, type Ask, type Json } from './meilisearch-client.ts'
import { Meilisearch, type MeilisearchOptions } from './meilisearch.ts'

const KEYS: MeilisearchOptions = {
  masterKey: 'master',
  keys: [
    { key: 'adds', actions: ['documents.add'], indexes: ['*'] },
    { key: 'only-x', actions: ['documents.*', 'indexes.get', 'tasks.get'], indexes: ['x'] },
    { key: 'old', actions: ['*'], indexes: ['*'], expiresAt: new Date(0) },
  ],
}
const bearer = (key: string) => ({ authorization: `Bearer ${key}` })
const TYPES = 'Accepted values for the Content-Type header are: `application/json`, `application/x-ndjson`, `text/csv`'
const MALFORMED = 'payload provided is malformed. `'
const SERIALIZE = "Couldn't serialize document value: "
const FEATURE =
  'Using the documents edit route requires enabling the `edit documents by function` experimental feature. See https://github.com/orgs/meilisearch/discussions/762'

type Refusal = readonly [situation: string, path: string, Ask, status: number, code: string, message: string | RegExp]
const REFUSALS: readonly Refusal[] = [
  [
    'no key',
    '/indexes/x',
    {},
    401,
    'missing_authorization_header',
    'The Authorization header is missing. It must use the bearer authorization method.',
  ],
  [
    'another scheme',
    '/indexes/x',
    { headers: { authorization: 'bearer master' } },
    401,
    'missing_authorization_header',
    /^The Authorization header is missing/,
  ],
  ['a wrong key', '/indexes/x', { headers: bearer('no') }, 403, 'invalid_api_key', 'The provided API key is invalid.'],
  ['an expired key', '/indexes/x', { headers: bearer('old') }, 403, 'invalid_api_key', 'The provided API key is invalid.'],
  ['a key without the right', '/indexes/x', { headers: bearer('adds') }, 403, 'invalid_api_key', 'The provided API key is invalid.'],
  [
    'edit with the right to add',
    '/indexes/x/documents/edit',
    { body: '{}', headers: bearer('adds') },
    403,
    'invalid_api_key',
    'The provided API key is invalid.',
  ],
  [
    'a key of another index',
    '/indexes/e',
    { headers: bearer('only-x') },
    403,
    'invalid_api_key',
    'The API key cannot acces the index `e`, authorized indexes are ["x"].',
  ],
  ['an unknown index', '/indexes/x', { headers: bearer('master') }, 404, 'index_not_found', 'Index `x` not found.'],
  ['an unknown task', '/tasks/99999', { headers: bearer('master') }, 404, 'task_not_found', 'Task `99999` not found.'],
  [
    'a task that is no number',
    '/tasks/abc',
    { headers: bearer('master') },
    400,
    'invalid_task_uids',
    'Task uid `abc` is invalid. It should only contain numeric characters.',
  ],
  [
    'a bad index name',
    '/indexes/bad%20uid',
    { headers: bearer('master') },
    400,
    'invalid_index_uid',
    '`bad uid` is not a valid index uid. Index uid can be an integer or a string containing only alphanumeric characters, hyphens (-) and underscores (_), and can not be more than 512 bytes.',
  ],
  ...(
    [
      [
        'bad JSON',
        { body: '[{"id":1,x' },
        400,
        'malformed_payload',
        `The \`json\` ${MALFORMED}${SERIALIZE}key must be a string at line 1 column 10\`.`,
      ],
      [
        'bad NDJSON',
        { body: '{"id":1}\n{"id":', type: 'application/x-ndjson' },
        400,
        'malformed_payload',
        `The \`ndjson\` ${MALFORMED}${SERIALIZE}EOF while parsing a value at line 2 column 6\`.`,
      ],
      [
        'a text as document',
        { body: '"x"' },
        400,
        'malformed_payload',
        `The \`json\` ${MALFORMED}${SERIALIZE}data are neither an object nor a list of objects\`.`,
      ],
      ['a number as document', { body: '7' }, 400, 'malformed_payload', /data are neither an object nor a list of objects`\.$/],
      [
        'an array inside NDJSON',
        { body: '[{"id":1}]', type: 'application/x-ndjson' },
        500,
        'internal',
        'invalid type: sequence, expected a map at line 1 column 0',
      ],
      [
        'nesting deeper than 127',
        { body: `{"id":1,"a":${'['.repeat(130)}` },
        400,
        'malformed_payload',
        /recursion limit exceeded at line 1 column \d+`\.$/,
      ],
      ['an empty body', { body: '' }, 400, 'missing_payload', 'A json payload is missing.'],
      ['an empty NDJSON body', { body: '', type: 'application/x-ndjson' }, 400, 'missing_payload', 'A ndjson payload is missing.'],
      [
        'another content type',
        { body: '{}', type: 'application/jsonl' },
        415,
        'invalid_content_type',
        `The Content-Type \`application/jsonl\` is invalid. ${TYPES}`,
      ],
      ['no content type', { body: '{}', type: null }, 415, 'missing_content_type', `A Content-Type header is missing. ${TYPES}`],
      [
        'corrupt gzip',
        { body: 'not gzip', headers: { 'content-encoding': 'gzip' } },
        400,
        'bad_request',
        'The provided payload is incomplete and cannot be parsed',
      ],
    ] as const
  ).map(([situation, request, ...rest]): Refusal => {
    const headers = { ...bearer('master'), ...('headers' in request ? request.headers : {}) }
    return [situation, '/indexes/x/documents', { ...request, headers }, ...rest]
  }),
  [
    'an unknown parameter',
    '/indexes/x/documents?foo=1',
    { body: '[]', headers: bearer('master') },
    400,
    'bad_request',
    'Unknown parameter `foo`: expected one of `primaryKey`, `csvDelimiter`, `customMetadata`, `skipCreation`',
  ],
  [
    'malformed ids',
    '/indexes/x/documents/delete-batch',
    { body: '[1,', headers: bearer('master') },
    400,
    'malformed_payload',
    'The json payload provided is malformed. `EOF while parsing a value at line 1 column 3`.',
  ],
  [
    'ids as a map',
    '/indexes/x/documents/delete-batch',
    { body: '{"ids":[1]}', headers: bearer('master') },
    400,
    'bad_request',
    'Json deserialize error: invalid type: map, expected a sequence at line 1 column 0',
  ],
  [
    'ids as NDJSON',
    '/indexes/x/documents/delete-batch',
    { body: '[1]', type: 'application/x-ndjson', headers: bearer('master') },
    415,
    'invalid_content_type',
    /Accepted values for the Content-Type header are: `application\/json`$/,
  ],
  [
    'edit, not switched on',
    '/indexes/x/documents/edit',
    { body: '{"function":""}', headers: bearer('master') },
    400,
    'feature_not_enabled',
    FEATURE,
  ],
]

test('refusals have the status, the code, the type and the words of the real server', async (t) => {
  await using server = await Meilisearch.start(KEYS)
  for (const [situation, path, request, status, code, message] of REFUSALS)
    await t.test(situation, async () => {
      const got = await ask(server, path, request)
      assert.deepEqual([got.status, got.type, got.body['code']], [status, 'application/json', code], got.text)
      assert.equal(got.body['type'], status === 401 || status === 403 ? 'auth' : status === 500 ? 'internal' : 'invalid_request')
      assert.equal(got.body['link'], `https://docs.meilisearch.com/errors#${code}`)
      if (typeof message === 'string') assert.equal(got.body['message'], message)
      else assert.match(got.body['message'] as string, message)
    })
  assert.equal(server.tasks.length, 0)
})

test('without a master key every request passes but that for keys, and an unknown route has no body', async () => {
  await using server = await Meilisearch.start()
  assert.equal((await ask(server, '/indexes/x/documents', { body: '[]', headers: bearer('any') })).status, 202)
  const keys = await ask(server, '/keys')
  assert.deepEqual([keys.status, keys.body['code'], keys.body['type']], [401, 'missing_master_key', 'auth'])
  for (const [path, method, status] of [
    ['/nowhere', 'GET', 404],
    ['/indexes/x/documents/delete-batch', 'PUT', 405],
  ] as const) {
    const { status: code, text, type } = await ask(server, path, { method })
    assert.deepEqual([code, text, type], [status, '', null])
  }
})

test('health asks for no key, version does, and answers are packed when they may be', async () => {
  await using server = await Meilisearch.start(KEYS)
  for (const headers of [{}, bearer('no')]) {
    const { status, body } = await ask(server, '/health', { headers })
    assert.deepEqual([status, body], [200, { status: 'available' }])
  }
  assert.equal((await ask(server, '/version')).status, 401)
  const packed = await fetch(`${server.url}/version`, { headers: { ...bearer('master'), 'accept-encoding': 'gzip' } })
  assert.equal(packed.headers.get('content-encoding'), 'gzip')
  assert.equal(((await packed.json()) as Json)['pkgVersion'], '1.50.0')
})

test('a body above the limit is refused after inflation, with 413 for documents and 500 for ids', async () => {
  await using server = await Meilisearch.start({ payloadLimit: 1024 * 1024 })
  const large = JSON.stringify([{ id: 1, text: 'x'.repeat(1024 * 1024) }])
  for (const request of [{ body: large }, { body: gzipSync(large), headers: { 'content-encoding': 'gzip' } }]) {
    const { status, body } = await ask(server, '/indexes/x/documents', request)
    assert.deepEqual(
      [status, body['code'], body['message']],
      [413, 'payload_too_large', 'The provided payload reached the size limit. The maximum accepted payload size is 1 MiB.'],
    )
  }
  const ids = `[${'1'.repeat(1024 * 1024)}]`
  const { status, body } = await ask(server, '/indexes/x/documents/delete-batch', { body: ids })
  assert.deepEqual([status, body['message']], [500, `JSON payload (${ids.length} bytes) is larger than allowed (limit: 1048576 bytes).`])
})

test('a write is answered with its task, which goes from enqueued over processing to its end', async () => {
  await using server = await Meilisearch.start()
  server.hold()
  const { status, body } = await ask(server, '/indexes/x/documents?customMetadata=mine', { body: '[{"id":1},{"id":2}]' })
  assert.equal(status, 202)
  const { enqueuedAt, ...rest } = body
  assert.deepEqual(rest, { taskUid: 0, indexUid: 'x', status: 'enqueued', type: 'documentAdditionOrUpdate', customMetadata: 'mine' })
  assert.match(enqueuedAt as string, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z$/)
  const open = (await ask(server, '/tasks/0')).body
  assert.deepEqual([open['batchUid'], open['duration'], open['startedAt'], open['finishedAt']], [null, null, null, null])
  assert.deepEqual(open['details'], { receivedDocuments: 2, indexedDocuments: null })
  server.pace = { batchMs: 60_000, documentMs: 0 }
  server.release()
  await server.until(() => server.tasks[0]?.status === 'processing')
  const underWay = (await ask(server, '/tasks/0')).body
  assert.deepEqual([underWay['status'], underWay['batchUid'], underWay['finishedAt']], ['processing', 0, null])
  assert.ok(underWay['startedAt'])
  server.pace = { batchMs: 0, documentMs: 0 }
  await server.kill()
  await server.start()
  await ended(server, 0)
  const { enqueuedAt: _, startedAt, finishedAt, duration, ...task } = (await ask(server, '/tasks/0')).body
  assert.deepEqual(task, {
    ...{ uid: 0, batchUid: 1, indexUid: 'x', status: 'succeeded', type: 'documentAdditionOrUpdate', canceledBy: null },
    ...{ details: { receivedDocuments: 2, indexedDocuments: 2 }, error: null, customMetadata: 'mine' },
  })
  assert.ok(startedAt && finishedAt)
  assert.match(duration as string, /^PT[\d.]+S$/)
  assert.equal((await ask(server, '/tasks/1')).status, 404)
})

test('one call asks for many tasks, newest first and page by page', async () => {
  await using server = await Meilisearch.start()
  for (const index of ['x', 'y', 'x']) await add(server, [{ id: 1 }], '', index)
  await add(server, [{ t: 1 }], '?primaryKey=id', 'x')
  const uids = async (query: string) => {
    const { body } = await ask(server, `/tasks?${query}`)
    return [(body['results'] as Json[]).map(({ uid }) => uid), body['total'], body['limit'], body['from'], body['next']]
  }
  assert.deepEqual(await uids('uids=0,2,77'), [[2, 0], 2, 20, 2, null])
  assert.deepEqual(await uids('limit=2'), [[3, 2], 4, 2, 3, 1])
  assert.deepEqual(await uids('limit=2&from=1'), [[1, 0], 4, 2, 1, null])
  assert.deepEqual(await uids('indexUids=x&statuses=succeeded'), [[2, 0], 2, 20, 2, null])
  assert.deepEqual(await uids('statuses=failed'), [[3], 1, 20, 3, null])
  assert.deepEqual(await uids('types=documentDeletion'), [[], 0, 20, null, null])
})

test('a task that is not of a key’s index is not there for it', async () => {
  await using server = await Meilisearch.start(KEYS)
  for (const index of ['x', 'e']) await ask(server, `/indexes/${index}/documents`, { body: '[]', headers: bearer('master') })
  assert.equal((await ask(server, '/tasks/0', { headers: bearer('only-x') })).status, 200)
  assert.equal((await ask(server, '/tasks/1', { headers: bearer('only-x') })).body['code'], 'task_not_found')
})

test('a canceled task leaves nothing behind, also when it was under way', async () => {
  await using server = await Meilisearch.start({ pace: { batchMs: 60_000, documentMs: 0 } })
  for (const id of [1, 2]) await ask(server, '/indexes/x/documents?primaryKey=id', { body: `[{"id":${id}}]` })
  await server.until(() => server.tasks[0]?.status === 'processing')
  server.pace = { batchMs: 0, documentMs: 0 }
  const { status, body } = await ask(server, '/tasks/cancel?uids=0', { method: 'POST' })
  assert.deepEqual([status, body['type'], body['indexUid']], [200, 'taskCancelation', null])
  await ended(server, 0, 1)
  const canceled = (await ask(server, '/tasks/0')).body
  assert.deepEqual([canceled['status'], canceled['error'], canceled['canceledBy']], ['canceled', null, body['taskUid']])
  assert.deepEqual(stored(server), [{ id: 2 }])
})

test('a task that an operator deletes is gone', async () => {
  await using server = await Meilisearch.start()
  await add(server, [{ id: 1 }])
  assert.equal((await ask(server, '/tasks?uids=0', { method: 'DELETE' })).status, 200)
  assert.equal((await ask(server, '/tasks/0')).body['code'], 'task_not_found')
  assert.deepEqual((await ask(server, '/tasks?uids=0')).body['results'], [])
})

test('what was answered with 202 is done after a kill, under the same uids and wholly', async () => {
  await using server = await Meilisearch.start({ pace: { batchMs: 60_000, documentMs: 0 } })
  for (let i = 0; i < 4; i++) await ask(server, '/indexes/x/documents?primaryKey=id', { body: `[{"id":${i}}]` })
  await server.until(() => server.tasks[0]?.status === 'processing')
  server.pace = { batchMs: 0, documentMs: 0 }
  await server.kill()
  await assert.rejects(ask(server, '/health'))
  assert.equal(server.documents('x').size, 0)
  await server.start()
  await ended(server, 0, 1, 2, 3)
  assert.deepEqual(
    server.tasks.map(({ uid, status }) => [uid, status]),
    [0, 1, 2, 3].map((uid) => [uid, 'succeeded']),
  )
  assert.equal(server.documents('x').size, 4)
  assert.equal((await ask(server, '/indexes/x/documents', { body: '[]' })).body['taskUid'], 4)
})

test('faults come as they are asked for: nothing taken in, taken in without an answer, or another answer', async () => {
  await using server = await Meilisearch.start()
  const post = () => ask(server, '/indexes/x/documents?primaryKey=id', { body: '[{"id":1}]' })
  server.fault = () => 'cut'
  await assert.rejects(post())
  assert.equal(server.tasks.length, 0)
  server.fault = () => 'cutAfter'
  await assert.rejects(post())
  assert.equal(server.tasks.length, 1)
  server.fault = ({ path }) =>
    path === '/health' ? undefined : { status: 503, headers: { 'retry-after': '10' }, body: '{"message":"busy"}' }
  assert.equal((await ask(server, '/health')).status, 200)
  const busy = await post()
  assert.deepEqual([busy.status, busy.body['message']], [503, 'busy'])
  server.fault = () => 'hang'
  await assert.rejects(fetch(server.url, { signal: AbortSignal.timeout(50) }))
  server.fault = () => ({ delayMs: 50 })
  const startedAt = performance.now()
  assert.equal((await ask(server, '/health')).status, 200)
  assert.ok(performance.now() - startedAt >= 45)
})
