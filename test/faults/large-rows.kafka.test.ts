/** Large rows through the log in Kafka: beyond what a record of its topic may have they lie there in parts. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Brokers } from '../../engine/log/kafka/brokers.ts'
import { parseBroker } from '../../engine/log/kafka/connection.ts'
import { kafkaBrokers } from '../services/kafka.ts'
import { comesWhole, isDiscarded, LargeRows } from './large-rows.ts'

const TOPIC_RESOURCE = 2

async function open(prefix: string, env: Readonly<Record<string, string>> = {}): Promise<LargeRows> {
  const brokers = (await kafkaBrokers()).join(',')
  return LargeRows.open({ KAFKA_BROKERS: brokers, KAFKA_TOPIC_PREFIX: prefix, VAULT_KEY: Buffer.alloc(32, 7).toString('base64'), ...env })
}

test('a row of 6 MB comes whole through a topic that takes records of 1 MB, in its place, also after a kill', async () => {
  const prefix = `large${process.pid}.`
  await using home = await open(prefix)
  // the topic is there when the service is ready: from the next start on its limit is known
  const connection = { brokers: (await kafkaBrokers()).flatMap((text) => parseBroker(text) ?? []), clientId: 'tailrace-test' }
  const [generation] = await home.state.query<{ topic: string }>('select topic from tailrace.generation')
  await home.service.stop()
  const admin = new Brokers(connection)
  const configEntries = [
    { name: 'max.message.bytes', value: String(2 ** 20) },
    { name: 'retention.ms', value: '-1' },
    { name: 'retention.bytes', value: '-1' },
  ]
  const resource = { type: TOPIC_RESOURCE, name: `${prefix}${generation?.topic}`, configEntries }
  await admin.controller((broker) =>
    (broker as unknown as { alterConfigs: (request: object) => Promise<unknown> }).alterConfigs({
      resources: [resource],
      validateOnly: false,
    }),
  )
  admin.close()
  await home.service.startReady()
  await comesWhole(home, 6)
  assert.doesNotMatch(home.service.log(), /LOG_RECORD_TOO_LARGE/, 'the limit was known')
})

test('a row beyond MAX_MESSAGE_MB is on record by key and size also with the log in Kafka', async () => {
  await using home = await open(`larger${process.pid}.`, { MAX_MESSAGE_MB: '1' })
  await isDiscarded(home)
})
