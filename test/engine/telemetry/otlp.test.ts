/** What is sent to a collector, and what becomes of it while the collector takes nothing. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLogger } from '../../../engine/logger.ts'
import { Metrics } from '../../../engine/metrics.ts'
import { Telemetry } from '../../../engine/telemetry/otlp.ts'
import type { TelemetrySettings } from '../../../engine/telemetry/settings.ts'
import type { Span } from '../../../engine/telemetry/span.ts'
import { attributesOf, OtlpReceiver } from '../../services/otlp-receiver.ts'
import { freePort } from '../../services/free-port.ts'
import { until } from '../../waiting.ts'

const SPAN: Span = {
  context: { traceId: 'a'.repeat(32), spanId: 'b'.repeat(16), isSampled: true, state: 'vendor=1' },
  parent: { traceId: 'a'.repeat(32), spanId: 'c'.repeat(16), isSampled: true },
  name: 'deliver goods',
  kind: 'producer',
  from: 1_700_000_000_000.25,
  until: 1_700_000_000_001.5,
  attributes: { 'tailrace.commit_idx': 3 },
  events: [{ name: 'handed out', at: 1_700_000_000_001 }],
  failure: 'given up',
}

function begin(settings: TelemetrySettings) {
  const lines: Record<string, unknown>[] = []
  const destination = { write: (line: string) => void lines.push(JSON.parse(line) as Record<string, unknown>) }
  const logger = createLogger({ level: 'info', format: 'json', destination })
  const metrics = new Metrics({ version: '9.9.9', processMetrics: false })
  const telemetry = new Telemetry({ settings, metrics, logger, version: '9.9.9', instance: 'node/1' })
  const ended = (span: Span) => telemetry.tracing?.spans.ended(span)
  return { lines, metrics, telemetry, ended }
}

test('the metrics of a scrape are sent under their names and labels, with the last ones at the stop', async () => {
  await using collector = await OtlpReceiver.start()
  const { metrics, telemetry } = begin(collector.settings())
  const sink = metrics.sink({ id: 'sink-1', name: 'goods' }, () => undefined)
  sink.attempted(5, 700)
  sink.waited(2, 50)
  sink.waited(1, 200_000_000)
  metrics.errorAnswered('NOT_FOUND')
  const text = await metrics.text()
  await telemetry.endMetrics()
  sink[Symbol.dispose]() // as a stop does next
  await telemetry[Symbol.asyncDispose]()
  const told = new Map(collector.metrics.map((metric) => [metric.name, metric]))
  assert.deepEqual(
    [...told.keys()].sort(),
    [...text.matchAll(/^# TYPE (\w+)/gm)].map(([, name]) => name).sort(),
    'the same list as /metrics',
  )
  const attempts = told.get('sequin_message_deliver_attempt_count')?.sum
  assert.equal(attempts?.isMonotonic, true)
  assert.equal(attempts?.aggregationTemporality, 2, 'cumulative')
  assert.equal(attempts?.dataPoints[0]?.asDouble, 5)
  assert.deepEqual(attributesOf(attempts?.dataPoints[0]?.attributes ?? []), { consumer_id: 'sink-1', consumer_name: 'goods' })
  const [latency] = told.get('sequin_internal_latency_us')?.histogram?.dataPoints ?? []
  assert.deepEqual(latency?.explicitBounds?.slice(0, 3), [10, 100, 1_000])
  assert.deepEqual(latency?.bucketCounts, [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
  assert.deepEqual([latency?.count, latency?.sum], [3, 200_000_100])
  assert.equal(told.get('tailrace_build_info')?.gauge?.dataPoints[0]?.asDouble, 1)
  assert.equal(collector.http.requests[0]?.headers['authorization'], 'Bearer very-secret')
})

test('metrics come at each interval, in the binary form unless JSON is asked for', async () => {
  await using collector = await OtlpReceiver.start()
  const { telemetry } = begin({ ...collector.settings({ everyMs: 100 }), protocol: 'http/protobuf' })
  await collector.http.until((requests) => requests.length >= 2)
  await telemetry[Symbol.asyncDispose]()
  const [first] = collector.http.requests
  assert.equal(first?.headers['content-type'], 'application/x-protobuf')
  assert.ok(first?.body.includes('tailrace_build_info'))
  assert.ok(first?.body.includes('tailrace-test'), 'the name of the service')
})

test('a span arrives as it was told, and what is left is sent at the stop', async () => {
  await using collector = await OtlpReceiver.start()
  const { telemetry, ended } = begin({ ...collector.settings(), metrics: undefined })
  ended(SPAN)
  await telemetry[Symbol.asyncDispose]()
  const [span] = collector.spans
  assert.ok(span)
  const { traceId, spanId, parentSpanId, traceState, name, kind, startTimeUnixNano, endTimeUnixNano, status, events, attributes } = span
  assert.deepEqual([traceId, spanId, parentSpanId, traceState], ['a'.repeat(32), 'b'.repeat(16), 'c'.repeat(16), 'vendor=1'])
  assert.deepEqual([name, kind, startTimeUnixNano, endTimeUnixNano], ['deliver goods', 4, '1700000000000250000', '1700000000001500000'])
  assert.deepEqual(status, { code: 2, message: 'given up' })
  assert.deepEqual([events, attributes], [['handed out'], { 'tailrace.commit_idx': 3 }])
})

test('of a collector that is down there is one warning, without the headers, and a line when it is back', async () => {
  const port = await freePort()
  const target = { url: `http://127.0.0.1:${port}/v1/metrics`, headers: { authorization: 'Bearer very-secret' } }
  const { telemetry, lines } = begin({ protocol: 'http/json', resource: {}, metrics: { ...target, everyMs: 100 }, traces: undefined })
  await until('the warning', () => lines.length > 0)
  await using collector = await OtlpReceiver.start(() => ({ status: 401 }), { port })
  await collector.http.until((requests) => requests.length >= 3)
  assert.equal(lines.length, 1, 'refused again and again, and told once')
  collector.http.handler = () => ({})
  await until('it is told that they are taken', () => lines.length > 1)
  await telemetry[Symbol.asyncDispose]()
  assert.deepEqual(
    lines.map(({ level, code, signal }) => ({ level, code, signal })),
    [
      { level: 'warn', code: 'TELEMETRY_REFUSED', signal: 'metrics' },
      { level: 'info', code: undefined, signal: 'metrics' },
    ],
  )
  assert.doesNotMatch(JSON.stringify(lines), /very-secret/)
})

test('a collector that does not answer holds up no stop, and spans that it does not take are left out beyond a bound', async () => {
  await using collector = await OtlpReceiver.start(() => 'hang')
  const { telemetry, ended } = begin(collector.settings())
  for (let i = 0; i < 10_000; i++) ended({ ...SPAN, context: { ...SPAN.context, spanId: i.toString(16).padStart(16, '0') } })
  await collector.http.until((requests) => requests.length >= 1)
  await telemetry.endMetrics()
  await telemetry[Symbol.asyncDispose]()
  assert.ok(collector.spans.length <= 2_048 + 512, `${collector.spans.length} spans were kept`)
})
