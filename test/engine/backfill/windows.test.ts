import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Window, Windows } from '../../../engine/backfill/windows.ts'
import { ACTION_BIT, ALL_ACTIONS } from '../../../engine/wal/routing/routing.ts'

const key = (id: number | string) => Buffer.from(JSON.stringify([String(id)]))
const text = (id: number | string) => key(id).toString('latin1')

test('a change that the sink takes makes the row of a page needless, and so does the end of the row', () => {
  const window = new Window(1, ACTION_BIT.insert | ACTION_BIT.update)
  window.changed(ACTION_BIT.update, undefined, key(1))
  window.changed(ACTION_BIT.update, key(2), key(3))
  window.changed(ACTION_BIT.delete, key('ü'), undefined)
  assert.deepEqual(
    [1, 2, 3, 'ü', 4].map((id) => window.of(text(id))),
    ['newer', 'newer', 'newer', 'newer', undefined],
  )
  assert.deepEqual([...window.moved()], [])
})

test('a row whose change the sink does not take is read again, under its new key, until the stream brings it', () => {
  const window = new Window(1, ACTION_BIT.insert)
  window.changed(ACTION_BIT.update, undefined, key(1))
  window.changed(ACTION_BIT.update, key(2), key(3))
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['again', 'newer', 'again'],
  )
  assert.deepEqual([...window.moved()], [text(3)])
  window.changed(ACTION_BIT.delete, key(3), undefined)
  assert.deepEqual([...window.moved()], [])
  window.changed(ACTION_BIT.insert, undefined, key(3))
  assert.equal(window.of(text(3)), 'newer')
})

test('a table that is emptied makes its windows void, and those of others not', () => {
  const windows = new Windows()
  const [one, other] = [new Window(1, ALL_ACTIONS), new Window(2, ALL_ACTIONS)]
  windows.open(one)
  windows.open(other)
  windows.truncated(1)
  assert.deepEqual([one.isVoid, other.isVoid], [true, false])
  windows.close(one)
  assert.deepEqual([windows.watches(1), windows.watches(2)], [false, true])
})

test('a transaction is looked at for as long as it is not visible', () => {
  const windows = new Windows()
  for (const xid of [10, 11, 12]) windows.committed(xid)
  const seen = windows.streamed.length
  windows.committed(13)
  windows.visible(seen, [11])
  assert.deepEqual(windows.streamed, [11, 13])
})
