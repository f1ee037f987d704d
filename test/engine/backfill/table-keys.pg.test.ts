/** Tables by every type that a key can have: pages of two rows bring each row once, in the order of the key's index. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { pageQuery, rowsQuery } from '../../../engine/backfill/page-query.ts'
import { createDatabase, type TestDatabase } from '../../services/postgres.ts'
import { PageReader } from './page-reader.ts'

const TYPES = `
  create schema ext;
  create type mood as enum ('sad', 'so "so"', 'happy');
  alter type mood add value 'angry' before 'so "so"';
  create domain small as int check (value < 1000);
  create domain smaller as small;
  create domain shout as text collate "C" check (value = upper(value));
  create type pair as (a int, b text);
  create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
  create collation german (provider = icu, locale = 'de-DE');
  create type span as range (subtype = float8)`

/** [columns of the key, as SQL; their values, as SQL] */
type Case = readonly [key: string, values: readonly string[]]

const TEXTS = [
  `''`,
  `'it''s'`,
  `'back\\slash'`,
  `e'a\\tb\\nc\\rd'`,
  `'\\N'`,
  `'\\.'`,
  `'"q", {x}'`,
  `'Ünï'`,
  `'a'`,
  `'B'`,
  `'b'`,
  `repeat('x', 10000)`,
  `'😀'`,
]

const KEYS: readonly Case[] = [
  ['smallint', [`'-32768'`, `'-1'`, `'0'`, `'1'`, `'32767'`]],
  ['int', [`'-2147483648'`, `'-7'`, `'0'`, `'5'`, `'2147483647'`]],
  ['bigint', [`'-9223372036854775808'`, `'-1'`, `'9007199254740993'`, `'9223372036854775807'`]],
  ['numeric', [`'NaN'`, `'-Infinity'`, `'Infinity'`, '1.10', '1.1000001', '-0.5', '1e-20', '12345678901234567890.5']],
  ['numeric(10,2)', ['1', '-1', '1.5', `'NaN'`]],
  ['real', [`'NaN'`, `'-0'`, '0.1', '16777216', `'Infinity'`, `'-Infinity'`, '-1e-30']],
  ['double precision', [`'NaN'`, `'-0'`, '0.1::float8 + 0.2::float8', '5e-324', '1e308', `'-Infinity'`]],
  ['text', TEXTS],
  ['text collate "C"', TEXTS],
  ['text collate german', TEXTS],
  ['text collate nocase', [`'a'`, `'B'`, `'c'`, `'D'`, `'ä'`, `'Z'`]],
  ['varchar(20) collate "C"', [`'a'`, `'A '`, `' a'`, `''`]],
  ['char(5)', [`'a'`, `'ab  '`, `' a'`, `''`, `'zz'`]],
  ['char(300)[]', [`'{a,b}'`, `'{a}'`, `'{}'`]],
  ['name', [`'a'`, `'b c'`, `'Q"q'`]],
  ['"char"', [`'a'`, `'\\'`, `''`]],
  ['uuid', [`'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'`, `'00000000-0000-0000-0000-000000000000'`, `'ffffffff-ffff-ffff-ffff-ffffffffffff'`]],
  ['date', [`'infinity'`, `'-infinity'`, `'0044-03-15 BC'`, `'2025-02-03'`, `'12025-01-01'`]],
  ['timestamp', [`'infinity'`, `'-infinity'`, `'0044-03-15 12:00 BC'`, `'2025-02-03 04:05:06.789012'`]],
  [
    'timestamptz',
    [`'infinity'`, `'-infinity'`, `'0044-03-15 12:00+00 BC'`, `'2025-02-03 04:05:06.789012+02'`, `'2025-02-03 04:05:06+05:45'`],
  ],
  ['time', [`'24:00'`, `'00:00'`, `'04:05:06.789'`]],
  ['timetz', [`'04:05+02'`, `'04:05-02'`, `'24:00+00'`, `'04:05:06.7+00:00:01'`]],
  ['interval', [`'-1 mon 3 days'`, `'1 year -00:00:00.5'`, `'0'`, `'30 days 1 sec'`, `'1 mon'`]],
  ['boolean', ['true', 'false']],
  ['mood', [`'happy'`, `'sad'`, `'angry'`, `'so "so"'`]],
  ['mood[]', [`'{happy}'`, `'{sad,happy}'`, `'{"so \\"so\\"",NULL}'`]],
  ['smaller', ['5', '-5', '999']],
  ['shout', [`'B'`, `'A''B'`, `'A'`]],
  ['bytea', [`'\\x'`, `'\\x00'`, `'\\xdeadbeef'`, `'\\x5c'`]],
  ['inet', [`'10.0.0.1'`, `'10.0.0.1/8'`, `'::1'`, `'192.168.0.0/16'`]],
  ['cidr', [`'10.0.0.0/8'`, `'10.0.0.0/9'`, `'::/0'`]],
  ['macaddr', [`'08:00:2b:01:02:03'`, `'00:00:00:00:00:00'`]],
  ['macaddr8', [`'08:00:2b:01:02:03:04:05'`, `'00:00:00:00:00:00:00:01'`]],
  ['bit(4)', [`b'0101'`, `b'0000'`, `b'1111'`]],
  ['varbit', [`b'01'`, `b''`, `b'0'`, `b'1'`]],
  ['money', [`'1234.5'`, `'-1'`, `'0'`]],
  ['oid', ['4294967295', '0', '7']],
  ['pg_lsn', [`'16/B374D848'`, `'0/0'`, `'FF/1'`]],
  ['pair', [`row(2, 'a')`, `row(1, 'x,"y"\\')`, `row(1, null)`, `row(null, e'\\t')`]],
  ['int[]', [`'{1,2}'`, `'{}'`, `'{1,NULL}'`, `'[2:3]={1,2}'`]],
  ['text[]', [`array['a,b', '"', '\\']`, `array['']`, `'{}'`, `array[null]::text[]`]],
  ['jsonb', [`'{"a": "x\\\\y \\"q\\""}'`, `'null'`, `'[1, 1.0]'`, `'"ü\\n"'`]],
  ['int4range', [`'[1,10)'`, `'empty'`, `'(,)'`, `'[1,3)'`]],
  ['span', [`'[1,2)'`, `'(,NaN]'`, `'[-Infinity,0]'`]],
  ['int4multirange', [`'{[1,3),[5,9)}'`, `'{}'`]],
  ['tstzrange', [`'["2025-02-03 04:05:06+00",)'`, `'[-infinity,"0044-03-15 12:00+00 BC")'`]],
  ['ext.citext', [`'a'`, `'B'`, `'c'`, `'D'`, `'it''s'`]],
]

async function keyed(db: TestDatabase, key: string, values: readonly string[]): Promise<void> {
  await db.query(`drop table if exists t; create table t (note text, k ${key} primary key)`)
  await db.query(
    `insert into t select 'n', v from (values ${values.map((value) => `(${value}::${key.replace(/ collate .*/, '')})`).join(', ')}) x(v)`,
  )
}

/** Keys as the server prints them, in its order. */
async function keysOf({ session }: PageReader): Promise<unknown[]> {
  const { rows } = await session.query('select pg_catalog.concat(k) as k from public.t order by t.k')
  return rows.map((row) => row['k'])
}

/** Operators that say the opposite, which a search_path finds first. */
const HOSTILE = ['int, int', 'text, text', 'mood, mood', 'ext.citext, ext.citext', 'uuid, uuid', 'bigint, int', 'pair, pair']
  .map((types, i) => {
    const [left, right] = types.split(', ')
    const not = `create function never${i}(${types}) returns boolean language sql immutable as 'select false';`
    return (
      not +
      ['<', '>', '=', '>=', '<=']
        .map((name) => `create operator public.${name} (leftarg = ${left}, rightarg = ${right}, function = never${i});`)
        .join('')
    )
  })
  .join('')

async function typesDatabase(): Promise<TestDatabase> {
  const db = await createDatabase(TYPES)
  await db.query('create extension citext schema ext; create publication p for all tables with (publish_via_partition_root = true)')
  await db.query(HOSTILE)
  await db.query(`alter database ${db.name} set search_path = public, ext, pg_catalog`)
  return db
}

test('a key of any type is read in the order of its index, each row once, whatever operators the search path finds', async (t) => {
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  for (const [key, values] of KEYS)
    await t.test(key, async () => {
      await keyed(db, key, values)
      const pages = await reader.pages()
      assert.deepEqual(
        pages.map((page) => page.length),
        halves(values.length),
      )
      assert.deepEqual(
        pages.flat().map((text) => (JSON.parse(text) as Message).metadata.record_pks[0]),
        await keysOf(reader),
      )
    })
})

type Message = { metadata: { record_pks: [string] } }
const halves = (count: number) => [...Array.from({ length: Math.floor(count / 2) }, () => 2), ...(count % 2 ? [1] : [])]

/** Values of columns, by the primary key of several. */
async function rowsIn(db: TestDatabase, sql: string): Promise<string[]> {
  return (await db.query<{ row: string }>(`select concat_ws('|', ${sql}) as row from public.t t order by ${sql}`)).map(({ row }) => row)
}

test('a key of several columns is read in the order of its index, whichever order its columns have in the table', async (t) => {
  const keys: readonly [columns: string, key: string][] = [
    ['b text collate german, a int', 'a, b'],
    ['a ext.citext, b int', 'b, a'],
    ['b numeric, note ext.citext, a int', 'a, note, b'],
    ['c mood, a ext.citext, b int', 'a, c, b'],
  ]
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  for (const [columns, key] of keys)
    await t.test(key, async () => {
      await db.query(`drop table if exists public.t; create table public.t (${columns}, primary key (${key}))`)
      const values: Record<string, string> = {
        ...{
          a: columns.includes('a int') ? '(i % 3)' : `chr(97 + i % 3 - 32 * (i % 2))`,
          c: `(array['happy', 'sad'])[1 + i % 2]::public.mood`,
        },
        ...{ b: columns.includes('b text') ? `chr(97 + i) || ''''` : 'i', note: `chr(97 - 32 * (i % 2))` },
      }
      const names = key.split(', ')
      await db.query(`insert into public.t (${key}) select ${names.map((name) => values[name]).join(', ')} from generate_series(1, 15) i`)
      const records = await reader.records()
      assert.deepEqual(
        records.map((record) => names.map((name) => record[name]).join('|')),
        await rowsIn(db, key),
      )
    })
})

test('rows are found again by keys that need not be equal by their bytes', async () => {
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  await db.query(
    `create table public.t (n numeric, c ext.citext, primary key (c, n)); insert into public.t values (1.00, 'A'), (2, 'it''s'), (3, 'x')`,
  )
  const found = await reader.with({}, async (table) => {
    assert.deepEqual(table.identity, { columns: ['n', 'c'] })
    return reader.session.query(
      rowsQuery(table, [
        ['1.0', 'a'],
        ['1.00', 'A'],
        ['2', `it's`],
        ['4', 'x'],
      ]),
    )
  })
  assert.deepEqual(found.rows.map(({ n, c }) => `${String(n)} ${String(c)}`).sort(), ['1.00 A', `2 it's`])
})

test('a page of a large table is read by the index of its key, however many rows it has, and sorts nothing', async (t) => {
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  const keys: readonly [columns: string, key: string, values: string][] = [
    ['a int', 'a', 'i'],
    ['a uuid', 'a', 'md5(i::text)::uuid'],
    ['a ext.citext, b int', 'b, a', `'x' || i, i % 10`],
    ['a text, b bigint', 'a, b', `'x' || i % 10, i`],
    ['a smaller, b mood, c numeric', 'b, c, a', `i % 10, 'sad', i`],
  ]
  for (const [columns, key, values] of keys)
    await t.test(columns, async () => {
      await db.query(`drop table if exists public.t; create table public.t (${columns}, primary key (${key}))`)
      await db.query(`insert into public.t select ${values} from generate_series(1, 100000) i; analyze public.t`)
      await reader.with({}, async (table) => {
        const middle = await reader.session.query(`select ${key} from public.t order by ${key} offset 40000 limit 1`)
        const after = table.order.map(({ name }) => String(middle.rows[0]?.[name]))
        for (const limit of [1_000, 1_000_000]) {
          const plan = JSON.stringify(await reader.session.plan(pageQuery(table, after, limit)))
          assert.match(plan, /"Index (Only )?Scan"/)
          assert.doesNotMatch(plan, /Sort|"Seq Scan"|Bitmap/)
          assert.doesNotMatch(plan, /"Filter"/)
        }
        const known = table.identityColumns.map(({ name }) => String(middle.rows[0]?.[name]))
        const again = rowsQuery(
          table,
          Array.from({ length: 500 }, () => known),
        )
        assert.doesNotMatch(JSON.stringify(await reader.session.plan(again)), /"Seq Scan"/)
      })
    })
})

test('an enum that gets a label in the midst goes on where it was', async () => {
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  await db.query(`create table public.t (k mood primary key); insert into public.t values ('happy'), ('sad'), ('angry')`)
  const table = await reader.describe()
  await db.query(`alter type mood add value 'calm' before 'happy'`)
  await db.query(`insert into public.t values ('calm')`)
  const rest = await reader.with({}, async (now) => {
    assert.equal(now.orderedBy, table.orderedBy)
    return reader.session.query(pageQuery(now, ['angry'], 10))
  })
  assert.deepEqual(rest.rows, [{ k: 'calm' }, { k: 'happy' }])
})

test('by another column: from its start on, in its order, rows of one value by the key, and those without a value left out', async () => {
  await using db = await typesDatabase()
  await using reader = await PageReader.open(db)
  await db.query(`create table public.t (id int primary key, at timestamptz, name ext.citext)`)
  await db.query(
    `insert into public.t select i, case when i % 5 > 0 then timestamptz '2025-01-01' + i % 3 * interval '1 day' end, chr(64 + i % 4 + 32 * (i % 2)) from generate_series(1, 20) i`,
  )
  const ids = (records: readonly Record<string, unknown>[]) => records.map(({ id }) => id)
  const expected = async (sql: string) => ids(await db.query(`select id from public.t where ${sql}`))
  const byTime = { sortColumn: 'at', startPosition: '2025-01-02 00:00:00+00' }
  assert.deepEqual(ids(await reader.records(byTime)), await expected(`at >= '2025-01-02' order by at, id`))
  assert.deepEqual(ids(await reader.records({ sortColumn: 'name' })), await expected(`name is not null order by name, id`))
  assert.deepEqual(
    ids(await reader.records({ ...byTime, condition: `name = 'c' -- of whatever case` })),
    await expected(`at >= '2025-01-02' and name = 'c' order by at, id`),
  )
})
