/** What becomes of messages in a real Elasticsearch: each item's own outcome, versions, and what it says when it won't. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ACTION } from '../../engine/log/pack.ts'
import { elasticsearch } from '../../sinks/elasticsearch.ts'
import { ELASTIC_READER } from '../services/elasticsearch.ts'
import { inItsWords } from '../services/search-flavor.ts'
import { SearchIndex } from '../services/elasticsearch-client.ts'
import { destination, open, wordsOf } from './elasticsearch-bench.ts'
import { madeInto, keys, batchOf, NEVER, wireOf, type Row } from './batch.ts'

const made = (documents: readonly object[], rows: readonly Partial<Row>[] = []) =>
  madeInto(
    batchOf(documents.map((_, i) => ({ key: [String(i)], ...rows[i] }))),
    documents.map((document) => Buffer.from(JSON.stringify(document))),
  )
const SHARE = { settings: { number_of_shards: 1, number_of_replicas: 0 } }

test('inserts, updates and deletes leave what the last of each key says, digits and all', async () => {
  await using index = await SearchIndex.create({ mappings: { dynamic: false } }) // beyond a long it can only be kept, not searched
  await using wire = open(index)
  const rows: Row[] = [
    ...['1', '2', '3'].map((id) => ({ key: [id], record: { id, n: 1 } })),
    { key: ['2'], record: { id: '2', n: 2 }, action: ACTION.update },
    { key: ['1'], action: ACTION.delete },
    { key: ['9'], action: ACTION.delete }, // was never there
  ]
  assert.equal((await wire.send(batchOf(rows), NEVER)).kind, 'delivered')
  assert.deepEqual(
    (await index.documents()).map(({ id, version, source }) => [id, version, (source['record'] as { n: number }).n]),
    [
      ['2', 4096, 2],
      ['3', 4096, 1],
    ],
  )
  const load = madeInto(batchOf(keys('4')), [Buffer.from('{"big":18446744073709551615}')])
  assert.equal((await wire.send(load, NEVER)).kind, 'delivered')
  assert.deepEqual((await index.documents()).at(-1)?.source, { big: 18446744073709551615n })
})

test('an older change that comes late changes nothing, neither over a newer document nor over a delete', async () => {
  await using index = await SearchIndex.create()
  await using wire = open(index)
  const at = (lsn: bigint, n: number, action: Row['action'] = ACTION.update) =>
    wire.send(batchOf([{ key: ['1'], record: { n }, action, lsn }]), NEVER)
  const state = async () => (await index.documents()).map(({ source }) => (source['record'] as { n: number }).n)
  for (const [lsn, n] of [
    [20n, 20],
    [10n, 10],
    [20n, 20],
  ] as const)
    assert.equal((await at(lsn, n)).kind, 'delivered')
  assert.deepEqual(await state(), [20])
  assert.equal((await at(15n, 0, ACTION.delete)).kind, 'delivered')
  assert.deepEqual(await state(), [20])
  assert.equal((await at(30n, 0, ACTION.delete)).kind, 'delivered')
  assert.equal((await at(25n, 25)).kind, 'delivered')
  assert.deepEqual(await state(), [])
})

test('of 1000 documents one that fits no mapping fails alone, in the words of the server', async () => {
  await using index = await SearchIndex.create({ mappings: { properties: { n: { type: 'integer' } } } })
  await using wire = open(index, { batch_size: 1000 })
  const documents = Array.from({ length: 1000 }, (_, i) => ({ n: i === 500 ? 'no number' : i }))
  const words = wordsOf(await wire.send(made(documents), NEVER)) as readonly (string | undefined)[]
  assert.deepEqual(
    words.flatMap((one, i) => (one === undefined ? [] : [i])),
    [500],
  )
  assert.match(
    words[500] ?? '',
    inItsWords(
      /^message: index of document "500": document_parsing_exception: \[1:6\] failed to parse field \[n\] of type \[integer\] in document with id '500'\. Preview of field's value: 'no number'; caused by number_format_exception: For input string: "no number"$/,
      /^message: index of document "500": mapper_parsing_exception: failed to parse field \[n\] of type \[integer\] in document with id '500'\. Preview of field's value: 'no number'; caused by number_format_exception: For input string: "no number"$/,
    ),
  )
  assert.equal((await index.documents()).length, 999)
})

test('an index that is missing, closed or locked is told as trouble of all, not of messages', async () => {
  await using index = await SearchIndex.create(SHARE)
  await using wire = open(index)
  const words = async () => wordsOf(await wire.send(batchOf([{ key: ['1'] }, { key: ['2'], action: ACTION.delete }]), NEVER))
  const all = async (pattern: RegExp) => {
    const told = await words()
    assert.equal(told.length, 2)
    for (const one of told) assert.match(one ?? '', pattern)
  }
  await index.ask('PUT', '/_settings', { index: { blocks: { write: true } } })
  await all(/^refused: .*cluster_block_exception: index \[test-\w+\] blocked by: \[FORBIDDEN\/8\/index write/)
  await index.ask('PUT', '/_settings', { index: { blocks: { write: false, read_only_allow_delete: true } } })
  await all(/^refused: .*TOO_MANY_REQUESTS\/12\/disk usage exceeded flood-stage watermark/)
  await index.ask('PUT', '/_settings', { index: { blocks: { read_only_allow_delete: false } } })
  await index.ask('POST', '/_close')
  await all(/^refused: .*index_closed_exception: closed/)
  await index.drop()
  await all(/^refused: (?:index|delete) of document "\d": index_not_found_exception: no such index \[test-\w+\]/)
})

test('a request beyond what the server takes is told apart: too large, or too much at the moment', async () => {
  await using index = await SearchIndex.create()
  await using wire = open(index)
  const pad = (kilobytes: number) => made(Array.from({ length: 10 }, () => ({ pad: 'x'.repeat(kilobytes * 100) })))
  assert.match(String(wordsOf(await wire.send(pad(2200), NEVER))), /^tooLarge: status 413/)
  assert.match(
    String(wordsOf(await wire.send(pad(1800), NEVER))),
    inItsWords(/^throttled: status 429: es_rejected_execution_exception: /, /^throttled: status 429: rejected_execution_exception: /),
  )
  assert.equal((await wire.send(pad(300), NEVER)).kind, 'delivered')
})

test('a wrong password and a lacking right are told verbatim, by deliveries and by a test of the connection', async () => {
  await using index = await SearchIndex.create()
  const stranger = { auth_value: 'stranger:a-wrong-password' }
  const reader = { auth_value: `${ELASTIC_READER.username}:${ELASTIC_READER.password}` }
  const sent = async (settings: Parameters<typeof open>[1]) => {
    await using wire = open(index, settings)
    return { words: String(wordsOf(await wire.send(batchOf(keys('1')), NEVER))), test: (await wire.test(NEVER))?.message }
  }
  const wrong = await sent(stranger)
  assert.match(
    wrong.words,
    inItsWords(/^refused: status 401: security_exception: unable to authenticate user \[stranger\]/, /^refused: status 401: Unauthorized$/),
  )
  assert.match(
    wrong.test ?? '',
    inItsWords(/^status 401: security_exception: unable to authenticate user \[stranger\]/, /^status 401: Unauthorized$/),
  )
  const lacking = await sent(reader)
  assert.match(
    lacking.words,
    inItsWords(
      /^refused: .*security_exception: action \[indices:data\/write\/bulk.*\] is unauthorized for user \[reader\]/,
      /^refused: .*security_exception: no permissions for \[indices:data\/write\/bulk.*\] and User \[name=reader/,
    ),
  )
  assert.equal(lacking.test, undefined) // it may search
  assert.match(
    (await sent({ auth_type: 'none', auth_value: null })).words,
    inItsWords(/missing authentication credentials/, /^refused: status 401: Unauthorized$/),
  )
  const key = await sent({ auth_type: 'api_key', auth_value: 'an-id:a-key' })
  assert.match(
    key.words,
    inItsWords(/^refused: status 401: security_exception: unable to authenticate/, /^refused: status 401: Unauthorized$/),
  )
})

test('a test of the connection asks for the very index', async () => {
  await using index = await SearchIndex.create()
  await using wire = open(index)
  assert.equal(await wire.test(NEVER), undefined)
  assert.deepEqual(await index.ids(), [])
  await using other = wireOf(elasticsearch, destination(index.endpoint, { index_name: 'not-there' }))
  assert.equal((await other.test(NEVER))?.message, 'status 404: index_not_found_exception: no such index [not-there]')
})
