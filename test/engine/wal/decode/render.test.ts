import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { TimestampFormat } from '../../../../engine/wal/decode/render.ts'
import type { ScalarType, ValueType } from '../../../../engine/wal/decode/value-type.ts'
import { rendered, renderedBytes } from './rendering.ts'
import fc from '../../../services/fast-check.ts'

/** [type, Postgres' text, JSON] */
function renders(title: string, rows: readonly (readonly [ValueType, string, string])[], format: TimestampFormat = 'iso8601'): void {
  test(title, () => {
    for (const [type, text, json] of rows) assert.equal(rendered(type, text, format), json, `${JSON.stringify(type)} ${text}`)
  })
}

renders('booleans', [
  ['boolean', 't', 'true'],
  ['boolean', 'f', 'false'],
  ['boolean', 'true', '"true"'],
  ['boolean', '', '""'],
])

renders('integers and floats keep all their digits; what is no number is a string', [
  ['integer', '0', '0'],
  ['integer', '-32768', '-32768'],
  ['integer', '9223372036854775807', '9223372036854775807'],
  ['integer', '-9223372036854775808', '-9223372036854775808'],
  ['integer', '18446744073709551615', '18446744073709551615'],
  ['integer', '', '""'],
  ['integer', '-', '"-"'],
  ['integer', '007', '"007"'],
  ['integer', '1x', '"1x"'],
  ['float', '1', '1'],
  ['float', '-0', '-0'],
  ['float', '0.1', '0.1'],
  ['float', '3.1415927', '3.1415927'],
  ['float', '1.7976931348623157e+308', '1.7976931348623157e+308'],
  ['float', '5e-324', '5e-324'],
  ['float', 'NaN', '"NaN"'],
  ['float', 'Infinity', '"Infinity"'],
  ['float', '-Infinity', '"-Infinity"'],
  ['float', '1.', '"1."'],
  ['float', '.5', '".5"'],
  ['float', '1e', '"1e"'],
  ['float', '1e+', '"1e+"'],
])

renders('text is a JSON string: quotes, backslashes and control characters escaped, the rest as it is', [
  ['text', '', '""'],
  ['text', 'a', '"a"'],
  ['text', '19.90', '"19.90"'],
  ['text', 'NaN', '"NaN"'],
  ['text', '$1.00', '"$1.00"'],
  ['text', '\\xdeadbeef', '"\\\\xdeadbeef"'],
  ['text', 'say "hi"', '"say \\"hi\\""'],
  ['text', 'C:\\new', '"C:\\\\new"'],
  ['text', 'a\nb\tc\rd\be\ff', '"a\\nb\\tc\\rd\\be\\ff"'],
  ['text', '\u0001\u001f\u007f', '"\\u0001\\u001f\u007f"'],
  ['text', 'Grüße, 世界, 😀', '"Grüße, 世界, 😀"'],
  ['text', '\u2028\u2029', '"\u2028\u2029"'],
  ['text', 'ab  ', '"ab  "'],
])

renders('times lose fraction and offset', [
  ['time', '04:05:06', '"04:05:06"'],
  ['time', '04:05:06.789', '"04:05:06"'],
  ['time', '24:00:00', '"24:00:00"'],
  ['time', '04:05:06+02', '"04:05:06"'],
  ['time', '04:05:06.789012-11:30', '"04:05:06"'],
  ['time', '04:05', '"04:05"'],
  ['time', '04:05:06x', '"04:05:06x"'],
])

renders('timestamps have a T and six digits; with a zone they are UTC and end in Z', [
  ['timestamp', '2025-02-03 04:05:06', '"2025-02-03T04:05:06.000000"'],
  ['timestamp', '2025-02-03 04:05:06.7', '"2025-02-03T04:05:06.700000"'],
  ['timestamp', '2025-02-03 04:05:06.789012', '"2025-02-03T04:05:06.789012"'],
  ['timestamp', '0001-01-01 00:00:00', '"0001-01-01T00:00:00.000000"'],
  ['timestamptz', '2025-02-03 04:05:06+00', '"2025-02-03T04:05:06.000000Z"'],
  ['timestamptz', '2025-02-03 04:05:06.000001+00', '"2025-02-03T04:05:06.000001Z"'],
])

renders('infinite times, years BC or beyond 9999, and zones that are not UTC stay as Postgres prints them', [
  ['timestamp', 'infinity', '"infinity"'],
  ['timestamp', '-infinity', '"-infinity"'],
  ['timestamptz', 'infinity', '"infinity"'],
  ['timestamp', '0044-03-15 12:00:00 BC', '"0044-03-15 12:00:00 BC"'],
  ['timestamptz', '0044-03-15 12:00:00+00 BC', '"0044-03-15 12:00:00+00 BC"'],
  ['timestamp', '294276-12-31 23:59:59.999999', '"294276-12-31 23:59:59.999999"'],
  ['timestamp', '10000-01-01 00:00:00', '"10000-01-01 00:00:00"'],
  ['timestamptz', '10000-01-01 00:00:00+00', '"10000-01-01 00:00:00+00"'],
  ['timestamptz', '2025-02-03 04:05:06+02', '"2025-02-03 04:05:06+02"'],
  ['timestamptz', '2025-02-03 04:05:06', '"2025-02-03 04:05:06"'],
  ['timestamp', '2025-02-03 04:05:06.', '"2025-02-03 04:05:06."'],
  ['timestamp', '2025-02-03 04:05:06.1234567', '"2025-02-03 04:05:06.1234567"'],
  ['timestamp', '2025-02-03 04:05:06.12x', '"2025-02-03 04:05:06.12x"'],
])

renders(
  'unix_microsecond makes integers of timestamps, in arrays too; infinity and other types stay',
  [
    ['timestamp', '1970-01-01 00:00:00', '0'],
    ['timestamp', '1970-01-01 00:00:00.000001', '1'],
    ['timestamp', '1970-01-01 00:00:01.000001', '1000001'],
    ['timestamp', '1969-12-31 23:59:59.999999', '-1'],
    ['timestamp', '1969-12-31 23:59:58.5', '-1500000'],
    ['timestamp', '1969-12-31 23:59:58', '-2000000'],
    ['timestamptz', '2025-02-03 04:05:06.789012+00', String(Date.UTC(2025, 1, 3, 4, 5, 6) * 1000 + 789_012)],
    ['timestamptz', '2000-02-29 00:00:00+00', String(Date.UTC(2000, 1, 29) * 1000)],
    ['timestamp', '294276-12-31 23:59:59.999999', '9224318015999999999'],
    ['timestamp', '4713-01-01 00:00:00 BC', '-210863520000000000'],
    ['timestamptz', '0001-12-31 00:00:00+00 BC', '-62135683200000000'],
    ['timestamp', 'infinity', '"infinity"'],
    ['timestamptz', '-infinity', '"-infinity"'],
    ['timestamptz', '2025-02-03 04:05:06+02', '"2025-02-03 04:05:06+02"'],
    ['timestamp', '2025-13-03 04:05:06', '"2025-13-03 04:05:06"'],
    ['time', '04:05:06.7', '"04:05:06"'],
    ['text', '2025-02-03', '"2025-02-03"'],
    [{ array: 'timestamptz', delimiter: ',' }, '{"1970-01-01 00:00:01+00",NULL,infinity}', '[1000000,null,"infinity"]'],
  ],
  'unix_microsecond',
)

renders('intervals are months, days and microseconds', [
  ['interval', '00:00:00', '{"months":0,"days":0,"microseconds":0}'],
  ['interval', '1 year 2 mons 3 days 04:05:06.7', '{"months":14,"days":3,"microseconds":14706700000}'],
  ['interval', '-1 years -2 mons +3 days -04:05:06.000001', '{"months":-14,"days":3,"microseconds":-14706000001}'],
  ['interval', '1 day', '{"months":0,"days":1,"microseconds":0}'],
  ['interval', '1 mon', '{"months":1,"days":0,"microseconds":0}'],
  ['interval', '-00:00:00.5', '{"months":0,"days":0,"microseconds":-500000}'],
  ['interval', '00:00:01', '{"months":0,"days":0,"microseconds":1000000}'],
  ['interval', '2562047788:00:54.775807', '{"months":0,"days":0,"microseconds":9223372036854775807}'],
  ['interval', '-178956970 years -8 mons', '{"months":-2147483648,"days":0,"microseconds":0}'],
  ['interval', 'infinity', '"infinity"'],
  ['interval', '', '""'],
  ['interval', '1 day ', '"1 day "'],
  ['interval', '@ 1 min', '"@ 1 min"'],
  ['interval', 'P1D', '"P1D"'],
])

renders('json stands in place as it was written; line breaks between its tokens become spaces', [
  ['json', 'null', 'null'],
  ['json', '{"a": 1e400, "a": 12345678901234567890.10}', '{"a": 1e400, "a": 12345678901234567890.10}'],
  ['json', '{\n\t"line": "a\\nb é😀"\r\n}', '{  "line": "a\\nb é😀"  }'],
])

renders('vectors of pgvector are arrays of numbers', [
  ['vector', '[1,2.5,-3e-05]', '[1,2.5,-3e-05]'],
  ['vector', '[]', '"[]"'],
  ['vector', '[1,]', '"[1,]"'],
  ['vector', '[1', '"[1"'],
  ['vector', '[1,NaN]', '"[1,NaN]"'],
  ['vector', '[1]2]', '"[1]2]"'],
])

const listOf = (array: ValueType, delimiter = ','): ValueType => ({ array, delimiter })

renders('arrays nest, and their elements are rendered by their own type', [
  [listOf('integer'), '{}', '[]'],
  [listOf('integer'), '{1,NULL,-3}', '[1,null,-3]'],
  [listOf('integer'), '{{1,2},{3,4}}', '[[1,2],[3,4]]'],
  [listOf('integer'), '{{{{{{1}}}}}}', '[[[[[[1]]]]]]'],
  [listOf('integer'), '[2:3]={1,2}', '[1,2]'],
  [listOf('integer'), '[-1:0][3:3]={{1},{2}}', '[[1],[2]]'],
  [listOf('boolean'), '{t,f,NULL}', '[true,false,null]'],
  [listOf('float'), '{1.5,NaN,-Infinity}', '[1.5,"NaN","-Infinity"]'],
  [listOf('text'), '{home,NULL,"NULL","",null}', '["home",null,"NULL","",null]'],
  [listOf('text'), '{"a,b","{c}","say \\"hi\\"","C:\\\\new"," x "}', '["a,b","{c}","say \\"hi\\"","C:\\\\new"," x "]'],
  [listOf('text'), '{"line\nbreak",😀}', '["line\\nbreak","😀"]'],
  [listOf('text', ';'), '{(1,1),(0,0);(3,3),(2,2)}', '["(1,1),(0,0)","(3,3),(2,2)"]'],
  [listOf('json'), '{"{\\"a\\": [1, \\"x\\\\\\\\y\\"]}",NULL,3}', '[{"a": [1, "x\\\\y"]},null,3]'],
  [listOf('timestamp'), '{"2025-02-03 04:05:06",infinity}', '["2025-02-03T04:05:06.000000","infinity"]'],
  [listOf('interval'), '{"1 day",02:00:00}', '[{"months":0,"days":1,"microseconds":0},{"months":0,"days":0,"microseconds":7200000000}]'],
  [listOf(listOf('integer')), '{"{1,2}","{3}",NULL}', '[[1,2],[3],null]'],
  [listOf(listOf('text')), '{"{a,\\"b \\\\\\"c\\\\\\"\\"}"}', '[["a","b \\"c\\""]]'],
])

renders('what does not read as an array stays its text', [
  [listOf('integer'), '', '""'],
  [listOf('integer'), '1', '"1"'],
  [listOf('integer'), '{', '"{"'],
  [listOf('integer'), '{1', '"{1"'],
  [listOf('integer'), '{1,}', '"{1,}"'],
  [listOf('integer'), '{,1}', '"{,1}"'],
  [listOf('integer'), '{1}}', '"{1}}"'],
  [listOf('integer'), '{1}{2}', '"{1}{2}"'],
  [listOf('integer'), '{1 "2"}', '"{1 \\"2\\"}"'],
  [listOf('integer'), '{"1', '"{\\"1"'],
  [listOf('integer'), '{"1\\', '"{\\"1\\\\"'],
  [listOf('integer'), '[1:2]', '"[1:2]"'],
  [listOf('integer'), '{{{{{{{1}}}}}}}', '"{{{{{{{1}}}}}}}"'],
])

test('a large text with escapes from one end to the other grows the writer as it goes', () => {
  const text = `${'\u0001"😀'.repeat(50_000)}end`
  assert.equal(JSON.parse(rendered('text', text)), text)
})

const TYPES: readonly ScalarType[] = ['text', 'boolean', 'integer', 'float', 'time', 'timestamp', 'timestamptz', 'interval', 'vector']
const types = fc.oneof(
  fc.constantFrom(...TYPES),
  fc.constantFrom(...TYPES).map((type) => listOf(type)),
  fc.constantFrom(...TYPES).map((type) => listOf(listOf(type), ';')),
)
const formats = fc.constantFrom<TimestampFormat>('iso8601', 'unix_microsecond')
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

test('whatever bytes a value has, its JSON is valid UTF-8 and parses', () => {
  const alphabet = fc.constantFrom(...'{}[],;:"\\NUL-+.eE0129 T\n\u0000é😀daymonyearinftyBC=Z'.match(/./gsu)!)
  const bytes = fc.oneof(
    fc.uint8Array({ maxLength: 40 }),
    fc.array(alphabet, { maxLength: 40 }).map((parts) => new Uint8Array(Buffer.from(parts.join('')))),
    fc.string({ unit: 'binary', maxLength: 40 }).map((text) => new Uint8Array(Buffer.from(text))),
  )
  fc.assert(
    fc.property(types, bytes, formats, (type, value, format) => {
      JSON.parse(UTF8.decode(renderedBytes(type, value, format)))
    }),
    { numRuns: 20_000 },
  )
})

test('any text comes back as it was', () => {
  fc.assert(
    fc.property(
      fc.string({ unit: 'grapheme', maxLength: 60 }),
      fc.string({ unit: fc.constantFrom('"', '\\', '\n', 'a', 'é', '\u0003'), maxLength: 60 }),
      (a, b) => {
        const text = (a + b).toWellFormed()
        assert.equal(JSON.parse(rendered('text', text)), text)
      },
    ),
    { numRuns: 5000 },
  )
})

test('bytes that are not UTF-8 become replacement characters as a decoder would make them, and never eat a quote', () => {
  assert.equal(rendered('text', Uint8Array.of(0x61, 0xff, 0x62)), '"a\ufffdb"')
  assert.equal(rendered('text', Uint8Array.of(0xc3)), '"\ufffd"')
  assert.equal(rendered('text', Uint8Array.of(0xe2, 0x82, 0x22)), '"\ufffd\ufffd\\""')
  assert.equal(rendered('text', Uint8Array.of(0xed, 0xa0, 0x80)), '"\ufffd\ufffd\ufffd"') // half of a surrogate pair
  assert.equal(rendered('text', Uint8Array.of(0xc0, 0x80)), '"\ufffd\ufffd"') // overlong
})

test('any array of texts comes back as it was, quoted as Postgres quotes it', () => {
  const element = fc.option(fc.string({ unit: fc.constantFrom('a', '"', '\\', ',', '{', '}', ' ', 'é', '\n'), maxLength: 8 }))
  const quote = (value: string | null) => (value === null ? 'NULL' : `"${value.replace(/["\\]/g, '\\$&')}"`)
  fc.assert(
    fc.property(fc.array(element, { maxLength: 6 }), (values) => {
      assert.deepEqual(JSON.parse(rendered(listOf('text'), `{${values.map(quote).join(',')}}`)), values)
    }),
    { numRuns: 3000 },
  )
})

test('any interval has the months, days and microseconds it is made of', () => {
  const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 })
  fc.assert(
    fc.property(int32, int32, fc.bigInt({ min: -(2n ** 63n) + 1n, max: 2n ** 63n - 1n }), (months, days, us) => {
      const size = us < 0n ? -us : us
      const clock = [size / 3_600_000_000n, (size / 60_000_000n) % 60n, (size / 1_000_000n) % 60n]
        .map((part) => String(part).padStart(2, '0'))
        .join(':')
      const text = `${Math.trunc(months / 12)} years ${months % 12} mons ${days} days ${us < 0n ? '-' : '+'}${clock}.${String(size % 1_000_000n).padStart(6, '0')}`
      assert.equal(rendered('interval', text), `{"months":${months},"days":${days},"microseconds":${us}}`)
    }),
    { numRuns: 3000 },
  )
})

test('any timestamp has the microseconds that the calendar says', () => {
  const instant = fc.bigInt({ min: -62_135_596_800_000_000n, max: 253_402_300_799_999_999n })
  fc.assert(
    fc.property(instant, (us) => {
      const ms = us >= 0n ? us / 1000n : -((999n - us) / 1000n)
      const text = `${new Date(Number(ms)).toISOString().slice(0, 23).replace('T', ' ')}${String(us - ms * 1000n).padStart(3, '0')}`
      assert.equal(rendered('timestamp', text, 'unix_microsecond'), String(us))
      assert.equal(rendered('timestamptz', `${text}+00`), `"${text.replace(' ', 'T')}Z"`)
    }),
    { numRuns: 5000 },
  )
})
