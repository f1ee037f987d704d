import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PART } from '../../../engine/position.ts'
import { SourceStore, type TopicEnd } from '../../../engine/wal/source-store.ts'
import { DATABASE, SINK } from '../../actors/sink-fixture.ts'
import { queryOf, stateDatabase } from '../../actors/sink-state.ts'

const [JOINED, OTHER] = ['stream.1.ab', 'stream.2.cd']
const at = (lsn: bigint) => ({ history: 0, lsn, idx: 0, part: PART.row })
const endsOf = (...nexts: readonly number[]): TopicEnd[] => nexts.map((next, partition) => ({ topic: JOINED, partition, next }))

/** A sink that begins to read a stream, and another one that reads another stream, in a version that waits for its mark. */
async function waiting() {
  const db = await stateDatabase()
  const [other] = await db.query<{ id: string }>(
    `insert into tailrace.sink select (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid(), 'name', 'another'))).*
     from tailrace.sink s where s.id = $1 returning id`,
    [SINK.id],
  )
  const others = other?.id ?? assert.fail()
  for (const [id, topic] of [
    [SINK.id, JOINED],
    [others, OTHER],
  ])
    await db.query(
      `insert into tailrace.generation (sink_id, generation, shape, topic) values ($1, 1, '{"partitions": 2, "stream": {}}', $2)`,
      [id, topic],
    )
  await db.query('insert into tailrace.routing_version (database_id, version, streams) values ($1, 1, $2)', [
    DATABASE.id,
    JSON.stringify([JOINED, OTHER].map((topic) => ({ topic, partitions: 2 }))),
  ])
  await db.query(
    `insert into tailrace.routed_reader (database_id, sink_id, generation, topic, actions, since)
     values ($1, $2, 1, '${JOINED}', '[]', 1), ($1, $3, 1, '${OTHER}', '[]', 1)`,
    [DATABASE.id, SINK.id, others],
  )
  const store = await SourceStore.takeOver(queryOf(db), DATABASE.id, 'me')
  const lines = async (sinkId: string) =>
    (
      await db.query<{ generation: number; begins: number; line: number }>(
        'select generation, begins::int, line::int from tailrace.reader_line where sink_id = $1 order by generation, partition',
        [sinkId],
      )
    ).map(({ generation, begins, line }) => `${generation}: ${begins} ${line}`)
  return { db, store, others, lines }
}

test('where a stream ended when a version was placed is saved in the same write, once, for who begins to read it', async () => {
  const { db, store, others, lines } = await waiting()
  await using _ = db
  await store.placeVersion(1, at(5n), endsOf(7, 9))
  assert.deepEqual(await lines(SINK.id), ['1: 7 7', '1: 9 9'])
  assert.deepEqual(await lines(others), ['1: 0 0', '1: 0 0'], 'its topic has nothing yet')
  await store.placeVersion(1, at(6n), endsOf(70, 90))
  assert.deepEqual(await lines(SINK.id), ['1: 7 7', '1: 9 9'])
})

test('so it is when a key that changes places the version that waits, which another sink begins to read a stream with', async () => {
  const { db, store, others, lines } = await waiting()
  await using _ = db
  const saved = { columns: [] } as never // opaque to the store
  const regrouped = { sinks: [others], key: ['id'], ends: endsOf(7, 9) }
  await store.saveRegrouping({ relation: 1, position: at(5n), saved }, at(4n), regrouped)
  assert.deepEqual(await lines(SINK.id), ['1: 7 7', '1: 9 9'])
  assert.deepEqual((await lines(others)).slice(-2), ['2: 0 0', '2: 0 0'], 'its stream has a new number')
})
