/** A row of every type comes in the same bytes by a backfill and by the stream. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, type TestDatabase } from '../../services/postgres.ts'
import { BUILT_IN, HOSTILE, OWN, OWN_DDL, type Case } from '../wal/decode/type-cases.ts'
import { WalStream } from '../wal/wal-stream.ts'
import { PageReader } from './page-reader.ts'

const SETTINGS = [
  ...HOSTILE,
  ...[`search_path = 'nowhere'`, 'standard_conforming_strings = off', `default_transaction_isolation = 'serializable'`],
  ...['row_security = off', `xmloption = 'document'`, 'quote_all_identifiers = on', 'array_nulls = off', `lc_messages = 'C'`],
]

const record = (text: string) => text.slice(0, text.search(/,"changes":/))

async function insertRows(db: TestDatabase, table: string, cases: readonly Case[]): Promise<void> {
  await db.query(`create table public.${table} (id int primary key, ${cases.map(([type], i) => `c${i} ${type}`).join(', ')})`)
  await db.query(`insert into public.${table} values (1, ${cases.map(([, sql]) => sql).join(', ')})`)
  await db.query(`insert into public.${table} (id) values (2)`)
}

for (const settings of [[], SETTINGS])
  test(`each value comes by a backfill in the bytes that it is streamed in${settings.length > 0 ? ', whatever settings the database and the role have' : ''}`, async () => {
    for (const format of ['iso8601', 'unix_microsecond'] as const) {
      await using db = await createDatabase(OWN_DDL)
      await using stream = await WalStream.open(db)
      stream.format = format
      for (const setting of settings) await db.query(`alter database ${db.name} set ${setting}`)
      for (const setting of settings) await db.query(`alter role current_user in database ${db.name} set ${setting}`)
      await insertRows(db, 'built_in', BUILT_IN)
      await insertRows(db, 'own', OWN)
      const streamed = (await stream.messages()).map(({ text }) => record(text))
      await using reader = await PageReader.open(db)
      const read: string[] = []
      for (const condition of [null, 'true'])
        for (const table of ['public.built_in', 'public.own'])
          read.push(...(await reader.pages({ table, condition }, 1, format)).flat().map(record))
      assert.equal(streamed.length, 4)
      assert.deepEqual(read, [...streamed, ...streamed])
    }
  })

test('names of tables, types and functions come as in the stream: short where the search path finds them', async () => {
  for (const path of ['"$user", public', 'other', '']) {
    await using db = await createDatabase(
      'create schema other; create table other.named (id regclass primary key, kind regtype, made_by regproc); create function pick() returns int return 1',
    )
    await db.query(`alter database ${db.name} set search_path = ${path === '' ? "''" : path}`)
    await using stream = await WalStream.open(db)
    await db.query(
      `insert into other.named values ('other.named', 'other.named', 'public.pick'), ('pg_catalog.pg_class', 'integer', 'pg_catalog.now')`,
    )
    const streamed = (await stream.messages()).map(({ text }) => record(text))
    await using reader = await PageReader.open(db)
    for (const condition of [null, 'true']) {
      const read = (await reader.pages({ table: 'other.named', condition }, 1)).flat().map(record)
      assert.deepEqual(read.toSorted(), streamed.toSorted(), path)
    }
  }
})
