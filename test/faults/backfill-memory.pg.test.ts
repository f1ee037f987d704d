/** Rows of a megabyte are backfilled with bounded memory, into a sink that is paused and to a client. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState } from '../services/postgres.ts'
import { until } from '../waiting.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient } from './sink-client.ts'
import { LONG } from './size.ts'
import { mb, watchMemory } from './watched-memory.ts'

const ROWS = LONG ? 2_000 : 60
const RSS_LIMIT_KB = 300 * 1024

test(`${ROWS} rows of 1 MB pass with less than 300 MB of private memory`, async (context) => {
  await using source = await createDatabase(`create table doc (id int primary key, body text);
    insert into doc select i, repeat(md5(i::text), 32768) from generate_series(1, ${ROWS}) i`)
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'docs', tables: ['public.doc'], status: 'paused', max_backlog_mb: 100_000, replay_window: 0 }],
  })
  await service.startReady()
  const memory = watchMemory(service)
  const { status, body } = await service.post('/api/sinks/docs/backfills', { table: 'public.doc' })
  assert.equal(status, 200, JSON.stringify(body))
  await until(
    'all rows are in the log',
    async () => (await state.query(`select from tailrace.backfill where state = 'completed'`)).length > 0,
    { withinMs: 600_000, service },
  )
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
      return came.size === ROWS
    },
    { withinMs: 600_000, service },
  )
  await memory.assertBelow(RSS_LIMIT_KB)
  context.diagnostic(`at most ${mb(read * 1024)} MB of private memory while they were read, ${mb(service.peakRssAnonKb * 1024)} MB in all`)
})
