/** Tables of large rows, and of many small ones, are backfilled with bounded memory. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { until } from '../waiting.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient } from './sink-client.ts'
import { LONG } from './size.ts'
import { mb, watchMemory } from './watched-memory.ts'

const LARGE_ROWS = LONG ? 2_000 : 60
const NARROW_ROWS = LONG ? 10_000_000 : 200_000
const RSS_LIMIT_KB = 300 * 1024

/** Begins a backfill. @returns settles when it is completed */
async function backfilled(service: Service, state: TestDatabase, sink: string, table: string): Promise<void> {
  const { status, body } = await service.post(`/api/sinks/${sink}/backfills`, { table })
  assert.equal(status, 200, JSON.stringify(body))
  const isDone = async () => (await state.query(`select from tailrace.backfill where state = 'completed'`)).length > 0
  await until('all rows are in the log', isDone, { withinMs: 600_000, service })
}

test(`${LARGE_ROWS} rows of 1 MB pass with less than 300 MB of private memory`, async (context) => {
  await using source = await createDatabase(`create table doc (id int primary key, body text);
    insert into doc select i, repeat(md5(i::text), 32768) from generate_series(1, ${LARGE_ROWS}) i`)
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'docs', tables: ['public.doc'], status: 'paused', max_backlog_mb: 100_000, replay_window: 0 }],
  })
  await service.startReady()
  const memory = watchMemory(service)
  await backfilled(service, state, 'docs', 'public.doc')
  const read = service.peakRssAnonKb
  assert.equal((await service.patch('/api/sinks/docs', { status: 'active' })).status, 200)
  await using client = new HttpSinkClient({ origin: service.origin, sink: 'docs', token: TOKEN })
  const came = new Set<unknown>()
  await until(
    () => `all rows have come, and not ${came.size}`,
    async () => {
      const messages = await client.receive({ batchSize: 10, waitMs: 1_000 })
      for (const { record } of messages) came.add(record['id'])
      if (messages.length > 0) await client.ack(messages.map(({ ackId }) => ackId))
      return came.size === LARGE_ROWS
    },
    { withinMs: 600_000, service },
  )
  await memory.assertBelow(RSS_LIMIT_KB)
  context.diagnostic(`at most ${mb(read * 1024)} MB of private memory while they were read, ${mb(service.peakRssAnonKb * 1024)} MB in all`)
})

for (const [what, sink] of [
  ['into a sink that is paused', { status: 'paused' }],
  ['through a filter', { filter: 'nothing' }],
] as const)
  test(`${NARROW_ROWS.toLocaleString('en')} narrow rows pass ${what} with less than 300 MB of private memory`, async (context) => {
    await using source = await createDatabase(`create table narrow (id int primary key, n int);
      insert into narrow select i, i from generate_series(1, ${NARROW_ROWS}) i; analyze narrow`)
    await using state = await createState()
    await using service = await Service.prepare({
      source: source.connection,
      stateUrl: state.url,
      sinks: [{ name: 'narrow', tables: ['public.narrow'], max_backlog_mb: 100_000, replay_window: 0, ...sink }],
      functions: [{ name: 'nothing', type: 'filter', code: 'export default () => false' }],
      env: { BACKFILL_MAX_PENDING_MESSAGES: String(2 * NARROW_ROWS) },
    })
    await service.startReady()
    const memory = watchMemory(service)
    await backfilled(service, state, 'narrow', 'public.narrow')
    await memory.assertBelow(RSS_LIMIT_KB)
    context.diagnostic(`at most ${mb(service.peakRssAnonKb * 1024)} MB of private memory`)
  })
