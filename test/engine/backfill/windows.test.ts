import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RowKeys, Window, Windows } from '../../../engine/backfill/windows.ts'
import { Change } from '../../../engine/wal/decode/change.ts'
import { Chunk } from '../../../engine/wal/decode/chunk.ts'
import { OLD } from '../../../engine/wal/decode/pgoutput.ts'
import { Relation, type RelationMessage } from '../../../engine/wal/decode/relation.ts'
import * as wal from '../wal/wal-messages.ts'
import { ACTION_BIT, ALL_ACTIONS } from '../../../engine/wal/routing/routing.ts'

const message: RelationMessage = {
  oid: 1,
  schema: 'public',
  table: 'goods',
  replicaIdentity: 'f',
  columns: ['note', 'id'].map((name) => ({ name, typeOid: 25, typmod: -1, key: true })),
}
const relation = new Relation(message, { key: ['id'], types: {}, warnings: [] })
const BY_KEY = { columns: ['id'] }
const BY_ROW = { rowsOf: ['note', 'id'] }

/** A change from one row to another; undefined: there is none. */
function change(before: string | undefined, after: string | undefined, note = 'a note'): Change {
  const rows = [before, after].map((id) => (id === undefined ? Buffer.alloc(0) : wal.row(note, id)))
  const [old] = rows
  const chunk = Chunk.of(Buffer.concat(rows))
  if (before === undefined) return new Change().readInsert(relation, 0, chunk, 0)
  if (after === undefined) return new Change().readDelete(relation, 0, chunk, OLD.row, 0)
  return new Change().readUpdate(relation, 0, chunk, OLD.row, 0, old?.length ?? 0)
}
const text = (id: number | string) => Buffer.from(JSON.stringify([String(id)])).toString('latin1')
const taking = (actions: number, isShed = (): boolean => false) => ({ actions, isShed })
const ALL = taking(ALL_ACTIONS)

test('a change that the sink takes makes the row of a page needless, and so does the end of the row', () => {
  const window = new Window(1, taking(ACTION_BIT.insert | ACTION_BIT.update), BY_KEY)
  window.changed(change(undefined, '1'), ACTION_BIT.update)
  window.changed(change('2', '3'), ACTION_BIT.update)
  window.changed(change('ü', undefined), ACTION_BIT.delete)
  assert.deepEqual(
    [1, 2, 3, 'ü', 4].map((id) => window.of(text(id))),
    ['newer', 'newer', 'newer', 'newer', undefined],
  )
  assert.deepEqual([...window.moved()], [])
})

test('a row whose change the sink does not take is read again, under its new key, until the stream brings it', () => {
  const window = new Window(1, taking(ACTION_BIT.insert), BY_KEY)
  window.changed(change(undefined, '1'), ACTION_BIT.update)
  window.changed(change('2', '3'), ACTION_BIT.update)
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['unseen', 'newer', 'partly'],
  )
  assert.deepEqual([...window.moved()], [text(3)])
  window.changed(change('3', undefined), ACTION_BIT.delete)
  assert.deepEqual([...window.moved()], [])
  window.changed(change(undefined, '3'), ACTION_BIT.insert)
  assert.equal(window.of(text(3)), 'newer')
})

test('a row of which the stream lacks values is read again, and then also where it moved to', () => {
  const window = new Window(1, ALL, BY_KEY)
  window.changed(change('1', '1'), 0)
  window.changed(change('2', '3'), 0)
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['partly', 'newer', 'partly'],
  )
  assert.deepEqual([...window.moved()], [text(3)])
  window.changed(change('1', '1'), ACTION_BIT.update)
  assert.equal(window.of(text(1)), 'newer')
})

test('a row that gets another key comes to those that take inserts and updates, whatever a change of the key is to them', () => {
  const fate = (actions: number) => {
    const window = new Window(1, taking(actions), BY_KEY)
    window.changed(change('1', '2'), ACTION_BIT.update)
    return [window.of(text(2)), ...window.moved()]
  }
  assert.deepEqual(fate(ACTION_BIT.insert | ACTION_BIT.update), ['newer'])
  assert.deepEqual(fate(ACTION_BIT.insert), ['partly', text(2)])
  assert.deepEqual(fate(ACTION_BIT.update), ['partly', text(2)])
  assert.deepEqual(fate(ACTION_BIT.delete), ['unseen', text(2)])
})

test('a row whose change is dropped because the sink is full is read again', () => {
  let isFull = true
  const full = taking(ALL_ACTIONS, () => isFull)
  const window = new Window(1, full, BY_KEY)
  window.changed(change(undefined, '1'), ACTION_BIT.insert)
  window.changed(change('2', '2'), ACTION_BIT.update)
  window.changed(change('3', undefined), ACTION_BIT.delete)
  isFull = false
  window.changed(change('2', '2'), ACTION_BIT.update)
  assert.deepEqual(
    [1, 2, 3].map((id) => window.of(text(id))),
    ['unseen', 'newer', 'newer'],
  )
})

test('of a row that has to be read again it is told whether the sink has got anything of it', () => {
  const window = new Window(1, taking(ACTION_BIT.insert), BY_KEY)
  window.changed(change(undefined, '1'), ACTION_BIT.insert)
  window.changed(change('1', '1'), ACTION_BIT.update)
  window.changed(change('2', '2'), 0)
  assert.deepEqual(
    [1, 2].map((id) => window.of(text(id))),
    ['partly', 'unseen'],
  )
})

test('where two rows change keys in one transaction, both are read again', () => {
  const window = new Window(1, taking(ACTION_BIT.insert), BY_KEY)
  window.changed(change('1', '2'), ACTION_BIT.update) // the key is deferrable
  window.changed(change('2', '1'), ACTION_BIT.update)
  assert.deepEqual([...window.moved()].toSorted(), [text(1), text(2)])
})

test('where rows are ordered by another column, each change that the sink does not take may have moved its row', () => {
  const window = new Window(1, taking(ACTION_BIT.insert), BY_KEY, true)
  window.changed(change('1', '1'), ACTION_BIT.update)
  window.changed(change(undefined, '2'), ACTION_BIT.insert)
  assert.deepEqual([...window.moved()], [text(1)])
})

test('a table that is emptied makes its windows void, and those of others not', () => {
  const windows = new Windows()
  const [one, other] = [new Window(1, ALL, BY_KEY), new Window(2, ALL, BY_KEY)]
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

test('what was streamed before is not known at first, and of so many transactions that earlier ones are dropped', () => {
  const windows = new Windows()
  assert.equal(windows.isPastKnown, false)
  windows.tellPast([7])
  assert.deepEqual([windows.isPastKnown, windows.streamed], [true, [7]])
  for (let xid = 8; windows.streamed.at(0) === 7 && xid < 1_000_000; xid += 50_000)
    for (let each = xid; each < xid + 50_000; each++) windows.committed(each)
  assert.equal(windows.isPastKnown, false)
  windows.tellPast([])
  windows.begin()
  assert.equal(windows.isPastKnown, false, 'another run begins')
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

test('of a table without a key, rows that look as one did before it was changed have to be read again; those that were inserted have not', () => {
  const window = new Window(1, ALL, BY_ROW)
  const keys = new RowKeys(BY_ROW)
  const what = (id: string, note?: string) =>
    keys.fits(relation) ? window.of(keys.of(change(undefined, id, note), 'new')) : 'other columns'
  window.changed(change(undefined, '1'), ACTION_BIT.insert)
  window.changed(change('2', '3'), ACTION_BIT.update)
  window.changed(change('4', undefined), ACTION_BIT.delete)
  assert.deepEqual(
    [what('1'), what('2'), what('3'), what('4'), what('4', 'another')],
    [undefined, 'partly', undefined, 'partly', undefined],
  )
})

test('a window is void from a change on that comes with other columns than it knows rows by', () => {
  for (const identity of [{ columns: ['former'] }, { rowsOf: ['note', 'id', 'former'] }, { rowsOf: ['id'] }]) {
    const window = new Window(1, ALL, identity)
    window.changed(change('1', '1'), ACTION_BIT.update)
    assert.equal(window.isVoid, true)
  }
})
