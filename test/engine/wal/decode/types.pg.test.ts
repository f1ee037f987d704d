import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, type TestDatabase } from '../../../services/postgres.ts'
import { WalStream } from '../wal-stream.ts'

/** [type, value in SQL, JSON] in the order of the table in docs/messages.md */
type Case = readonly [type: string, sql: string, json: unknown]

const BUILT_IN: readonly Case[] = [
  ['boolean', 'true', true],
  ['boolean', 'false', false],
  ['smallint', '-32768', -32768],
  ['integer', '2147483647', 2147483647],
  ['bigint', '9223372036854775807', 9223372036854775807n],
  ['bigint', '-9223372036854775808', -9223372036854775808n],
  ['oid', '4294967295', 4294967295],
  ['real', '0.1', 0.1],
  ['real', '16777216', 16777216],
  ['real', `'NaN'`, 'NaN'],
  ['double precision', '0.1::float8 + 0.2::float8', 0.30000000000000004],
  ['double precision', '1e308', 1e308],
  ['double precision', '5e-324', 5e-324],
  ['double precision', `'Infinity'`, 'Infinity'],
  ['double precision', `'-Infinity'`, '-Infinity'],
  ['numeric', '19.90', '19.90'],
  ['numeric(30,10)', '12345678901234567890.5', '12345678901234567890.5000000000'],
  ['numeric', `'NaN'`, 'NaN'],
  ['numeric', `'Infinity'`, 'Infinity'],
  ['numeric', '1e-20', '0.00000000000000000001'],
  ['money', '1234.5', '$1,234.50'],
  ['text', `''`, ''],
  ['text', `e'say "hi" \\\\ \\n\\t\\x01\\x7f'`, 'say "hi" \\ \n\t\u0001\u007f'],
  ['text', `'Grüße, 世界, 😀 ' || chr(8232)`, 'Grüße, 世界, 😀 \u2028'],
  ['varchar(10)', `'abc'`, 'abc'],
  ['char(5)', `'ab'`, 'ab   '],
  ['"char"', `'x'`, 'x'],
  ['name', `'a name'`, 'a name'],
  ['xml', `'<a b="c">d</a>'`, '<a b="c">d</a>'],
  ['bytea', `'\\xDEADBEEF'`, '\\xdeadbeef'],
  ['bytea', `''`, '\\x'],
  ['uuid', `'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'`, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'],
  ['date', `'2025-02-03'`, '2025-02-03'],
  ['date', `'infinity'`, 'infinity'],
  ['date', `'0044-03-15 BC'`, '0044-03-15 BC'],
  ['time', `'04:05:06.789'`, '04:05:06'],
  ['time', `'24:00'`, '24:00:00'],
  ['time with time zone', `'04:05:06.789+02'`, '04:05:06'],
  ['timestamp', `'2025-02-03 04:05:06'`, '2025-02-03T04:05:06.000000'],
  ['timestamp(3)', `'2025-02-03 04:05:06.789'`, '2025-02-03T04:05:06.789000'],
  ['timestamp', `'-infinity'`, '-infinity'],
  ['timestamp', `'12025-02-03 04:05:06'`, '12025-02-03 04:05:06'],
  ['timestamptz', `'2025-02-03 04:05:06.789012+02'`, '2025-02-03T02:05:06.789012Z'],
  ['timestamptz', `'infinity'`, 'infinity'],
  ['timestamptz', `'0044-03-15 12:00:00+00 BC'`, '0044-03-15 12:00:00+00 BC'],
  ['interval', `'1 year 2 mons -3 days 04:05:06.7'`, { months: 14, days: -3, microseconds: 14706700000 }],
  ['interval', `'-1 year 3 days -00:00:00.5'`, { months: -12, days: 3, microseconds: -500000 }],
  ['interval', `'0'`, { months: 0, days: 0, microseconds: 0 }],
  ['json', `e'{"b": 1,\\n "a": [1.0, 12345678901234567890], "b": null}'`, { b: null, a: [1, 12345678901234567890n] }],
  ['json', `'null'`, null],
  [
    'jsonb',
    `'{"n": 12345678901234567890.10, "t": "line\\nbreak \\"q\\" 😀", "e": 1e3}'`,
    { n: Number('12345678901234567890.10'), t: 'line\nbreak "q" 😀', e: 1000 },
  ],
  ['jsonb', `'9007199254740993'`, 9007199254740993n],
  ['int4range', `'[1,10)'`, '[1,10)'],
  ['tstzrange', `'["2025-02-03 04:05:06+00",)'`, '["2025-02-03 04:05:06+00",)'],
  ['int4multirange', `'{[1,3),[5,9)}'`, '{[1,3),[5,9)}'],
  ['inet', `'192.168.0.1/24'`, '192.168.0.1/24'],
  ['cidr', `'10.0.0.0/8'`, '10.0.0.0/8'],
  ['macaddr', `'08:00:2b:01:02:03'`, '08:00:2b:01:02:03'],
  ['bit(4)', `b'0101'`, '0101'],
  ['varbit', `b'01'`, '01'],
  ['tsvector', `'a fat cat'`, `'a' 'cat' 'fat'`],
  ['tsquery', `'fat & cat'`, `'fat' & 'cat'`],
  ['pg_lsn', `'16/B374D848'`, '16/B374D848'],
  ['xid8', `'18446744073709551615'`, 18446744073709551615n],
  ['point', `'(1,2.5)'`, '(1,2.5)'],
  ['line', `'{1,2,3}'`, '{1,2,3}'],
  ['lseg', `'[(0,0),(1,1)]'`, '[(0,0),(1,1)]'],
  ['box', `'((0,0),(1,1))'`, '(1,1),(0,0)'],
  ['path', `'((0,0),(1,1))'`, '((0,0),(1,1))'],
  ['polygon', `'((0,0),(1,1),(1,0))'`, '((0,0),(1,1),(1,0))'],
  ['circle', `'<(0,0),1>'`, '<(0,0),1>'],
  ['int2vector', `'1 2 3'`, '1 2 3'],
  ['jsonpath', `'$.a'`, '$."a"'],
  // arrays
  ['integer[]', `'{}'`, []],
  ['integer[]', `'{1,NULL,-3}'`, [1, null, -3]],
  [
    'integer[][]',
    `'{{1,2},{3,4}}'`,
    [
      [1, 2],
      [3, 4],
    ],
  ],
  ['integer[]', `'[2:3]={1,2}'`, [1, 2]],
  ['bigint[]', `'{9223372036854775807}'`, [9223372036854775807n]],
  ['boolean[]', `'{t,f}'`, [true, false]],
  ['float8[]', `'{1.5,NaN}'`, [1.5, 'NaN']],
  ['numeric[]', `'{19.90,NULL}'`, ['19.90', null]],
  [
    'text[]',
    `array['home', null, 'NULL', '', 'a,b', '{c}', 'say "hi"', 'back\\slash', e'line\\nbreak', '😀']`,
    ['home', null, 'NULL', '', 'a,b', '{c}', 'say "hi"', 'back\\slash', 'line\nbreak', '😀'],
  ],
  ['bytea[]', `array['\\x01'::bytea, '\\xff']`, ['\\x01', '\\xff']],
  ['uuid[]', `'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'`, ['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11']],
  ['date[]', `'{2025-02-03,infinity}'`, ['2025-02-03', 'infinity']],
  ['time[]', `'{04:05:06.7}'`, ['04:05:06']],
  ['timestamp[]', `'{2025-02-03 04:05:06}'`, ['2025-02-03T04:05:06.000000']],
  ['timestamptz[]', `'{2025-02-03 04:05:06+01,infinity}'`, ['2025-02-03T03:05:06.000000Z', 'infinity']],
  [
    'interval[]',
    `'{1 day,02:00}'`,
    [
      { months: 0, days: 1, microseconds: 0 },
      { months: 0, days: 0, microseconds: 7200000000 },
    ],
  ],
  ['jsonb[]', `array['{"a": "x\\\\y \\"q\\""}'::jsonb, 'null', null]`, [{ a: 'x\\y "q"' }, null, null]],
  ['json[]', `array[e'{"a":\\n1}'::json]`, [{ a: 1 }]],
  ['box[]', `'{((0,0),(1,1));((2,2),(3,3))}'`, ['(1,1),(0,0)', '(3,3),(2,2)']],
  ['point[]', `array[point(1,2)]`, ['(1,2)']],
  ['int4range[]', `array['[1,3)'::int4range]`, ['[1,3)']],
  ['name[]', `array['n']`, ['n']],
  ['char(3)[]', `array['a']`, ['a  ']],
]

const OWN_DDL = `
  create type mood as enum ('sad', 'so "so"', 'it''s ok');
  create domain email as text check (value like '%@%');
  create domain work_email as email;
  create domain big as bigint;
  create domain flags as boolean[];
  create domain at as timestamptz;
  create domain doc as jsonb;
  create type pair as (a int, b text);
  create type span as range (subtype = float8)`

const OWN: readonly Case[] = [
  ['mood', `'so "so"'`, 'so "so"'],
  ['mood[]', `'{sad,"so \\"so\\"",NULL}'`, ['sad', 'so "so"', null]],
  ['work_email', `'a@b'`, 'a@b'],
  ['big', '9007199254740993', 9007199254740993n],
  ['big[]', `'{1,9007199254740993}'`, [1, 9007199254740993n]],
  ['flags', `'{t,NULL}'`, [true, null]],
  ['flags[]', `'{"{t,f}","{t}"}'`, [[true, false], [true]]],
  ['at', `'2025-02-03 04:05:06+00'`, '2025-02-03T04:05:06.000000Z'],
  ['doc', `'{"a": 1}'`, { a: 1 }],
  ['pair', `row(1, 'x,"y"')`, '(1,"x,""y""")'],
  ['pair[]', `array[row(1, 'x')::pair]`, ['(1,x)']],
  ['span', `'[1,2)'`, '[1,2)'],
  ['information_schema.yes_or_no', `'YES'`, 'YES'],
]

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
  const hostile = [
    `datestyle = 'SQL, DMY'`,
    `intervalstyle = 'iso_8601'`,
    'extra_float_digits = -15',
    `bytea_output = 'escape'`,
    `timezone = 'Asia/Kathmandu'`,
    `client_encoding = 'LATIN1'`,
  ]
  assert.deepEqual(await rendered(hostile), await rendered([]))
})
