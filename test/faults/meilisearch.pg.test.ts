/**
 * Indexes equal their tables at rest (the rows that Meilisearch can name), though the service is killed or stopped, Meilisearch is killed, answers
 * are lost, and the line between them is cut, slow, thin and half-open.
 *
 *   TAILRACE_TEST_SEED=7 node --test test/faults/meilisearch.pg.test.ts        one seed again
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Meilisearch, type Fault } from '../services/meilisearch.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { untilAtRest } from './at-rest.ts'
import { badLine } from './bad-line.ts'
import { canonical, type Json } from './json.ts'
import { NetProxy } from './net-proxy.ts'
import { Random } from './random.ts'
import { withSeed } from './scenario.ts'
import { Service } from './service.ts'
import { seeds } from './size.ts'
import { DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'
import { pass, until } from '../waiting.ts'

const TABLES = ['account', 'document', 'item', 'member']
const WITHIN_MS = 120_000

for (const seed of seeds(1))
  test(`each index is its table, whatever the service and Meilisearch went through (seed ${seed})`, async (context) => {
    await withSeed(seed, 'meilisearch.pg.test.ts', async () => {
      await using source = await createDatabase(DDL)
      await using state = await createState()
      await using server = await Meilisearch.start({ masterKey: 'a-master-key', pace: { batchMs: 5, documentMs: 0 } })
      await using proxy = await NetProxy.start({ host: '127.0.0.1', port: Number(new URL(server.url).port) })
      const destination = {
        type: 'meilisearch',
        endpoint_url: `http://127.0.0.1:${proxy.port}`,
        api_key: 'a-master-key',
        batch_size: 20,
        timeout_seconds: 1,
      }
      const sinks = TABLES.map((table) => ({
        ...{ name: table, tables: [`public.${table}`], destination: { ...destination, index_name: table, primary_key: 'id' } },
      }))
      await using service = await Service.prepare({ source: source.connection, stateUrl: state.url, sinks })
      const random = new Random(seed ^ 0x4e11)
      await service.startReady()
      const workload = new Workload({ seed, connect: () => source.connect(), pace: 200 })
      const writing = new AbortController()
      const written = workload.run(writing.signal)
      server.fault = ({ method }): Fault | undefined => {
        if (method !== 'POST') return undefined
        const fate = random.weighted({ fine: 90, cut: 4, cutAfter: 4, 503: 2 })
        if (fate === 'fine') return undefined
        return fate === 'cut' || fate === 'cutAfter' ? fate : { status: 503, body: '{"message":"busy"}' }
      }
      for (let ends = 0; ends < 4; ends++) {
        const line = badLine(proxy, ends, random)
        const goal = server.tasks.length + random.int(5, 30)
        await server.until(() => server.tasks.length >= goal)
        await (ends === 1 ? server.kill() : random.int(0, 1) === 0 ? service.kill() : service.stop())
        await pass(random.int(0, 300), 'it is away for a while')
        await (ends === 1 ? server.start() : service.startReady())
        await line
      }
      writing.abort()
      await written
      server.fault = undefined
      const tables = (await workload.tables()).filter(({ table }) => TABLES.includes(table))
      // some tenants have names that no identifier may have: Meilisearch refuses these, and they hold nobody up
      const named = ({ key }: { key: readonly string[] }) => /^[\w-]+$/.test(key.join('-'))
      const wanted = new Map(
        tables.map(({ table, rows }) => [
          table,
          rows
            .filter(named)
            .map(({ row }) => canonical(row))
            .sort(),
        ]),
      )
      for (const [table, rows] of wanted) {
        const held = () => [...server.documents(table).values()].map(({ record }) => canonical(record as Json)).sort()
        const differs = () => {
          assert.deepEqual(held(), rows, service.failure(table).message)
          return table
        }
        await until(differs, () => held().join('\n') === rows.join('\n'), { withinMs: WITHIN_MS })
      }
      await untilAtRest(service, TABLES, { mayBackOff: true })
      context.diagnostic(`${workload.changes} changes, ${server.tasks.length} tasks, ${service.starts} starts`)
    })
  })
