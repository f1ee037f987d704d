/** When the topic of something that is over goes. */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { deleteOldTopics } from '../../../engine/dispatch/old-topics.ts'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import { makeTopics } from '../../../engine/log/own-topics.ts'
import { shapeOf } from '../../../engine/state/generation-shape.ts'
import { ownTopic } from '../../../engine/wal/routing/routing.ts'
import { SINK } from '../../actors/sink-fixture.ts'
import { queryOf, stateDatabase } from '../../actors/sink-state.ts'

test('a topic stays until the source has passed what ends it, for a run that starts below would append to it again; one that is not ours stays', async () => {
  await using parts = new AsyncDisposableStack()
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-topics-'))
  parts.defer(() => rm(folder, { recursive: true, force: true }))
  const db = parts.use(await stateDatabase())
  const log = parts.use(await openEmbeddedLog(folder))
  const deletedSink = { sinkId: '0f0f0f0f-0000-4000-8000-000000000001', generation: 1 }
  const formerGeneration = { sinkId: SINK.id, generation: 1 }
  const topics = [deletedSink, formerGeneration].map(ownTopic)
  await makeTopics(
    queryOf(db),
    log,
    topics.map((topic) => ({ topic, partitions: 1 })),
  )
  const foreign = '0f0f0f0f-0000-4000-8000-000000000002.1'
  await log.createTopic(foreign, 1)
  await db.query(`update tailrace.sink set settings = '{"replay_window": 0}'`)
  for (const [generation, lsn, drained] of [
    [1, '0/100', 'now()'],
    [2, '0/200', 'null'],
  ])
    await db.query(
      `insert into tailrace.generation (sink_id, generation, shape, history, lsn, idx, drained_at) values ($1, $2, $3, 0, $4, 0, ${drained})`,
      [SINK.id, generation, JSON.stringify({ ...shapeOf(SINK.id, SINK), stream: undefined }), lsn],
    )
  await db.query(`update tailrace.generation set ends_history = 0, ends_lsn = '0/200', ends_idx = 0 where generation = 1`)
  for (const [version, sinks, lsn] of [
    [1, [deletedSink], '0/100'],
    [2, [], '0/200'],
  ])
    await db.query('insert into tailrace.routing_version (database_id, version, sinks, history, lsn, idx) values ($1, $2, $3, 0, $4, 0)', [
      SINK.databaseId,
      version,
      JSON.stringify(sinks),
      lsn,
    ])
  await db.query(`insert into tailrace.source (database_id, slot_name, log_identity, confirmed_lsn) values ($1, 's', 'l', '0/200')`, [
    SINK.databaseId,
  ])
  const sweep = () => deleteOldTopics(queryOf(db), log, 0)
  const kept = await sweep()
  assert.deepEqual(kept.deleted, [])
  assert.ok(kept.againInMs !== undefined)
  await db.query(`update tailrace.source set confirmed_lsn = '0/201'`)
  const swept = await sweep()
  assert.deepEqual([...swept.deleted].sort(), [...topics].sort())
  assert.deepEqual(swept.unknown, [foreign], 'what another installation has made stays, and is named')
  assert.deepEqual(
    (await log.topics()).map(({ topic }) => topic),
    [foreign],
  )
})
