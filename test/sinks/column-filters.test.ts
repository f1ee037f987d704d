import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseExact, isObject } from '../../engine/json.ts'
import { passes, wrongFilter, type ColumnFilter } from '../../sinks/column-filters.ts'

const record = parseExact(
  JSON.stringify({ name: 'Lamp', price: '19.90', count: 3, open: true, at: '2025-02-03T04:05:06.000001Z', day: '2025-02-03', none: null, data: { a: { b: 7 }, tags: ['x', 'y'] } })
    .replace('"count":3', '"count":3,"big":9007199254740993'),
) as Record<string, unknown> // prettier-ignore
const keeps = (column_name: string, operator: string, comparison_value?: unknown, more: object = {}) =>
  passes(record, [{ column_name, operator, comparison_value, ...more } as ColumnFilter])

test('each operator compares as its type says, with all digits', () => {
  assert.ok(isObject(record))
  const kept: [string, string, unknown?, object?][] = [
    ['name', '=', 'Lamp'],
    ['name', '!=', 'lamp'],
    ['name', '=', 'lAMP', { field_type: 'cistring' }],
    ['name', '<', 'M'],
    ['name', 'in', ['Chair', 'Lamp'], { field_type: 'list' }],
    ['name', 'not in', ['lamp']],
    ['name', 'in', ['LAMP'], { field_type: 'cistring' }],
    ['name', 'is not null'],
    ['none', 'is null'],
    ['none', '!=', 'x'],
    ['none', 'not in', ['x']],
    ['missing', 'is null'],
    ['price', '=', 19.9],
    ['price', '>', '19.8999', { field_type: 'number' }],
    ['price', '<=', 19.9],
    ['count', '>=', 3],
    ['count', 'in', [1, 2, 3]],
    ['count', '=', '3'],
    ['big', '>', 9007199254740992],
    ['big', '=', '9007199254740993', { field_type: 'number' }],
    ['big', '<', '9007199254740994', { field_type: 'number' }],
    ['open', '=', true],
    ['open', '!=', false],
    ['at', '>', '2025-02-03T04:05:06Z', { field_type: 'datetime' }],
    ['at', '=', '2025-02-03T05:05:06.000001+01:00', { field_type: 'datetime' }],
    ['day', '<', '2025-02-03T00:00:01', { field_type: 'datetime' }],
    ['data', '=', 7, { field_path: 'a.b' }],
    ['data', '=', 'y', { field_path: 'tags.1' }],
    ['data', 'is null', undefined, { field_path: 'a.c.d' }],
  ]
  for (const filter of kept) assert.equal(keeps(...filter), true, JSON.stringify(filter))
  const dropped: typeof kept = [
    ['name', '=', 'lamp'],
    ['name', '>', 'M'],
    ['name', 'in', []],
    ['none', '=', 'x'],
    ['none', '<', 1],
    ['none', 'is not null'],
    ['price', '>', '19.90', { field_type: 'number' }],
    ['name', '>', 1],
    ['count', 'not in', [3]],
    ['big', '=', '9007199254740992', { field_type: 'number' }],
    ['at', '<=', '2025-02-03T04:05:06Z', { field_type: 'datetime' }],
    ['name', '>', '2025-02-03', { field_type: 'datetime' }],
    ['data', '=', 7, { field_path: 'a.c' }],
  ]
  for (const filter of dropped) assert.equal(keeps(...filter), false, JSON.stringify(filter))
})

test('all filters must hold', () => {
  const both = (value: string): ColumnFilter[] => [
    { column_name: 'name', operator: '=', comparison_value: value },
    { column_name: 'count', operator: '>', comparison_value: 1 },
  ]
  assert.equal(passes(record, both('Lamp')), true)
  assert.equal(passes(record, both('Chair')), false)
  assert.equal(passes(record, []), true)
})

test('a filter that can never be asked is refused with its reason', () => {
  const wrong: [Partial<ColumnFilter>, RegExp | undefined][] = [
    [{ operator: '=' }, /needs a comparison_value/],
    [{ operator: 'in', comparison_value: 'a' }, /needs a list/],
    [{ operator: '=', comparison_value: ['a'] }, /neither a text, a number/],
    [{ operator: '>', comparison_value: 'x', field_type: 'number' }, /no number/],
    [{ operator: '>', comparison_value: 'soon', field_type: 'datetime' }, /no date and time/],
    [{ operator: '=', comparison_value: 'a', field_type: 'list' }, /can't compare lists/],
    [{ operator: 'is null' }, undefined],
    [{ operator: 'in', comparison_value: ['a'] }, undefined],
  ]
  for (const [filter, reason] of wrong) {
    const said = wrongFilter({ column_name: 'c', operator: '=', ...filter })
    if (reason) assert.match(said ?? '', reason)
    else assert.equal(said, undefined)
  }
})
