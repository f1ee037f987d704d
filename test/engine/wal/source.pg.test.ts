/** The source against a real Postgres: what arrives in the log, and what is confirmed. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { comparePositions } from '../../../engine/position.ts'
import { eventually, reaches, routedSink, SourceFixture } from './source-fixture.ts'

const TABLE = 'create table item (id int primary key, name text)'

test('changes arrive in the log in commit order, with positions that grow, and are confirmed exactly', async () => {
  await using it = await SourceFixture.create({ ddl: TABLE })
  const actor = it.start()
  await reaches(actor, 'streaming')
  await it.db.query(`insert into item select i, 'n' || i from generate_series(1, 3) i`)
  await it.db.query(`update item set name = 'two' where id = 2`)
  await it.db.query('delete from item where id = 3')
  const seen = await it.until((s) => s.length >= 5)
  assert.deepEqual(
    seen.map((m) => [m.action, m.key, m.position.idx]),
    [
      ['insert', '["1"]', 0],
      ['insert', '["2"]', 1],
      ['insert', '["3"]', 2],
      ['update', '["2"]', 0],
      ['delete', '["3"]', 0],
    ],
  )
  for (let i = 1; i < seen.length; i++) assert.ok(comparePositions(seen[i - 1]!.position, seen[i]!.position) < 0)
  assert.equal(seen[3]?.json.record.name, 'two')
  const last = seen.at(-1)!.position.lsn
  const slot = await eventually('the slot is confirmed beyond the last commit', async () => {
    const row = await it.slotRow()
    return row.confirmed > last ? row : undefined
  })
  assert.ok((await it.savedConfirmed()) >= slot.confirmed, 'saved before it is sent')
  await actor.stop()
  assert.equal((await it.slotRow()).active, false)
})
void routedSink
