import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, type TestDatabase } from '../../../services/postgres.ts'
import { WalStream } from '../wal-stream.ts'
import { BUILT_IN, HOSTILE, OWN, OWN_DDL, type Case } from './type-cases.ts'

async function insertRow(db: TestDatabase, table: string, cases: readonly Case[]): Promise<void> {
  await db.query(`create table ${table} (id int primary key, ${cases.map(([type], i) => `c${i} ${type}`).join(', ')})`)
  await db.query(`insert into ${table} values (1, ${cases.map(([, sql]) => sql).join(', ')})`)
}

function assertRecord(record: Readonly<Record<string, unknown>>, cases: readonly Case[]): void {
  for (const [i, [type, sql, json]] of cases.entries()) assert.deepEqual(record[`c${i}`], json, `${type} ${sql}`)
}

test('every built-in type is rendered as the page of messages says, and needs no look-up', async () => {
  await using db = await createDatabase()
  await using stream = await WalStream.open(db)
  await insertRow(db, 'built_in', BUILT_IN)
  await db.query('insert into built_in (id) values (2)')
  const [full, empty] = await stream.messages()
  assertRecord(full!.json.record, BUILT_IN)
  assert.ok(full!.text.includes('"n": 12345678901234567890.10')) // the digits of jsonb, which no number holds
  assert.ok(Object.entries(empty!.json.record).every(([name, value]) => name === 'id' || value === null))
  assert.deepEqual(stream.described[0]!.types, {})
})

test('enums, domains, composites, ranges of one’s own and arrays of them are looked up', async () => {
  await using db = await createDatabase(OWN_DDL)
  await using stream = await WalStream.open(db)
  await insertRow(db, 'own', OWN)
  const [message] = await stream.messages()
  assertRecord(message!.json.record, OWN)
  assert.deepEqual(stream.described[0]!.warnings, [])
})

test('types of extensions: citext and hstore as text, arrays of them as arrays', async (t) => {
  await using db = await createDatabase()
  const available = await db.query<{ name: string }>(`select name from pg_available_extensions where name in ('citext', 'hstore')`)
  if (available.length < 2) return t.skip('the server has no citext and hstore')
  await db.query('create extension citext; create extension hstore')
  await using stream = await WalStream.open(db)
  const cases: readonly Case[] = [
    ['citext', `'MiXed'`, 'MiXed'],
    ['citext[]', `'{A,b}'`, ['A', 'b']],
    ['hstore', `'a=>1, b=>NULL'`, '"a"=>"1", "b"=>NULL'],
  ]
  await insertRow(db, 'extended', cases)
  assertRecord((await stream.messages())[0]!.json.record, cases)
})

test('a base type named vector is an array of numbers, as pgvector prints it; other base types are text', async () => {
  // the type with pgvector's name and text form, made without its library: a base type over text's functions
  await using db = await createDatabase(`
    create type vector;
    create function vector_in(cstring) returns vector language internal immutable strict as 'textin';
    create function vector_out(vector) returns cstring language internal immutable strict as 'textout';
    create type vector (input = vector_in, output = vector_out);
    create type halfvec;
    create function halfvec_in(cstring) returns halfvec language internal immutable strict as 'textin';
    create function halfvec_out(halfvec) returns cstring language internal immutable strict as 'textout';
    create type halfvec (input = halfvec_in, output = halfvec_out);
    create type plane;
    create function plane_in(cstring) returns plane language internal immutable strict as 'line_in';
    create function plane_out(plane) returns cstring language internal immutable strict as 'line_out';
    create type plane (input = plane_in, output = plane_out, internallength = 24, alignment = double, element = float8)`)
  await using stream = await WalStream.open(db)
  const cases: readonly Case[] = [
    ['vector', `'[1,2.5,-3e-05]'`, [1, 2.5, -3e-5]],
    ['vector[]', `array['[1,2]'::vector, '[3]']`, [[1, 2], [3]]],
    ['halfvec', `'[1,2]'`, '[1,2]'],
    ['plane', `'{1,2,3}'`, '{1,2,3}'], // has elements as line has them, and is no array
  ]
  await insertRow(db, 'embeddings', cases)
  assertRecord((await stream.messages())[0]!.json.record, cases)
})

test('unix_microsecond: what Postgres calculates for the same timestamps', async () => {
  await using db = await createDatabase()
  await using stream = await WalStream.open(db)
  stream.format = 'unix_microsecond'
  const instants = [
    '4713-01-01 00:00:00 BC',
    '0001-02-29 12:00:00 BC',
    '0900-02-28 23:59:59.999999',
    '1969-12-31 23:59:59.5',
    '2000-02-29',
    '2025-02-03 04:05:06.789012',
    '2100-03-01',
    '290000-12-31 23:59:59.999999',
  ]
  await db.query('create table moment (id int primary key, a timestamp, b timestamptz, c timestamptz[], d text)')
  for (const [id, at] of instants.entries())
    await db.query('insert into moment values ($1, $2, $3, array[$3::timestamptz], $4)', [id, at, `${at} UTC`, at])
  const messages = await stream.messages()
  for (const [id, at] of instants.entries()) {
    const us = BigInt(await stream.text(`(extract(epoch from timestamp '${at}') * 1000000)::numeric(30,0)`))
    const { a, b, c, d } = messages[id]!.json.record
    assert.deepEqual([BigInt(a as number), BigInt(b as number), BigInt((c as number[])[0]!), d], [us, us, us, at])
  }
  await db.query(`insert into moment values (99, 'infinity', '-infinity', '{infinity}', null)`)
  const [infinite] = await stream.messages()
  assert.deepEqual(infinite!.json.record, { id: 99, a: 'infinity', b: '-infinity', c: ['infinity'], d: null })
  assert.match(String(infinite!.json.metadata.commit_timestamp), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/)
})

test('a database and a role with hostile settings give the same bytes', async () => {
  const rendered = async (settings: readonly string[]): Promise<string[]> => {
    await using db = await createDatabase(OWN_DDL)
    for (const setting of settings) await db.query(`alter database ${db.name} set ${setting}`)
    for (const setting of settings) await db.query(`alter role current_user in database ${db.name} set ${setting}`)
    const unpinned = await (await db.connect()).query<{ text: string }>(`select date '2025-02-03'::text as text`)
    assert.equal(unpinned.rows[0]!.text, settings.length > 0 ? '03/02/2025' : '2025-02-03')
    await using stream = await WalStream.open(db)
    await insertRow(db, 'built_in', BUILT_IN) // an older session: hostile settings don't change what is written
    await insertRow(db, 'own', OWN)
    return (await stream.messages()).map(({ text }) => text.slice(0, text.indexOf('"metadata"')))
  }
  assert.deepEqual(await rendered(HOSTILE), await rendered([]))
})
