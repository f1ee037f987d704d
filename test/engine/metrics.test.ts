import assert from 'node:assert/strict'
import { syncBuiltinESMExports } from 'node:module'
import performance from 'node:perf_hooks'
import { test } from 'node:test'
import { LATENCY_BUCKETS_US, LatencyCounts } from '../../engine/latency.ts'
import { Metrics } from '../../engine/metrics.ts'
import type { PartitionStatus, SinkActorStatus, SourceFigures } from '../../engine/status.ts'
import { SEQUIN_METRICS } from './sequin-metrics.ts'
import { pass, until } from '../waiting.ts'

const SINK = { id: 'sink-1', name: 'goods' }
const SOURCE = { slotId: 'slot-1', slotName: 'goods_slot', databaseId: 'db-1', databaseName: 'shop' }
const READER = { sinkId: SINK.id, sink: SINK.name, generation: 1, state: 'reading', status: 'active', partitions: [] } as const
const FIGURES: SourceFigures = {
  ...{ confirmedLsn: 100n, durableLsn: 110n, receivedLsn: 117n, bytesInFlight: 0, pausedMs: 0, pauseCauses: [], lastCommitUs: 0 },
  ...{ history: 0, routingVersion: 1, decodingPercent: 1, appendingPercent: 1 },
}
const statusOf = (partitions: readonly PartitionStatus[]): SinkActorStatus => ({
  ...{ id: 'sink/sink-1', kind: 'sink', state: 'active', partitions },
  details: {
    generation: 1,
    partitions: partitions.length,
    ackPending: 0,
    keptMessages: 0,
    unfinished: 0,
    parked: 0,
    oldestMs: 0,
    readyPercent: 0,
  },
})
const newMetrics = () => new Metrics({ version: '9.9.9', processMetrics: false })
const linesOf = (text: string, name: string) => text.split('\n').filter((line) => line.startsWith(`${name}{`))

test('every metric of the Sequin API is described under its own name, kind included', async () => {
  const text = await newMetrics().text()
  for (const name of SEQUIN_METRICS) assert.match(text, new RegExp(`^# TYPE sequin_${name} (counter|gauge|histogram)$`, 'm'))
  assert.match(text, /^# TYPE sequin_internal_latency_us histogram$/m)
  assert.match(text, /^# TYPE sequin_messages_ingested_count counter$/m)
})

const SLOT_STATE = {
  ...{ retainedBytes: 3 * 1_048_576, confirmedBytes: 18, walStatus: 'reserved', safeWalBytes: 7_000, secondsUntilLost: 70 },
  ...{ catalogXminAge: 5, oldest: { xid: '7', pid: 8, prepared: null, seconds: 9 }, spilled: { transactions: 2, times: 3, bytes: 400 } },
}

test('counts add up over batches and stand beside the gauges of the moment', async () => {
  const metrics = newMetrics()
  let inFlight = 3
  const sink = metrics.sink(SINK, () => ({
    status: statusOf([
      { partition: 2, state: 'running', lag: 5, parked: 1, windowBytes: 7, logBytes: 9, delivered: 12, keptBytes: 4, keptMessages: 6 },
      { partition: 3, state: 'running', inFlight, windowBytes: 64 * 1_048_576 - 7 },
    ]),
    health: 'warning',
    maxMemoryMb: 128,
    dropped: 0,
  }))
  const source = metrics.source(SOURCE, () => ({
    state: 'opening',
    backfills: [],
    figures: undefined,
    slot: { state: SLOT_STATE, error: undefined },
    streams: [
      {
        ...{ topic: 'stream.1.a', bytes: 40, databaseId: 'db-1', database: 'shop', accountId: 'a-1', partitions: 1, selects: undefined },
        readers: [
          { ...READER, backlogBytes: 3, othersBytes: 4, heldBytes: 30 },
          { ...READER, generation: 2, backlogBytes: 2, othersBytes: 5, heldBytes: 1 },
          { ...READER, sinkId: 'sink-2', sink: 'quick', backlogBytes: 0, othersBytes: 0, heldBytes: 0 },
        ],
      },
    ],
  }))
  const down = { ...SOURCE, slotId: 'slot-2', databaseId: 'db-2' }
  metrics.source(down, () => ({
    state: 'waiting',
    figures: FIGURES,
    slot: { state: undefined, error: new Error('away') },
    streams: [],
    backfills: [],
  }))
  sink.attempted(10, 6_000)
  sink.attempted(5, 3_000)
  sink.delivered(12, 20_000)
  sink.failed(3, 60_000_000)
  source.ingested(100, 50_000)
  source.appended(
    [
      { topic: 'stream.1.a', pack: Buffer.alloc(30) },
      { topic: 'stream.2.b', pack: Buffer.alloc(7) },
    ],
    99,
  )
  source.appended([{ topic: 'stream.1.a', pack: Buffer.alloc(20) }], 1_234)
  source.ingested(1, 10)
  const text = await metrics.text()
  const sinkLabels = 'consumer_id="sink-1",consumer_name="goods"'
  const streamLabels = 'stream="stream.1.a",database_id="db-1",database_name="shop"'
  const slotLabels = 'replication_slot_id="slot-1",slot_name="goods_slot"'
  for (const line of [
    `sequin_message_deliver_attempt_count{${sinkLabels}} 15`,
    `sequin_message_deliver_success_count{${sinkLabels}} 12`,
    `sequin_message_deliver_failure_count{${sinkLabels}} 3`,
    `sequin_bytes_delivered_total{${sinkLabels}} 9000`,
    `sequin_messages_in_delivery{${sinkLabels}} 3`,
    `sequin_buffer_memory_utilization_mb{${sinkLabels}} 64`,
    `sequin_buffer_memory_utilization_percent{${sinkLabels}} 50`,
    `sequin_messages_ingested_count{${slotLabels}} 101`,
    `sequin_bytes_ingested_total{${slotLabels}} 50010`,
    `sequin_ingestion_latency_us{${slotLabels}} 1234`,
    `sequin_replication_slot_size{${slotLabels},database_id="db-1",database_name="shop"} 3145728`,
    `sequin_replication_slot_size_mb{${slotLabels},database_id="db-1",database_name="shop"} 3`,
    `tailrace_slot_confirmed_lag_bytes{replication_slot_id="slot-2",slot_name="goods_slot"} 17`,
    `tailrace_slot_confirmed_lag_bytes{${slotLabels}} 18`,
    `tailrace_slot_safe_wal_bytes{${slotLabels}} 7000`,
    `tailrace_slot_seconds_until_lost{${slotLabels}} 70`,
    `tailrace_slot_oldest_transaction_seconds{${slotLabels}} 9`,
    `tailrace_slot_spilled_transactions_count{${slotLabels}} 2`,
    `tailrace_slot_spilled_bytes_total{${slotLabels}} 400`,
    `tailrace_slot_restart_lag_bytes{${slotLabels}} 3145728`,
    `tailrace_stream_appended_bytes_total{${streamLabels}} 50`,
    `tailrace_stream_appended_bytes_total{stream="stream.2.b",database_id="db-1",database_name="shop"} 7`,
    `tailrace_stream_kept_bytes{${streamLabels}} 40`,
    `tailrace_stream_readers{${streamLabels}} 2`,
    `tailrace_reader_backlog_bytes{${streamLabels},${sinkLabels}} 5`,
    `tailrace_reader_held_bytes{${streamLabels},${sinkLabels}} 31`,
    `tailrace_reader_held_bytes{${streamLabels},consumer_id="sink-2",consumer_name="quick"} 0`,
    `tailrace_partition_lag_records{${sinkLabels},partition="2"} 5`,
    `tailrace_partition_parked_messages{${sinkLabels},partition="2"} 1`,
    `tailrace_partition_window_bytes{${sinkLabels},partition="2"} 7`,
    `tailrace_partition_log_bytes{${sinkLabels},partition="2"} 9`,
    `tailrace_partition_kept_bytes{${sinkLabels},partition="2"} 4`,
    `tailrace_partition_kept_messages{${sinkLabels},partition="2"} 6`,
    `tailrace_partition_delivered_count{${sinkLabels},partition="2"} 12`,
    `sequin_entity_health{entity_type="sink",entity_id="sink-1",entity_name="goods",status="warn"} 1`,
    `sequin_entity_health{entity_type="sink",entity_id="sink-1",entity_name="goods",status="ok"} 0`,
    `sequin_entity_health{entity_type="database",entity_id="db-2",entity_name="shop",status="error"} 1`,
    `sequin_entity_health{entity_type="replication_slot",entity_id="slot-1",entity_name="goods_slot",status="ok"} 1`,
    `sequin_delivery_latency_us_bucket{${sinkLabels},success="ok",le="10000"} 0`,
    `sequin_delivery_latency_us_bucket{${sinkLabels},success="ok",le="50000"} 12`,
    `sequin_delivery_latency_us_bucket{${sinkLabels},success="error",le="50000000"} 0`,
    `sequin_delivery_latency_us_bucket{${sinkLabels},success="error",le="+Inf"} 3`,
    `sequin_delivery_latency_us_count{${sinkLabels},success="error"} 3`,
    `sequin_delivery_latency_us_sum{${sinkLabels},success="ok"} 240000`,
  ]) {
    assert.ok(text.split('\n').includes(line), `missing: ${line}`)
  }
  assert.deepEqual(linesOf(text, 'sequin_ingestion_saturation_percent'), [], 'what is not known has no line')
  inFlight = 8
  assert.ok((await metrics.text()).includes(`sequin_messages_in_delivery{${sinkLabels}} 8`))
  assert.ok((await metrics.text()).includes(`sequin_message_deliver_attempt_count{${sinkLabels}} 15`), 'a scrape counts nothing twice')
})

test('a latency falls in the first bucket whose bound it does not exceed, as often as it was seen', () => {
  const counts = new LatencyCounts()
  counts.add(10)
  counts.add(11, 4)
  counts.add(5e7)
  counts.add(5e7 + 1, 2)
  counts.add(-5) // a clock that ran backwards
  const { upTo, count, sum } = counts.cumulative()
  assert.deepEqual(upTo, [2, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7])
  assert.equal(upTo.length, LATENCY_BUCKETS_US.length)
  assert.deepEqual([count, sum], [9, 10 + 44 + 5e7 + 2 * (5e7 + 1)])
})

test('what was disposed of leaves the answer, a successor of the same id stays, and a callback that throws costs its own lines only', async () => {
  const metrics = newMetrics()
  const before = metrics.sink(SINK, () => ({ status: statusOf([]), health: 'healthy', maxMemoryMb: 1, dropped: 0 }))
  const after = metrics.sink({ ...SINK, name: 'renamed' }, () => {
    throw new Error('not now')
  })
  after.attempted(1, 1)
  before[Symbol.dispose]()
  const text = await metrics.text()
  assert.deepEqual(linesOf(text, 'sequin_message_deliver_attempt_count'), [
    'sequin_message_deliver_attempt_count{consumer_id="sink-1",consumer_name="renamed"} 1',
  ])
  assert.deepEqual(linesOf(text, 'sequin_entity_health'), [])
  after[Symbol.dispose]()
  assert.deepEqual(linesOf(await metrics.text(), 'sequin_message_deliver_attempt_count'), [])
})

test('Node’s own figures and the version are there', async () => {
  const text = await new Metrics({ version: '9.9.9' }).text()
  assert.match(text, /^process_resident_memory_bytes \d+$/m)
  assert.match(text, /^nodejs_eventloop_lag_p99_seconds /m)
  assert.match(text, /^tailrace_build_info\{version="9.9.9"\} 1$/m)
})

test('the lag of the event loop is looked for ten times a second at most, and is what exceeds the time between two looks', async (t) => {
  const looks = t.mock.method(performance, 'monitorEventLoopDelay')
  syncBuiltinESMExports()
  t.after(() => syncBuiltinESMExports())
  const metrics = new Metrics({ version: '9.9.9' })
  await metrics.open()
  const asked = looks.mock.calls.map((call) => call.arguments[0]?.resolution ?? 10)
  assert.ok(asked.length > 0 && asked.every((ms) => ms >= 100), asked.join(', '))
  const lag = async () => Number(/^nodejs_eventloop_lag_max_seconds (.*)$/m.exec(await metrics.text())?.[1])
  await until('the lag is found', async () => {
    await pass(150, 'a look')
    const busyUntil = Date.now() + 250
    while (Date.now() < busyUntil);
    await pass(20, 'the next look, which was due meanwhile')
    return (await lag()) >= 0.1
  })
})
