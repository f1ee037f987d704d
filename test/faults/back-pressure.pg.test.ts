/** A full sink pauses the reading from Postgres. Neither the line nor Postgres itself may suffer from that. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { calmMs } from '../services/calm-clock.ts'
import { withMoreTime } from '../services/more-time.ts'
import { createDatabase, startPostgres, createState, type TestDatabase } from '../services/postgres.ts'
import { Service, SLOT } from './service.ts'
import { Tally } from './tally.ts'
import { pass, until } from '../waiting.ts'

const ROWS = 4_000
const SERVER_STOPPED_WITHIN_MS = 5_000

test('reading that is paused for 10 s keeps its line at a wal_sender_timeout of 2 s, and everything comes when it goes on', () =>
  withMoreTime([2_000, 8_000], keepsItsLine))

async function keepsItsLine(walSenderTimeoutMs: number): Promise<void> {
  await using server = await startPostgres({ settings: { wal_sender_timeout: walSenderTimeoutMs } })
  await using source = await createDatabase(TABLE, { server: server.url })
  await using state = await createState()
  await using service = await prepare(source, state)
  await service.startReady()
  await fill(source)
  const reader = await untilPaused(source, service)
  await pass(walSenderTimeoutMs * 5, 'the line is to be kept for all that time')
  assert.equal(await readerOf(source), reader, service.failure('the line was lost while reading was paused').message)
  await using tally = new Tally({ service, sink: 'rows', rows: ROWS })
  await tally.drain(ROWS)
  tally.assertComplete(1, ROWS)
  assert.equal(await readerOf(source), reader)
}

test('Postgres stops fast within 5 s while reading is paused, and nothing is lost', async () => {
  await using server = await startPostgres()
  await using source = await createDatabase(TABLE, { server: server.url })
  await using state = await createState()
  await using service = await prepare(source, state)
  await service.startReady()
  await fill(source)
  await untilPaused(source, service)
  const ms = await calmMs(() => server.stop('fast'))
  assert.ok(ms < SERVER_STOPPED_WITHIN_MS, service.failure(`the server took ${ms} ms to stop`).message)
  await server.start()
  await using tally = new Tally({ service, sink: 'rows', rows: ROWS })
  await tally.drain(ROWS)
  tally.assertComplete(1, ROWS)
})

const TABLE = 'create table row (id int primary key, filler text)'

const prepare = (source: TestDatabase, state: TestDatabase): Promise<Service> =>
  Service.prepare({ source: source.connection, stateUrl: state.url, sinks: [{ name: 'rows', tables: ['public.row'], max_backlog_mb: 1 }] })

/** About 20 MB, of which the sink takes one; small transactions, so that the pause falls between two. */
async function fill(source: TestDatabase): Promise<void> {
  for (let id = 1; id <= ROWS; id += 100) {
    await source.query(
      `insert into row select g, (select string_agg(md5(i || random()::text || g), '') from generate_series(1, 150) i) from generate_series(${id}, ${id + 99}) g`,
    )
  }
}

/** Settles when the confirmed position stands still below the end of the write-ahead log. @returns the reading backend */
async function untilPaused(source: TestDatabase, service: Service): Promise<number> {
  let last = ''
  let since = performance.now()
  const readerOnceItPauses = async () => {
    const [slot] = await source.query<{ at: string; behind: number; reader: number | null }>(
      `select confirmed_flush_lsn::text as at, (pg_current_wal_lsn() - confirmed_flush_lsn)::float8 as behind, active_pid as reader
       from pg_replication_slots where slot_name = $1`,
      [SLOT],
    )
    if (slot!.at !== last) {
      last = slot!.at
      since = performance.now()
    } else if (performance.now() - since > 1_500 && slot!.behind > 1_000_000 && slot!.reader !== null) return slot!.reader
    return undefined
  }
  return until(() => `reading pauses behind a full sink; confirmed ${last}`, readerOnceItPauses, { service })
}

async function readerOf(source: TestDatabase): Promise<number | null> {
  const [slot] = await source.query<{ reader: number | null }>(
    'select active_pid as reader from pg_replication_slots where slot_name = $1',
    [SLOT],
  )
  return slot!.reader
}
