import assert from 'node:assert/strict'
import { test } from 'node:test'
import { MovedRows } from '../../../engine/backfill/moved-rows.ts'
import { Windows } from '../../../engine/backfill/windows.ts'
import { MAX_MOVED, type MovedRow } from '../../../engine/state/moved-rows.ts'
import { Change } from '../../../engine/wal/decode/change.ts'
import { Chunk } from '../../../engine/wal/decode/chunk.ts'
import { OLD } from '../../../engine/wal/decode/pgoutput.ts'
import { Relation } from '../../../engine/wal/decode/relation.ts'
import { ACTION_BIT, ALL_ACTIONS } from '../../../engine/wal/routing/routing.ts'
import * as wal from '../wal/wal-messages.ts'

const columns = ['note', 'id'].map((name) => ({ name, typeOid: 25, typmod: -1, key: true }))
const relation = new Relation(
  { oid: 1, schema: 'public', table: 'goods', replicaIdentity: 'f', columns },
  { key: ['id'], types: {}, warnings: [] },
)
const BACKFILL = { id: 'backfill', sinkId: 'sink' }
const TABLE = { relation: 1, columns: ['id'], anyMoves: false }

function update(before: string, after: string): Change {
  const rows = [before, after].map((id) => wal.row('a note', id))
  return new Change().readUpdate(relation, 0, Chunk.of(Buffer.concat(rows)), OLD.row, 0, rows[0]?.length ?? 0)
}

/** Rows of one backfill, whose sink takes some actions. */
function following(actions: number, over: Partial<typeof TABLE> = {}, saving: () => Promise<void> = () => Promise.resolve()) {
  const windows = new Windows()
  const saved: MovedRow[] = []
  const moved = new MovedRows(windows, async (rows) => {
    await saving()
    saved.push(...rows)
  })
  moved.follow(BACKFILL, { ...TABLE, ...over })
  let lsn = 0n
  const change = (before: string, after: string, action: number = ACTION_BIT.update) =>
    windows.changed(update(before, after), action, { lsn: ++lsn, actionsOf: (sinkId) => (sinkId === 'sink' ? actions : assert.fail()) })
  return { windows, moved, saved, change }
}
const keysOf = (saved: readonly MovedRow[]) => saved.map(({ key, lsn }) => `${key} ${lsn}`)

test('a row that gets another key has moved where its sink gets nothing of that, or not all, or lacks values', async () => {
  for (const [actions, action, isMoved] of [
    [ACTION_BIT.insert | ACTION_BIT.delete, ACTION_BIT.update, true],
    [ACTION_BIT.update, ACTION_BIT.update, true], // its changes of keys may be a delete and an insert
    [ALL_ACTIONS, 0, true],
    [ALL_ACTIONS, ACTION_BIT.update, false],
  ] as const) {
    const { moved, saved, change } = following(actions)
    change('1', '1', action)
    change('2', 'ü', action)
    await moved.save()
    assert.deepEqual(keysOf(saved), isMoved ? ['["ü"] 2'] : [])
  }
})

test('where rows are read in another order, each update that the sink does not take may have moved its row', async () => {
  const { moved, saved, change } = following(ACTION_BIT.insert, { anyMoves: true })
  change('1', '1')
  await moved.save()
  assert.deepEqual(keysOf(saved), ['["1"] 1'])
})

test('of more rows than are kept it is known only that they have moved', async () => {
  const { moved, saved, change } = following(ACTION_BIT.insert)
  for (let id = 0; id <= MAX_MOVED; id++) change('x', String(id))
  change('x', 'another')
  await moved.save()
  assert.deepEqual(keysOf(saved), [` ${MAX_MOVED + 2}`])
})

test('a row whose table has other columns by now may be any', async () => {
  const { moved, saved, change } = following(ACTION_BIT.insert, { columns: ['former'] })
  change('1', '1')
  await moved.save()
  assert.deepEqual(keysOf(saved), [' 1'])
})

test('nothing is confirmed while what has moved before is still being stored, and nothing more once that has failed', async () => {
  const storing = Promise.withResolvers<void>()
  const { moved, change } = following(ACTION_BIT.insert, {}, () => storing.promise)
  change('1', '2')
  const first = moved.save()
  const second = moved.save() // has nothing to store itself
  let isSaved = false
  second.then(
    () => (isSaved = true),
    () => undefined,
  )
  for (let turns = 0; turns < 20; turns++) await Promise.resolve()
  assert.equal(isSaved, false)
  storing.reject(new Error('the state database is away'))
  await assert.rejects(first)
  await assert.rejects(second)
  await assert.rejects(moved.save())
  moved.begin()
  await moved.save()
})

test('a backfill that is over is followed no more; one of another definition keeps what had moved', async () => {
  const { windows, moved, saved, change } = following(ACTION_BIT.insert)
  change('1', '2')
  moved.follow(BACKFILL, { ...TABLE, anyMoves: true })
  change('3', '3')
  await moved.save()
  assert.deepEqual(keysOf(saved), ['["2"] 1', '["3"] 2'])
  assert.deepEqual([moved.followed, windows.watches(1)], [['backfill'], true])
  moved.forget('backfill')
  assert.deepEqual([moved.followed, windows.watches(1)], [[], false])
})
