/**
 * The traces of the messages that one partition has in its hands: a span for each, from its commit to its end, and one for each request
 * that has some of them. What is not traced, as most is, costs a look at its commit time when it is taken.
 *
 *  I1. A span holds names and numbers alone, and nothing of the pack that its message stands in.
 *  I2. At most so many are open; of more the oldest are given up, for the end of a message may pass unseen here.
 */
import { randomBytes } from 'node:crypto'
import type { RefList } from '../../engine/dispatch/ack-id.ts'
import type { Batch, Message } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-groups.ts'
import type { FailedMessage } from '../../engine/dispatch/parked/parking.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { isErrorCode } from '../../engine/errors.ts'
import { spanTime, type Attributes, type SpanEvent } from '../../engine/telemetry/span.ts'
import { traceHeaders, type TraceContext } from '../../engine/telemetry/trace-context.ts'
import { positionName } from '../../sinks/messages.ts'
import type { Outcome } from '../../sinks/push.ts'
import type { MessageTraces } from './message-traces.ts'

type TracedSink = Pick<Sink, 'id' | 'name' | 'traceparent_column'>

/** A message that is traced, from its first delivery on. */
type Open = Readonly<{
  index: number
  /** under which it was handed out */
  origin: Origin
  context: TraceContext
  parent: TraceContext
  /** ms since the epoch, of its commit */
  from: number
  attributes: Attributes
  events: SpanEvent[]
}> & { deliveries: number }

/** A request under way with messages that are traced. */
export type RequestTrace = Readonly<{
  /** name, value, name, value: for what is asked */
  headers: readonly string[]
  ended(outcome: Outcome): void
}>

/** Open spans of a partition, and events of a span. */
const MAX_OPEN = 1_000
const MAX_EVENTS = 32

/** Traces the messages of one partition of a sink. */
export class DeliveryTraces {
  readonly #traces: MessageTraces
  readonly #sinkNow: () => TracedSink
  /** by the offset of the record */
  readonly #open = new Map<number, Open[]>()
  #count = 0

  constructor(traces: MessageTraces, sinkNow: () => TracedSink) {
    this.#traces = traces
    this.#sinkNow = sinkNow
  }

  /** Messages were taken, to be handed to a client or sent. */
  taken(batches: readonly Batch[]): void {
    const { traceparent_column: column } = this.#sinkNow()
    for (const { messages, generation, partition } of batches) {
      const origin = { generation, partition }
      for (const message of messages) {
        const trace = this.#traces.of(message, column)
        if (!trace) continue
        const open = this.#find(message.offset, message.index, origin) ?? this.#begin(message, origin, trace)
        note(open, 'handed out', { 'tailrace.delivery': ++open.deliveries })
      }
    }
  }

  /** Messages went through functions, or values that the log lacks were fetched. @param startedAt as `spanTime` tells */
  prepared({ messages, ...origin }: Batch, startedAt: number): void {
    const attributes = { 'tailrace.duration_ms': Math.round((spanTime() - startedAt) * 1_000) / 1_000 }
    for (const open of this.#those(messages, origin)) note(open, 'through functions', attributes)
  }

  /** Messages have failed: they wait outside the log, or were given up. */
  failed(messages: readonly FailedMessage[], origin: Origin): void {
    if (this.#count === 0) return
    for (const { offset, index, failed } of messages) {
      const open = this.#find(offset, index, origin)
      if (!open) continue
      const { attempts, retryInMs, record } = failed
      const code = record['code'] ?? record['error'] // the words of a destination may be those of a row
      const attributes = { 'tailrace.attempts': attempts, ...(isErrorCode(code) && { 'error.type': code }) }
      if (retryInMs === undefined) this.#end(open, offset, 'given up', attributes)
      else note(open, 'parked', { ...attributes, 'tailrace.retry_in_ms': Math.round(retryInMs) })
    }
  }

  /** Messages came back and may go again. */
  released(refs: RefList, origin: Origin): void {
    this.#each(refs, origin, (open) => note(open, 'given back'))
  }

  /** Messages were delivered, or dropped by a filter. */
  ended(refs: RefList, origin: Origin, how: 'delivered' | 'dropped'): void {
    this.#each(refs, origin, (open, offset) => this.#end(open, offset, how))
  }

  /** Begins a request. @returns undefined: none of its messages has a trace */
  request({ messages, ...origin }: Batch): RequestTrace | undefined {
    const [first, ...others] = this.#those(messages, origin)
    if (!first) return this.#passedOn(messages)
    const { traceId, state } = first.context
    const context: TraceContext = { traceId, spanId: newSpanId(), isSampled: true, state }
    const from = spanTime()
    const { spans } = this.#traces
    return {
      headers: traceHeaders(context),
      ended: (outcome) => {
        const { status, failed, failure } = resultOf(outcome, messages.length)
        spans.ended({
          context,
          parent: first.context,
          name: `send ${this.#sinkNow().name}`,
          kind: 'client',
          from,
          until: spanTime(),
          attributes: {
            ...this.#attributes(origin, 'send'),
            'messaging.batch.message_count': messages.length,
            ...(status !== undefined && { 'http.response.status_code': status }),
            ...(failed > 0 && { 'tailrace.failed_messages': failed }),
            ...(outcome.kind === 'failed' && { 'error.type': outcome.failure.answer.code }),
          },
          links: others.map((other) => other.context),
          failure,
        })
      },
    }
  }

  /** Passes on the trace context that the writer of a message has given, traced or not, where the message goes alone. */
  #passedOn([message, ...others]: readonly Message[]): RequestTrace | undefined {
    if (!message || others.length > 0) return undefined
    const context = this.#traces.writerOf(message.view, message.place, this.#sinkNow().traceparent_column)
    return context && { headers: traceHeaders(context), ended: () => undefined }
  }

  #attributes({ partition }: Origin, operation: 'deliver' | 'send'): Attributes {
    const { id, name } = this.#sinkNow()
    return {
      'messaging.system': 'tailrace',
      'messaging.operation.name': operation,
      'messaging.operation.type': 'send',
      'messaging.destination.name': name,
      'messaging.destination.partition.id': String(partition),
      'tailrace.sink.id': id,
    }
  }

  #begin(message: Message, origin: Origin, trace: NonNullable<ReturnType<MessageTraces['of']>>): Open {
    const { view, place, offset, index, former } = message
    const { parent, attributes } = trace
    const open: Open = {
      index,
      origin,
      context: { ...parent, spanId: newSpanId(), isSampled: true },
      parent,
      from: view.commitTimeUs(place) / 1_000,
      attributes: { ...attributes, 'messaging.message.id': positionName(message), 'tailrace.offset': offset },
      events: [],
      deliveries: former?.attempts ?? 0,
    }
    if (this.#count >= MAX_OPEN) this.#forgetOldest()
    const others = this.#open.get(offset)
    if (others) others.push(open)
    else this.#open.set(offset, [open])
    this.#count++
    return open
  }

  #end(open: Open, offset: number, how: 'delivered' | 'dropped' | 'given up', more: Attributes = {}): void {
    this.#forget(open, offset)
    const until = spanTime()
    const { context, parent, from, attributes, events, deliveries } = open
    this.#traces.spans.ended({
      context,
      parent,
      name: `deliver ${this.#sinkNow().name}`,
      kind: 'producer',
      from: Math.min(from, until),
      until,
      attributes: {
        ...this.#attributes(open.origin, 'deliver'),
        ...attributes,
        ...more,
        'tailrace.deliveries': deliveries,
        'tailrace.outcome': how,
      },
      events,
      failure: how === 'given up' ? how : undefined,
    })
  }

  #those(messages: readonly Message[], origin: Origin): Open[] {
    if (this.#count === 0) return []
    return messages.map(({ offset, index }) => this.#find(offset, index, origin)).filter((open) => open !== undefined)
  }

  #each({ offsets, indexes }: RefList, origin: Origin, then: (open: Open, offset: number) => void): void {
    if (this.#count === 0) return
    for (const [i, offset] of offsets.entries()) {
      if (!this.#open.has(offset)) continue
      const open = this.#find(offset, indexes[i] as number, origin)
      if (open) then(open, offset)
    }
  }

  #find(offset: number, index: number, { generation, partition }: Origin): Open | undefined {
    return this.#open
      .get(offset)
      ?.find((open) => open.index === index && open.origin.generation === generation && open.origin.partition === partition)
  }

  #forget(open: Open, offset: number): void {
    const rest = this.#open.get(offset)?.filter((other) => other !== open) ?? []
    if (rest.length > 0) this.#open.set(offset, rest)
    else this.#open.delete(offset)
    this.#count--
  }

  #forgetOldest(): void {
    const [oldest] = this.#open
    if (!oldest) return
    this.#open.delete(oldest[0])
    this.#count -= oldest[1].length
  }
}

/** Gives the status of a request, and how many of its messages failed. `failure` is one word, and there only where all of them failed. */
function resultOf(outcome: Outcome, messages: number): Readonly<{ status?: number | undefined; failed: number; failure?: string }> {
  switch (outcome.kind) {
    case 'delivered':
      return { status: outcome.status, failed: 0 }
    case 'each': {
      const failed = outcome.failures.filter((each) => each !== undefined).length
      return { status: outcome.status, failed, ...(failed === messages && { failure: 'message' }) }
    }
    case 'failed':
      return { status: outcome.failure.answer.status, failed: messages, failure: outcome.failure.blame }
    case 'aborted':
      return { failed: messages, failure: 'aborted' }
  }
}

const newSpanId = (): string => randomBytes(8).toString('hex')

function note({ events }: Open, name: string, attributes?: Attributes): void {
  if (events.length < MAX_EVENTS) events.push({ name, at: spanTime(), ...(attributes && { attributes }) })
}
