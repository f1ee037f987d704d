import assert from 'node:assert/strict'
import { test } from 'node:test'
import { NOTHING_NEEDED, StreamTrim } from '../../../engine/dispatch/stream-trim.ts'
import type { Log } from '../../../engine/log/log.ts'
import { DATABASE, SINK } from '../../actors/sink-fixture.ts'
import { stateDatabase } from '../../actors/sink-state.ts'

test('one statement takes the lease, says what may go, and whether one that has left a stream holds it up', async () => {
  await using db = await stateDatabase()
  const sinks = await db.query<{ id: string }>(
    `insert into tailrace.sink select (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid(), 'name', 'another'))).*
     from tailrace.sink s where s.id = $1 returning id`,
    [SINK.id],
  )
  const [stays, leaves] = [SINK.id, sinks[0]?.id ?? assert.fail()]
  for (const id of [stays, leaves]) {
    await db.query(
      `insert into tailrace.generation (sink_id, generation, shape, topic, history, lsn, idx) values ($1, 1, '{"partitions": 2, "stream": {}}', 'stream.1.ab', 0, '0/1', 0)`,
      [id],
    )
    await db.query(
      `insert into tailrace.reader_line (sink_id, generation, partition, begins, line) select $1, 1, p, 0, 0 from generate_series(0, 1) p`,
      [id],
    )
  }
  const trims: string[] = []
  let statements = 0
  const trim = new StreamTrim({
    holder: 'me',
    log: { trim: async (topic, partition, before) => void trims.push(`${topic}/${partition} below ${before}`) } as Pick<Log, 'trim'> as Log,
    query: async (sql, params) => {
      statements++
      return { rows: await db.query(sql, params) }
    },
  })
  const run = async () => {
    statements = 0
    const [trimmed, ...others] = await trim.run()
    assert.deepEqual([trimmed?.databaseId, others.length, statements], [DATABASE.id, 0, 1])
    return [trimmed?.isHeldUp, ...trims.splice(0)]
  }
  const setLine = (id: string, line: number, partition: number) =>
    db.query('update tailrace.reader_line set line = $2 where sink_id = $1 and partition = $3', [id, line, partition])
  assert.deepEqual(await run(), [false])
  await setLine(stays, 9, 1)
  assert.deepEqual(await run(), [false], 'who lags behind and reads on is no reason to copy')
  await db.query(`update tailrace.generation set ends_history = 0, ends_lsn = '0/9', ends_idx = 0 where sink_id = $1`, [leaves])
  assert.deepEqual(await run(), [true])
  await setLine(leaves, 4, 1)
  assert.deepEqual(await run(), [true, 'stream.1.ab/1 below 4'])
  await setLine(leaves, 9, 1)
  assert.deepEqual(await run(), [false, 'stream.1.ab/1 below 9'])
  await setLine(leaves, 0, 1)
  await db.query('update tailrace.generation set drained_at = now() where sink_id = $1', [leaves])
  assert.deepEqual(await run(), [false], 'it has delivered everything, and its window is over in time')
  for (const partition of [0, 1]) await setLine(leaves, NOTHING_NEEDED, partition)
  await setLine(stays, 12, 1)
  assert.deepEqual(await run(), [false, 'stream.1.ab/1 below 12'])
})
