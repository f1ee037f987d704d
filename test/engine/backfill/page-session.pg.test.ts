/** The session that pages are read on. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase } from '../../services/postgres.ts'
import { PageReader } from './page-reader.ts'

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
