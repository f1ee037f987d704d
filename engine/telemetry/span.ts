/** Spans as the engine knows them when they have ended. They never hold a value of a row. */
import type { Sampling } from './settings.ts'
import type { TraceContext } from './trace-context.ts'

/** Says of what a span or an event is: names, numbers, positions. */
export type Attributes = Readonly<Record<string, string | number | boolean>>
/** Something that happened during a span. @property at ms since the epoch */
export type SpanEvent = Readonly<{ name: string; at: number; attributes?: Attributes }>

/** A span that has ended. */
export type Span = Readonly<{
  context: TraceContext
  parent: TraceContext | undefined
  name: string
  kind: 'internal' | 'producer' | 'client'
  /** ms since the epoch, as `until` */
  from: number
  until: number
  attributes: Attributes
  events?: readonly SpanEvent[]
  /** spans of other traces that it belongs to, too */
  links?: readonly TraceContext[]
  /** why it came to nothing */
  failure?: string | undefined
}>

/** Takes spans that have ended. Never throws, and nobody waits for it. */
export type Spans = Readonly<{ ended(span: Span): void }>

/** Says which messages are traced, and takes their spans. */
export type Tracing = Readonly<{ spans: Spans; sampling: Sampling }>

/** Tells the time as spans have it: ms since the epoch, with parts of them. */
export const spanTime = (): number => performance.timeOrigin + performance.now()
