import assert from 'node:assert/strict'
import { test } from 'node:test'
import { compileFunction, usesMetadata } from '../../transforms/compile.ts'

const none = { check: async () => assert.fail('a path needs no sandbox') }
const path = (code: string) => compileFunction({ name: 'p', type: 'path', description: null, code }, none)

test('metadata travels unless a function plainly never looks at it', () => {
  for (const code of [
    'export default (a, r) => r',
    'export default function transform(action, record, changes, metadata) { return record }',
    'function transform(a, r, c, _m) { return r }\nexport default transform',
    'export default () => 1',
  ])
    assert.equal(usesMetadata(code), false, code)
  for (const code of [
    'export default (a, r, c, m) => m',
    'export default function transform(action, record, changes, metadata) { return metadata.table_name }',
    'export default (...all) => all',
    'export default (a, r, c, { table_name }) => table_name',
    'export default function (a) { return arguments[3] }',
    'export default (a, r, c, m) => eval("m")',
    'export default (a, r, c, m) => \\u006d',
    'const x = { y(a, b, c, d) { return d } }\nexport default x.y',
    'export default a => a',
  ])
    assert.equal(usesMetadata(code), true, code)
})

test('a path begins at one of the four arguments, and has no empty part', async () => {
  assert.equal((await path('record.a.b')).usesMetadata, false)
  assert.equal((await path('metadata.table_name')).usesMetadata, true)
  for (const wrong of ['row.id', 'record..id', 'record.', '', `record.${'x'.repeat(2000)}`])
    await assert.rejects(path(wrong), { code: 'VALIDATION_FAILED' }, wrong)
})
