/** A value of every type that Postgres has, and of types that people make, with the JSON that it becomes. */

/** Settings of a session or database that would change how Postgres writes values as text. */
export const HOSTILE = [
  `datestyle = 'SQL, DMY'`,
  `intervalstyle = 'iso_8601'`,
  'extra_float_digits = -15',
  `bytea_output = 'escape'`,
  `timezone = 'Asia/Kathmandu'`,
  `client_encoding = 'LATIN1'`,
]

/** [type, value in SQL, JSON] in the order of the table in docs/messages.md */
export type Case = readonly [type: string, sql: string, json: unknown]

export const BUILT_IN: readonly Case[] = [
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

export const OWN_DDL = `
  create type mood as enum ('sad', 'so "so"', 'it''s ok');
  create domain email as text check (value like '%@%');
  create domain work_email as email;
  create domain big as bigint;
  create domain flags as boolean[];
  create domain at as timestamptz;
  create domain doc as jsonb;
  create type pair as (a int, b text);
  create type span as range (subtype = float8)`

export const OWN: readonly Case[] = [
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
