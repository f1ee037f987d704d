/** The log while brokers fail, refuse, or are not there. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { openKafkaLog, type KafkaLogOptions } from '../../../engine/log/kafka/kafka-log.ts'
import { Brokers } from '../../../engine/log/kafka/brokers.ts'
import type { Commit, Log, LogRecord } from '../../../engine/log/log.ts'
import { Pack } from '../../../engine/log/pack.ts'
import { calmMs } from '../../services/calm-clock.ts'
import { startKafka } from '../../services/kafka.ts'
import { append, at, lsnsOf, pack, reached, readSome, SOURCE, TOPIC } from './conformance.ts'
import { kafkaHome, type KafkaHome } from './kafka-home.ts'
import { until } from '../../waiting.ts'

/** With a topic, and a run begun. */
async function started(home: KafkaHome, partitions = 1, options: Partial<KafkaLogOptions> = {}): Promise<Log> {
  const log = await home.open(options)
  await log.createTopic(TOPIC, partitions)
  await log.beginRun(SOURCE)
  return log
}

const upTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1)

test('a broker that is killed and comes back has lost nothing that was appended or committed, and everything goes on', async () => {
  await using broker = await startKafka()
  await using home = await kafkaHome([broker.address])
  const log = await home.open({ appendTimeoutMs: 30_000 })
  await log.createTopic(TOPIC, 1)
  await log.beginRun(SOURCE)
  const reading = readSome(log, 40)
  for (let i = 1; i <= 20; i++) await append(log, i)
  const commit: Commit = { next: { offset: 7, index: 0 }, accepted: at(7), finished: [], handedOut: { offset: 9, index: 0 }, term: 1 }
  await log.commit(TOPIC, 0, commit)
  const appending = (async () => {
    for (let i = 21; i <= 40; i++) await append(log, i)
  })()
  await broker.kill()
  await broker.start()
  await appending
  assert.deepEqual(lsnsOf(await reading), upTo(40), 'the reader that was open')
  assert.deepEqual(lsnsOf(await readSome(log, 40)), upTo(40), 'each once')
  assert.deepEqual(await log.committed(TOPIC, 0), commit)
  assert.deepEqual(await log.progress(SOURCE), reached(40))
})

test('an append that brokers do not take in time fails, and is not sent later: the next run appends it', async () => {
  await using broker = await startKafka()
  await using home = await kafkaHome([broker.address])
  const log = await home.open({ appendTimeoutMs: 1_500 })
  await log.createTopic(TOPIC, 1)
  await log.beginRun(SOURCE)
  await append(log, 1)
  await broker.kill()
  const tookMs = await calmMs(() => assert.rejects(append(log, 2), { code: 'LOG_APPEND_TIMEOUT' }))
  assert.ok(tookMs < 3_000, `${tookMs} ms`)
  await assert.rejects(append(log, 3), { code: 'LOG_APPEND_FAILED' })
  await broker.start()
  await log.beginRun(SOURCE)
  await append(log, 2)
  assert.deepEqual(lsnsOf(await readSome(log, 2)), [1, 2])
  assert.equal((await log.stats(TOPIC, 0)).next, 2)
})

test('a record larger than its topic takes lies there in parts, and comes back whole, once, from every place reading may begin at', async () => {
  await using home = await kafkaHome()
  await using log = await started(home, 1, { maxRecordBytes: 200_000 })
  const body = randomBytes(1_500_000)
  await append(log, 1)
  await log.append([{ topic: TOPIC, partition: 0, pack: pack(2, 2, body) }], { source: SOURCE, position: at(2) })
  await append(log, 3)
  const records = await readSome(log, 3)
  assert.deepEqual(lsnsOf(records), [1, 2, 3])
  const [, large, after] = records as [LogRecord, LogRecord, LogRecord]
  assert.ok(Pack.decode(large.pack).buffer.includes(body))
  const { first, next, bytes } = await log.stats(TOPIC, 0)
  assert.ok(next - first >= 10, `${next} records`)
  assert.ok(bytes > body.length)
  assert.deepEqual([large.offset, after.offset], [next - 2, next - 1])
  for (let from = 1; from <= large.offset; from++) assert.deepEqual(lsnsOf(await readSome(log, 2, from)), [2, 3], `from ${from}`)
  assert.ok((await log.offsetFor(TOPIC, 0, { position: at(1) })) <= large.offset)
  assert.equal(await log.offsetFor(TOPIC, 0, { position: at(2) }), after.offset)
  // what one reader needs does not depend on where others began
  assert.deepEqual(lsnsOf(await readSome(log, 1, after.offset)), [3])
  assert.deepEqual(
    [large.offset, after.offset].map((offset) => log.neededFrom(TOPIC, 0, offset)),
    [1, after.offset],
  )
  // it is not finished yet: its parts stay, also for a process that has not read it
  await log.trim(TOPIC, 0, large.offset)
  await using other = await home.open()
  await other.trim(TOPIC, 0, large.offset)
  assert.deepEqual(lsnsOf(await readSome(other, 2, large.offset)), [2, 3])
  await other.trim(TOPIC, 0, after.offset)
  assert.equal((await other.stats(TOPIC, 0)).first, after.offset)
})

test('a topic that takes less than was known gets smaller parts from the next run on', async () => {
  await using home = await kafkaHome()
  await using log = await started(home)
  await append(log, 1)
  const brokers = new Brokers(home.connection)
  const resource = { type: 2, name: home.prefix + TOPIC, configEntries: [{ name: 'max.message.bytes', value: '100000' }] }
  await brokers.controller((broker) =>
    (broker as unknown as { alterConfigs: (request: object) => Promise<unknown> }).alterConfigs({
      resources: [resource],
      validateOnly: false,
    }),
  )
  brokers.close()
  const large = { topic: TOPIC, partition: 0, pack: pack(2, 2, randomBytes(1_000_000)) }
  const progress = { source: SOURCE, position: at(2) }
  let refused = 0
  await until('it is appended in the end', async () => {
    try {
      await log.append([large], progress)
      return true
    } catch (error) {
      assert.equal((error as { code: string }).code, 'LOG_RECORD_TOO_LARGE')
      assert.ok(++refused < 10)
      await log.beginRun(SOURCE)
      return false
    }
  })
  assert.ok(refused > 0)
  assert.deepEqual(lsnsOf(await readSome(log, 2)), [1, 2])
})

test('an append of more than a request may carry is written in pieces, in order', async () => {
  await using home = await kafkaHome()
  await using log = await started(home, 2)
  const packs = upTo(10).map((lsn) => ({ topic: TOPIC, partition: lsn % 2, pack: pack(lsn, lsn, randomBytes(4 * 1024 * 1024)) }))
  await log.append(packs, { source: SOURCE, position: at(10) })
  assert.deepEqual(lsnsOf(await readSome(log, 5, 0, 0)), [2, 4, 6, 8, 10])
  assert.deepEqual(lsnsOf(await readSome(log, 5, 0, 1)), [1, 3, 5, 7, 9])
})

test('a topic that would let messages expire is refused, by name and setting', async () => {
  await using home = await kafkaHome()
  await using log = await home.open()
  const brokers = new Brokers(home.connection)
  const topic = `${home.prefix}expiring.1`
  const configEntries = [{ name: 'retention.ms', value: '3600000' }]
  await brokers.controller((broker) =>
    broker.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1, configEntries }], timeout: 5_000 }),
  )
  brokers.close()
  await assert.rejects(log.createTopic('expiring.1', 1), { code: 'LOG_REFUSED', message: new RegExp(`${topic} has retention.ms=3600000`) })
})

test('a topic that is deleted under them ends its reader, and its writer is told which it was', async () => {
  await using home = await kafkaHome()
  const log = await started(home)
  await append(log, 1)
  const other = await home.open()
  await other.deleteTopic(TOPIC)
  const named = { code: 'LOG_TOPIC_UNKNOWN', message: new RegExp(TOPIC.replace('.', '\\.')) }
  assert.deepEqual(await readSome(log, 2), [], 'it ends, and does not wait')
  await assert.rejects(append(log, 2), named)
})

test('brokers that are not there are named in the error', async () => {
  const query = async () => ({ rows: [] })
  const connection = { brokers: [{ host: '127.0.0.1', port: 9 }], clientId: 'tailrace-test' }
  await assert.rejects(openKafkaLog({ connection, query, openTimeoutMs: 300 }), { code: 'LOG_UNREACHABLE', message: /127\.0\.0\.1:9/ })
})

test('a topic is not made by asking for it, although the brokers would', async () => {
  await using home = await kafkaHome()
  await using log = await home.open()
  await log.beginRun(SOURCE)
  await assert.rejects(log.stats('absent.1', 0), { code: 'LOG_TOPIC_UNKNOWN' })
  await assert.rejects(append(log, 1, 0, 'absent.1'), { code: 'LOG_TOPIC_UNKNOWN' })
  assert.deepEqual(await log.topics(), [])
})
