import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readCopyRow } from '../../../../engine/wal/decode/copy-row.ts'
import { Tuple } from '../../../../engine/wal/decode/tuple.ts'

function read(row: string, count: number, before = ''): (string | null)[] {
  const bytes = new Uint8Array(Buffer.from(before + row))
  const tuple = new Tuple()
  readCopyRow(bytes, new DataView(bytes.buffer), Buffer.byteLength(before), bytes.length, tuple, count)
  return Array.from({ length: count }, (_, i) => tuple.text(i))
}

test('values stand between tabs, and an empty one is not null', () => {
  assert.deepEqual(read('1\tone\t\t\\N\n', 4), ['1', 'one', '', null])
  assert.deepEqual(read('\\N\t\\N\n', 2, 'other\n'), [null, null])
  assert.deepEqual(read('\n', 1), [''])
  assert.deepEqual(read('\n', 0), [])
})

test('escapes are made plain: control characters, backslashes, and what only looks like null', () => {
  assert.deepEqual(read('a\\tb\\nc\\\\d\t\\b\\f\\r\\v\t\\\\N\tü\\\\\n', 4), ['a\tb\nc\\d', '\b\f\r\v', '\\N', 'ü\\'])
})

test('a row of other columns, or one that is cut, is refused', () => {
  for (const [row, count] of [
    ['1\t2\n', 1],
    ['1\t2\n', 3],
    ['1\t2', 2],
  ] as const)
    assert.throws(() => read(row, count), { code: 'MESSAGE_MALFORMED' })
})
