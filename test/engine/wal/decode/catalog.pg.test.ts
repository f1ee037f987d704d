import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeByMessage, describeRelation, needsLookup } from '../../../../engine/wal/decode/catalog.ts'
import { Chunk } from '../../../../engine/wal/decode/chunk.ts'
import { decode, type RelationMessage } from '../../../../engine/wal/decode/pgoutput.ts'
import { createDatabase, type TestDatabase } from '../../../services/postgres.ts'
import { recorder } from '../wal-messages.ts'

const queryOf = (db: TestDatabase) => async (sql: string, params?: readonly unknown[]) => ({ rows: await db.query(sql, params) })

/** What the stream says of the tables of a database, each as of its first row in the log. */
async function relations(db: TestDatabase, writes: string, publish = 'for all tables'): Promise<Map<string, RelationMessage>> {
  await db.query(`create publication p ${publish}`)
  await db.query(`select pg_create_logical_replication_slot('s_' || current_database(), 'pgoutput')`)
  await db.query(writes)
  const chunks = await db.query<{ data: Buffer }>(
    `select data from pg_logical_slot_get_binary_changes('s_' || current_database(), null, null, 'proto_version', '1', 'publication_names', 'p')`,
  )
  const found = new Map<string, RelationMessage>()
  const { handler } = recorder()
  const keep = { ...handler, relation: (message: RelationMessage) => void found.set(message.table, message) }
  for (const { data } of chunks) decode(Chunk.of(data), keep)
  return found
}

const codes = ({ warnings }: { warnings: readonly { code: string }[] }) => warnings.map(({ code }) => code)

test('under the default identity and with built-in types only, the message says it all', async () => {
  await using db = await createDatabase(
    'create table t (a text, id int, b int, primary key (b, id)); create table own (id int primary key, m int4multirange[])',
  )
  const found = await relations(db, `insert into t values ('x', 1, 2); insert into own values (1)`)
  for (const [table, key] of [
    ['t', ['id', 'b']],
    ['own', ['id']],
  ] as const) {
    const message = found.get(table)!
    assert.equal(needsLookup(message), false)
    assert.deepEqual(describeByMessage(message), { key, types: {}, warnings: [] })
    assert.deepEqual(await describeRelation(queryOf(db), message), describeByMessage(message))
  }
})

test('the catalogue tells the primary key where the flags of the message are of something else', async () => {
  await using db = await createDatabase(`
    create table full_identity (a int, id int primary key); alter table full_identity replica identity full;
    create table deferred (id int primary key deferrable, a int);
    create table covering (a int, id int, b int, primary key (id) include (b)); alter table covering replica identity full;
    create table nothing (a int, id int primary key); alter table nothing replica identity nothing;
    create table no_key (a int)`)
  const found = await relations(
    db,
    'insert into full_identity values (1, 1); insert into deferred values (1); insert into covering values (1, 2, 3); insert into nothing values (1, 1); insert into no_key values (1)',
  )
  for (const [table, key, warnings] of [
    ['full_identity', ['id'], []],
    ['deferred', ['id'], []],
    ['covering', ['id'], []],
    ['nothing', ['id'], []],
    ['no_key', [], ['no_primary_key']],
  ] as const) {
    const message = found.get(table)!
    assert.equal(needsLookup(message), true, table)
    const description = await describeRelation(queryOf(db), message)
    assert.deepEqual([description.key, codes(description)], [key, warnings], table)
  }
})

test('a key column that was renamed since is found by its place', async () => {
  await using db = await createDatabase('create table t (a int, id int primary key, c text); alter table t replica identity full')
  const message = (await relations(db, 'insert into t values (1, 2)')).get('t')!
  await db.query('alter table t rename id to uid')
  assert.deepEqual((await describeRelation(queryOf(db), message)).key, ['id'])
  await db.query('alter table t rename a to id') // the name now is another column's: by name it is wrong, and nothing says so
  await db.query('alter table t drop column c')
  await db.query('alter table t rename id to a')
  const description = await describeRelation(queryOf(db), message)
  assert.deepEqual([description.key, codes(description)], [[], ['key_not_published']]) // its place can't be trusted any more
})

test('a key that is not published whole is no key', async () => {
  await using db = await createDatabase(
    'create table t (tenant int, id int, a text, primary key (tenant, id)); alter table t replica identity full',
  )
  const [{ version }] = (await db.query<{ version: number }>(`select current_setting('server_version_num')::int as version`)) as [
    { version: number },
  ]
  if (version < 150_000) return
  const message = (await relations(db, `insert into t values (1, 2, 'x')`, `for table t (tenant, a) with (publish = 'insert')`)).get('t')!
  const description = await describeRelation(queryOf(db), message)
  assert.deepEqual([description.key, codes(description)], [[], ['key_not_published']])
})

test('a table or a type that no longer exists is described as far as the message goes, with a warning', async () => {
  await using db = await createDatabase(`
    create type mood as enum ('sad'); create domain positive as int check (value > 0);
    create table t (id int primary key, m mood, ms mood[], n positive); alter table t replica identity full;
    create table by_index (id int primary key, code text not null unique); alter table by_index replica identity using index by_index_code_key;
    create table by_key (id int primary key, m mood)`)
  const found = await relations(
    db,
    `insert into t values (1, 'sad', '{sad}', 1); insert into by_index values (1, 'a'); insert into by_key values (1)`,
  )
  await db.query('drop table t, by_index, by_key; drop type mood')
  const t = await describeRelation(queryOf(db), found.get('t')!)
  const [, m, ms, n] = found.get('t')!.columns.map(({ typeOid }) => typeOid)
  assert.deepEqual([t.key, codes(t)], [[], ['type_dropped', 'type_dropped', 'table_dropped']])
  assert.deepEqual(t.types, { [m!]: 'text', [ms!]: 'text', [n!]: 'integer' })
  const byIndex = await describeRelation(queryOf(db), found.get('by_index')!)
  assert.deepEqual([byIndex.key, codes(byIndex)], [['code'], ['table_dropped']])
  const byKey = await describeRelation(queryOf(db), found.get('by_key')!)
  assert.deepEqual([byKey.key, codes(byKey)], [['id'], ['type_dropped']])
})

test('a search_path full of look-alikes changes nothing', async () => {
  await using db = await createDatabase(
    `create type mood as enum ('sad'); create table t (id int primary key, ms mood[]); alter table t replica identity full`,
  )
  const message = (await relations(db, 'insert into t values (1)')).get('t')!
  await db.query(`create schema evil; create table evil.pg_attribute (x int); create table evil.pg_type (x int); create table evil.pg_index (x int);
    set search_path = evil, pg_catalog, public`)
  const description = await describeRelation(queryOf(db), message)
  assert.deepEqual(description, { key: ['id'], types: { [message.columns[1]!.typeOid]: { array: 'text', delimiter: ',' } }, warnings: [] })
})
