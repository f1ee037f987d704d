/** What the metrics say after real traffic: messages from Postgres, some acked, some returned, some forgotten. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { SEQUIN_METRICS } from '../engine/sequin-metrics.ts'
import { applyYaml, databaseEntry, startNode, type EngineNode } from './engine-node.ts'
import { gather, until } from '../waiting.ts'

/** of what is to lapse; before that nothing does, however busy the machine */
const ACK_WAIT_MS = 500

const config = (source: TestDatabase) => `
account: { name: shop }
databases: [${databaseEntry(source)}]
sinks:
  - { name: goods, database: shop, source: {}, destination: { type: sequin_stream } }
`

type Sample = Readonly<{ name: string; labels: Readonly<Record<string, string>>; value: number }>

/** Lines of an answer to a scrape. */
function samplesOf(text: string): Sample[] {
  return text.split('\n').flatMap((line) => {
    const [, name, labels = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? []
    if (name === undefined) return []
    const pairs = [...labels.matchAll(/(\w+)="([^"]*)"/g)].map(([, key, text]) => [key, text] as const)
    return [{ name, labels: Object.fromEntries(pairs), value: Number(value) }]
  })
}

async function scrape(node: EngineNode): Promise<Sample[]> {
  return samplesOf(await node.metrics.text())
}

/** The one sample of a name, among those with these labels. */
function one(samples: readonly Sample[], name: string, labels: Readonly<Record<string, string>> = {}): number {
  const found = samples.filter((s) => s.name === name && Object.entries(labels).every(([key, value]) => s.labels[key] === value))
  assert.equal(found.length, 1, `${name} ${JSON.stringify(labels)}: ${found.length} samples`)
  return (found[0] as Sample).value
}

const isAllRead = ({ name, value }: Sample) => name === 'sequin_messages_buffered' && value === 10

test('after messages were acked, returned and forgotten the metrics say how many, and every one of the Sequin API has a value', async () => {
  await using state = await createState()
  await using source = await createDatabase('create table goods (id int primary key)')
  await applyYaml(state.connection, config(source))
  await using node = await startNode({ name: 'only', state: state.connection })
  const sink = await until('the sink runs', async () => node.engine.sink(node.cache.sinks[0]?.id ?? ''))
  await source.query('insert into goods select generate_series(1, 10)')
  // one transaction may come in several packs
  await until('all are read', async () => (await scrape(node)).some(isAllRead))
  const receive = async (batchSize: number): Promise<string[]> => {
    const receipt = await sink.receive({ batchSize, waitMs: 10_000, shape: 'flat', signal: new AbortController().signal })
    assert.ok(receipt.count > 0, 'nothing came in 10 s')
    return (JSON.parse(receipt.body.toString()) as { data: { ack_id: string }[] }).data.map((message) => message.ack_id)
  }
  const ids = await gather<string>('six messages', (came) => receive(6 - came.length), 6)
  await sink.ack(ids.slice(0, 2))
  await sink.nack(ids.slice(2, 3))

  const before = await scrape(node)
  assert.equal(one(before, 'sequin_message_deliver_attempt_count'), 6)
  assert.equal(one(before, 'sequin_message_deliver_success_count'), 2)
  assert.equal(one(before, 'sequin_message_deliver_failure_count'), 1, 'a nack is a failure')
  assert.equal(one(before, 'sequin_messages_in_delivery'), 3)
  assert.equal(one(before, 'sequin_messages_in_redelivery'), 1, 'the one that came back')
  assert.equal(one(before, 'sequin_messages_buffered'), 8)

  await node.edits.update('sink', node.cache.sinks[0]?.id ?? '', { ack_wait_ms: ACK_WAIT_MS })
  const short = await receive(4)
  assert.equal(short[0], ids[2], 'the returned one first')
  const lapsed = await until('their visibility times have passed', async () => {
    const samples = await scrape(node)
    return one(samples, 'sequin_message_deliver_failure_count') === 1 + short.length ? samples : undefined
  })
  assert.equal(one(lapsed, 'sequin_message_deliver_attempt_count'), 6 + short.length)
  assert.equal(one(lapsed, 'sequin_message_deliver_success_count'), 2)
  assert.equal(one(lapsed, 'sequin_messages_in_delivery'), 3)
  assert.equal(one(lapsed, 'sequin_messages_in_redelivery'), short.length)
  assert.equal(one(lapsed, 'sequin_messages_buffered'), 8)
  assert.ok(one(lapsed, 'sequin_oldest_message_age_ms') >= ACK_WAIT_MS, 'the oldest is older than a visibility time')
  assert.equal(one(lapsed, 'sequin_delivery_latency_us_count', { success: 'ok' }), 2)
  assert.equal(one(lapsed, 'sequin_delivery_latency_us_count', { success: 'error' }), 1 + short.length)
  assert.ok(one(lapsed, 'sequin_delivery_latency_us_sum', { success: 'error' }) >= short.length * ACK_WAIT_MS * 1000)
  assert.equal(one(lapsed, 'sequin_messages_ingested_count'), 10)

  // asked by the source on its own, not by the scrape
  const asked = await until('the size of the slot is known', async () => {
    const samples = await scrape(node)
    return samples.some(({ name }) => name === 'sequin_replication_slot_size') ? samples : undefined
  })
  const bytes = one(asked, 'sequin_replication_slot_size')
  const [slot] = await source.query(
    `select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 as retained from pg_replication_slots where slot_name = $1`,
    [`s_${source.name}`],
  )
  assert.ok(
    bytes > 0 && bytes <= Number(slot?.['retained']) + 64 * 2 ** 20,
    `${bytes} bytes, the server says ${String(slot?.['retained'])}`,
  )
  assert.equal(one(asked, 'sequin_replication_slot_size_mb'), bytes / 2 ** 20)
  assert.equal(one(asked, 'tailrace_slot_restart_lag_bytes'), bytes)
  assert.equal(one(asked, 'sequin_entity_health', { entity_type: 'database', status: 'ok' }), 1)

  const saturated = await until('messages lie ready and nobody asks', async () => {
    const samples = await scrape(node)
    return one(samples, 'sequin_delivery_saturation_percent') > 0 ? samples : undefined
  })
  for (const { name, value } of saturated.filter((s) => s.name.endsWith('_saturation_percent'))) {
    assert.ok(value >= 0 && value <= 100, `${name} is ${value}`)
  }
  const names = new Set(saturated.map(({ name }) => name.replace(/_(bucket|sum|count)$/, '')).concat(saturated.map(({ name }) => name)))
  assert.deepEqual(
    SEQUIN_METRICS.filter((name) => !names.has(`sequin_${name}`)),
    [],
    'metrics of the Sequin API without a sample',
  )
})
