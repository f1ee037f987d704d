/** Which messages are traced, and the ids of their traces. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { MessageTraces } from '../../../actors/tracing/message-traces.ts'
import { PackBuilder } from '../../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../../engine/log/pack.ts'
import { PART, type Part } from '../../../engine/position.ts'
import type { Span } from '../../../engine/telemetry/span.ts'
import { DATABASE } from '../sink-fixture.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'
const COMMITTED_US = 1_700_000_000_000_000

type Row = Readonly<{ annotations?: unknown; record?: object; part?: Part; flags?: number; body?: string }>

/** A pack with one transaction. */
function packOf(rows: readonly Row[], { lsn = 4096n, committedUs = COMMITTED_US } = {}): Buffer {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(lsn, 1, committedUs)
  for (const [idx, { annotations = null, record = { id: idx }, part = PART.row, flags = 0, body }] of rows.entries()) {
    const text = `"record":${JSON.stringify(record)},"changes":null,"action":"insert","metadata":{"table_schema":"public","table_name":"item","commit_idx":${idx},"record_pks":["1"],"transaction_annotations":${JSON.stringify(annotations)}`
    builder.bodies.copy(Buffer.from(`["1"]${body ?? text}`))
    builder.add(idx, part, ACTION.insert, 16_384, flags, idx, 5, 0)
  }
  return builder.encode()
}

function tracesOf({ ratio = 0, byParent = true } = {}) {
  const spans: Span[] = []
  const traces = new MessageTraces({ spans: { ended: (span) => void spans.push(span) }, sampling: { ratio, byParent } }, DATABASE)
  const of = (record: Buffer, column: string | null = null) => {
    const view = Pack.decode(record)
    return Array.from({ length: view.count }, (_, place) => traces.of({ view, place }, column))
  }
  return { traces, spans, of }
}
const appendOf = (...packs: Buffer[]) => ({
  records: packs.map((pack, i) => ({ topic: `stream.${i}`, partition: 0, pack })),
  progress: { source: DATABASE.id, position: { history: 0, lsn: 4096n, idx: 0, part: PART.row } },
  ...{ messages: 1, bytes: 1, oldestCommitUs: COMMITTED_US, readAtMs: COMMITTED_US / 1_000 + 2 },
})

test('about as many messages as the share says are chosen, and the same ones whenever and wherever it is asked', () => {
  const packs = Array.from({ length: 20 }, (_, i) =>
    packOf(
      Array.from({ length: 500 }, (): Row => ({})),
      { committedUs: COMMITTED_US + i * 977 },
    ),
  )
  const chosen = () => {
    const { of } = tracesOf({ ratio: 0.05 })
    return packs.flatMap((pack) => of(pack).map((trace) => trace?.parent.spanId))
  }
  const first = chosen()
  const count = first.filter((id) => id !== undefined).length
  assert.ok(count > 400 && count < 600, `${count} of 10000`)
  assert.deepEqual(chosen(), first)
  assert.equal(packs.flatMap((pack) => tracesOf({ ratio: 1 }).of(pack)).filter((trace) => !trace).length, 0)
  assert.equal(packs.flatMap((pack) => tracesOf({ ratio: 0 }).of(pack)).filter((trace) => trace).length, 0)
})

test('the writer of a transaction decides by its trace context, wherever its JSON stands', () => {
  const sampled = { user: 'u-9', traceparent: `00-${TRACE}-${SPAN}-01`, tracestate: 'vendor=1' }
  const nested = { transaction_annotations: { traceparent: `00-${'a'.repeat(32)}-${SPAN}-01` } }
  const rows: Row[] = [
    { annotations: sampled },
    { annotations: sampled, record: { metadata: { transaction_annotations: 'of the row' } } },
    { annotations: { ...sampled, traceparent: `00-${TRACE}-${SPAN}-00` } },
    {},
    ...[nested, 'null', [], 5, { traceparent: 'x' }].map((annotations) => ({ annotations })),
    { annotations: sampled },
  ]
  const { of } = tracesOf({ ratio: 0 })
  const found = of(packOf(rows))
  assert.deepEqual(
    found.map((trace) => trace?.parent.traceId),
    [TRACE, TRACE, ...Array.from({ length: 7 }, () => undefined), TRACE],
  )
  assert.equal(found[0]?.parent.state, 'vendor=1')
  assert.equal(
    new Set([found[0], found[1], found.at(-1)].map((trace) => trace?.parent.spanId)).size,
    3,
    'each change has a span of its own',
  )
  const alone = tracesOf({ ratio: 1, byParent: false }).of(packOf(rows))
  assert.equal(alone[2]?.parent.traceId, TRACE, 'in the trace of the writer, although the share decides')
})

test('the span of a change goes from its commit to its being durable, once for all streams that it stands in', () => {
  const { traces, spans } = tracesOf({ ratio: 1 })
  const rows = [{ annotations: { traceparent: `00-${TRACE}-${SPAN}-01` }, record: { secret: 'hunter2X' } }]
  traces.appended(appendOf(packOf(rows), packOf(rows)))
  const [span, ...others] = spans
  assert.deepEqual(others, [])
  assert.ok(span)
  assert.deepEqual([span.name, span.from, span.parent?.spanId], ['ingest public.item', COMMITTED_US / 1_000, SPAN])
  assert.deepEqual(span.attributes, {
    'db.system.name': 'postgresql',
    'db.namespace': DATABASE.connection.database,
    'db.collection.name': 'public.item',
    'db.operation.name': 'insert',
    'tailrace.lsn': '0/1000',
    'tailrace.commit_idx': 0,
    'tailrace.stream': 'stream.0',
  })
  assert.deepEqual(
    span.events?.map(({ name }) => name),
    ['read from the write-ahead log'],
  )
  assert.doesNotMatch(JSON.stringify(spans), /hunter2X/)
})

test('messages without a row of their own are traced, too', () => {
  const { traces, spans } = tracesOf({ ratio: 1 })
  const tombstone: Row = { part: PART.tombstone, flags: MESSAGE_FLAG.tombstone }
  traces.appended(appendOf(packOf([tombstone, { flags: MESSAGE_FLAG.discarded, body: '{"bytes":70000000}' }])))
  assert.equal(spans.length, 2)
})

test('a column of the row names the span that deliveries are children of, before the annotations', () => {
  const inRow = `00-${'c'.repeat(32)}-${'d'.repeat(16)}-01`
  const annotations = { traceparent: `00-${TRACE}-${SPAN}-01` }
  const rows: Row[] = [
    { record: { id: 1, meta: { trace: 'x' }, trace: inRow }, annotations },
    { record: { id: 2, trace: inRow.replace(/1$/, '0') }, annotations },
    ...[null, 7, { deep: inRow }, 'no context'].map((trace) => ({ record: { id: 3, trace } })),
    { record: { id: 4 }, annotations },
    { flags: MESSAGE_FLAG.discarded, body: '{"bytes":70000000}' },
  ]
  const found = tracesOf().of(packOf(rows), 'trace')
  assert.deepEqual(
    found.map((trace) => trace?.parent.traceId),
    ['c'.repeat(32), ...Array.from({ length: 5 }, () => undefined), TRACE, undefined],
  )
  assert.equal(found[0]?.parent.spanId, 'd'.repeat(16))
})
