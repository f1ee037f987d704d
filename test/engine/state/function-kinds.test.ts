import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { FUNCTION_KINDS, FUNCTION_TYPES, kindOfType, SANDBOX_KINDS, sandboxKindOf } from '../../../engine/state/function-kinds.ts'
import { SinkSettings } from '../../../engine/state/resources.ts'

test('a sandbox runs what is written as code, in the order of a message: filter, routing, transform', () => {
  assert.deepEqual(SANDBOX_KINDS, ['filter', 'routing', 'transform'])
  assert.deepEqual([kindOfType('path'), sandboxKindOf('path'), sandboxKindOf('enrichment')], ['transform', 'transform', undefined])
})

test('a sink has an optional setting for each type of functions, but for the path, which is a transform', () => {
  const required = new Set<string>(SinkSettings.required)
  for (const type of FUNCTION_TYPES.filter((one) => one !== 'path')) {
    assert.ok(Object.hasOwn(SinkSettings.properties, type), type)
    assert.ok(!required.has(type), type)
  }
})

test('editors have a type for each kind of code', () => {
  const types = readFileSync(new URL('../../../transforms/types.ts', import.meta.url), 'utf8')
  for (const kind of SANDBOX_KINDS) assert.match(types, new RegExp(`^export type ${FUNCTION_KINDS[kind].importedType}<`, 'm'))
})
