/**
 * Which messages are traced, and the trace of each. Whether a message is traced follows from its commit and its place in it, or from the
 * trace context that its writer has given: so every process and every sink decides alike, also after a restart. The span of a change,
 * from its commit until it is durable in the log, has an id that is made of its position: so the spans of its deliveries can name it as
 * their parent, whichever process they are in.
 *
 *   span of the writer ─▶ ingest (the process that has the source) ─▶ deliver (one for each sink) ─▶ send (each request)
 */
import { hash } from 'node:crypto'
import type { Message } from '../../engine/dispatch/batch.ts'
import { MESSAGE_FLAG, Pack, type MessageView } from '../../engine/log/pack.ts'
import { formatLsn } from '../../engine/lsn.ts'
import type { Position } from '../../engine/position.ts'
import type { Database } from '../../engine/state/resources.ts'
import type { Sampling } from '../../engine/telemetry/settings.ts'
import { spanTime, type Attributes, type Spans, type Tracing } from '../../engine/telemetry/span.ts'
import { readTraceContext, type TraceContext } from '../../engine/telemetry/trace-context.ts'
import type { Append } from '../../engine/wal/append-loop.ts'
import { actionName } from '../../engine/dispatch/parked/message-records.ts'
import { JsonMembers } from '../../sinks/json-members.ts'
import { tableOf } from '../../sinks/messages.ts'

const TWO_32 = 2 ** 32
const LETTER_L = 0x6c
/** Messages with one of these flags have no row of their own. */
const WITHOUT_ROW = MESSAGE_FLAG.tombstone | MESSAGE_FLAG.discarded

/** Holds the parent and the attributes that the delivery spans of a message begin with. */
export type MessageTrace = Readonly<{
  /** the span that its delivery is a child of: that of its change, or the one that its row names */
  parent: TraceContext
  attributes: Attributes
}>

/** Traces the messages of one database. */
export class MessageTraces {
  readonly spans: Spans
  readonly #sampling: Sampling
  readonly #threshold: number
  readonly #databaseId: string
  readonly #namespace: string
  /** messages of a transaction have the same annotations: their bytes, and what was read of them */
  #lastAnnotations: Readonly<{ bytes: Buffer; context: TraceContext | undefined }> | undefined

  constructor({ spans, sampling }: Tracing, { id, connection }: Pick<Database, 'id' | 'connection'>) {
    this.spans = spans
    this.#sampling = sampling
    this.#threshold = sampling.ratio * TWO_32
    this.#databaseId = id
    this.#namespace = connection.database
  }

  /** @param column of the row that may have a trace context @returns undefined: the message is not traced, as most are */
  of(message: Pick<Message, 'view' | 'place'>, column: string | null = null): MessageTrace | undefined {
    const { view, place } = message
    const inRow = column === null ? undefined : contextInRow(view, place, column)
    const writer = inRow ?? this.#annotated(view, place)
    if (!(writer && this.#sampling.byParent ? writer.isSampled : this.#isChosen(view, place))) return undefined
    const position = view.position(place)
    const ids = hash('sha256', `${this.#databaseId} ${position.history} ${position.lsn} ${position.idx}`)
    const traceId = writer?.traceId ?? ids.slice(0, 32)
    return {
      parent: inRow ?? { traceId, spanId: ids.slice(32, 48), isSampled: true, state: writer?.state },
      attributes: this.#attributesOf(message, position),
    }
  }

  /** Reads the trace context that the writer of a message has given. @param column of the row that may have it */
  writerOf(view: MessageView, place: number, column: string | null): TraceContext | undefined {
    return (column === null ? undefined : contextInRow(view, place, column)) ?? this.#annotated(view, place)
  }

  /** Reads the trace context in the annotations of the transaction. */
  #annotated(view: MessageView, place: number): TraceContext | undefined {
    const [start, end] = [view.bodyStart(place), view.bodyEnd(place)]
    // a body ends with its annotations, and those of most with null
    if (end === start || view.buffer[end - 1] === LETTER_L || (view.flags(place) & MESSAGE_FLAG.discarded) !== 0) return undefined
    const { bytes, context } = this.#lastAnnotations ?? {}
    if (bytes && end - bytes.length >= start && view.buffer.compare(bytes, 0, bytes.length, end - bytes.length, end) === 0) return context
    const found = annotationsAt(view.buffer, start)
    if (found === undefined) return undefined
    const read = contextOf(view.buffer.toString('utf8', found.value, end))
    this.#lastAnnotations = { bytes: Buffer.from(view.buffer.subarray(found.name, end)), context: read }
    return read
  }

  /** Packs are durable in the log: the spans of their changes end. */
  appended({ records, readAtMs }: Append): void {
    const until = spanTime()
    /** by id: a change may stand in several streams */
    const ended = new Set<string>()
    for (const { topic, pack: record } of records) {
      const view = Pack.decode(record)
      for (let place = 0; place < view.count; place++) {
        const trace = this.of({ view, place })
        if (!trace || ended.has(trace.parent.spanId)) continue
        ended.add(trace.parent.spanId)
        const from = view.commitTimeUs(place) / 1000
        this.spans.ended({
          context: trace.parent,
          parent: this.#annotated(view, place),
          name: `ingest ${trace.attributes['db.collection.name'] ?? this.#namespace}`,
          kind: 'internal',
          from: Math.min(from, until),
          until,
          attributes: { ...trace.attributes, 'tailrace.stream': topic },
          events: [{ name: 'read from the write-ahead log', at: readAtMs }],
        })
      }
    }
  }

  /** Chooses by the commit's time and the index in it: the same wherever it is asked, and without making a bigint of the LSN. */
  #isChosen(view: MessageView, place: number): boolean {
    const us = view.commitTimeUs(place)
    let mixed = Math.imul((us % TWO_32) ^ Math.imul(us / TWO_32, 0x9e3779b1), 0x85ebca6b) ^ Math.imul(view.idx(place) + 1, 0xc2b2ae35)
    mixed = Math.imul(mixed ^ (mixed >>> 16), 0x7feb352d)
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x846ca68b)
    return (mixed ^ (mixed >>> 16)) >>> 0 < this.#threshold
  }

  #attributesOf(message: Pick<Message, 'view' | 'place'>, { lsn, idx }: Position): Attributes {
    const { view, place } = message
    const { schema, table } = (view.flags(place) & WITHOUT_ROW) === 0 ? tableOf(message) : {}
    return {
      'db.system.name': 'postgresql',
      'db.namespace': this.#namespace,
      ...(table !== undefined && { 'db.collection.name': `${schema}.${table}` }),
      'db.operation.name': actionName(view.action(place)),
      'tailrace.lsn': formatLsn(lsn),
      'tailrace.commit_idx': idx,
    }
  }
}

/** Reads the trace context in a column of the row: the record is the first member of a body. */
function contextInRow(view: MessageView, place: number, column: string): TraceContext | undefined {
  const start = view.bodyStart(place)
  if (start === view.bodyEnd(place) || (view.flags(place) & WITHOUT_ROW) !== 0) return undefined
  const message = new JsonMembers(view.buffer, start)
  message.name()
  const record = JsonMembers.of(view.buffer, message.at)
  if (!record) return undefined
  for (let name = record.name(); name; name = record.name()) {
    if (record.is(name, column)) return readTraceContext(record.scalar())
    record.value()
  }
  return undefined
}

/** Finds the annotations in a body: the last member of its metadata, which is left open. */
function annotationsAt(buffer: Buffer, start: number): Readonly<{ name: number; value: number }> | undefined {
  const message = new JsonMembers(buffer, start)
  for (let name = message.name(); name && !message.is(name, 'metadata'); name = message.name()) message.value()
  const metadata = JsonMembers.of(buffer, message.at)
  if (!metadata) return undefined
  for (let name = metadata.name(); name; name = metadata.name()) {
    if (metadata.is(name, 'transaction_annotations')) return { name: name.start, value: metadata.at }
    metadata.value()
  }
  return undefined
}

function contextOf(annotations: string): TraceContext | undefined {
  const said: unknown = JSON.parse(annotations) // it was checked when it was read
  if (typeof said !== 'object' || said === null) return undefined
  const { traceparent, tracestate } = said as Readonly<Record<string, unknown>>
  return readTraceContext(traceparent, tracestate)
}
