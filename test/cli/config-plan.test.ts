/** The text of a plan, as a reader without colours sees it. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ResourceChange } from '../../actors/config/config-changes.ts'
import { isEmpty, planText } from '../../cli/config-plan.ts'

const plain = (_style: string, text: string) => text
const update = (old: object, now: object): ResourceChange => ({
  resource_type: 'sink',
  action: 'update',
  name: 's',
  old: { ...old },
  new: { ...now },
})
const told = (...changes: ResourceChange[]) => planText({ changes, actions: [], notices: [] }, plain)

test('of a change only what differs is shown, with the lines around it', () => {
  const lines = (middle: string) => ({ code: ['a', 'b', 'c', middle, 'd', 'e', 'f', ''].join('\n') })
  assert.equal(
    told(update(lines('x'), lines('y'))),
    [
      '~ sink s',
      '      …',
      '        b',
      '        c',
      '    -   x',
      '    +   y',
      '        d',
      '        e',
      '      …',
      '',
      '1 to change.',
      '',
    ].join('\n'),
  )
})

test('lines that came, went and stayed between others are found', () => {
  const list = (text: string) => ({ actions: [...text] })
  assert.equal(
    told(update(list('abcde'), list('bxde'))),
    [
      '~ sink s',
      '      actions:',
      '    -   - a',
      '        - b',
      '    -   - c',
      '    +   - x',
      '        - d',
      '        - e',
      '',
      '1 to change.',
      '',
    ].join('\n'),
  )
  const many = (seed: number) => ({ actions: Array.from({ length: 2_500 }, (_, i) => i * seed) })
  assert.match(told(update(many(1), many(-1))), /… and \d+ more lines\n/)
})

test('what a text holds is never a command to the terminal, and long lines are cut', () => {
  const text = told(update({ note: 'a' }, { code: 'one\u001B[2J\r\nthree\n', note: 'x'.repeat(5_000) }))
  assert.doesNotMatch(text, /(?!\n)\p{Cc}/u)
  assert.match(text, /x… \(5006 characters\)/)
})

test('what the file lacks stays, and is no reason to apply it', () => {
  const missing: ResourceChange = { resource_type: 'database', action: 'delete', name: 'd', old: {}, new: null }
  assert.equal(isEmpty({ changes: [missing], actions: [], notices: [] }), true)
  assert.equal(told(missing), '· database d is not in the file, and stays\n\nNothing to change; 1 not in the file, which stays.\n')
  const token: ResourceChange = { resource_type: 'api_token', action: 'create', name: 't', old: null, new: { name: 't' } }
  assert.equal(isEmpty({ changes: [token], actions: [], notices: [] }), false)
  assert.equal(told(token), '+ API token t\n    + name: t\n\n1 to create.\n')
  const gone: ResourceChange = { ...token, action: 'delete', old: { name: 't' }, new: null }
  assert.equal(isEmpty({ changes: [gone], actions: [], notices: [] }), false)
  assert.equal(told(gone), '- API token t\n\n1 to revoke.\n')
  assert.equal(isEmpty({ changes: [], actions: [{ description: 'create the slot "s"' }], notices: [] }), false)
})
