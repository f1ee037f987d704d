/** Traces of messages from Postgres to a webhook and to a client that asks, as a collector gets them. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { attributesOf, OtlpReceiver, type GotSpan } from '../services/otlp-receiver.ts'
import { HttpReceiver, type Reply } from '../services/http-receiver.ts'
import { createDatabase, createState } from '../services/postgres.ts'
import { until } from '../waiting.ts'
import { applyYaml, databaseEntry, startNode } from './engine-node.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'
const traceparent = (flags: string) => `00-${TRACE}-${SPAN}-${flags}`

/** A service with a webhook and a pull sink, which traces what its writers do. */
async function traced({ ratio = 0, hasFunction = false }: { ratio?: number; hasFunction?: boolean } = {}) {
  await using parts = new AsyncDisposableStack()
  const collector = parts.use(await OtlpReceiver.start())
  const hook = parts.use(await HttpReceiver.start())
  const state = parts.use(await createState())
  const source = parts.use(await createDatabase('create table item (id int primary key, name text, trace text)'))
  await applyYaml(
    state.connection,
    `
account: { name: shop }
http_endpoints: [{ name: hook, url: "${hook.url}/in" }]
databases: [${databaseEntry(source)}]
${hasFunction ? 'functions: [{ name: slim, type: transform, code: "export default (action, record) => ({ id: record.id })" }]' : ''}
sinks:
  - { name: hooked, database: shop, source: {}, batch_size: 1, traceparent_column: trace, ${hasFunction ? 'transform: slim, ' : ''}destination: { type: webhook, http_endpoint: hook, batch: false } }
  - { name: pulled, database: shop, source: {}, destination: { type: sequin_stream } }
`,
  )
  const node = parts.use(await startNode({ name: 'only', state: state.connection, telemetry: collector.settings({ ratio }) }))
  const pulled = await until('the pull sink runs', () => node.engine.sink(node.cache.sinks.find(({ name }) => name === 'pulled')?.id ?? ''))
  const receive = async () => {
    const receipt = await pulled.receive({ batchSize: 1, waitMs: 30_000, shape: 'flat', signal: new AbortController().signal })
    return JSON.parse(receipt.body.toString()) as { data: { ack_id: string; metadata: { transaction_annotations: unknown } }[] }
  }
  const write = (id: number, name: string, annotations?: object) => {
    const annotate = `select pg_logical_emit_message(true, 'tailrace:transaction_annotations.set', '${JSON.stringify(annotations)}');`
    return source.query(`${annotations ? annotate : ''} insert into item values (${id}, '${name}')`)
  }
  /** Stops the service, which sends what is left. @returns all spans, by name */
  const spans = async (): Promise<ReadonlyMap<string, readonly GotSpan[]>> => {
    await node.stop()
    return Map.groupBy(collector.spans, ({ name }) => name)
  }
  const owned = parts.move()
  return { collector, hook, source, node, receive, write, pulled, spans, [Symbol.asyncDispose]: () => owned.disposeAsync() }
}

test('a message whose writer is traced goes on in its trace: to the webhook by header, to the client in its metadata', async () => {
  await using t = await traced({ hasFunction: true })
  const replies: Reply[] = [{ status: 500, body: 'hunter2X' }]
  t.hook.handler = () => replies.shift() ?? {}
  await t.write(1, 'hunter2X', { traceparent: traceparent('01'), tracestate: 'vendor=1' })
  await t.hook.until((requests) => requests.length >= 2)
  const { data } = await t.receive()
  assert.deepEqual(data[0]?.metadata.transaction_annotations, { traceparent: traceparent('01'), tracestate: 'vendor=1' })
  await t.pulled.nack(data.map(({ ack_id }) => ack_id))
  await t.pulled.ack((await t.receive()).data.map(({ ack_id }) => ack_id))
  const spans = await t.spans()
  assert.deepEqual([...spans.keys()].sort(), ['deliver hooked', 'deliver pulled', 'ingest public.item', 'send hooked'])
  for (const { traceId, traceState } of [...spans.values()].flat()) assert.deepEqual([traceId, traceState], [TRACE, 'vendor=1'])
  const [[ingest], [hooked], [pulled], sent] = [
    spans.get('ingest public.item') ?? [],
    spans.get('deliver hooked') ?? [],
    spans.get('deliver pulled') ?? [],
    spans.get('send hooked') ?? [],
  ]
  assert.ok(ingest && hooked && pulled)
  assert.equal(ingest.parentSpanId, SPAN)
  assert.deepEqual([hooked.parentSpanId, pulled.parentSpanId], [ingest.spanId, ingest.spanId])
  assert.ok(hooked.startTimeUnixNano === ingest.startTimeUnixNano && hooked.endTimeUnixNano > ingest.endTimeUnixNano, 'from the commit on')
  assert.deepEqual(
    sent.map(({ parentSpanId, attributes, status }) => [parentSpanId, attributes['http.response.status_code'], status.code]),
    [
      [hooked.spanId, 500, 2],
      [hooked.spanId, 200, 0],
    ],
  )
  assert.deepEqual(
    t.hook.requests.map(({ headers: { traceparent: parent, tracestate } }) => [parent, tracestate]),
    sent.map(({ spanId }) => [`00-${TRACE}-${spanId}-01`, 'vendor=1']),
    'each request is a span, and its header names it',
  )
  assert.deepEqual(
    hooked.events.filter((name) => name !== 'given back'),
    [...['handed out', 'through functions', 'parked'], ...['handed out', 'through functions']],
  )
  assert.deepEqual(pulled.events, ['handed out', 'given back', 'handed out'])
  const { attributes } = hooked
  assert.equal(attributes['messaging.destination.name'], 'hooked')
  assert.equal(attributes['messaging.system'], 'tailrace')
  assert.equal(attributes['db.collection.name'], 'public.item')
  assert.equal(attributes['tailrace.outcome'], 'delivered')
  assert.equal(attributes['tailrace.lsn'], ingest.attributes['tailrace.lsn'])
  for (const { body } of t.collector.http.requests) assert.doesNotMatch(body.toString(), /hunter2X/, 'no value of a row')
})

test('what its writer does not trace is not: nothing is sent, and of a trace that is not recorded the header goes on', async () => {
  await using t = await traced()
  await t.write(1, 'plain')
  await t.hook.until((requests) => requests.length >= 1)
  await t.write(2, 'unsampled', { traceparent: traceparent('00') })
  await t.hook.until((requests) => requests.length >= 2)
  assert.deepEqual(
    t.hook.requests.map(({ headers }) => headers['traceparent']),
    [undefined, traceparent('00')],
  )
  await t.source.query(`insert into item values (3, 'by its row', '${traceparent('01')}')`)
  await t.hook.until((requests) => requests.length >= 3)
  const spans = await t.spans()
  assert.deepEqual([...spans.keys()].sort(), ['deliver hooked', 'send hooked'], 'the one whose row says so, of the sink that looks there')
  const [[hooked], [sent]] = [spans.get('deliver hooked') ?? [], spans.get('send hooked') ?? []]
  assert.deepEqual([hooked?.traceId, hooked?.parentSpanId], [TRACE, SPAN])
  assert.equal(t.hook.requests[2]?.headers['traceparent'], `00-${TRACE}-${sent?.spanId}-01`)
  const metric = t.collector.metrics.find(({ name }) => name === 'sequin_message_deliver_attempt_count')
  const [attempts] = metric?.sum?.dataPoints.filter(({ attributes }) => attributesOf(attributes)['consumer_name'] === 'hooked') ?? []
  assert.equal(attempts?.asDouble, 3, 'the metrics are sent at the stop')
})

test('a share of the messages is traced from their commit on, and all sinks choose the same ones', async () => {
  await using t = await traced({ ratio: 0.5 })
  for (let id = 1; id <= 12; id++) await t.write(id, 'x')
  await t.hook.until((requests) => requests.length >= 12)
  for (let id = 1; id <= 12; id++) await t.pulled.ack((await t.receive()).data.map(({ ack_id }) => ack_id))
  const spans = await t.spans()
  const tracesOf = (name: string) => new Set((spans.get(name) ?? []).map(({ traceId }) => traceId))
  const ingested = tracesOf('ingest public.item')
  assert.deepEqual(tracesOf('deliver hooked'), ingested)
  assert.deepEqual(tracesOf('deliver pulled'), ingested)
  const given = t.hook.requests.flatMap(({ headers }) => (headers['traceparent'] === undefined ? [] : [headers['traceparent']]))
  assert.deepEqual(new Set(given.map((parent) => String(parent).split('-')[1])), ingested)
})
