/** Acks out of order over a window of 10,000 messages survive a SIGKILL, with the log in Kafka, which takes 4 kB beside an offset. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { killAfterGaps, PATTERNS, type Pattern } from './gaps.ts'
import { LONG } from './size.ts'

const RUN: readonly Pattern[] = LONG ? (Object.keys(PATTERNS) as Pattern[]) : ['half of them, by chance']

for (const pattern of RUN) {
  test(`of 10,000 messages in Kafka ${pattern} acknowledged, in any order: after a SIGKILL the others come again and no more`, async () => {
    const { unacked, redelivered } = await killAfterGaps(pattern, {
      KAFKA_BROKERS: (await kafkaBrokers()).join(','),
      KAFKA_TOPIC_PREFIX: `gaps${process.pid}.${RUN.indexOf(pattern)}.`,
      VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
    })
    assert.equal(redelivered, unacked)
  })
}
