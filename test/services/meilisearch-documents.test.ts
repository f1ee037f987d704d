/** The same of documents: additions, deletions, edits by function. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { add, ask, ended, remove, run, stored } from './meilisearch-client.ts'
import { Meilisearch } from './meilisearch.ts'

test('an index comes to be with its first documents, and has no key before a good one', async () => {
  await using server = await Meilisearch.start()
  await run(server, '/indexes', { body: '{"uid":"y"}' })
  assert.equal((await ask(server, '/indexes/y')).body['primaryKey'], null)
  await add(server, [{ id: 1 }], '')
  const { uid, primaryKey, createdAt, updatedAt } = (await ask(server, '/indexes/x')).body
  assert.deepEqual([uid, primaryKey], ['x', 'id'])
  assert.ok(createdAt && updatedAt)
  for (const [documents, code] of [
    [[{ aid: 1, bid: 2 }], 'index_primary_key_multiple_candidates_found'],
    [[{ name: 1 }], 'index_primary_key_no_candidate_found'],
  ] as const) {
    const task = await add(server, documents, '', code)
    assert.deepEqual([task['status'], task['error'].code], ['failed', code])
    assert.equal((await ask(server, `/indexes/${code}`)).body['primaryKey'], null)
  }
})

test('POST replaces a document and PUT merges its fields; with skipCreation unknown ones are ignored', async () => {
  await using server = await Meilisearch.start()
  await add(server, [{ id: 1, a: 1, b: { c: 1, d: 1 } }])
  await run(server, '/indexes/x/documents', { method: 'PUT', body: '[{"id":1,"b":{"c":2}}]' })
  assert.deepEqual(stored(server), [{ id: 1, a: 1, b: { c: 2 } }])
  await add(server, [{ id: 1, z: 0 }])
  assert.deepEqual(stored(server), [{ id: 1, z: 0 }])
  const skipped = await add(server, [{ id: 1 }, { id: 2 }], '?skipCreation=true')
  assert.equal(skipped['details'].indexedDocuments, 2)
  assert.deepEqual(stored(server), [{ id: 1 }])
})

test('a body is an array, one object, or objects behind each other', async () => {
  await using server = await Meilisearch.start()
  await add(server, '{"id":1}')
  for (const body of ['{"id":2}\n{"id":3}\r\n\n{"id":4}', '{"id":5}{"id":6}\n'])
    await run(server, '/indexes/x/documents', { body, type: 'application/x-ndjson' })
  await run(server, '/indexes/x/documents', { body: gzipSync('[{"id":7}]'), headers: { 'content-encoding': 'gzip' } })
  assert.deepEqual([...server.documents('x').keys()], ['1', '2', '3', '4', '5', '6', '7'])
  assert.deepEqual((await add(server, []))['details'], { receivedDocuments: 0, indexedDocuments: 0 })
})

test('of one identifier in a batch the last wins; 2 and "2" are one, 5 and "0005" are not', async () => {
  await using server = await Meilisearch.start()
  const task = await add(server, [
    { id: 2, n: 1 },
    { id: '2', n: 2 },
  ])
  assert.deepEqual(task['details'], { receivedDocuments: 2, indexedDocuments: 1 })
  await add(server, [{ id: 5 }, { id: '0005' }])
  assert.deepEqual(stored(server), [{ id: '2', n: 2 }, { id: 5 }, { id: '0005' }])
})

test('integers of 64 bits keep their digits, other numbers become floats', async () => {
  await using server = await Meilisearch.start()
  await add(server, '[{"id":1,"a":9007199254740993,"b":18446744073709551615,"c":123456789012345678901234567890}]')
  const { text } = await ask(server, '/indexes/x/documents/1')
  assert.equal(text, '{"id":1,"a":9007199254740993,"b":18446744073709551615,"c":1.2345678901234568e+29}')
})

test('identifiers are integers and texts of letters, digits, - and _, up to 511 bytes; a bad one fails its whole task', async (t) => {
  await using server = await Meilisearch.start()
  const good = ['-7', '18446744073709551615', '"a-B_9"', '"5e5e8b0a-1c2d-4e3f-8a9b-0c1d2e3f4a5b"', `"${'a'.repeat(511)}"`]
  for (const id of good) assert.equal((await add(server, `[{"id":${id}}]`, undefined, 'good'))['status'], 'succeeded', id)
  const bad = ['1.5', 'null', 'true', '[1]', '{"a":1}', '""', '"a b"', '"a@b.c"', '"a.b"', '"a:b"', `"${'a'.repeat(512)}"`]
  for (const id of bad)
    await t.test(id.slice(0, 20), async () => {
      const task = await add(server, `[{"id":1},{"id":${id}}]`)
      assert.deepEqual([task['status'], task['details']], ['failed', { receivedDocuments: 2, indexedDocuments: 0 }])
      assert.equal(
        task['error'].message,
        `Document identifier \`${id}\` is invalid. A document identifier can be of type integer or string, only composed of alphanumeric characters (a-z A-Z 0-9), hyphens (-) and underscores (_), and can not be more than 511 bytes.`,
      )
      assert.deepEqual([task['error'].code, task['error'].type], ['invalid_document_id', 'invalid_request'])
    })
  assert.deepEqual(stored(server), [])
  const missing = await add(server, '[{"id":1},{"t":"no id"}]')
  assert.equal(missing['error'].message, `Document doesn't have a \`id\` attribute: \`{"t":"no id"}\`.`)
  assert.equal((await add(server, '[{"ID":1}]'))['error'].code, 'missing_document_id')
})

test('another primary key fails the task, and a nested one works', async () => {
  await using server = await Meilisearch.start()
  await add(server, [{ id: 1 }])
  const { error } = await add(server, [{ sku: 1 }], '?primaryKey=sku')
  assert.deepEqual([error.code, error.message], ['index_primary_key_already_exists', 'Index already has a primary key: `id`.'])
  assert.equal((await add(server, [{ a: { b: 1 } }], '?primaryKey=a.b', 'nested'))['status'], 'succeeded')
})

test('a poison document fails everything that shares its batch', async () => {
  await using server = await Meilisearch.start()
  for (const [n, poison] of ['{"id":2,"n":1e400}', '{"id":2,"_vectors":7}'].entries()) {
    const index = `p${n}`
    server.hold()
    const uids: number[] = []
    for (const body of ['[{"id":1}]', `[${poison}]`, '[{"id":3}]'])
      uids.push((await ask(server, `/indexes/${index}/documents?primaryKey=id`, { body })).body['taskUid'] as number)
    server.release()
    await ended(server, ...uids)
    const tasks = await Promise.all(uids.map(async (uid) => (await ask(server, `/tasks/${uid}`)).body))
    assert.deepEqual(
      tasks.map(({ status, error }) => [status, error.code, error.type]),
      uids.map(() => ['failed', 'internal', 'internal']),
    )
    assert.equal(new Set(tasks.map(({ error }) => error.message)).size, 1)
    if (n === 0) assert.equal(tasks[0]?.['error'].message, 'Index `p0`: internal: number out of range at line 1 column 5.')
    assert.deepEqual(stored(server, index), [])
  }
})

test('a delete-batch ignores what is not there, and an index that is missing fails it', async () => {
  await using server = await Meilisearch.start()
  const never = await remove(server, '[1]', 'never')
  assert.deepEqual(
    [never['status'], never['error'].code, never['error'].message],
    ['failed', 'index_not_found', 'Index `never` not found.'],
  )
  assert.equal((await ask(server, '/indexes/never')).status, 404)
  await add(server, [{ id: 1 }, { id: 2 }, { id: 'a' }])
  const { type, status, details } = await remove(server, '[1,"2",404,null,"a b"]')
  assert.deepEqual(
    [type, status, details],
    ['documentDeletion', 'succeeded', { providedIds: 5, deletedDocuments: 2, originalFilter: null }],
  )
  assert.equal((await remove(server, '[]'))['status'], 'succeeded')
  await run(server, '/indexes/x/documents/a', { method: 'DELETE' })
  assert.deepEqual(stored(server), [])
})

test('neighbouring additions and deletions of an index share a batch in the order of their uids', async () => {
  await using server = await Meilisearch.start()
  await add(server, [{ id: 0 }])
  server.hold()
  await ask(server, '/indexes/x/documents', { body: '[{"id":1,"n":1}]' })
  await ask(server, '/indexes/x/documents/delete-batch', { body: '[1]' })
  await ask(server, '/indexes/x/documents', { body: '[{"id":1,"n":2}]' })
  await ask(server, '/indexes/x', { method: 'DELETE' })
  await ask(server, '/indexes/x/documents', { body: '[{"id":9}]' })
  server.release(1)
  await ended(server, 1, 2, 3)
  assert.deepEqual(stored(server), [{ id: 0 }, { id: 1, n: 2 }])
  server.release()
  await ended(server, 5)
  const batches = server.tasks.map(({ batchUid }) => batchUid)
  assert.deepEqual(batches, [0, 1, 1, 1, 2, 3])
  const [a, b] = server.tasks.slice(1)
  assert.deepEqual([a?.startedAt, a?.finishedAt, a?.duration], [b?.startedAt, b?.finishedAt, b?.duration])
  assert.deepEqual(stored(server), [{ id: 9 }])
})

const switchOn = (server: Meilisearch) =>
  ask(server, '/experimental-features', { method: 'PATCH', body: '{"editDocumentsByFunction":true}' })
const filterBy = (server: Meilisearch, ...names: string[]) =>
  run(server, '/indexes/x/settings', { method: 'PATCH', body: JSON.stringify({ filterableAttributes: names }) })
const edit = (server: Meilisearch, body: unknown, index = 'x') =>
  run(server, `/indexes/${index}/documents/edit`, { body: JSON.stringify(body) })

test('an edit changes the documents that its filter finds, one task a batch', async () => {
  await using server = await Meilisearch.start()
  assert.equal((await switchOn(server)).body['editDocumentsByFunction'], true)
  assert.equal((await ask(server, '/experimental-features')).body['editDocumentsByFunction'], true)
  await add(server, [
    { id: 1, sku: 's-1', n: 1 },
    { id: 2, sku: 's-2', n: 1 },
  ])
  await filterBy(server, 'sku')
  server.hold()
  const request = { filter: "sku = 's-2'", function: 'doc.n += context.d', context: { d: 40 } }
  for (let i = 0; i < 2; i++) await ask(server, '/indexes/x/documents/edit?customMetadata=m', { body: JSON.stringify(request) })
  server.release()
  await ended(server, 2, 3)
  const { type, details, customMetadata } = (await ask(server, '/tasks/2')).body
  assert.deepEqual([type, customMetadata], ['documentEdition', 'm'])
  assert.deepEqual(details, {
    editedDocuments: 1,
    deletedDocuments: 1,
    originalFilter: `"sku = 's-2'"`,
    context: { d: 40 },
    function: 'doc.n += context.d',
  })
  assert.notEqual(server.tasks[2]?.batchUid, server.tasks[3]?.batchUid)
  assert.deepEqual(
    stored(server).map(({ n }) => n),
    [1, 81],
  )
  await edit(server, { filter: "sku = 's-2'", function: 'doc.n = (); doc.t = "a" + context.u', context: { u: 'b' } })
  assert.deepEqual(stored(server)[1], { id: 2, sku: 's-2', n: null, t: 'ab' })
  assert.equal((await edit(server, { filter: ["sku IN ['s-2', 'x']"], function: 'doc = ()' }))['status'], 'succeeded')
  assert.equal(server.documents('x').size, 1)
  const none = await edit(server, { filter: "sku = 'none'", function: 'doc = ()' })
  assert.deepEqual([none['status'], none['details'].editedDocuments], ['succeeded', 0])
})

test('an edit that is wrong is refused at once, or fails its task', async (t) => {
  await using server = await Meilisearch.start()
  await switchOn(server)
  await add(server, [{ id: 1, n: 1 }], undefined, 'x')
  const refused = [
    [{}, 'missing_document_edition_function', 'Missing field `function`'],
    [{ function: 1 }, 'invalid_document_edition_function_filter', /./],
    [{ function: '', context: [] }, 'invalid_document_edition_context', 'The context must be an object'],
    [{ function: '', bogus: 1 }, 'bad_request', 'Unknown field `bogus`: expected one of `filter`, `context`, `function`'],
    [{ function: 'doc.n +=' }, 'bad_request', 'Script is incomplete (line 1, position 9)'],
    [{ function: '', filter: '' }, 'invalid_document_filter', 'Sending an empty filter is forbidden.'],
    [
      { function: '', filter: 'id ==== 1' },
      'invalid_document_filter',
      'Index `x`: Was expecting a value but instead got nothing.\n5:5 id ==== 1',
    ],
    [{ function: '', filter: 7 }, 'invalid_document_filter', /./],
  ] as const
  for (const [body, code, message] of refused)
    await t.test(`refused: ${JSON.stringify(body)}`, async () => {
      const got = await ask(server, '/indexes/x/documents/edit', { body: JSON.stringify(body) })
      assert.deepEqual([got.status, got.body['code']], [400, code])
      if (typeof message === 'string') assert.equal(got.body['message'], message)
    })
  const failing = [
    [
      'x',
      { function: 'doc = ()', filter: 'id = 1' },
      'invalid_document_filter',
      'Index `x`: Attribute `id` is not filterable. This index does not have configured filterable attributes.\n1:3 id = 1',
    ],
    [
      'x',
      { function: 'doc.id = 2' },
      'edit_documents_by_function_error',
      "Index `x`: Document editions cannot modify a document's primary key",
    ],
    ['x', { function: 'doc = 2' }, 'edit_documents_by_function_error', 'Index `x`: Document editions must keep documents as objects'],
    [
      'x',
      { function: 'doc.n += context.d' },
      'edit_documents_by_function_error',
      'Index `x`: Document edition runtime error encountered while running the function: Variable not found: context (line 1, position 10)',
    ],
    ['never', { function: 'doc = ()' }, 'index_not_found', 'Index `never` not found.'],
  ] as const
  for (const [index, body, code, message] of failing)
    await t.test(`fails: ${JSON.stringify(body)}`, async () => {
      const { status, error, details } = await edit(server, body, index)
      assert.deepEqual([status, error.code, error.message, details.deletedDocuments], ['failed', code, message, null])
    })
  assert.deepEqual(stored(server), [{ id: 1, n: 1 }])
})
