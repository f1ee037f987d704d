import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Window, Windows } from '../../../engine/backfill/windows.ts'
import { ACTION_BIT, ALL_ACTIONS } from '../../../engine/wal/routing/routing.ts'

const key = (id: number | string) => Buffer.from(JSON.stringify([String(id)]))
const text = (id: number | string) => key(id).toString('latin1')
const taking = (actions: number, { splitsKeyChanges = false, isShed = (): boolean => false } = {}) => ({
  ...{ actions, isShed, target: { splitsKeyChanges } },
})
const ALL = taking(ALL_ACTIONS)

test('a change that the sink takes makes the row of a page needless, and so does the end of the row', () => {
  const window = new Window(1, taking(ACTION_BIT.insert | ACTION_BIT.update))
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
  const window = new Window(1, taking(ACTION_BIT.insert))
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

test('a row of which the stream lacks values is read again, and then also where it moved to', () => {
  const window = new Window(1, ALL)
  window.changed(0, key(1), key(1))
  window.changed(0, key(2), key(3))
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['again', 'newer', 'again'],
  )
  assert.deepEqual([...window.moved()], [text(3)])
  window.changed(ACTION_BIT.update, key(1), key(1))
  assert.equal(window.of(text(1)), 'newer')
})

test('where a change of the key is a delete and an insert, the row comes to those that take inserts', () => {
  const fate = (actions: number) => {
    const window = new Window(1, taking(actions, { splitsKeyChanges: true }))
    window.changed(ACTION_BIT.update, key(1), key(2))
    return [window.of(text(2)), ...window.moved()]
  }
  assert.deepEqual(fate(ACTION_BIT.insert), ['newer'])
  assert.deepEqual(fate(ACTION_BIT.update), ['again', text(2)])
})

test('a row whose change is dropped because the sink is full is read again', () => {
  let isFull = true
  const window = new Window(1, taking(ALL_ACTIONS, { isShed: () => isFull }))
  window.changed(ACTION_BIT.insert, undefined, key(1))
  window.changed(ACTION_BIT.update, key(2), key(2))
  window.changed(ACTION_BIT.delete, key(3), undefined)
  isFull = false
  window.changed(ACTION_BIT.update, key(2), key(2))
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['again', 'newer', 'newer'],
  )
})

test('where rows are ordered by another column, each change that the sink does not take may have moved its row', () => {
  const window = new Window(1, taking(ACTION_BIT.insert), true)
  window.changed(ACTION_BIT.update, key(1), key(1))
  window.changed(ACTION_BIT.insert, undefined, key(2))
  assert.deepEqual([...window.moved()], [text(1)])
})

test('a table that is emptied makes its windows void, and those of others not', () => {
  const windows = new Windows()
  const [one, other] = [new Window(1, ALL), new Window(2, ALL)]
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
  const looked = windows.streamed
  windows.committed(13)
  windows.visible(looked, [11])
  assert.deepEqual(windows.streamed, [11, 13])
})

test('two that look at the same time forget nothing that neither has looked at', () => {
  const windows = new Windows()
  for (const xid of [10, 11]) windows.committed(xid)
  const [one, other] = [windows.streamed, windows.streamed]
  windows.visible(one, [])
  for (const xid of [12, 13]) windows.committed(xid)
  windows.visible(other, [])
  assert.deepEqual(windows.streamed, [12, 13])
})
