/** The session that pages are read on. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Windows } from '../../../engine/backfill/windows.ts'
import { createDatabase } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'
import { NEVER, PageReader } from './page-reader.ts'

const SETTINGS = ['search_path', 'statement_timeout', 'DateStyle', 'standard_conforming_strings', 'default_transaction_read_only']

test('what a condition sets of the session is as before when its page has ended', async () => {
  await using db = await createDatabase(
    'create table t (id int primary key); insert into t values (1), (2); create publication p for all tables',
  )
  await using reader = await PageReader.open(db)
  const settings = async () =>
    (await reader.session.query(`select ${SETTINGS.map((name) => `current_setting('${name}')`).join(` || ' ' || `)} as now`)).rows
  const before = await settings()
  const condition = SETTINGS.map((name) => `set_config('${name}', '${name === 'DateStyle' ? 'German' : 'off'}', false) is not null`)
    .join(' and ')
    .replace(`'statement_timeout', 'off'`, `'statement_timeout', '60000'`)
  assert.deepEqual(await reader.records({ condition }), [{ id: 1 }, { id: 2 }])
  assert.deepEqual(await settings(), before)
})

test('how a table is found out about is planned once for all tables, and what users wrote as elsewhere', async () => {
  await using db = await createDatabase(
    'create table t (id int primary key); create table u (id int primary key); create publication p for all tables',
  )
  await using reader = await PageReader.open(db)
  const modeWithin = () =>
    reader.with({}, async () => (await reader.session.query(`select current_setting('plan_cache_mode') as mode`)).rows)
  assert.deepEqual(await modeWithin(), [{ mode: 'auto' }])
  await reader.session.query('set plan_cache_mode = force_custom_plan')
  assert.deepEqual(await modeWithin(), [{ mode: 'force_custom_plan' }])
  await reader.describe({ table: 'public.u' })
  const { rows } = await reader.session.query(
    `select distinct generic_plans::int as generic, custom_plans::int as custom from pg_prepared_statements where statement ~ 'pg_attribute|pg_publication'`,
  )
  assert.deepEqual(rows, [{ generic: 3, custom: 0 }])
})

test('a page begins when what was streamed before is visible, and not sooner', async () => {
  await using db = await createDatabase('create table t (id int primary key); create publication p for all tables')
  await using reader = await PageReader.open(db)
  const writer = await db.connect()
  await writer.query('begin; insert into t values (1)')
  const { rows } = await writer.query<{ xid: string }>('select pg_current_xact_id()::text as xid')
  const windows = new Windows()
  windows.tellPast([])
  windows.committed(Number(rows[0]?.xid)) // as one that waits for a standby: it was streamed, and nobody sees it yet
  let isBegun = false
  const begun = reader.session.begin(windows, NEVER).then(() => (isBegun = true))
  const looked = `pg_stat_activity where datname = current_database() and application_name = 'test pages' and query = 'rollback'`
  await until('it has looked, and looks again later', async () => (await db.query(`select from ${looked}`)).length > 0)
  assert.equal(isBegun, false)
  await writer.query('commit')
  await begun
  assert.deepEqual((await reader.session.query('select id from t')).rows, [{ id: 1 }])
  await reader.session.end()
})

test('a reader that is asked to wait gets no row meanwhile, and then each of them once', async () => {
  await using db = await createDatabase('create publication p for all tables')
  await using reader = await PageReader.open(db)
  const came: string[] = []
  let isHeld = false
  const onRow = (bytes: Uint8Array, _view: DataView, start: number, end: number): true | Promise<boolean> => {
    assert.equal(isHeld, false, 'a row came to one that waits')
    came.push(Buffer.from(bytes.subarray(start, end)).toString().trim())
    if (came.length % 7 > 0) return true
    isHeld = true
    return new Promise((resolve) => {
      setImmediate(() => {
        isHeld = false
        resolve(came.length < 20_000)
      })
    })
  }
  const cut = async () => {}
  assert.equal(await reader.session.copy('select * from generate_series(1, 10000)', onRow, cut), true)
  assert.deepEqual(
    came,
    Array.from({ length: 10_000 }, (_, i) => String(i + 1)),
  )
  const isWhole = await reader.session.copy('select * from generate_series(10001, 25000)', onRow, cut)
  assert.deepEqual([isWhole, came.length], [false, 20_006])
  assert.deepEqual(new Set(came).size, came.length)
  const refuse = () => Promise.reject(new Error('no more'))
  await assert.rejects(reader.session.copy('select * from generate_series(1, 10000)', refuse, cut), /no more/)
})
