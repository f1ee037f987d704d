import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rowsOf } from '../../../engine/postgres/rows.ts'

test('a row has the columns that are named, each as what it holds, however the driver gave it', () => {
  const row = { id: '9007199254740991', of: 4, share: '0.25', name: 'a', at: '0/10', is: 't', gone: null, body: Buffer.from('x'), other: 1 }
  assert.deepEqual(
    rowsOf(
      { id: 'int', of: 'int', share: 'number', name: 'text', at: 'lsn', is: 'boolean', gone: 'time?', body: (value) => String(value) },
      { rows: [row] },
    ),
    [{ id: 9007199254740991, of: 4, share: 0.25, name: 'a', at: 16n, is: true, gone: undefined, body: 'x' }],
  )
})

test('a column that is absent, null or something else is an error that names it, without its value', () => {
  for (const value of [undefined, null, 'secret', 1.5, ''])
    assert.throws(() => rowsOf({ term: 'int' }, { rows: [{ term: value }] }), {
      code: 'INTERNAL',
      message: 'the database answered no int in the column term',
    })
  assert.throws(() => rowsOf({ term: 'int?' }, { rows: [{}] }), { code: 'INTERNAL' })
})
