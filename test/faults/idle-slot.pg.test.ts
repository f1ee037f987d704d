/**
 * A slot must not hold the write-ahead log of a busy server because the tables it captures are idle: the disk of the
 * source is at stake. 120 MB in `npm test`, 1 GB in the long mode.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CalmClock } from '../services/calm-clock.ts'
import { createDatabase, startPostgres, createState } from '../services/postgres.ts'
import { Service, SLOT } from './service.ts'
import { LONG } from './size.ts'
import { until } from '../waiting.ts'

const MB = 1024 * 1024
const WRITTEN_BYTES = (LONG ? 1_024 : 120) * MB
const LAG_LIMIT_BYTES = 64 * MB
const RELEASED_WITHIN_MS = 30_000
/** bounded, in time that the machine has to spare, so that the test measures the service and not which of two processes gets the core */
const BYTES_PER_SECOND = 40 * MB

for (const where of ['the same database', 'another database of the server'] as const) {
  test(`captured tables idle, ${where} busy: the slot holds less than 64 MB throughout and lets go within 30 s`, async () => {
    // a server of its own: restart_lsn can't pass a transaction that is open anywhere in it
    await using server = await startPostgres()
    await using source = await createDatabase('create table captured (id int primary key)', { server: server.url })
    await using other = await createDatabase(undefined, { server: server.url })
    await using state = await createState()
    await using service = await Service.prepare({
      source: source.connection,
      stateUrl: state.url,
      sinks: [{ name: 'captured', tables: ['public.captured'] }],
    })
    await service.startReady()
    const busy = where === 'the same database' ? source : other
    await busy.query('create table noise (id bigint generated always as identity primary key, filler text)')
    const lags: { confirmed: number; restart: number }[] = []
    const measure = async () => {
      const [lag] = await source.query<{ confirmed: number; restart: number }>(
        `select (pg_current_wal_lsn() - confirmed_flush_lsn)::float8 as confirmed, (pg_current_wal_lsn() - restart_lsn)::float8 as restart
         from pg_replication_slots where slot_name = $1`,
        [SLOT],
      )
      if (!lag) throw new Error('the slot is gone')
      lags.push(lag)
      return lag
    }
    const position = async () => (await source.query<{ at: number }>(`select (pg_current_wal_lsn() - '0/0')::float8 as at`))[0]!.at
    const from = await position()
    using clock = new CalmClock()
    const started = clock.now()
    for (let written = 0; written < WRITTEN_BYTES; written = (await position()) - from) {
      await busy.query(`insert into noise (filler) select repeat(md5(g::text), 32) from generate_series(1, 1000) g`)
      await measure()
      await until('the time that so much may take', () => clock.since(started) >= (written * 1_000) / BYTES_PER_SECOND)
    }
    await until(
      () => `restart_lsn follows, now ${Math.round((lags.at(-1)?.restart ?? 0) / MB)} MB behind`,
      async () => (await measure()).restart < LAG_LIMIT_BYTES,
      { withinMs: RELEASED_WITHIN_MS, clock, service },
    )
    const greatest = Math.max(...lags.map(({ confirmed }) => confirmed))
    assert.ok(greatest < LAG_LIMIT_BYTES, service.failure(`the confirmed position fell ${Math.round(greatest / MB)} MB behind`).message)
  })
}
