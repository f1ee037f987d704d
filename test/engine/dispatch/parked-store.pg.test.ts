import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ParkedStore } from '../../../engine/dispatch/parked-store.ts'
import { SINK } from '../../actors/sink-fixture.ts'
import { queryOf, stateDatabase } from '../../actors/sink-state.ts'
import { eventually } from '../wal/source-fixture.ts'

const KEY = { sinkId: SINK.id, generation: 1, partition: 0 }

test('a write that meets a take-over waits for it, and is refused', async () => {
  await using db = await stateDatabase()
  const store = await ParkedStore.takeOver(queryOf(db), KEY, { grouping: true, holder: 'former' })
  const [next, watcher] = [await db.connect(), await db.connect()]
  await next.query('begin')
  await ParkedStore.takeOver((sql, params) => next.query(sql, params ? [...params] : undefined), KEY, { grouping: true, holder: 'next' })
  let said: string | undefined
  const writing = store.removeDone({ offset: 0, index: 0 }).then(
    () => (said = 'written'),
    (error: { code: string }) => (said = error.code),
  )
  await eventually('the write waits', async () => {
    const { rowCount } = await watcher.query(`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
    return rowCount || said ? true : undefined
  })
  await next.query('commit')
  await writing
  assert.equal(said, 'PARTITION_FENCED')
})
