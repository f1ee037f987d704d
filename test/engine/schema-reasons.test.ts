import assert from 'node:assert/strict'
import { test } from 'node:test'
import { configOperations } from '../../api/config-routes.ts'
import { Account } from '../../actors/config/config-document.ts'
import { TokenEntry, TokenIn } from '../../actors/resources/token-form.ts'
import { DatabaseForm } from '../../actors/resources/database-form.ts'
import { FunctionForm } from '../../actors/resources/function-form.ts'
import { functionOperations } from '../../api/function-routes.ts'
import { endpointOperations } from '../../api/sinks/endpoint-routes.ts'
import { messageOperations } from '../../api/sinks/message-routes.ts'
import { sinkOperations } from '../../api/sinks/sink-routes.ts'
import { pullOperations } from '../../api/sinks/pull-routes.ts'
import { reasonsOf } from '../../engine/schema-reasons.ts'
import { schemaCheck, type SchemaCheck } from '../../engine/schema-check.ts'
import { DESTINATIONS } from '../../sinks/destination-types.ts'
import { SinkSettings } from '../../engine/state/resources.ts'

type Node = Readonly<Record<string, unknown>>
const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null

/** A value that the keyword refuses; what is not here refuses nothing. */
const WRONG: Readonly<Record<string, (limit: never) => unknown>> = {
  type: (type: string) => (type === 'string' ? 7 : 'x'),
  minLength: (limit: number) => 'x'.repeat(limit - 1),
  maxLength: (limit: number) => 'x'.repeat(limit + 1),
  pattern: () => '\0\n',
  minimum: (limit: number) => limit - 1,
  maximum: (limit: number) => limit + 1,
  minItems: (limit: number) => Array.from({ length: limit - 1 }),
  maxItems: (limit: number) => Array.from({ length: limit + 1 }),
  maxProperties: (limit: number) => Object.fromEntries(Array.from({ length: limit + 1 }, (_, i) => [`k${i}`, 1])),
  uniqueItems: () => [1, 1],
  const: () => ({}),
  enum: () => ({}),
  not: ({ enum: [first] }: { enum: unknown[] }) => first,
  required: () => ({}),
  additionalProperties: () => ({ unheardOf: 1 }),
}
const REFUSES_NOTHING = ['title', 'description', 'default', 'format', 'secret', 'properties', 'patternProperties', 'items', 'anyOf']

const nothing = {} as never
const operations = [
  ...[configOperations(nothing), functionOperations(nothing), endpointOperations(nothing), messageOperations(nothing)].flat(),
  ...[sinkOperations(nothing), pullOperations(nothing)].flat(),
]
const forms: readonly unknown[] = [
  ...operations.flatMap(({ body, query }) => [body, query]),
  ...[Account, TokenEntry, TokenIn, DatabaseForm, FunctionForm, SinkSettings, ...Object.values(DESTINATIONS)],
]

test('whatever a keyword of our schemas refuses is told in our own words', () => {
  const met = new Set<string>()
  const looked = new Set<string>()
  const look = (schema: unknown): void => {
    if (!isNode(schema)) return
    for (const [keyword, asked] of Object.entries(schema)) {
      if (keyword === 'additionalProperties' ? asked !== false : REFUSES_NOTHING.includes(keyword)) continue
      const what: string = JSON.stringify([keyword, asked, schema['description']])
      if (looked.has(what)) continue
      looked.add(what)
      const wrong = WRONG[keyword]
      assert.ok(wrong, `this test knows no wrong value for the keyword ${keyword}`)
      const check: SchemaCheck = schemaCheck({ [keyword]: asked, description: schema['description'] }, { strict: false })
      assert.equal(check(wrong(asked as never)), false, what)
      const [error, ...more] = check.errors ?? []
      const [[, reason] = ['', ''], ...others] = reasonsOf(check.errors ?? [])
      assert.deepEqual([more.length, others.length], [keyword === 'required' ? (asked as string[]).length - 1 : 0, more.length])
      assert.ok(asked === 'null' || !reason.includes(String(error?.message)), reason)
      assert.ok(!/NOT|has a form that is not allowed|undefined|[<>]=/.test(reason), `${what}: ${reason}`)
      met.add(keyword)
    }
    for (const below of ['properties', 'patternProperties']) if (isNode(schema[below])) Object.values(schema[below]).forEach(look)
    if (Array.isArray(schema['anyOf'])) schema['anyOf'].forEach(look)
    look(schema['items'])
  }
  forms.forEach(look)
  assert.ok(met.size > 10, [...met].join())
})

test('a reason says what came by its kind or its size, and never repeats it', () => {
  const reasonOf = (schema: object, value: unknown) => {
    const check = schemaCheck({ properties: { token: schema } }, { strict: false })
    assert.equal(check({ token: value }), false)
    return reasonsOf(check.errors ?? []).map((reason) => reason.join(' '))
  }
  assert.deepEqual(reasonOf({ type: 'string', minLength: 8 }, 'geheim'), ['token must have at least 8 characters, got 6'])
  assert.deepEqual(reasonOf({ type: 'string', minLength: 1 }, ''), ['token must have at least one character, got 0'])
  assert.deepEqual(reasonOf({ maxProperties: 1 }, { a: 1, b: 2 }), ['token must have at most one entry, got 2'])
  assert.deepEqual(reasonOf({ type: 'integer' }, 'geheim'), ['token must be a whole number, got a text'])
  assert.deepEqual(reasonOf({ type: 'boolean' }, null), ['token must be true or false, got null'])
  const choice = { anyOf: [{ type: 'boolean' }, { type: 'integer', minimum: 1 }, { type: 'null' }] }
  assert.deepEqual(reasonOf(choice, 'geheim'), ['token must be true, false, a whole number or null, got a text'])
})
