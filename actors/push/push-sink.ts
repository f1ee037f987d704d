/**
 * A sink that sends: one wire to its destination, one picture of how that is, and the partitions that share both.
 *
 *  I1. While the sink is not active nothing is sent; what is under way ends.
 *  I2. An edit restarts nothing: what is sent from then on goes by the new settings, and what was learnt of the destination
 *      under the old ones is forgotten.
 *  I3. A wire is closed when the last request over it has ended.
 */
import type { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { RowLookup } from '../../engine/wal/row-lookup.ts'
import type { Failure, KeptAnswer, Load, Outcome, PushType } from '../../sinks/push.ts'
import { DestinationState } from './destination-state.ts'
import type { Sent } from './push-partition-options.ts'
import { partOf, type Piece } from './pieces.ts'
import { PushPartition } from './push-partition.ts'
import { SentTogether } from './sent-together.ts'
import type { HeldSink, PushSurroundings, RunningSink, SinkOptions } from '../sink/running-sink.ts'
import { SinkHost } from '../sink/sink-host.ts'
import type { SinkObserver } from '../partition/sink-observer.ts'
import type { ActorStatus, HealthCheck } from '../../engine/status.ts'
import { wholeMessages } from './whole-messages.ts'
import { WireUse } from './wire-use.ts'

export function startPushSink(options: SinkOptions, type: PushType, surroundings: PushSurroundings): RunningSink {
  return new PushSink(options, type, surroundings)
}

/** Beyond what is sent at once, probes need connections while others hang. */
const SPARE_CONNECTIONS = 12

class PushSink implements RunningSink {
  readonly pulled = undefined
  readonly ended: Promise<void>
  readonly #options: SinkOptions
  readonly #type: PushType
  readonly #surroundings: PushSurroundings
  readonly #host: SinkHost<PushPartition>
  readonly #destination: DestinationState
  /** of the database that the sink streams */
  #lookup: RowLookup
  #use: WireUse | undefined
  /** why there is no wire */
  #refusal: unknown
  #lastFailure: Sent['failures'][number] | undefined
  /** also when others have been delivered since */
  #lastOfMessage: HealthCheck['error'] | undefined
  /** the last failure of a function, until one works */
  #stageTrouble: HealthCheck['error'] | undefined
  #turn = 0
  #lastKept: KeptAnswer | undefined
  #downSince: Date | undefined
  /** messages whose end was forgotten, since it runs here */
  #forgotten: { messages: number; lastAt: Date } | undefined

  constructor(options: SinkOptions, type: PushType, surroundings: PushSurroundings) {
    const { sink, database, observer, clock = () => performance.now() } = options
    this.#options = options
    this.#type = type
    this.#surroundings = surroundings
    this.#lookup = this.#lookupOf(sink, database)
    this.#destination = new DestinationState(this.#concurrency(sink), { clock, random: Math.random, changed: () => this.#changed() })
    this.#host = new SinkHost(
      { ...options, observer: withoutEnds(observer) },
      {
        keyed: type.keyed,
        sends: true,
        settings: () => ({ ackWaitMs: Infinity, maxDeliveries: null, perGroup: this.#use?.wire.maxMessages ?? 1 }),
        begin: (owned) =>
          new PushPartition(owned, {
            wire: () => this.#use?.wire,
            send: (...sending) => this.#send(...sending),
            mayGoOn: (requests) => (requests + 1) * this.#host.live.length <= this.#destination.limit,
            complete: (piece, signal) => wholeMessages(piece, { lookup: this.#lookup, format: this.#host.sink.timestamp_format, signal }),
            stage: () => this.#host.stage,
            stageTrouble: (trouble) => {
              this.#stageTrouble = trouble
              this.#lastOfMessage = trouble ?? this.#lastOfMessage
            },
            destination: this.#destination,
            underWay: this.#host.underWay,
            isActive: () => this.#host.isActive,
            limits: () => {
              const { max_retry_count, batch_timeout_ms } = this.#host.sink
              return { maxRetries: max_retry_count, fillMs: batch_timeout_ms }
            },
            grouping: this.#host.mustServe().shape.grouping,
            keyed: type.keyed,
            takesDeletes: () => this.#host.sink.actions.includes('delete'),
            clock,
            random: Math.random,
            sent: (sent) => this.#sent(sent),
            forgotten: (messages) => {
              this.#forgotten = { messages: messages + (this.#forgotten?.messages ?? 0), lastAt: new Date() }
              observer.forgotten(messages)
            },
            exhausted: () => this.#settleSuspects(),
          }),
        deliverable: () => this.#wake(),
      },
    )
    this.ended = this.#host.ended
    this.#open(sink, database)
    this.#host.start()
  }

  edit(...edit: Parameters<RunningSink['edit']>): ReturnType<RunningSink['edit']> {
    return this.#host.edit(...edit)
  }

  routed(): void {
    this.#host.routed()
  }

  ownersChanged(): void {
    this.#host.ownersChanged()
  }

  update(sink: Sink, database: Database): void {
    this.#open(sink, database)
    void this.#lookup.close()
    this.#lookup = this.#lookupOf(sink, database)
    this.#destination.max = this.#concurrency(sink)
    this.#stageTrouble = undefined
    this.#destination.forget()
    this.#host.update(sink, database)
  }

  get delivered(): DeliveredMessages {
    return this.#host.delivered
  }

  health(): readonly HealthCheck[] {
    return [...this.#host.health({ name: 'Message delivery', ...this.#delivery() }, this.#failing()), ...this.#accounting()]
  }

  status(): ActorStatus {
    const { phase, limit, inFlight, failure } = this.#destination
    const report = this.#host.report({ destination: phase, concurrency: limit, requests: inFlight, ...this.#use?.wire.figures?.() })
    if (!failure || !this.#downSince) return report
    const { code, message } = failure.answer
    return { ...report, lastError: { error: new EngineError(code, message), at: this.#downSince } }
  }

  hold(by: string): Promise<HeldSink> {
    return this.#host.hold(by)
  }

  release(by: string): Promise<void> {
    return this.#host.release(by)
  }

  async stop(): Promise<void> {
    await this.#host.stop()
    this.#retire()
    await this.#lookup.close()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #concurrency(sink: Sink): number {
    return sink.concurrency ?? this.#type.concurrency
  }

  #open(sink: Sink, database: Database): void {
    const { egress, endpoint, warn } = this.#surroundings
    this.#retire()
    try {
      const wire = this.#type.open({
        sink,
        database,
        egress,
        warn,
        endpoint: endpoint(sink),
        heard: () => this.#destination.heard(),
        concurrency: this.#concurrency(sink) + SPARE_CONNECTIONS,
      })
      this.#use = new WireUse(wire)
      this.#refusal = undefined
    } catch (error) {
      this.#refusal = error // until it is edited
    }
  }

  #retire(): void {
    this.#use?.retire()
    this.#use = undefined
  }

  #send(load: Load, signal: AbortSignal, ended: (outcome: Outcome) => void, broken: (error: unknown) => void): void {
    const use = this.#use
    if (!use) return queueMicrotask(() => ended({ kind: 'aborted' }))
    const { wire } = use
    const told = (outcome: Outcome) => {
      use.end()
      ended(this.#host.sink.sensitive ? withoutWords(outcome) : outcome)
    }
    use.begin()
    if (wire.begin) return wire.begin(load, signal, told)
    wire.send(load, signal).then(told, (error: unknown) => {
      use.end()
      broken(error)
    })
  }

  #sent(sent: Sent): void {
    const { observer } = this.#options
    const { piece, delivered, failures, tookMs } = sent
    if (delivered) {
      this.#keep(delivered, sent)
      observer.acked({ messages: delivered.views.length, heldMs: tookMs })
      this.#lastFailure = undefined
    }
    const failed = piece.views.length - (delivered?.views.length ?? 0)
    if (failed === 0) return
    observer.returned({ messages: failed, heldMs: tookMs })
    this.#lastFailure = failures[0] ?? this.#lastFailure
    this.#lastOfMessage = this.#lastFailure && worded(this.#lastFailure)
  }

  /** What was delivered can be looked at for a while. */
  #keep(piece: Piece, { partition, status, answer, tookMs }: Sent): void {
    const { sensitive } = this.#host.sink // asked for now: what was not kept then can't be shown later
    const { origin, former } = piece
    const kept = sensitive ? undefined : answer
    const isShared = kept === this.#lastKept
    this.#lastKept = kept
    const facts = {
      generation: origin ? origin.generation : this.#host.mustServe().generation,
      partition: origin ? origin.partition : partition,
      status,
      tookMs,
      answer: kept,
      answerBytes: kept && !isShared ? kept.bytes : 0,
    }
    const { delivered } = this.#host
    if (!former) delivered.add(piece, new SentTogether(undefined, facts))
    else for (const [i, before] of former.entries()) delivered.add(partOf(piece, [i]), new SentTogether(before, facts))
  }

  #delivery(): Omit<HealthCheck, 'name'> {
    if (this.#refusal !== undefined) return { status: 'error', error: told(this.#refusal) }
    const { failure, phase, isThrottled, lastSuccessAt } = this.#destination
    const why = failure ?? this.#lastFailure
    const error = why && worded(why)
    if (error && phase !== 'up') return { status: 'error', error }
    if (error && isThrottled) return { status: 'warning', error }
    if (error) return { status: 'error', error }
    if (this.#stageTrouble) return { status: 'error', error: this.#stageTrouble }
    return { status: lastSuccessAt === -Infinity ? 'waiting' : 'healthy' }
  }

  /** Messages that wait for their next try, as long as there are any, whatever is delivered meanwhile. */
  #failing(): HealthCheck['error'] | undefined {
    const rows = this.#host.live.reduce((sum, partition) => sum + partition.failing(), 0)
    if (rows === 0) return undefined
    const { code, message } = this.#lastOfMessage ?? { code: 'MESSAGE_UNDELIVERABLE' as const, message: 'before this process started' }
    const what = rows === 1 ? 'a message has failed and is' : `messages of ${rows} rows have failed and are`
    return { code, message: `${what} tried again, and what follows of the same row waits; the last failure: ${message}` }
  }

  /** A defect of ours: it is told until the process ends. */
  #accounting(): readonly HealthCheck[] {
    if (!this.#forgotten) return []
    const { messages, lastAt } = this.#forgotten
    const what = messages === 1 ? 'a message was' : `${messages} messages were`
    const message = `${what} held although no request had them, the last time at ${lastAt.toISOString()}; they were sent again`
    return [{ name: 'Messages under way', status: 'warning', error: { code: 'MESSAGES_FORGOTTEN', message } }]
  }

  #changed(): void {
    const { phase, failure } = this.#destination
    const { warn } = this.#surroundings
    if (phase === 'down' && !this.#downSince) {
      this.#downSince = new Date()
      const { code, status } = failure?.answer ?? {} // its words may hold rows
      warn(`the destination takes nothing: ${code}${status ? `, status ${status}` : ''}; it is asked again every few seconds`)
    } else if (phase === 'up' && this.#downSince) {
      this.#downSince = undefined
      warn('the destination takes messages again')
    }
    this.#wake()
  }

  /**
   * Another partition is woken first each time, so that none has all that may be sent. What wakes none counts for no turn: an answer
   * wakes twice, and of two partitions it would be the same one's turn for ever.
   */
  #wake(): void {
    const live = this.#host?.live ?? []
    let woken = 0
    for (let i = 0; i < live.length; i++) if (live[(this.#turn + i) % live.length]?.wake()) woken++
    if (woken > 0) this.#turn = (this.#turn + 1) % live.length
  }

  /** When nothing is left that could tell whose fault it was, it is decided by what was answered. */
  #settleSuspects(): void {
    const destination = this.#destination
    const { live } = this.#host
    if (destination.inFlight > 0 || !live.some((p) => p.hasSuspects) || !live.every((p) => p.isExhausted)) return
    if (destination.lanes().length === 0) return // first its pause
    const ruling = destination.exhausted()
    for (const partition of live) partition.decide(ruling)
  }

  #lookupOf(sink: Sink, { connection, slot: { publication } }: Database): RowLookup {
    const { maxMessageBytes } = this.#surroundings
    return new RowLookup({ connection, publication }, { name: `tailrace values ${sink.name}`, maxRowBytes: maxMessageBytes })
  }
}

const worded = ({ answer: { code, message } }: Sent['failures'][number]) => ({ code, message })

/** The ends of deliveries are told by whoever sends: a partition knows less of them. */
function withoutEnds(observer: SinkObserver): SinkObserver {
  return {
    delivered: (batch) => observer.delivered(batch),
    acked: () => undefined,
    returned: () => undefined,
    lapsed: () => undefined,
    parked: (messages) => observer.parked(messages),
    discarded: (messages, why) => observer.discarded(messages, why),
    forgotten: (messages) => observer.forgotten(messages),
  }
}

/** Of an answer the status and headers alone: its words may be those of the message. */
function withoutWords(outcome: Outcome): Outcome {
  const hushed = (failure: Failure): Failure => {
    const { code, status, headers } = failure.answer
    if (status === undefined) return failure // nobody has answered
    return { ...failure, answer: { code, message: `status ${status}`, status, ...(headers && { headers }) } }
  }
  if (outcome.kind === 'failed') return { ...outcome, failure: hushed(outcome.failure) }
  return outcome.kind === 'each' ? { ...outcome, failures: outcome.failures.map((failure) => failure && hushed(failure)) } : outcome
}

const told = (error: unknown) => ({
  code: error instanceof EngineError ? error.code : 'INTERNAL',
  message: error instanceof Error ? error.message : String(error),
})
