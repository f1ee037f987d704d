import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type RelationColumns, sameColumns, sameGrouping } from '../../../../engine/wal/decode/known-relations.ts'

const INT = 23
const TEXT = 25
const table = (columns: string, ...key: string[]): RelationColumns => ({
  columns: columns.split(' ').map((column) => {
    const [name = '', type] = column.split(':')
    return { name, typeOid: type === 'text' ? TEXT : INT }
  }),
  key,
})
const FORMER = table('id tenant name:text', 'id')

const CASES: readonly (readonly [title: string, now: RelationColumns, same: boolean])[] = [
  ['as it was', FORMER, true],
  ['another column beside the key', table('id tenant name:text more', 'id'), true],
  ['a column less behind the key', table('id tenant', 'id'), true],
  ['the key renamed', table('number tenant name:text', 'number'), true],
  ['a column before the key dropped', table('id name:text', 'id'), true],
  ['a further column in the key', table('id tenant name:text', 'tenant', 'id'), false],
  ['another column as the key', table('id tenant name:text', 'tenant'), false],
  ["another column as the key, under the former one's name", table('tenant id name:text', 'id'), false],
  ['the key of another type', table('id:text tenant name:text', 'id'), false],
  ['no key any more', table('id tenant name:text'), false],
  ['the key dropped and made anew', table('tenant name:text id', 'id'), false],
]
for (const [title, now, same] of CASES) {
  test(`${title}: ${same ? 'the groups stay' : 'other groups'}`, () => {
    assert.equal(sameGrouping(FORMER, now, undefined), same)
  })
}

test('of a sink that groups by columns of its own only those count', () => {
  const byName = ['name']
  assert.equal(sameGrouping(FORMER, table('id tenant name:text', 'tenant'), byName), true)
  assert.equal(sameGrouping(FORMER, table('id tenant title:text', 'id'), byName), false, 'the sink names it, and finds it no more')
  assert.equal(sameGrouping(FORMER, table('id name:text', 'id'), byName), true)
  assert.equal(sameGrouping(FORMER, table('id tenant name', 'id'), byName), false)
})

test('the order of the columns a sink names counts, not that of the table', () => {
  assert.equal(sameGrouping(FORMER, FORMER, ['name', 'id']), true)
  assert.equal(sameGrouping(table('a b', 'a'), table('b a', 'a'), ['a', 'b']), false)
})

test('whether anything changed at all', () => {
  assert.equal(sameColumns(FORMER, table('id tenant name:text', 'id')), true)
  for (const other of [table('id tenant name:text more', 'id'), table('id tenant name', 'id'), table('id tenant name:text', 'tenant')])
    assert.equal(sameColumns(FORMER, other), false)
})
