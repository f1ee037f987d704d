/** Spans in the form that the packages of OpenTelemetry take. Nothing here does I/O. */
import { createTraceState, SpanKind, SpanStatusCode, TraceFlags, type SpanContext } from '@opentelemetry/api'
import type { Resource } from '@opentelemetry/resources'
import type { ReadableSpan } from '@opentelemetry/sdk-trace'
import { hrTime } from './metric-data.ts'
import type { Span } from './span.ts'
import type { TraceContext } from './trace-context.ts'

const KINDS: Readonly<Record<Span['kind'], SpanKind>> = {
  internal: SpanKind.INTERNAL,
  producer: SpanKind.PRODUCER,
  client: SpanKind.CLIENT,
}

/** Makes a span that can be sent. @param scope names what has made it */
export function readableSpan(span: Span, resource: Resource, scope: ReadableSpan['instrumentationScope']): ReadableSpan {
  const { context, parent, name, kind, from, until, attributes, events = [], links = [], failure } = span
  const own = spanContext(context)
  return {
    name,
    kind: KINDS[kind],
    spanContext: () => own,
    ...(parent && { parentSpanContext: spanContext(parent) }),
    startTime: hrTime(from),
    endTime: hrTime(until),
    duration: hrTime(until - from),
    ended: true,
    status: failure === undefined ? { code: SpanStatusCode.UNSET } : { code: SpanStatusCode.ERROR, message: failure },
    attributes,
    events: events.map(({ name: event, at, attributes: more = {} }) => ({ name: event, time: hrTime(at), attributes: more })),
    links: links.map((link) => ({ context: spanContext(link) })),
    resource,
    instrumentationScope: scope,
    droppedAttributesCount: 0,
    droppedEventsCount: 0,
    droppedLinksCount: 0,
  }
}

const spanContext = ({ traceId, spanId, isSampled, state }: TraceContext): SpanContext => ({
  traceId,
  spanId,
  traceFlags: isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE,
  ...(state !== undefined && { traceState: createTraceState(state) }),
})
