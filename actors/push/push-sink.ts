/**
 * A sink that sends: one wire to its destination, one picture of how that is, and the partitions that share both.
 *
 *  I1. While the sink is not active nothing is sent; what is under way ends.
 *  I2. An edit restarts nothing: what is sent from then on goes by the new settings, and what was learnt of the destination
 *      under the old ones is forgotten.
 *  I3. A wire is closed when the last request over it has ended.
 */
import type { Batch, Former, Message } from '../../engine/dispatch/batch.ts'
import type { DeliveredTogether } from '../../engine/dispatch/delivered-messages.ts'
import { countFailing } from '../../engine/dispatch/parked/parked-groups.ts'
import type { HandOutSettings } from '../partition/partition-sink.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { RowLookup } from '../../engine/wal/row-lookup.ts'
import type { Failure, KeptAnswer, Outcome, PushType, PushWire } from '../../sinks/push.ts'
import { DestinationState, type Ticket } from './destination-state.ts'
import type { SendBatch } from './send-batch.ts'
import { PartitionSender } from './partition-sender.ts'
import type { PushSurroundings, SinkOptions } from '../sink/running-sink.ts'
import type { SinkHost } from '../sink/sink-host.ts'
import type { Transport, TransportHealth } from '../sink/transport.ts'
import type { SinkObserver } from '../partition/sink-observer.ts'
import { troubleOf, type ActorStatus, type Figures, type HealthCheck, type Trouble } from '../../engine/status.ts'

/** Beyond what is sent at once, probes need connections while others hang. */
const SPARE_CONNECTIONS = 12

/** The memory that an attempt takes, about, without its answer. */
const KEPT_BYTES = 256
const KEPT_FORMER_BYTES = 2_048
const NONE: readonly unknown[] = []

/** Tells those who count and keep records how a request ended. */
export type Sent = Readonly<{
  batch: SendBatch
  ticket: Ticket
  /** of its messages; none: nothing was */
  delivered: readonly Message[]
  /** why others were not */
  refused: readonly Failure[]
  status: number
  /** to what was delivered */
  answer?: KeptAnswer | undefined
}>

/** Holds what is known of a request that delivered something. */
type KeptFacts = Readonly<{ status: number; tookMs: number; answer: KeptAnswer | undefined }>

/** A wire, and the requests under way over it: one that is not the sink's any more is closed when there are none. */
type Use = { readonly wire: PushWire; requests: number }

/** Sends the messages of a sink to its destination. */
export class PushSink implements Transport {
  readonly sends = true
  readonly keyed: boolean
  readonly pulled = undefined
  readonly host: SinkHost
  readonly #type: PushType
  readonly destination: DestinationState
  readonly #observer: SinkObserver
  readonly #surroundings: PushSurroundings
  /** the senders of the partitions that live here */
  readonly #senders: PartitionSender[] = []
  /** of the database that the sink streams */
  #lookup: RowLookup
  #use: Use | undefined
  /** why there is no wire */
  #refusal: unknown
  #lastFailure: Failure | undefined
  /** also when others have been delivered since */
  #lastOfMessage: Trouble | undefined
  /** the last failure of a function, until one works */
  #preparationTrouble: Trouble | undefined
  #turn = 0
  #lastKept: KeptAnswer | undefined
  #downSince: Date | undefined
  /** messages whose end was forgotten, since it runs here */
  #forgotten: { messages: number; lastAt: Date } | undefined

  constructor(host: SinkHost, type: PushType, surroundings: PushSurroundings, { sink, database, observer }: SinkOptions) {
    this.host = host
    this.#type = type
    this.keyed = type.keyed
    this.#observer = observer
    this.#surroundings = surroundings
    this.#lookup = this.#lookupOf(sink, database)
    const { clock } = host
    this.destination = new DestinationState(this.#concurrency(sink), { clock, random: Math.random, changed: () => this.#changed() })
    this.#open(sink, database)
  }

  settings(): HandOutSettings {
    return { ackWaitMs: Infinity, maxDeliveries: null, perGroup: this.#use?.wire.maxMessages ?? 1 }
  }

  senderOf(owned: OwnedPartition): PartitionSender {
    return new PartitionSender(owned, this, this.host.mustServe().shape.grouping)
  }

  /** A partition begins to send. */
  joined(sender: PartitionSender): void {
    this.#senders.push(sender)
  }

  /** A partition sends no more. */
  left(sender: PartitionSender): void {
    const at = this.#senders.indexOf(sender)
    if (at >= 0) this.#senders.splice(at, 1)
  }

  update(sink: Sink, database: Database): void {
    this.#open(sink, database)
    void this.#lookup.close()
    this.#lookup = this.#lookupOf(sink, database)
    this.destination.max = this.#concurrency(sink)
    this.#preparationTrouble = undefined
    this.destination.forget()
  }

  health(): TransportHealth {
    return { delivery: this.#delivery(), failing: this.#failing(), accounting: this.#accounting() }
  }

  figures(): Figures {
    const { phase, limit, inFlight } = this.destination
    return { destination: phase, concurrency: limit, requests: inFlight, ...this.#use?.wire.figures?.() }
  }

  get lastError(): ActorStatus['lastError'] {
    const { failure } = this.destination
    if (!failure || !this.#downSince) return undefined
    return { error: new EngineError(failure.answer.code, failure.answer.message), at: this.#downSince }
  }

  async close(): Promise<void> {
    this.#retire()
    await this.#lookup.close()
  }

  // ── its wire ────────────────────────────────────────────────────────────────────────────────────

  #concurrency(sink: Sink): number {
    return sink.concurrency ?? this.#type.concurrency
  }

  #open(sink: Sink, database: Database): void {
    const { egress, endpoint, target, warn } = this.#surroundings
    this.#retire()
    try {
      const wire = this.#type.open({
        sink,
        database,
        egress,
        warn,
        endpoint: endpoint(sink),
        target: target?.(sink),
        heard: () => this.destination.heard(),
        concurrency: this.#concurrency(sink) + SPARE_CONNECTIONS,
      })
      this.#use = { wire, requests: 0 }
      this.#refusal = undefined
    } catch (error) {
      this.#refusal = error // until it is edited
    }
  }

  #retire(): void {
    const use = this.#use
    this.#use = undefined
    if (use?.requests === 0) void use.wire.close()
  }

  // ── what its partitions ask and tell ────────────────────────────────────────────────────────────

  /** The wire that speaks to the destination now; undefined: its settings can't be used. */
  get wire(): PushWire | undefined {
    return this.#use?.wire
  }

  /** Finds values that the log lacks. */
  get lookup(): RowLookup {
    return this.#lookup
  }

  /** Why a message has just failed on its way to the destination, in a function or for want of a value; undefined: that works. */
  set preparationTrouble(trouble: Trouble | undefined) {
    this.#preparationTrouble = trouble
    this.#lastOfMessage = trouble ?? this.#lastOfMessage
  }

  /** Whether a partition may have one more than so many requests under way, whatever others want. */
  mayGoOn(requests: number): boolean {
    return (requests + 1) * this.#senders.length <= this.destination.limit
  }

  /** Sends messages. One of the two is called once, after this has returned: with the outcome, or with an error of ours. */
  send(batch: Batch, signal: AbortSignal, ended: (outcome: Outcome) => void, broken: (error: unknown) => void): void {
    const use = this.#use
    if (!use) return queueMicrotask(() => ended({ kind: 'aborted' }))
    const { wire } = use
    const requestEnded = () => {
      if (--use.requests === 0 && use !== this.#use) void wire.close()
    }
    const answered = (outcome: Outcome) => {
      requestEnded()
      ended(this.host.sink.sensitive ? withoutWords(outcome) : outcome)
    }
    use.requests++
    if (wire.begin) return wire.begin(batch, signal, answered)
    wire.send(batch, signal).then(answered, (error: unknown) => {
      requestEnded()
      broken(error)
    })
  }

  /** A request was answered. */
  sent({ batch, ticket, delivered, refused, status, answer }: Sent): void {
    const observer = this.#observer
    const tookMs = this.host.clock() - ticket.startedAt
    if (delivered.length > 0) {
      this.#keep(batch, delivered, { status, answer, tookMs })
      observer.acked({ messages: delivered.length, heldMs: tookMs })
      this.#lastFailure = undefined
    }
    const failed = batch.messages.length - delivered.length
    if (failed === 0) return
    observer.returned({ messages: failed, heldMs: tookMs })
    this.#lastFailure = refused[0] ?? this.#lastFailure
    this.#lastOfMessage = this.#lastFailure && worded(this.#lastFailure)
  }

  /** Counts messages that were in flight and that no part of a partition knew of any more; they are sent again. */
  forgot(messages: number): void {
    this.#forgotten = { messages: messages + (this.#forgotten?.messages ?? 0), lastAt: new Date() }
    this.#observer.forgotten(messages)
  }

  /** When nothing is left that could tell whose fault it was, it is decided by what was answered. */
  settleSuspects(): void {
    const { destination } = this
    const senders = this.#senders
    if (destination.inFlight > 0 || !senders.some((sender) => sender.hasSuspects) || !senders.every((sender) => sender.isExhausted)) return
    if (destination.lanes().length === 0) return // first its pause
    const ruling = destination.exhausted()
    for (const sender of senders) sender.decide(ruling)
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** Keeps what was delivered for a while, so that people can look at it. */
  #keep({ generation, partition }: SendBatch, messages: readonly Message[], { status, answer, tookMs }: KeptFacts): void {
    const kept = this.host.sink.sensitive ? undefined : answer // by the setting as it is now: what is not kept can't be shown later
    const isShared = kept === this.#lastKept
    this.#lastKept = kept
    const facts = { generation, partition, status, tookMs, answer: kept, answerBytes: kept && !isShared ? kept.bytes : 0 }
    const { delivered } = this.host
    if (messages[0]?.former) for (const message of messages) delivered.add([message], sentTogether(message.former, facts))
    else delivered.add(messages, sentTogether(undefined, facts))
  }

  #delivery(): Omit<HealthCheck, 'name'> {
    if (this.#refusal !== undefined) return { status: 'error', error: troubleOf(this.#refusal) }
    const { failure, phase, isThrottled, lastSuccessAt } = this.destination
    const why = failure ?? this.#lastFailure
    const error = why && worded(why)
    if (error) return { status: phase === 'up' && isThrottled ? 'warning' : 'error', error }
    if (this.#preparationTrouble) return { status: 'error', error: this.#preparationTrouble }
    return { status: lastSuccessAt === -Infinity ? 'waiting' : 'healthy' }
  }

  /** Tells of messages that wait for their next try, as long as there are any, whatever is delivered meanwhile. */
  #failing(): Trouble | undefined {
    const rows = this.host.live.reduce((sum, partition) => sum + countFailing(partition.dispatcher.parked), 0)
    if (rows === 0) return undefined
    const { code, message } = this.#lastOfMessage ?? {
      code: 'MESSAGE_UNDELIVERABLE' as const,
      message: 'it was before this process started',
    }
    const what = rows === 1 ? 'a message has failed and is' : `messages of ${rows} rows have failed and are`
    return { code, message: `${what} tried again, and later messages of the same row wait; the last failure: ${message}` }
  }

  /** A defect of ours: health tells of it until the process ends. */
  #accounting(): Trouble | undefined {
    if (!this.#forgotten) return undefined
    const { messages, lastAt } = this.#forgotten
    const what = messages === 1 ? 'a message was' : `${messages} messages were`
    const message = `${what} counted as being delivered although no request had them, the last time at ${lastAt.toISOString()}; they were sent again`
    return { code: 'MESSAGES_FORGOTTEN', message }
  }

  #changed(): void {
    const { phase, failure } = this.destination
    const { warn } = this.#surroundings
    if (phase === 'down' && !this.#downSince) {
      this.#downSince = new Date()
      const { code, status } = failure?.answer ?? {} // its words may hold rows
      warn(`the destination takes nothing: ${code}${status ? `, status ${status}` : ''}; it is tried again every few seconds`)
    } else if (phase === 'up' && this.#downSince) {
      this.#downSince = undefined
      warn('the destination takes messages again')
    }
    this.deliverable()
  }

  /**
   * Another partition is woken first each time, so that none has all that may be sent. What wakes none counts for no turn: an answer
   * wakes twice, and of two partitions it would be the same one's turn for ever.
   */
  deliverable(): void {
    const senders = this.#senders
    let woken = 0
    for (let i = 0; i < senders.length; i++) if (senders[(this.#turn + i) % senders.length]?.wake()) woken++
    if (woken > 0) this.#turn = (this.#turn + 1) % senders.length
  }

  #lookupOf(sink: Sink, { connection, slot: { publication } }: Database): RowLookup {
    const { maxMessageBytes } = this.#surroundings
    return new RowLookup({ connection, publication, name: `tailrace values ${sink.name}`, maxRowBytes: maxMessageBytes })
  }
}

/** A failure in words for people, without what the destination said beside. */
const worded = ({ answer: { code, message } }: Failure): Trouble => ({ code, message })

/** Keeps the status and headers of an answer alone: its words may be those of the message. */
function withoutWords(outcome: Outcome): Outcome {
  const hushed = (failure: Failure): Failure => {
    const { code, status, headers } = failure.answer
    if (status === undefined) return failure // there was no answer
    return { ...failure, answer: { code, message: `status ${status}`, status, ...(headers && { headers }) } }
  }
  if (outcome.kind === 'failed') return { ...outcome, failure: hushed(outcome.failure) }
  return outcome.kind === 'each' ? { ...outcome, failures: outcome.failures.map((failure) => failure && hushed(failure)) } : outcome
}

/**
 * Makes what the messages that one request delivered have in common, to be kept with them: one object for all, for there are many.
 * @param former of a message that had failed before: such are kept one by one
 * @param facts.answerBytes what the answer holds that no other request has counted
 */
function sentTogether(
  former: Former | undefined,
  facts: KeptFacts & Readonly<{ generation: number; partition: number; answerBytes: number }>,
): DeliveredTogether {
  const { generation, partition, status, tookMs, answer, answerBytes } = facts
  const at = Date.now()
  const formerAttempts = former?.records ?? NONE
  return {
    generation,
    partition,
    at,
    tries: (former?.attempts ?? 0) + 1,
    formerAttempts,
    bytes: KEPT_BYTES + KEPT_FORMER_BYTES * formerAttempts.length + answerBytes,
    attempt: () => ({ at: new Date(at).toISOString(), counts: true, status, tookMs: Math.round(tookMs), ...answer?.shown() }),
  }
}
