/** The same as in stream-copies.pg.test.ts with the log in Kafka, where the copy's offsets begin with 0. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { openKafkaLog } from '../../engine/log/kafka/kafka-log.ts'
import { kafkaHome } from '../engine/log/kafka-home.ts'
import { disabledWithBacklog, hasTheRest } from './disabled-sink.ts'
import { upTo } from './shop.ts'
import { until } from '../waiting.ts'

test('what a disabled sink has left of a stream in Kafka, packs in parts among it, is delivered from a topic of its own, in order, and each once', async () => {
  await using home = await kafkaHome()
  const { connection, prefix } = home
  const disabled = await disabledWithBacklog({
    openLog: (query) => openKafkaLog({ connection, prefix, query, maxRecordBytes: 64 * 1024 }),
  })
  await using shop = disabled.shop
  const [stream] = await shop.topics()
  await shop.insert(101, 110)
  assert.deepEqual(await shop.take('on', 10), upTo(101, 110))
  const copy = await shop.copied('off')
  await until('the stream is trimmed', async () => {
    const { first, next } = await shop.node.log.stats(stream as string, 0)
    return first === next
  })
  await shop.restart()
  assert.ok((await shop.node.log.topics()).some(({ topic }) => topic === copy))
  await hasTheRest(disabled)
  assert.deepEqual(await shop.take('on', 10), upTo(1_001, 1_010))
  await until('the copy is gone', async () => (await shop.node.log.topics()).length === 1)
})
