/** With the log in Kafka any process of a cluster sets a sink back, and all of them deliver it from there. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { ReplayClient, versionsOf, writeVersions, type Item } from './replay-client.ts'
import { Service } from './service.ts'
import { pass } from '../waiting.ts'

const ROWS = 12
const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
const all = (from: number, to: number) => Object.fromEntries(upTo(1, ROWS).map((id) => [id, upTo(from, to)]))
const lsnOf = (messages: readonly Item[], version: number) =>
  messages.find(({ record }) => record.version === version)?.metadata.commit_lsn as number

test('three processes go back together: over a change of partitions, asked at any of them, and while one is killed', async (context) => {
  await using source = await createDatabase('create table item (id int primary key, version int not null)')
  await using state = await createState()
  const env = {
    KAFKA_BROKERS: (await kafkaBrokers()).join(','),
    KAFKA_TOPIC_PREFIX: `replay${process.pid}.`,
    KAFKA_SESSION_TIMEOUT_MS: '4000',
    VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  await using nodes = new AsyncDisposableStack()
  const sinks = [{ name: 'items', tables: ['public.item'], partitions: 4, ack_wait_ms: 2_000 }]
  const prepare = async () => nodes.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks, env }))
  const services = [await prepare(), await prepare(), await prepare()]
  await services[0]!.startReady()
  for (const service of services) service.forgetConfigFile()
  await Promise.all(services.slice(1).map((service) => service.startReady()))
  const client = new ReplayClient(services, 'items')
  await writeVersions(source, ROWS, upTo(1, 6))
  const first = await client.ackAll(ROWS * 6)
  const time = first.find(({ record }) => record.version === 5)?.metadata.commit_timestamp
  for (const [from, target] of [
    [3, { lsn: lsnOf(first, 3) }],
    [5, { time }],
  ] as const) {
    const startedAt = performance.now()
    const answer = await client.replayWhenPossible(target)
    context.diagnostic(`answered after ${Math.round(performance.now() - startedAt)} ms`)
    assertReplayed(answer, ROWS * (7 - from))
    assert.deepEqual(versionsOf(await client.ackAll(ROWS * (7 - from))), all(from, 6))
  }

  assert.equal((await (services[1] as Service).patch('/api/sinks/items', { partitions: 3 })).status, 200)
  await writeVersions(source, ROWS, upTo(7, 9))
  await client.ackAll(ROWS * 3)
  const back = await client.replayWhenPossible({ lsn: lsnOf(first, 4) })
  assertReplayed(back, ROWS * 6)
  assert.deepEqual(versionsOf(await client.ackAll(ROWS * 6)), all(4, 9))
  assert.deepEqual(await client.receive(10), [])

  const [asked, other, dying] = services as [Service, Service, Service]
  const left = new ReplayClient([asked, other], 'items')
  const target = { lsn: lsnOf(first, 6) }
  const replaying = new ReplayClient(asked, 'items').replay(target)
  await pass(30, 'the process dies in the middle of it')
  await dying.kill()
  const { status } = await replaying
  if (status !== 200) assert.equal((await left.replayWhenPossible(target)).status, 200)
  assert.deepEqual(versionsOf(await left.ackAll(ROWS * 4)), all(6, 9))
})

/** A try that was answered with another one may have set back a part already, which the last one does not count. */
function assertReplayed({ status, body, tries }: Awaited<ReturnType<ReplayClient['replayWhenPossible']>>, messages: number): void {
  assert.deepEqual([status, body.partitions, tries > 1 || body.messages], [200, 4, tries > 1 || messages], JSON.stringify(body))
}
