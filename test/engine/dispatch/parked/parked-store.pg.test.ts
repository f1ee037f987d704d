import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Client } from 'pg'
import { ParkedStore } from '../../../../engine/dispatch/parked/parked-store.ts'
import { chooseToLoad, groupFound, newParkedGroups } from '../../../../engine/dispatch/parked/parked-groups.ts'
import type { MessageView } from '../../../../engine/log/pack.ts'
import type { Query } from '../../../../engine/postgres/query.ts'
import { SINK } from '../../../actors/sink-fixture.ts'
import { queryOf, stateDatabase } from '../../../actors/sink-state.ts'
import { batchOf } from '../../../sinks/batch.ts'
import { until } from '../../../waiting.ts'

const KEY = { sinkId: SINK.id, generation: 1, partition: 0 }

test('a parked message comes back as it was, with its transaction', async () => {
  await using db = await stateDatabase()
  const store = await ParkedStore.takeOver(queryOf(db), KEY, { grouping: true, holder: 'one' })
  const load = batchOf([{ key: ['7'], record: { id: 7, name: 'ß' }, group: 12 }])
  const view = load.messages[0]?.view as MessageView
  await store.insert([{ seq: 0, offset: 5, index: 0, view, kind: 'park', deliveries: 0 }])
  const parked = newParkedGroups(true)
  for (const facts of (await store.load({ offset: 0, index: 0 })).groups) groupFound(parked, facts, 0, 0)
  const [message] = await store.fetch(chooseToLoad(parked, 1), 1_000_000)
  const back = message?.view
  const facts = (one: MessageView) => [
    ...[one.position(0), one.xid(0), one.group(0), one.action(0), one.relation(0), one.flags(0), one.commitTimeUs(0)],
    one.buffer.toString('utf8', one.bodyStart(0), one.bodyEnd(0)),
  ]
  assert.ok(back)
  assert.deepEqual(facts(back), facts(view))
  assert.equal(back.xid(0), 1)
})

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
  await until('the write waits', async () => {
    const { rowCount } = await watcher.query(`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
    return rowCount || said
  })
  await next.query('commit')
  await writing
  assert.equal(said, 'PARTITION_FENCED')
})

test('messages that are parked at the same moment wait for each other, and each counts', async () => {
  await using db = await stateDatabase()
  const [one, other, blocker, watcher] = [await db.connect(), await db.connect(), await db.connect(), await db.connect()]
  const free = [one, other]
  const query: Query = async (sql, params) => {
    const client = free.shift() as Client
    const { rows } = await client.query(sql, params && [...params])
    free.push(client)
    return { rows }
  }
  const store = await ParkedStore.takeOver(query, KEY, { grouping: true, holder: 'one' })
  const views = [7n, 8n, 9n].map((id) => batchOf([{ key: [`${id}`], group: Number(id), lsn: id }]).messages[0]?.view as MessageView)
  const park = (n: number) => store.insert([{ seq: 0, offset: n, index: 0, view: views[n] as MessageView, kind: 'park', deliveries: 0 }])
  await park(0)
  await blocker.query('begin')
  await blocker.query(
    `insert into tailrace.parked select (jsonb_populate_record(p, jsonb_build_object('lsn', m.lsn, 'record_offset', m.place))).*
     from tailrace.parked p, (values ('0/8', 1), ('0/9', 2)) as m (lsn, place)`,
  ) // of the same names, so that both wait until it is known whether these are there
  const both = Promise.all([park(1), park(2)])
  await until('both wait', async () => {
    const { rowCount } = await watcher.query(`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
    return rowCount === 2
  })
  await blocker.query('rollback')
  await both
  assert.equal(store.parked, 3)
  const { rows } = await watcher.query('select parked from tailrace.term')
  assert.deepEqual(rows, [{ parked: '3' }])
})
