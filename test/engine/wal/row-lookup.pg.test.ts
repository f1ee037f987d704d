import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RowLookup, type WantedRow } from '../../../engine/wal/row-lookup.ts'
import { createDatabase, type TestDatabase } from '../../services/postgres.ts'
import { gather, until } from '../../waiting.ts'

const MB = 1024 * 1024
const NEVER = new AbortController().signal

const lookupOf = ({ connection }: TestDatabase, maxRowBytes = 64 * MB) => {
  const lookup = new RowLookup({ connection, publication: 'streamed', name: 'test', maxRowBytes })
  return Object.assign(lookup, { [Symbol.asyncDispose]: () => lookup.close() })
}
async function oidOf(db: TestDatabase, table: string): Promise<number> {
  const [row] = await db.query<{ oid: number }>('select $1::regclass::oid::int as oid', [table])
  return row?.oid ?? 0
}
const want = (relation: number, key: readonly string[], ...columns: readonly string[]): WantedRow => ({ relation, key, columns, xid: 0 })
const textsOf = (rows: Awaited<ReturnType<RowLookup['find']>>) =>
  rows.map((row) => row && Object.fromEntries([...row].map(([name, json]) => [name, json.toString()])))

test('values are rendered as the stream renders them, by keys of any type, and rows that are gone are told', async () => {
  await using db = await createDatabase(`
    create type mood as enum ('fine', 'bad');
    create domain code as char(4);
    create table thing (mood mood, "No" code, body text, facts jsonb, sizes numeric[], at timestamptz, primary key ("No", mood));
    insert into thing values ('bad', 'a1', e'say "hi"\\n', '{"a": 1.50}', '{1.10,null}', '2025-02-03 04:05:06+00'), ('fine', 'a1', null, null, null, null);
    create table whole (id bigint primary key, body text) partition by range (id);
    create table part partition of whole for values from (0) to (10);
    insert into whole values (7, 'seven');
  `)
  await using lookup = lookupOf(db)
  const thing = await oidOf(db, 'thing')
  const whole = await oidOf(db, 'whole')
  const rows = await lookup.find(
    [
      want(thing, ['bad', 'a1  '], 'body', 'facts'),
      want(whole, ['7'], 'body'),
      want(thing, ['fine', 'a1  '], 'body', 'sizes'),
      want(thing, ['fine', 'zz'], 'body'),
      want(thing, ['bad', 'a1  '], 'sizes', 'at', 'no longer there'),
      want(4_000_000, ['1'], 'body'),
    ],
    'iso8601',
    NEVER,
  )
  const [first, second, third, gone, fifth, dropped] = textsOf(rows)
  assert.deepEqual([first?.['body'], first?.['facts']], [String.raw`"say \"hi\"\n"`, '{"a": 1.50}'])
  assert.deepEqual(second, { body: '"seven"' })
  assert.deepEqual([third?.['body'], third?.['sizes']], ['null', 'null'])
  assert.deepEqual([gone, dropped], [undefined, undefined])
  assert.deepEqual(
    [fifth?.['sizes'], fifth?.['at'], fifth?.['no longer there']],
    ['["1.10",null]', '"2025-02-03T04:05:06.000000Z"', undefined],
  )
  const [micros] = await lookup.find([want(thing, ['bad', 'a1  '], 'at')], 'unix_microsecond', NEVER)
  assert.equal(micros?.get('at')?.toString(), '1738555506000000')
})

test('a row that the publication leaves out is none, whatever its columns are called', async () => {
  await using db = await createDatabase(`
    create schema "Other";
    create table doc (id int primary key, n text, k0 int, body text);
    create table "Other".doc (id int primary key, k0 int);
    create table free (id int primary key, k0 int);
    insert into doc values (1, 'in', 1, 'one'), (2, 'in', 20, 'two'), (3, 'out', 3, 'three');
    insert into "Other".doc values (1, 20);
    insert into free values (1, 20);
    create publication streamed for table doc where (k0 < 10 and n = 'in'), free;
    create publication another for table free where (k0 < 10);
  `)
  await using lookup = lookupOf(db)
  const [doc, other, free] = await Promise.all(['doc', '"Other".doc', 'free'].map((table) => oidOf(db, table)))
  const found = async (...wanted: WantedRow[]) => (await lookup.find(wanted, 'iso8601', NEVER)).map((row) => row !== undefined)
  const docs = ['1', '2', '3'].map((key) => want(doc!, [key], 'body'))
  assert.deepEqual(await found(...docs), [true, false, false])
  assert.deepEqual(await found(want(free!, ['1'], 'k0'), want(other!, ['1'], 'k0')), [true, true])
  await db.query('alter publication streamed add tables in schema public') // every row of it, then
  assert.deepEqual(await found(...docs), [true, true, true])
})

test('a row is read only once the transaction of its change is visible', async () => {
  await using db = await createDatabase(`create table doc (id int primary key, body text); insert into doc values (1, 'before')`)
  await using lookup = lookupOf(db)
  const doc = await oidOf(db, 'doc')
  const session = await db.connect()
  await session.query('begin')
  const { rows } = await session.query<{ xid: number }>(
    `update doc set body = 'after' returning pg_current_xact_id()::xid::text::int as xid`,
  )
  const found = lookup.find([{ ...want(doc, ['1'], 'body'), xid: rows[0]?.xid ?? 0 }], 'iso8601', NEVER)
  const settled: unknown[] = []
  void found.then((rowsFound) => settled.push(rowsFound))
  const asked = new Set<string>() // it looks for the transaction again and again
  await until('it has looked three times', async () => {
    const rowsAsked = await db.query<{ at: string }>(
      `select query_start::text as at from pg_stat_activity where application_name = 'test' and query like '%pg_current_snapshot%'`,
    )
    for (const { at } of rowsAsked) asked.add(at)
    return asked.size >= 3 || settled.length > 0
  })
  assert.deepEqual(settled, [])
  await session.query('commit')
  assert.deepEqual(textsOf(await found), [{ body: '"after"' }])
  // a commit that was lost in a failover: the server that now leads has not come to its number
  const lost = Number((await db.query<{ xid: string }>('select pg_current_xact_id()::xid::text as xid'))[0]?.xid) + 1_000_000
  assert.deepEqual(textsOf(await lookup.find([{ ...want(doc, ['1'], 'body'), xid: lost }], 'iso8601', NEVER)), [{ body: '"after"' }])
})

test('after its connection was cut, and when it may not read, the reason is told and the next try works', async () => {
  await using db = await createDatabase(`create table doc (id int primary key, body text); insert into doc values (1, 'x')`)
  await using lookup = lookupOf(db)
  const wanted = [want(await oidOf(db, 'doc'), ['1'], 'body')]
  const find = () => lookup.find(wanted, 'iso8601', NEVER)
  await find()
  await db.query(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'test' and datname = current_database()`)
  await find().catch((error: { code: string }) => assert.equal(error.code, 'SOURCE_UNREACHABLE'))
  assert.equal((await find())[0]?.get('body')?.toString(), '"x"')
  await db.query('alter table doc rename to doc2')
  assert.equal((await find())[0]?.get('body')?.toString(), '"x"')
})

test('of large rows fewer are read at once, one of the largest that a message may be is found, and a larger one is told', async () => {
  await using db = await createDatabase(`
    create table doc (id int primary key, body text);
    insert into doc select id, repeat('x', 4194304) from generate_series(1, 20) id;
    insert into doc values (21, repeat('x', 41943040));
  `)
  await using lookup = lookupOf(db)
  const doc = await oidOf(db, 'doc')
  const all = Array.from({ length: 21 }, (_, i) => want(doc, [String(i + 1)], 'body'))
  const findMore = async (before: readonly number[]) => {
    const found = await lookup.find(all.slice(before.length), 'iso8601', NEVER)
    assert.ok(found.length > 0)
    const bytes = found.map((row) => row?.get('body')?.length ?? 0)
    if (found.length > 1) assert.ok(bytes.reduce((sum, size) => sum + size) < 33 * MB, `${found.length} rows`)
    return bytes.map((size) => Math.round(size / MB))
  }
  const sizes = await gather('rows', findMore, all.length)
  assert.deepEqual(sizes, [...Array.from({ length: 20 }, () => 4), 40])
  await using narrow = lookupOf(db, MB)
  assert.deepEqual(await narrow.find([want(doc, ['1'], 'body')], 'iso8601', NEVER), [])
  assert.equal((await narrow.find([want(doc, ['0'], 'body')], 'iso8601', NEVER)).length, 1)
})
