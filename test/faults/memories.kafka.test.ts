/** A state database that is put back, with the log in Kafka: it is told before anything is delivered, and what is accepted loses nothing that Kafka holds. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase } from '../services/postgres.ts'
import { kafkaBrokers } from '../services/kafka.ts'
import { StateCopies, untilRefused } from './memories.ts'
import { ReplayClient } from './replay-client.ts'
import { Service } from './service.ts'

test('a state that was put back under a log in Kafka is refused; accepted, everything undelivered comes', async () => {
  await using source = await createDatabase('create table item (id int primary key, version int not null default 1)')
  await using state = await StateCopies.create()
  await using service = await Service.prepare({
    source: source.connection,
    stateUrl: state.url,
    sinks: [{ name: 'items', tables: ['public.item'], partitions: 2, ack_wait_ms: 1_000 }],
    env: {
      KAFKA_BROKERS: (await kafkaBrokers()).join(','),
      KAFKA_TOPIC_PREFIX: `memories${process.pid}.`,
      VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
    },
  })
  const insert = (from: number, to: number) => source.query('insert into item select generate_series($1::int, $2::int)', [from, to])
  const client = new ReplayClient(service, 'items')
  await service.startReady()
  service.forgetConfigFile()
  await insert(1, 20)
  await client.ackAll(20)
  await service.stop()
  await state.keep('older')
  await service.startReady()
  await insert(21, 40)
  await client.ackAll(20)
  await insert(41, 60)
  await service.stop()
  await state.putBack('older')
  service.start()
  assert.equal(await untilRefused(service), 'STATE_WENT_BACK')
  assert.equal((await service.post('/api/postgres_databases/source/accept_gap', {})).status, 200)
  // Kafka does not know what was confirmed
  if ((await retried(service)) === 'SLOT_GAP') await service.post('/api/postgres_databases/source/accept_gap', {})
  await service.untilReady()
  await insert(61, 80)
  const came = await client.ackUntil((all) => new Set(all.map(({ record }) => record.id)).size >= 40)
  const ids = new Set(came.map(({ record }) => record.id))
  for (let id = 41; id <= 80; id++) assert.ok(ids.has(id), `row ${id}`)
})

/** @returns what the source stops at, undefined: it streams */
async function retried(service: Service): Promise<string | null | undefined> {
  return ((await service.post('/api/postgres_databases/source/retry', {})).body as { code?: string | null }).code
}
