/**
 * Memory and disk stay bounded whatever is written and whoever does not read: one huge transaction, and a backlog behind
 * a sink nobody reads. A fifth of the promised sizes in `npm test`, all of it in the long mode.
 */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { createDatabase, createState } from '../services/postgres.ts'
import { Service, SLOT } from './service.ts'
import { LONG } from './size.ts'
import { Tally } from './tally.ts'
import { mb, watchMemory } from './watched-memory.ts'
import { until } from '../waiting.ts'

const MB = 1024 * 1024
const RSS_LIMIT_KB = 400 * 1024
const ROWS = LONG ? 1_000_000 : 200_000
const BACKLOG_BYTES = (LONG ? 2_048 : 400) * MB
const ROW_BYTES = 2_000
const LOT_BYTES = 4 * MB
const CONFIRMED_WITHIN_MS = 180_000

test(`a transaction of ${ROWS.toLocaleString('en')} rows passes with less than 400 MB of private memory, each row once`, async (context) => {
  await using source = await createDatabase('create table row (id bigint primary key, filler text, at timestamptz default now())')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'] }],
  })
  await service.startReady()
  await using tally = new Tally({ service, sink: 'rows', rows: ROWS })
  const memory = watchMemory(service)
  const drained = tally.drain(ROWS)
  drained.catch(() => {})
  await source.query(`insert into row (id, filler) select g, repeat(md5(g::text), 8) from generate_series(1, ${ROWS}) g`)
  await drained
  tally.assertComplete(1, ROWS)
  await memory.assertBelow(RSS_LIMIT_KB)
  context.diagnostic(`at most ${mb(service.peakRssAnonKb * 1024)} MB of private memory`)
})

test(`a backlog of ${BACKLOG_BYTES / MB} MB behind a sink nobody reads costs less than 400 MB of private memory, and its disk space is used again`, async (context) => {
  const rows = Math.ceil(BACKLOG_BYTES / ROW_BYTES)
  await using source = await createDatabase('create table row (id bigint primary key, filler text)')
  await using state = await createState()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'rows', tables: ['public.row'], replay_window: 0 }], // what is acked is to make room
  })
  await service.startReady()
  await using tally = new Tally({ service, sink: 'rows', rows: rows * 1.5 })
  const memory = watchMemory(service)

  await write(source, 1, rows)
  await untilConfirmed(source, service)
  const first = await logBytes(service)
  await service.kill() // what is read back after a crash must fit as well
  await service.startReady()
  await tally.drain(rows)
  tally.assertComplete(1, rows)
  const backlog = tally.bytes
  assert.ok(first <= backlog * 1.1, `the data folder takes ${mb(first)} MB for a backlog of ${mb(backlog)} MB`)

  // half as much again: without room for it the file would grow by a half
  await write(source, rows + 1, rows * 1.5)
  await untilConfirmed(source, service)
  const second = await logBytes(service)
  assert.ok(second <= first * 1.1, `the space of ${mb(first)} MB that were acked was not used again: it is ${mb(second)} MB now`)
  await tally.drain(rows * 1.5)
  tally.assertComplete(rows + 1, rows * 1.5)
  await memory.assertBelow(RSS_LIMIT_KB)
  const sizes = `a backlog of ${mb(backlog)} MB as JSON took ${mb(first)} MB of disk, a second one after it ${mb(second)} MB`
  context.diagnostic(`at most ${mb(service.peakRssAnonKb * 1024)} MB of private memory; ${sizes}`)
})

type Source = Awaited<ReturnType<typeof createDatabase>>

async function write(source: Source, from: number, to: number): Promise<void> {
  const step = 5_000
  for (let id = from; id <= to; id += step) {
    // hexadecimal digits of random bytes, cut out of one lot: they compress to a half at best, as real rows may
    await source.query(
      `with lot as materialized (select $1::bytea as bytes)
       insert into row select g, encode(substring(bytes, 1 + (random() * ${LOT_BYTES - ROW_BYTES})::int, ${ROW_BYTES / 2}), 'hex')
       from lot, generate_series($2::int, $3::int) g`,
      [randomBytes(LOT_BYTES), id, Math.min(id + step - 1, to)],
    )
  }
}

/** Everything written so far is durable in the log. */
async function untilConfirmed(source: Source, service: Service): Promise<void> {
  const target = (await source.query<{ lsn: string }>('select pg_current_wal_lsn()::text as lsn'))[0]!.lsn
  const isConfirmed = async () => {
    const [slot] = await source.query<{ done: boolean }>(
      'select confirmed_flush_lsn >= $2::pg_lsn as done from pg_replication_slots where slot_name = $1',
      [SLOT, target],
    )
    return slot?.done
  }
  await until(`the slot is confirmed up to ${target}`, isConfirmed, { withinMs: CONFIRMED_WITHIN_MS, service })
}

/** What the data folder takes on the disk. */
async function logBytes(service: Service): Promise<number> {
  const entries = await readdir(service.dataFolder, { recursive: true, withFileTypes: true })
  const sizes = await Promise.all(entries.filter((entry) => entry.isFile()).map((entry) => stat(join(entry.parentPath, entry.name))))
  return sizes.reduce((sum, { size }) => sum + size, 0)
}
