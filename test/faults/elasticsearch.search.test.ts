/**
 * Indexes equal their tables at rest, large values that updates left alone included, though the service is killed and the line to
 * the search server is cut, slow, thin and half-open, and though that is stopped and started. In the long variant it is a server of its own
 * that is killed. To start one takes 10 s, and other files use the shared one meanwhile: so otherwise what the service sees of it is, that
 * connections are refused, and then indexes that are closed and recovered from disk, as a start does it.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/elasticsearch.search.test.ts        one seed again
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { elasticsearch, startElasticsearch, type TestElasticsearch } from '../services/elasticsearch.ts'
import { SearchIndex } from '../services/elasticsearch-client.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { LOGIN } from '../sinks/elasticsearch-bench.ts'
import { canonical, type Json } from './json.ts'
import { badLine } from './bad-line.ts'
import { NetProxy } from './net-proxy.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { Service } from './service.ts'
import { LONG, seeds } from './size.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'
import { pass, until } from '../waiting.ts'

const WITHIN_MS = 120_000
const ROUNDS = LONG ? 9 : 2

for (const seed of seeds(1))
  test(`each index is its table, whatever the service and the search server went through (seed ${seed})`, async (context) => {
    await withSeed(seed, 'elasticsearch.search.test.ts', async () => {
      await using resources = new AsyncDisposableStack()
      const own: TestElasticsearch | undefined = LONG ? resources.use(await startElasticsearch()) : undefined
      const url = own?.url ?? (await elasticsearch())
      const source = resources.use(await createDatabase(DDL))
      const state = resources.use(await createState())
      const proxy = resources.use(await NetProxy.start({ host: '127.0.0.1', port: Number(new URL(url).port) }))
      const indexes = new Map<string, SearchIndex>()
      for (const table of CAPTURED) indexes.set(table, resources.use(await SearchIndex.create({ mappings: { dynamic: false } }, url)))
      const service = resources.use(
        await Service.prepare({
          source: source.connection,
          stateUrl: state.url,
          sinks: [...indexes].map(([table, { name }]) => ({
            ...{ name, tables: [table], partitions: 2 },
            destination: {
              ...{ type: 'elasticsearch', endpoint_url: `http://127.0.0.1:${proxy.port}`, index_name: name, batch_size: 20 },
              ...{ auth_type: 'basic', auth_value: LOGIN, timeout_seconds: 1 },
            },
          })),
        }),
      )
      const random = new Random(seed ^ 0xe1a5)
      await service.startReady()
      const workload = new Workload({ seed, connect: () => source.connect(), pace: 200 })
      const writing = new AbortController()
      const written = workload.run(writing.signal)
      for (let round = 0; round < ROUNDS; round++) {
        const line = badLine(proxy, round, random)
        await pass(random.int(100, 400), 'the line is bad for a while')
        if (own && round % 3 === 1) {
          await own.kill()
          await pass(random.int(100, 400), 'the server is away for a while')
          await own.start()
        } else if (round % 3 === 1) {
          await toAll(indexes, '/_close')
          await service.kill()
          await service.startReady()
          await toAll(indexes, '/_open')
        } else {
          await service.kill()
          await service.startReady()
        }
        await line
      }
      await pass(100, 'a little more is written')
      writing.abort()
      await written
      for (const { table, rows } of await workload.tables()) {
        const index = indexes.get(`public.${table}`)
        if (!index) continue
        const wanted = rows.map(({ row }) => canonical(row)).sort()
        let held: readonly string[] = []
        const differs = () => {
          assert.deepEqual(held, wanted, service.failure(table).message)
          return table
        }
        const isSame = async () => {
          held = (await index.documents()).map(({ source: { record } }) => canonical(record as Json)).sort()
          return held.join('\n') === wanted.join('\n')
        }
        await until(differs, isSame, { withinMs: WITHIN_MS })
      }
      context.diagnostic(`${workload.changes} changes, ${service.starts} starts`)
    })
  })

const toAll = (indexes: ReadonlyMap<string, SearchIndex>, path: string) =>
  Promise.all([...indexes.values()].map((index) => index.ask('POST', path)))
