import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readTraceContext, traceHeaders } from '../../../engine/telemetry/trace-context.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'

test('a trace context is read as W3C writes it, and written so', () => {
  const context = readTraceContext(`00-${TRACE}-${SPAN}-01`, 'vendor=a:1,other=2')
  assert.deepEqual(context, { traceId: TRACE, spanId: SPAN, isSampled: true, state: 'vendor=a:1,other=2' })
  assert.deepEqual(context && traceHeaders(context), ['traceparent', `00-${TRACE}-${SPAN}-01`, 'tracestate', 'vendor=a:1,other=2'])
  const unsampled = readTraceContext(`00-${TRACE}-${SPAN}-02`)
  assert.equal(unsampled?.isSampled, false)
  assert.deepEqual(unsampled && traceHeaders(unsampled), ['traceparent', `00-${TRACE}-${SPAN}-00`])
  assert.equal(readTraceContext(`cc-${TRACE}-${SPAN}-01-more`)?.traceId, TRACE, 'a later version may say more')
})

test('what is no trace context, or would break a header, is none', () => {
  const zeros = '0'.repeat(32)
  for (const wrong of [
    ...[undefined, null, 7, {}, '', 'x', `00-${TRACE}-${SPAN}`, `00-${TRACE.toUpperCase()}-${SPAN}-01`, `ff-${TRACE}-${SPAN}-01`],
    ...[`00-${zeros}-${SPAN}-01`, `00-${TRACE}-${zeros.slice(16)}-01`, `00-${TRACE}-${SPAN}-01-more`, `00-${TRACE}-${SPAN}-01\r\nx: y`],
  ])
    assert.equal(readTraceContext(wrong), undefined, String(wrong))
  for (const state of ['a=1\r\nx: y', 'a=ä', 'x'.repeat(513), 5])
    assert.equal(readTraceContext(`00-${TRACE}-${SPAN}-01`, state)?.state, undefined)
})
