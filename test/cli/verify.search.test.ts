/** `tailrace verify`, as a user types it, against an Elasticsearch in which differences were planted. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { UsageError } from '../../cli/command.ts'
import { verify as verifying } from '../../cli/verify.ts'
import type { FunctionType } from '../../engine/state/function-kinds.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { ITEMS } from '../actors/shop.ts'
import { SearchIndex } from '../services/elasticsearch-client.ts'
import { Meilisearch } from '../services/meilisearch.ts'
import { destination } from '../sinks/elasticsearch-bench.ts'
import { destination as inMeilisearch } from '../sinks/meilisearch-bench.ts'
import { until } from '../waiting.ts'
import { tailrace } from './command.ts'

const SEARCHABLE_SOON = { settings: { number_of_shards: 2, number_of_replicas: 0, refresh_interval: '100ms' } }

await using stack = new AsyncDisposableStack()
const s = stack.use(await serveShop([`name: a, ${ITEMS}`]))
const index = stack.use(await SearchIndex.create(SEARCHABLE_SOON))
const made = await s.call('POST', '/sinks', {
  ...{ name: 'docs', database: s.shop.db.name, source: { include_tables: ['public.item'] } },
  destination: destination(index.endpoint, { index_name: index.name }),
})
assert.equal(made.status, 200, JSON.stringify(made.body))
const started = stack.move()
after(() => started.disposeAsync())

const verify = (...args: string[]) => tailrace('verify', ...args, '--url', s.url, '--token', TOKEN)
const indexed = (count: number) => until(`${count} documents`, async () => (await index.ids()).length === count || undefined)
const lines = (out: string) => out.trimEnd().split('\n').toSorted()

/** Makes this the rows of the table and the documents of the index. */
async function fill(rows: number) {
  await s.shop.db.query('delete from item')
  await s.shop.insert(1, rows)
  await indexed(rows)
}

test('what is missing, different or too many is found, and nothing else; a backfill mends just those rows', async () => {
  await fill(1_100) // more than a page
  const well = await verify('docs')
  assert.deepEqual(well, {
    code: 0,
    out: 'public.item: 1,100 rows and 1,100 documents compared: 0 missing, 0 different, 0 extra\n',
    err: '',
  })
  await index.ask('DELETE', '/_doc/5')
  await index.ask('DELETE', '/_doc/1100')
  await index.ask('POST', '/_update/300', { doc: { record: { name: 'other' } } })
  await index.ask('PUT', '/_doc/9999', { record: { id: 9999 } })
  await index.ask('PUT', '/_doc/odd', { record: {} })
  await index.ask('POST', '/_refresh')
  const sick = await verify('docs', 'item', '--redeliver')
  assert.equal(sick.code, 1, 'what is too many stays')
  assert.deepEqual(lines(sick.out), [
    '3 rows were read again, and are on their way to the destination.',
    'different 300  {"id":"300"}',
    'extra     9999  {"id":"9999"}',
    'extra     odd  {"id":"odd"}',
    'missing   1100  {"id":"1100"}',
    'missing   5  {"id":"5"}',
    'public.item: 1,100 rows and 1,100 documents compared: 2 missing, 1 different, 2 extra',
  ])
  const backfills = (await s.call('GET', '/sinks/docs/backfills')).body.data
  assert.deepEqual(backfills.map(({ rows_processed_count }: { rows_processed_count: number }) => rows_processed_count), [3]) // prettier-ignore
  const mended = JSON.parse((await verify('docs', '--json')).out)
  const ids = mended.differences.map(({ id }: { id: string }) => id)
  assert.deepEqual([mended.missing, mended.different, ids.toSorted(), mended.settled], [0, 0, ['9999', 'odd'], true])
  for (const id of ids) await index.ask('DELETE', `/_doc/${id}`)
})

test('rows that change meanwhile, and changes on their way, are no differences', async () => {
  await fill(100)
  const done = new AbortController()
  let round = 0
  const writing = (async () => {
    for (; !done.signal.aborted; round++) {
      await s.shop.db.query('update item set name = $1 where id % 20 = $2', [`round ${round}`, round % 20])
      await s.shop.db.query('delete from item where id = $1', [1_000 + round - 1])
      await s.shop.insert(1_000 + round, 1_000 + round)
      // a sink that falls behind further and further is never done
      const isThere = async () => (await index.ask('POST', `/_mget`, { ids: [1_000 + round] })) as { docs: [{ found: boolean }] }
      await until('it comes', async () => (await isThere()).docs[0]?.found)
    }
  })()
  const { code, out, err } = await verify('docs').finally(() => done.abort())
  await writing
  assert.deepEqual([code, err], [0, ''], out)
  assert.match(out, /: 0 missing, 0 different, 0 extra\n$/)
  assert.ok(round > 0)
})

test('counts and samples are compared, through the filter and the transform of the sink', async () => {
  await fill(100)
  assert.deepEqual(await verify('docs', '--mode', 'count'), { code: 0, out: 'public.item: 100 rows, 100 documents\n', err: '' })
  const sink = s.shop.node.cache.sinks.find(({ name }) => name === 'docs') ?? assert.fail()
  const make = (name: string, type: FunctionType, code: string) =>
    s.shop.node.edits.create(
      'function',
      { id: sink.accountId, name: 'shop' },
      { name, type, code, compiled: code, description: null, sinkType: null, usesMetadata: false },
    )
  await make('even', 'filter', 'export default (action, record) => record.id % 2 === 0')
  await make('doc', 'transform', 'export default (action, record) => ({ title: record.name })')
  await s.shop.node.edits.update('sink', sink.id, { filter: 'even', transform: 'doc' })
  await s.shop.db.query(`update item set name = 'new' where id <= 10`)
  await until(
    'they are transformed',
    async () => (await index.documents()).filter(({ source }) => source['title'] === 'new').length === 5 || undefined,
  )
  const part = await verify('docs', '--sample', '20', '--limit', '1')
  assert.equal(part.code, 1, 'most documents are of before the functions')
  assert.match(
    part.out,
    /^\w+ .*\n… and \d+ more \(--limit\)\npublic\.item: 20 rows, \d+ dropped by the filter compared: 0 missing, \d+ different, \d+ extra\n$/,
  )
  const full = JSON.parse((await verify('docs', '--json')).out)
  assert.deepEqual([full.rows, full.dropped, full.missing, full.different], [100, 50, 0, 45])
  assert.equal(full.extra, 50, 'documents of rows that the filter drops by now')
})

test('so are the documents of a Meilisearch, whose numbers are not those of JSON', async () => {
  await using server = await Meilisearch.start()
  const { status, body } = await s.call('POST', '/sinks', {
    ...{ name: 'found', database: s.shop.db.name, source: { include_tables: ['public.other'] } },
    destination: inMeilisearch(server.url, { api_key: 'a-key' }),
  })
  assert.equal(status, 200, JSON.stringify(body))
  await s.shop.db.query(`alter table other add big numeric, add far bigint`)
  await s.shop.db.query(`insert into other select i, 12345678901234567890123, 9007199254740993 from generate_series(1, 20) i`)
  await until('20 documents', () => server.documents('items').size === 20)
  const documents = server.documents('items') as Map<string, Record<string, unknown>>
  documents.delete('3')
  documents.set('4', { id: 4, record: {} })
  documents.set('odd', { id: 'odd' })
  const { code, out } = await verify('found')
  assert.equal(code, 1)
  assert.deepEqual(lines(out), [
    'different 4  {"id":"4"}',
    'extra     odd  {"id":"odd"}',
    'missing   3  {"id":"3"}',
    'public.other: 20 rows and 20 documents compared: 1 missing, 1 different, 1 extra',
  ])
  assert.deepEqual((await s.call('POST', '/sinks/found/verify', { table: 'other', what: 'count' })).body.documents, 20)
})

test('so is the stream of a pull sink, folded by key; what it can’t tell is said', async () => {
  await s.shop.db.query('truncate item')
  await s.shop.insert(1, 20)
  const { status, body } = await s.call('POST', '/sinks', {
    ...{
      name: 'kept',
      database: s.shop.db.name,
      source: { include_tables: ['public.item'] },
      replay_window: '1h',
      destination: { type: 'sequin_stream' },
    },
  })
  assert.equal(status, 200, JSON.stringify(body))
  const young = await verify('kept')
  assert.deepEqual(
    [young.code, young.out],
    [0, 'public.item: 20 rows, 20 not known to the stream compared: 0 missing, 0 different, 0 extra\n'],
  )
  assert.match(young.err, /^no full backfill of this table has been completed: rows of which the log has no message can’t be compared/)
  await s.call('POST', '/sinks/kept/backfills', { table: 'item' })
  await until('the backfill', async () => (await s.call('GET', '/sinks/kept/backfills')).body.data[0].state === 'completed')
  await s.shop.db.query(`update item set name = 'newer' where id = 1`)
  await s.shop.db.query('delete from item where id = 2')
  const [publication] = await s.shop.db.query<{ name: string }>('select pubname as name from pg_publication')
  const unseen = [
    'update item set name = $$other$$ where id = 7',
    'delete from item where id = 8',
    'insert into item values (100, $$new$$)',
  ]
  const published = (actions: string) => `alter publication ${publication?.name} set (publish = '${actions}')`
  await s.shop.db.query([published('truncate'), ...unseen, published('insert, update, delete, truncate')].join(';'))
  const sick = await verify('kept', '--redeliver')
  assert.deepEqual([sick.code, sick.err], [1, ''])
  assert.deepEqual(lines(sick.out), [
    '2 rows were read again, and are on their way to the destination.',
    'different 7  {"id":"7"}',
    'extra     8  {"id":"8"}',
    'missing   100  {"id":"100"}',
    'public.item: 19 rows compared: 1 missing, 1 different, 1 extra',
  ])
  const look = async (asked: object) => (await s.call('POST', '/sinks/kept/verify', { table: 'item', ...asked })).body
  const mended = await look({ what: 'rows' })
  assert.deepEqual([mended.compared, mended.differences, mended.next], [19, [{ kind: 'extra', id: '8', key: { id: '8' } }], null])
  const counts = await look({ what: 'count' })
  assert.deepEqual([counts.rows, counts.documents], [19, 20])
  const sampled = await look({ what: 'sample', limit: 5 })
  assert.deepEqual([sampled.compared, sampled.differences], [5, []])
})

test('a refusal is told in its words, a wrong use with the right one', async () => {
  const access = { url: s.url, token: TOKEN }
  assert.equal(
    (
      await s.call('POST', '/sinks', {
        name: 'inserts',
        database: s.shop.db.name,
        actions: ['insert'],
        source: { include_tables: ['public.item'] },
        destination: { type: 'sequin_stream' },
      })
    ).status,
    200,
  )
  await assert.rejects(verifying('inserts', [], access), /its actions leave out update and delete/)
  await assert.rejects(verifying('docs', ['other'], access), /names public\.other, which the sink does not take/)
  await assert.rejects(verifying('nosuch', ['item'], access), /There is no sink "nosuch"/)
  const wrong = (words: RegExp) => (error: unknown) => error instanceof UsageError && words.test(error.message)
  for (const [options, words] of [
    [{ mode: 'half' }, /--mode must be one of count, sample, full/],
    [{ mode: 'full', sample: '3' }, /--sample is a whole number of rows, of --mode sample/],
    [{ mode: 'count', redeliver: true }, /not with --mode count/],
  ] as const)
    await assert.rejects(verifying('docs', [], { ...access, ...options }), wrong(words))
  await assert.rejects(verifying('docs', ['item', 'other'], access), wrong(/one argument too many/))
  await index.drop()
  const gone = await verify('docs', 'item')
  assert.equal(gone.code, 1)
  assert.match(gone.err, /index_not_found_exception/)
})
