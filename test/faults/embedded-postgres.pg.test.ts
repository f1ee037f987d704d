/** The embedded PostgreSQL, which holds the state, is killed as a kernel without memory does it: nobody else would start it again. */
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { postmasterOf } from '../../engine/postgres/postmaster.ts'
import { createDatabase } from '../services/postgres.ts'
import { Service } from './service.ts'
import { Tally } from './tally.ts'
import { until } from '../waiting.ts'

const MOST_ROWS = 20_000

test('the embedded PostgreSQL is started again after SIGKILL: delivery goes on, and every row comes once', async () => {
  await using source = await createDatabase('create table row (id int primary key)')
  await using service = await Service.prepare({ source: source.connection, sinks: [{ name: 'rows', tables: ['public.row'] }] })
  await service.startReady()
  const cluster = join(service.dataFolder, 'postgres', 'cluster')
  const pid = () => postmasterOf(cluster)?.pid ?? 0
  await using tally = new Tally({ service, sink: 'rows', rows: MOST_ROWS })
  const write = async (from: number, to: number) => {
    for (let id = from; id <= to; id++) await source.query('insert into row values ($1)', [id])
    return to
  }
  let rows = await write(1, 100)
  await tally.drain(rows)
  const former = pid()
  process.kill(former, 'SIGKILL')
  await until('PostgreSQL runs again', async () => {
    if (rows < MOST_ROWS - 120) rows = await write(rows + 1, rows + 20)
    return service.log().includes('PostgreSQL runs again')
  })
  rows = await write(rows + 1, rows + 100)
  await tally.drain(rows)
  tally.assertComplete(1, rows)
  await service.untilReady()
  assert.notEqual(pid(), former)
  assert.equal(service.starts, 1)
  assert.match(service.log(), /PostgreSQL has ended by itself.*PostgreSQL runs again/s)
  assert.deepEqual(await service.stop(), { code: 0, signal: null })
})
