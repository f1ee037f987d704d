/** `tailrace verify`, as a user types it, against an Elasticsearch in which differences were planted. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { FunctionType } from '../../engine/state/function-kinds.ts'
import { serveShop, TOKEN } from '../api/sinks/served-shop.ts'
import { ITEMS } from '../actors/shop.ts'
import { SearchIndex } from '../services/elasticsearch-client.ts'
import { destination } from '../sinks/elasticsearch-bench.ts'
import { until } from '../waiting.ts'
import { tailrace } from './command.ts'

const SEARCHABLE_SOON = { settings: { number_of_shards: 2, number_of_replicas: 0, refresh_interval: '100ms' } }

/** A shop whose items are documents of an index. @param rows as many are there and delivered */
async function shopWithIndex(rows: number) {
  await using stack = new AsyncDisposableStack()
  const index = stack.use(await SearchIndex.create(SEARCHABLE_SOON))
  const s = stack.use(await serveShop([`name: a, ${ITEMS}`]))
  const { status, body } = await s.call('POST', '/sinks', {
    ...{ name: 'docs', database: s.shop.db.name, source: { include_tables: ['public.item'] } },
    destination: destination(index.endpoint, { index_name: index.name }),
  })
  assert.equal(status, 200, JSON.stringify(body))
  await s.shop.insert(1, rows)
  const indexed = (count: number) => until(`${count} documents`, async () => (await index.ids()).length === count || undefined)
  await indexed(rows)
  const verify = async (...args: string[]) => tailrace('verify', ...args, '--url', s.url, '--token', TOKEN)
  const owned = stack.move()
  return { ...s, index, indexed, verify, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

const lines = (out: string) => out.trimEnd().split('\n').toSorted()

test('what is missing, different or too many is found, and nothing else; a backfill mends just those rows', async () => {
  await using s = await shopWithIndex(1_200) // more than two pages
  const well = await s.verify('docs')
  assert.deepEqual(well, {
    code: 0,
    out: 'public.item: 1,200 rows and 1,200 documents compared: 0 missing, 0 different, 0 extra\n',
    err: '',
  })
  await s.index.ask('DELETE', '/_doc/5')
  await s.index.ask('DELETE', '/_doc/1200')
  await s.index.ask('POST', '/_update/600', { doc: { record: { name: 'other' } } })
  await s.index.ask('PUT', '/_doc/9999', { record: { id: 9999 } })
  await s.index.ask('PUT', '/_doc/odd', { record: {} })
  await s.index.ask('POST', '/_refresh')
  const sick = await s.verify('docs', 'item')
  assert.equal(sick.code, 1)
  assert.deepEqual(lines(sick.out), [
    'different 600  {"id":"600"}',
    'extra     9999  {"id":"9999"}',
    'extra     odd  {"id":"odd"}',
    'missing   1200  {"id":"1200"}',
    'missing   5  {"id":"5"}',
    'public.item: 1,200 rows and 1,200 documents compared: 2 missing, 1 different, 2 extra',
  ])
  const asJson = JSON.parse((await s.verify('docs', '--json')).out)
  assert.deepEqual([asJson.missing, asJson.different, asJson.extra, asJson.differences.length, asJson.settled], [2, 1, 2, 5, true])
  const mended = await s.verify('docs', '--backfill')
  assert.match(mended.out, /\n3 rows were read again/)
  assert.equal(mended.code, 1, 'what is too many stays')
  await s.indexed(1_202)
  for (const id of ['9999', 'odd']) await s.index.ask('DELETE', `/_doc/${id}`)
  await s.index.ask('POST', '/_refresh')
  assert.equal((await s.verify('docs')).code, 0)
  const backfills = (await s.call('GET', '/sinks/docs/backfills')).body.data
  assert.deepEqual(backfills.map(({ rows_processed_count }: { rows_processed_count: number }) => rows_processed_count), [3]) // prettier-ignore
})

test('rows that change meanwhile, and changes on their way, are no differences', async () => {
  await using s = await shopWithIndex(300)
  const done = new AbortController()
  const writing = (async () => {
    for (let round = 0; !done.signal.aborted; round++) {
      await s.shop.db.query('update item set name = $1 where id % 50 = $2', [`round ${round}`, round % 50])
      await s.shop.db.query('delete from item where id = $1', [1_000 + round - 1])
      await s.shop.insert(1_000 + round, 1_000 + round)
    }
  })()
  const { code, out, err } = await s.verify('docs').finally(() => done.abort())
  await writing
  assert.deepEqual([code, err], [0, ''], out)
  assert.match(out, /: 0 missing, 0 different, 0 extra\n$/)
})

test('counts and samples are compared, through the filter and the transform of the sink', async () => {
  await using s = await shopWithIndex(100)
  assert.deepEqual(await s.verify('docs', '--mode', 'count'), { code: 0, out: 'public.item: 100 rows, 100 documents\n', err: '' })
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
    async () => (await s.index.documents()).filter(({ source }) => source['title'] === 'new').length === 5 || undefined,
  )
  const part = await s.verify('docs', '--sample', '20')
  assert.equal(part.code, 1, 'most documents are of before the functions')
  assert.match(part.out, /\npublic\.item: 20 rows, \d+ dropped by the filter compared: 0 missing, \d+ different, \d+ extra\n$/)
  const full = JSON.parse((await s.verify('docs', '--json')).out)
  assert.deepEqual([full.rows, full.dropped, full.missing, full.different], [100, 50, 0, 45])
  assert.equal(full.extra, 50, 'documents of rows that the filter drops by now')
})

test('a refusal is told in its words, a wrong use with the right one', async () => {
  await using s = await shopWithIndex(1)
  for (const [args, code, words] of [
    [['a'], 1, /a sink of type sequin_stream can't be compared/],
    [['docs', 'other'], 1, /names public\.other, which the sink does not take/],
    [['nosuch', 'item'], 1, /There is no sink "nosuch"/],
    [['docs', '--mode', 'half'], 2, /--mode must be one of count, sample, full/],
    [['docs', '--mode', 'full', '--sample', '3'], 2, /--sample is a whole number of rows, of --mode sample/],
    [['docs', '--mode', 'count', '--backfill'], 2, /not with --mode count/],
    [['docs', 'item', 'other'], 2, /one argument too many/],
  ] as const) {
    const answer = await s.verify(...args)
    assert.equal(answer.code, code, args.join(' '))
    assert.match(answer.err, words)
  }
  await s.index.drop()
  const gone = await s.verify('docs', 'item')
  assert.equal(gone.code, 1)
  assert.match(gone.err, /index_not_found_exception/)
})
