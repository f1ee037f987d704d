/** What Kafka keeps of a commit, what it forgets, and what stands in the state database for it. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Brokers } from '../../../engine/log/kafka/brokers.ts'
import { readerOf, type Commit, type FinishedRange, type Log } from '../../../engine/log/log.ts'
import { acceptMemories } from '../../../engine/wal/memories.ts'
import { makeTopics } from '../../../engine/log/own-topics.ts'
import { append, at, lsnsOf, reached, readSome, started, TOPIC } from './conformance.ts'
import { kafkaHome, type KafkaHome } from './kafka-home.ts'
import { until } from '../../waiting.ts'

const SINK_ID = '11111111-1111-4111-8111-111111111111'

const commitOf = (offset: number, term: number, finished: FinishedRange[] = []): Commit => ({
  ...{ next: { offset, index: 0 }, accepted: at(offset), finished, handedOut: { offset, index: 0 }, term },
})

/** More than fits beside an offset. */
function manyRanges(from: number): FinishedRange[] {
  return Array.from({ length: 4_000 }, (_, i) => {
    const offset = from + i * (1 + (i % 7))
    const index = (i * 7919) % 1000
    return { from: { offset, index }, to: { offset, index: index + 1 + ((i * 31) % 50) } }
  }).filter((range, i, all) => i === 0 || range.from.offset > (all[i - 1] as FinishedRange).to.offset)
}

/** As another program might: straight into the group, which has no member. */
async function commitAsStranger(home: KafkaHome, offset: number, metadata: string): Promise<void> {
  const brokers = new Brokers(home.connection)
  const groupId = home.prefix + TOPIC
  await brokers.coordinator(groupId, (broker) =>
    broker.offsetCommit({
      ...{ groupId, groupGenerationId: -1, memberId: '' },
      topics: [{ topic: groupId, partitions: [{ partition: 0, offset: String(offset), metadata }] }],
    }),
  )
  brokers.close()
}

async function forgetGroup(home: KafkaHome): Promise<void> {
  const brokers = new Brokers(home.connection)
  await brokers.coordinator(home.prefix + TOPIC, (broker) => broker.deleteGroups([home.prefix + TOPIC]))
  brokers.close()
}

async function filled(home: KafkaHome): Promise<Log> {
  const log = await started(home)
  for (let i = 1; i <= 9; i++) await append(log, i)
  return log
}

test('a commit that Kafka has forgotten is found in the state database', async () => {
  await using home = await kafkaHome()
  {
    await using log = await filled(home)
    await log.commit(TOPIC, 0, commitOf(4, 1))
  }
  await forgetGroup(home)
  await using log = await home.open()
  assert.deepEqual(await log.committed(TOPIC, 0), commitOf(4, 1))
})

test('an offset that a stranger has committed is not believed, and told of', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  await commitAsStranger(home, 7, '')
  assert.equal(await log.committed(TOPIC, 0), undefined)
  assert.match(home.notices.join('\n'), /offset 7 .* was not committed by us/)
  await log.commit(TOPIC, 0, commitOf(4, 1))
  await commitAsStranger(home, 9, 'done by a tool')
  await log[Symbol.asyncDispose]()
  await using again = await home.open()
  assert.deepEqual(await again.committed(TOPIC, 0), commitOf(4, 1))
})

test('ranges that do not fit beside the offset are durable in the state database before the commit settles', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  const full = commitOf(4, 1, manyRanges(5))
  await log.commit(TOPIC, 0, full)
  await using other = await home.open()
  assert.deepEqual(await other.committed(TOPIC, 0), full)
  await log.commit(TOPIC, 0, commitOf(5, 1))
  assert.deepEqual(await other.committed(TOPIC, 0), commitOf(5, 1), 'the later one, which Kafka holds whole')
  await log.commit(TOPIC, 0, full)
  await home.query('delete from tailrace.log_checkpoint')
  assert.deepEqual(await other.committed(TOPIC, 0), commitOf(4, 1), 'without the ranges')
  assert.match(home.notices.join('\n'), /some will come again/)
})

test('a commit whose ranges the state database refuses is refused', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  await log.commit(TOPIC, 0, commitOf(4, 1))
  await home.query('alter table tailrace.log_checkpoint rename to away')
  await assert.rejects(log.commit(TOPIC, 0, commitOf(4, 1, manyRanges(5))))
  await home.query('alter table tailrace.away rename to log_checkpoint')
  assert.deepEqual(await log.committed(TOPIC, 0), commitOf(4, 1))
})

test('a checkpoint of an owner that has been followed by another is refused', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  await home.query(`insert into tailrace.term (kind, key, term, holder) values ('partition', $1, 5, 'x')`, [`${TOPIC}/0`])
  await assert.rejects(log.commit(TOPIC, 0, commitOf(4, 4, manyRanges(5))), { code: 'PARTITION_FENCED' })
  await log.commit(TOPIC, 0, commitOf(4, 5, manyRanges(5)))
})

test('a commit above the end of its partition is not believed: what the partition still holds is read again', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  await log.commit(TOPIC, 0, commitOf(100, 1))
  assert.equal(await log.committed(TOPIC, 0), undefined)
  assert.match(home.notices.join('\n'), /ends at 9, below the committed offset 100/)
  await assert.rejects(readSome(log, 1, 100), { code: 'LOG_TRUNCATED' })
})

test('progress is saved within a second, never goes back, and is there for a process that starts after a kill', async () => {
  await using home = await kafkaHome()
  await using log = await filled(home)
  await using other = await home.open()
  await until('the progress is saved', async () => (await other.progress('shop'))?.position.lsn === 9n)
  await using late = await home.open()
  await late.beginRun('shop')
  await append(late, 3)
  await late[Symbol.asyncDispose]()
  assert.deepEqual(await log.progress('shop'), reached(9))
  assert.deepEqual(lsnsOf(await readSome(log, 10)), [1, 2, 3, 4, 5, 6, 7, 8, 9, 3])
})

test('how far a source is and where its partitions end is saved when its log has remembered it', async () => {
  await using home = await kafkaHome()
  await using log = await started(home)
  const ends = () => home.query('select e.next::int, p.lsn::text from tailrace.log_end e join tailrace.log_progress p using (log, source)')
  for (let i = 1; i <= 3; i++) {
    await append(log, i)
    const every = i === 3 ? log.remember('shop', { term: 1, history: 0, confirmed: 2n }) : undefined // one that is not saved yet
    await log.remember('shop', { term: 1, history: 0, confirmed: BigInt(i) })
    assert.deepEqual((await ends()).rows, [{ next: i, lsn: `0/${i}` }])
    await every
  }
})

test('a topic that lost what had been appended to it, or is gone, is known by where it ended', async () => {
  await using home = await kafkaHome()
  await using stranger = await kafkaHome()
  await using log = await filled(home)
  await makeTopics(home.query, log, [{ topic: TOPIC, partitions: 1 }])
  await log.beginRun('shop') // saves what is not saved yet
  assert.equal(await log.lacks('shop', 0), undefined)
  await using other = await stranger.open({ prefix: home.prefix }) // with another state database: an operator's hand
  await other.deleteTopic(TOPIC)
  await using late = await home.open()
  assert.match(String(await late.lacks('shop', 0)), /does not exist any more/)
  await other.createTopic(TOPIC, 2)
  assert.match(String(await late.lacks('shop', 0)), /ends at offset 0, and ended at offset 9 before/)
  assert.match(String(await late.lacks('shop', 0, { topic: TOPIC, partition: 0 })), /ends at offset 0/)
  assert.equal(await late.lacks('shop', 0, { topic: TOPIC, partition: 1 }), undefined)
  await late.deleteTopic(TOPIC)
  assert.equal(await late.lacks('shop', 0), undefined, 'what was deleted on purpose is not missed')
})

test('what was read of a topic that was lost counts no more once that is accepted, however many records the next one of its name has', async () => {
  await using home = await kafkaHome()
  await using log = await started(home)
  const reader = readerOf(TOPIC, `${SINK_ID}.1`)
  const { query } = home
  const { rows } = await query(
    `with a as (insert into account (name) values ('shop') returning id),
       d as (insert into source_database (account_id, name, connection, password, slot_name, publication_name)
             select id, 'shop', '{}', '', 's', 'p' from a returning id, account_id),
       s as (insert into sink (id, account_id, database_id, name, status, settings, destination)
             select $1, account_id, id, 'goods', 'active', '{}', '{}' from d returning id, database_id),
       g as (insert into generation (sink_id, generation, shape, topic, history, lsn, idx) select id, 1, $2, $3, 0, '0/1', -1 from s returning sink_id),
       l as (insert into reader_line (sink_id, generation, partition, begins, line) select sink_id, 1, 0, 1, 3 from g),
       v as (insert into routing_version (database_id, version, streams) select id, 1, '[]' from d)
     insert into source (database_id, slot_name, log_identity, confirmed_lsn) select id, 's', $4, '0/1' from d returning database_id as id`,
    [SINK_ID, { partitions: 1, stream: {} }, TOPIC, log.identity],
  )
  for (let i = 1; i <= 3; i++) await append(log, i)
  await log.commit(reader, 0, commitOf(3, 1, manyRanges(4))) // kept at once in the state database
  await log[Symbol.asyncDispose]()
  const brokers = new Brokers(home.connection)
  await brokers.controller((broker) => broker.deleteTopics({ topics: [home.prefix + TOPIC], timeout: 10_000 }), 10_000)
  brokers.close()

  await using next = await home.open()
  await acceptMemories(query, next, String(rows[0]?.id))
  await next.createTopic(TOPIC, 1)
  await next.beginRun('shop')
  for (let i = 1; i <= 3; i++) await append(next, i)
  assert.equal(await next.committed(reader, 0), undefined)
  const lines = await query('select begins::int, line::int from reader_line')
  assert.deepEqual(lines.rows, [{ begins: 0, line: 0 }])
})
