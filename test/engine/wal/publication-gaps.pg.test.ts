import assert from 'node:assert/strict'
import { test } from 'node:test'
import { publicationGaps } from '../../../engine/wal/publication-gaps.ts'
import { createDatabase, type TestDatabase } from '../../services/postgres.ts'

const TABLES = `
  create table goods (id int primary key);
  create table "Odd" (id int primary key);
  create unlogged table fast (id int primary key);
  create table event (at date primary key) partition by range (at);
  create table event_2025 partition of event for values from ('2025-01-01') to ('2026-01-01');
  create schema sales;
  create table sales.purchase (id int primary key);
`
type Source = Parameters<typeof publicationGaps>[2][number]['source']

async function gapsOf(db: TestDatabase, source: Source): Promise<readonly string[]> {
  const gaps = await publicationGaps(async (sql, params) => ({ rows: await db.query(sql, params) }), 'p', [{ id: 'sink', source }])
  return (gaps.get('sink') ?? []).map(({ message }) => message)
}

test('a table that is there and not in the publication is named with the SQL that publishes it, which mends it', async () => {
  await using db = await createDatabase(TABLES)
  await db.query('create publication p for table goods')
  assert.deepEqual(await gapsOf(db, { include_tables: ['goods'] }), [])
  assert.deepEqual(await gapsOf(db, { include_tables: ['goods', 'no_such_table'] }), [])
  assert.deepEqual(await gapsOf(db, {}), [])
  assert.deepEqual(await gapsOf(db, { include_tables: ['goods', 'fast'], exclude_tables: ['fast'] }), [])
  const [gap, another, ...more] = await gapsOf(db, { include_tables: ['goods', 'Odd', 'sales.purchase'] })
  assert.deepEqual(more, [])
  for (const message of [gap, another]) await db.query(/Run: (alter publication .*;)$/.exec(message ?? '')?.[1] ?? assert.fail(message))
  assert.deepEqual(await gapsOf(db, { include_tables: ['goods', 'Odd', 'sales.purchase'] }), [])
})

test('a sink that takes no table of the publication is told so', async () => {
  await using db = await createDatabase(TABLES)
  await db.query('create publication p for table goods')
  assert.match((await gapsOf(db, { include_schemas: ['sales'] }))[0] ?? '', /^no table of the publication "p" is one that this sink takes/)
  assert.match((await gapsOf(db, { exclude_tables: ['goods'] }))[0] ?? '', /^no table/)
})

test('partitions are followed by their root or by themselves, as the publication says; what to name or run is told', async () => {
  await using db = await createDatabase(TABLES)
  await db.query('create publication p for all tables')
  assert.deepEqual(await gapsOf(db, { include_tables: ['event_2025'] }), [])
  const [root] = await gapsOf(db, { include_tables: ['event'] })
  await db.query(/Run: (alter publication .*;)$/.exec(root ?? '')?.[1] ?? assert.fail(root))
  assert.deepEqual(await gapsOf(db, { include_tables: ['event'] }), [])
  assert.match((await gapsOf(db, { include_tables: ['event_2025'] }))[0] ?? '', /as those of public\.event: name that one/)
  const [unlogged] = await gapsOf(db, { include_tables: ['fast'] })
  await db.query(/Run: (alter table .*;)$/.exec(unlogged ?? '')?.[1] ?? assert.fail(unlogged))
  assert.deepEqual(await gapsOf(db, { include_tables: ['fast'] }), [])
})

test('a publication that does not exist is told by the source, not by each sink', async () => {
  await using db = await createDatabase(TABLES)
  assert.deepEqual(await gapsOf(db, { include_tables: ['goods'] }), [])
})
