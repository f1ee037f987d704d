import assert from 'node:assert/strict'
import { test } from 'node:test'
import { quoteLongIntegers } from '../../transforms/sandbox/long-integers.ts'
import fc from '../services/fast-check.ts'

const MARK = Buffer.from('\u007fsecret:')
const END = '\u001e'
type Reviver = (key: string, value: unknown, context: { source?: string }) => unknown
const parse = JSON.parse as (text: string, reviver: Reviver) => unknown

/** Each message with its long integers as `long …`: read from the digits themselves, or from what stands for them. */
const expected = (text: string): unknown =>
  parse(text, (_, value, { source = '' }) =>
    /^-?[0-9]+$/.test(source) && (BigInt(source) > 2n ** 53n || BigInt(source) < -(2n ** 53n)) ? `long ${source}` : value,
  )
const restored = (text: string): unknown =>
  parse(text, (_, value) => (typeof value === 'string' && value.startsWith(String(MARK)) ? `long ${value.slice(MARK.length)}` : value))

/** JSON as Postgres and people write it: with digits in texts and keys, escapes, white space. */
const number = fc.oneof(
  fc.bigInt({ min: -(10n ** 22n), max: 10n ** 22n }).map(String),
  fc.constantFrom('9007199254740992', '9007199254740993', '-9007199254740993', '1234567890123456.5', '1e22', '12345678901234567e2', '-0'),
)
const word = fc.oneof(
  fc.string({ maxLength: 20 }),
  fc.constantFrom('a,12345678901234567', ':12345678901234567,', '"12345678901234567', '\\', '\\"', 'é12345678901234567', 'id'),
)
const { json } = fc.letrec<{ json: string }>((tie) => ({
  json: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    number,
    word.map((text) => JSON.stringify(text)),
    fc.constantFrom('null', 'true'),
    fc.array(tie('json'), { maxLength: 3 }).map((items) => `[${items.join(', ')}]`),
    object(tie('json')),
  ),
}))
function object(of: fc.Arbitrary<string>): fc.Arbitrary<string> {
  return fc
    .uniqueArray(fc.tuple(word, of), { maxLength: 4, selector: ([name]) => name })
    .map((members) => `{${members.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(',')}}`)
}

test('integers beyond 2^53 are quoted, and nothing else is', () => {
  const message = fc.tuple(object(json), object(json)).map(([record, changes]) => `{"record":${record},"changes":${changes}}`)
  fc.assert(
    fc.property(fc.array(message, { minLength: 1, maxLength: 4 }), (messages) => {
      const bytes = Buffer.from(messages.map((text) => text + END).join(''))
      const quoted = quoteLongIntegers(bytes, MARK)
      const texts = (quoted?.bytes ?? bytes).toString().split(END).slice(0, -1)
      assert.deepEqual(texts.map(restored), messages.map(expected))
      if (!quoted?.keys) return
      for (const text of texts) {
        const inPlace = restored(text) as Record<string, Record<string, unknown>>
        const deep = JSON.stringify(inPlace, (key, value: unknown) =>
          quoted.keys?.includes(key) && String(value).startsWith('long ') ? 0 : value,
        )
        assert.ok(!deep.includes('"long '), 'every one of them is a member of that name')
      }
    }),
    { numRuns: 500 },
  )
})

test('bytes without long integers are left as they are', () => {
  for (const text of ['{"record":{"at":"2026-11-21T17:40:12.123456Z","n":1234567890123456}}', '{"record":{"n":"12345678901234567"}}', ''])
    assert.equal(quoteLongIntegers(Buffer.from(text + END), MARK), undefined)
})

test('it is told which members they are, and that some stand deeper', () => {
  const of = (text: string) => quoteLongIntegers(Buffer.from(text + END), MARK)?.keys
  assert.deepEqual(of('{"record":{"id":12345678901234567,"n":1},"changes":{"of":-12345678901234567}}'), ['id', 'of'])
  assert.equal(of('{"record":{"id":12345678901234567,"ids":[12345678901234567]}}'), undefined)
  assert.equal(of('{"record":{"\\u0061":12345678901234567}}'), undefined)
})
