/** With the log in Kafka any process of a cluster sets a sink back, and all of them deliver it from there. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { kafkaBrokers } from '../services/kafka.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { firstVersionsOf, ReplayClient, versionsOf, writeVersions, type Item } from './replay-client.ts'
import { Service } from './service.ts'
import { pass } from '../waiting.ts'

const ROWS = 12
const PARTITIONS = 4
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
    KAFKA_SESSION_TIMEOUT_MS: '8000',
    VAULT_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  await using nodes = new AsyncDisposableStack()
  const sinks = [{ name: 'items', tables: ['public.item'], partitions: PARTITIONS, ack_wait_ms: 2_000 }]
  const prepare = async () => nodes.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks, env }))
  const services = [await prepare(), await prepare(), await prepare()]
  await services[0]!.startReady()
  for (const service of services) service.forgetConfigFile()
  await Promise.all(services.slice(1).map((service) => service.startReady()))
  const client = new ReplayClient(services, 'items')
  await writeVersions(source, ROWS, upTo(1, 6))
  const first = await client.ackVersions(ROWS, upTo(1, 6))
  const time = first.find(({ record }) => record.version === 5)?.metadata.commit_timestamp
  for (const [from, target] of [
    [3, { lsn: lsnOf(first, 3) }],
    [5, { time }],
  ] as const) {
    const startedAt = performance.now()
    const answer = await client.replayWhenPossible(target)
    context.diagnostic(`answered after ${Math.round(performance.now() - startedAt)} ms`)
    const again = await client.ackVersions(ROWS, upTo(from, 6))
    const disturbed = wereDisturbed(services)
    assertReplayed(answer, ROWS * (7 - from), disturbed)
    assertCame(again, [from, 6], disturbed)
  }

  assert.equal((await (services[1] as Service).patch('/api/sinks/items', { partitions: 3 })).status, 200)
  await writeVersions(source, ROWS, upTo(7, 9))
  await client.ackVersions(ROWS, upTo(7, 9))
  const back = await client.replayWhenPossible({ lsn: lsnOf(first, 4) })
  const again = await client.ackVersions(ROWS, upTo(4, 9))
  const disturbed = wereDisturbed(services, PARTITIONS)
  assertReplayed(back, ROWS * 6, disturbed)
  assertCame(again, [4, 9], disturbed)
  const rest = await client.receive(10)
  if (!disturbed) assert.deepEqual(rest, [])
  await client.ack(rest)

  const [asked, other, dying] = services as [Service, Service, Service]
  const left = new ReplayClient([asked, other], 'items')
  const target = { lsn: lsnOf(first, 6) }
  const replaying = new ReplayClient(asked, 'items').replay(target)
  await pass(30, 'the process dies in the middle of it')
  await dying.kill()
  const { status } = await replaying
  if (status !== 200) assert.equal((await left.replayWhenPossible(target)).status, 200)
  assertCame(await left.ackVersions(ROWS, upTo(6, 9)), [6, 9], wereDisturbed(services, PARTITIONS))
})

/**
 * Whether one of the processes has lost the source or a partition, as those do that a busy machine leaves without a turn for seconds.
 * Then what was under way comes once more, as after a crash, and stands in the log twice where the source sent it again.
 * @param lostByReplay partitions that a replay takes from their owners, when it goes back to a former generation
 */
function wereDisturbed(services: readonly Service[], lostByReplay = 0): boolean {
  const log = services.map((service) => service.log()).join('')
  return log.includes('the source does not stream') || log.split('a partition has another owner').length - 1 > lostByReplay
}

type Answer = Awaited<ReturnType<ReplayClient['replayWhenPossible']>>

/** A try that was answered with another one may have set back a part already, which the last one does not count. */
function assertReplayed({ status, body, tries }: Answer, messages: number, disturbed: boolean): void {
  assert.deepEqual([status, body.partitions], [200, PARTITIONS], JSON.stringify(body))
  if (tries === 1) assert.ok(disturbed ? body.messages >= messages : body.messages === messages, JSON.stringify(body))
}

/** Every version has come, in order; once, unless a process was disturbed. */
function assertCame(messages: readonly Item[], [from, to]: readonly [number, number], disturbed: boolean): void {
  if (disturbed) assert.deepEqual(firstVersionsOf(messages.filter(({ record }) => record.version >= from)), all(from, to))
  else assert.deepEqual(versionsOf(messages), all(from, to))
}
