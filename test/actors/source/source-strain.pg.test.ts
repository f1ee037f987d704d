/** When backfills leave a source alone: while its slot is in danger, or a standby of it is behind. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Client } from 'pg'
import { SourceStrain } from '../../../actors/source/source-strain.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import { startPostgres, type TestServer } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

const MB = 1024 * 1024

async function connected(server: TestServer) {
  const client = new Client({ connectionString: server.url })
  client.on('error', () => {}) // it ends with its server
  await client.connect()
  const query: Query = (sql, params) => client.query<Record<string, unknown>>(sql, params && [...params])
  return { query, [Symbol.asyncDispose]: () => client.end() }
}

async function causeNow(query: Query, maxStandbyLagBytes = 1024 * MB): Promise<string | undefined> {
  const strain = new SourceStrain({ query, slot: 's', maxStandbyLagBytes })
  await strain.look()
  return strain.cause
}

test('a source whose slot has little left before it is lost is left alone, until it is confirmed further', async () => {
  await using server = await startPostgres({ settings: { wal_level: 'logical', max_slot_wal_keep_size: '96MB' } })
  await using source = await connected(server)
  const { query } = source
  assert.equal(await causeNow(query), undefined, 'without a slot nothing is known')
  await query(`select pg_create_logical_replication_slot('s', 'pgoutput')`)
  assert.equal(await causeNow(query), undefined)
  const cause = await until('the slot is in danger', async () => {
    await query(`select pg_logical_emit_message(true, 'x', 'y')`)
    await query('select pg_switch_wal()')
    return causeNow(query)
  })
  assert.match(cause, /^the replication slot has [\d.]+ [KM]B of 96 MB left before it is lost: .* raise max_slot_wal_keep_size$/)
  await until('the slot is out of danger', async () => {
    await query('checkpoint') // a slot goes on from where the server has noted which transactions run
    await query(`select pg_replication_slot_advance('s', pg_current_wal_lsn())`)
    return (await causeNow(query)) === undefined
  })
})

test('a source is left alone while a standby of it is far behind', async () => {
  await using server = await startPostgres({ settings: { wal_level: 'logical' } })
  await using standby = await server.standby()
  await using source = await connected(server)
  await using replayed = await connected(standby)
  const { query } = source
  await query(`select pg_create_logical_replication_slot('s', 'pgoutput')`)
  await query('create table t (x text)')
  await until(
    'the standby is there',
    async () => (await query('select from pg_stat_replication where replay_lsn is not null')).rows.length > 0,
  )
  await replayed.query('select pg_wal_replay_pause()')
  await until('it replays no more', async () => {
    const { rows } = await replayed.query('select pg_get_wal_replay_pause_state() as state')
    return rows[0]?.['state'] === 'paused'
  })
  await query(`insert into t select repeat(md5(i::text), 30) from generate_series(1, 3000) i`)
  assert.match(
    (await causeNow(query, MB)) ?? '',
    /^standby "[^"]*" of the source is [\d.]+ [KMG]?B behind \(TAILRACE_BACKFILL_STANDBY_LAG_MB\)$/,
  )
  assert.equal(await causeNow(query, 100 * MB), undefined)
  assert.equal(await causeNow(query, Infinity), undefined)
  await replayed.query('select pg_wal_replay_resume()')
  await until('it has come near', async () => (await causeNow(query, MB)) === undefined)
})
