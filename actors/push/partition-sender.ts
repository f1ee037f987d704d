/**
 * Sends the messages of a partition: takes what may go, sends it within what the destination takes, and does what its
 * answers mean. What the destination is like, all partitions of the sink learn together (destination-state.ts).
 *
 *  P1. Messages of one group are in one request at most; in it they stand in order, and what comes behind one that failed
 *      is sent again after it, delivered or not.
 *  P2. A message that failed is parked with its attempt recorded; its group waits, others go on. It is tried again beside
 *      others that have failed, never beside those that haven't. So is one that a function of the sink fails at.
 *  P3. While the destination is down nothing is parked, and what was taken is given back.
 *  P4. A stop waits for what is under way, then gives it up: what was sent and not answered comes again.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Message } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-groups.ts'
import { EngineError } from '../../engine/errors.ts'
import { EarliestTimer } from '../../engine/earliest-timer.ts'
import { type PartitionFigures, type Trouble, troubleOf } from '../../engine/status.ts'
import type { Failure, Outcome } from '../../sinks/push.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import type { Sender } from '../partition/partition-sink.ts'
import { spanTime } from '../../engine/telemetry/span.ts'
import type { Ticket } from './destination-state.ts'
import { Endings, type Attempt } from './endings.ts'
import { needsPreparation, prepare, type Prepared } from './preparation.ts'
import { SendQueue } from './send-queue.ts'
import { bytesOf, firstOf, groupOf, halvesOf, isRetry, judgedBy, partOf, type RefusedMessage, type SendBatch } from './send-batch.ts'
import type { PushSink } from './push-sink.ts'
import { Suspects } from './suspects.ts'

/** A stop waits so long for answers. */
const DRAIN_MS = 7_000
/** The sender looks so often for messages whose end was forgotten (docs/rules.md, rule 38). */
const LOOK_EVERY_MS = 1_000
/** When functions can't be run, or values fetched, at the moment, they are tried again after this. */
const PREPARE_AGAIN_MS = 250

/** Sends the messages of one partition. */
export class PartitionSender implements Sender {
  readonly #owned: OwnedPartition
  readonly #sink: PushSink
  readonly #grouping: boolean
  readonly #endings: Endings
  readonly #queue: SendQueue
  /** requests under way, and what is done with their answers */
  #sends = 0
  /** settles when none is; absent: nothing waits for that */
  #idle: PromiseWithResolvers<void> | undefined
  readonly #abort = new AbortController()
  readonly #suspects: Suspects
  #downs: number
  #changes: number
  #isDraining = false
  /** ends the sending; absent: it has not begun, or has ended */
  #giveUp: ((error: unknown) => void) | undefined
  #isWoken = false
  readonly #timer: EarliestTimer

  constructor(owned: OwnedPartition, sink: PushSink, grouping: boolean) {
    this.#owned = owned
    this.#sink = sink
    this.#grouping = grouping
    this.#timer = new EarliestTimer(sink.host.clock, () => this.wake())
    this.#suspects = new Suspects(sink.destination)
    this.#endings = new Endings(owned, sink, this.#abort.signal)
    this.#queue = new SendQueue(owned, sink, grouping, this.#endings)
    this.#downs = sink.destination.downs
    this.#changes = sink.destination.changes
  }

  /** The trouble that keeps ends from being written. */
  get trouble(): Trouble | undefined {
    return this.#endings.trouble
  }

  figures(): Pick<PartitionFigures, 'requests' | 'held'> {
    return { requests: this.#sends, held: this.#suspects.count }
  }

  /** Something may have to be done: messages, answers, settings. @returns false: it is awake already, or sends nothing now */
  wake(): boolean {
    if (this.#isWoken || !this.#giveUp) return false
    this.#isWoken = true
    setImmediate(this.#work) // answers that came together are followed by requests that go together
    return true
  }

  /** Nothing is left to send but what is held to find out whose fault it is. */
  get isExhausted(): boolean {
    return this.#queue.isExhausted && this.#suspects.areOpen
  }
  get hasSuspects(): boolean {
    return this.#suspects.count > 0
  }
  /** It was decided whose fault it was that requests failed which are held. */
  decide(ruling: 'park' | 'release'): void {
    for (const { batch, failure } of this.#suspects.takeAll()) {
      if (ruling === 'park') this.#fail(batch, batch.messages, failure)
      else this.#endings.release(batch, batch.messages)
    }
  }

  // ── its loop ────────────────────────────────────────────────────────────────────────────────────

  /** Sends whatever may go, at every wake, until the signal is aborted or a sending breaks. */
  async deliver(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const stop = () => {
      this.#sink.left(this)
      resolve()
    }
    signal.addEventListener('abort', stop, { once: true })
    this.#giveUp = reject
    this.#sink.joined(this)
    if (signal.aborted) stop()
    const looking = setInterval(() => this.#look(), LOOK_EVERY_MS).unref()
    this.#work()
    try {
      await promise
    } finally {
      clearInterval(looking)
      this.#giveUp = undefined
      this.#sink.left(this)
      signal.removeEventListener('abort', stop)
      this.#timer.stop()
    }
  }

  readonly #work = (): void => {
    this.#isWoken = false
    if (!this.#giveUp) return
    const { destination, host } = this.#sink
    try {
      const lookedAt = host.clock()
      this.#follow()
      while (this.#sendOne()) {}
      if (this.isExhausted) this.#sink.settleSuspects()
      this.#timer.by(Math.min(destination.nextAt(lookedAt), this.#queue.fillsAt))
    } catch (error) {
      this.#giveUp(error)
    }
  }

  #look(): void {
    try {
      if (this.#sends === 0) this.#endings.look()
    } catch (error) {
      this.#giveUp?.(error)
    }
  }

  /** Waits for what is under way, then gives it up; what has not gone yet is given back. */
  async drain(): Promise<void> {
    this.#isDraining = true
    const late = setTimeout(() => this.#abort.abort(), DRAIN_MS)
    await this.ended()
    clearTimeout(late)
    this.#queue.release()
    this.decide('release')
  }

  /** Void from here on. */
  close(): void {
    this.#abort.abort()
    this.#queue.close()
    this.#suspects.takeAll()
    this.#endings.close() // answers that still come count no more
  }

  /** Settles when no request is under way. */
  async ended(): Promise<void> {
    if (this.#sends > 0) await (this.#idle ??= Promise.withResolvers()).promise
  }

  // ── sending ─────────────────────────────────────────────────────────────────────────────────────

  /** Follows what has become of the destination since this partition last looked. */
  #follow(): void {
    const { destination } = this.#sink
    if (this.#changes !== destination.changes) {
      this.#changes = destination.changes
      this.#queue.forgetRetries()
      this.#queue.release()
      this.decide('release')
    }
    if (this.#downs !== destination.downs) {
      this.#downs = destination.downs
      this.#queue.release()
      if (this.#suspects.doubt()) this.decide('release')
    }
    const cleared = this.#suspects.takeCleared()
    if (!cleared) return
    // what failed while it may have been down gets another chance before that counts
    for (const { batch, at } of cleared.again) this.#queue.add({ ...batch, doubtedSince: at })
    for (const { batch, failure } of cleared.guilty) this.#fail(batch, batch.messages, failure)
  }

  #sendOne(): boolean {
    const { destination, host, keyed } = this.#sink
    if (!host.isActive || this.#isDraining || this.#abort.signal.aborted) return false
    for (const lane of destination.lanes()) {
      const batch = this.#queue.takeFor(lane)
      if (!batch) continue
      const ticket = destination.started(lane)
      this.#sends++
      if (needsPreparation(batch, keyed, host.stage)) void this.#prepare(batch, ticket)
      else this.#send(batch, ticket)
      return true
    }
    return false
  }

  #sendEnded(): void {
    if (--this.#sends > 0) return
    this.#idle?.resolve()
    this.#idle = undefined
  }

  async #prepare(batch: SendBatch, ticket: Ticket): Promise<void> {
    const { traces } = this.#owned
    const startedAt = spanTime()
    try {
      const { batches, dropped, behind, failed } = await this.#prepared(batch)
      traces?.prepared(batch, startedAt)
      for (const { message, ...failure } of failed) this.#end(batch, [message], { isOwn: true, counts: true, ...failure })
      this.#endings.drop(batch, dropped)
      this.#endings.release(batch, behind)
      const [first, ...others] = batches
      this.#queue.next(others)
      if (first) return this.#send(first, ticket)
      this.#sink.destination.aborted(ticket) // nothing of it was sent
      this.#sendEnded()
    } catch (error) {
      this.#broken(error)
    }
  }

  /** Makes a batch ready. One that can't be made ready at the moment, through no fault of its messages, is given back after a pause. */
  async #prepared(batch: SendBatch): Promise<Prepared> {
    const { host, keyed, lookup } = this.#sink
    const { signal } = this.#abort
    const passage = { sink: host.sink, stage: host.stage, lookup, keyed, grouping: this.#grouping }
    try {
      const prepared = await prepare(batch, passage, signal)
      this.#sink.preparationTrouble = prepared.trouble
      return prepared
    } catch (error) {
      const trouble = troubleOf(error)
      if (!signal.aborted) this.#sink.preparationTrouble = trouble
      await delay(PREPARE_AGAIN_MS, undefined, { signal }).catch(() => undefined)
      return { batches: [], dropped: [], behind: [...batch.messages], failed: [], trouble }
    }
  }

  #send(batch: SendBatch, ticket: Ticket): void {
    const trace = this.#owned.traces?.request(batch)
    this.#sink.send(
      trace ? { ...batch, traceHeaders: trace.headers } : batch,
      this.#abort.signal,
      (outcome) => {
        trace?.ended(outcome)
        this.#ended(batch, ticket, outcome)
      },
      (error) => this.#broken(error),
    )
  }

  /** Does what an answer means, and sends the next one while the connection is warm. Never throws. */
  #ended(batch: SendBatch, ticket: Ticket, outcome: Outcome): void {
    const broken = (error: unknown) => this.#broken(error)
    try {
      const ending = this.#apply(batch, ticket, outcome)
      if (ending) return void ending.then(() => this.#sendEnded(), broken)
    } catch (error) {
      return broken(error)
    }
    this.#sendEnded()
    if (outcome.kind === 'delivered') this.#goOn()
  }

  #goOn(): void {
    if (!this.#giveUp || !this.#sink.mayGoOn(this.#sends)) return
    try {
      this.#follow()
      this.#sendOne()
    } catch (error) {
      this.#giveUp(error)
    }
  }

  #broken(error: unknown): void {
    this.#sendEnded()
    this.#giveUp?.(error)
  }

  // ── what an answer means ────────────────────────────────────────────────────────────────────────

  /** @returns what has to be waited for; undefined: nothing */
  #apply(batch: SendBatch, ticket: Ticket, outcome: Outcome): Promise<void> | undefined {
    const { destination } = this.#sink
    const { messages } = batch
    switch (outcome.kind) {
      case 'aborted':
        destination.aborted(ticket)
        this.#endings.release(batch, messages)
        return undefined
      case 'delivered':
        destination.succeeded(ticket)
        if (isRetry(batch)) this.#queue.retryPassed()
        this.#sink.sent({ batch, ticket, delivered: messages, refused: [], status: outcome.status, answer: outcome.answer })
        return this.#endings.finish(batch, messages)
      case 'failed': {
        const { failure } = outcome
        this.#sink.sent({ batch, ticket, delivered: [], refused: [failure], status: failure.answer.status ?? 0 })
        this.#rule(batch, ticket, failure, 1)
        return undefined
      }
      case 'each':
        return this.#applyEach(batch, ticket, outcome)
    }
  }

  #applyEach(batch: SendBatch, ticket: Ticket, { failures, status }: Extract<Outcome, { kind: 'each' }>): Promise<void> | undefined {
    const { destination, keyed } = this.#sink
    const { done, bad, behind } = judgedBy(batch.messages, failures, { grouping: this.#grouping, keyed })
    this.#sink.sent({ batch, ticket, delivered: done, refused: bad.map(({ failure }) => failure), status })
    this.#endings.release(batch, behind)
    const { judged = [], others = [] } = Object.groupBy(bad, ({ failure }) => (failure.blame === 'message' ? 'judged' : 'others'))
    const [first] = others
    if (isRetry(batch) && !first) this.#queue.retryPassed()
    if (done.length > 0) destination.succeeded(ticket)
    else if (!first) destination.judged(ticket)
    this.#failEach(batch, judged)
    if (first && (first.failure.blame === 'throttled' || done.length === 0)) {
      const rest = others.map(({ message }) => message)
      this.#rule(partOf(batch, rest), ticket, first.failure, new Set(rest.map((message) => groupOf(message, this.#grouping))).size)
    } else this.#failEach(batch, others)
    return done.length > 0 ? this.#endings.finish(batch, done) : undefined
  }

  #rule(batch: SendBatch, ticket: Ticket, failure: Failure, groups: number): void {
    const { destination, host } = this.#sink
    const { doubtedSince, throttles, messages } = batch
    const [first] = messages
    if (!first) throw new EngineError('INTERNAL', 'a request without messages has failed')
    if (failure.blame === 'tooLarge' && messages.length > 1) destination.tooLarge(bytesOf(batch))
    const now = host.clock()
    const ruling = destination.failed({
      ticket,
      failure,
      messages: messages.length,
      group: `${this.#owned.partition}/${first.view.group(first.place)}`,
      groups,
      doubtedSince,
      throttles,
      isRetry: isRetry(batch),
    })
    const doubted = { ...batch, doubtedSince: doubtedSince ?? now, throttles: throttles + (failure.blame === 'throttled' ? 1 : 0) }
    switch (ruling) {
      case 'park':
        return this.#fail(batch, messages, failure)
      case 'putOff':
        return this.#fail(batch, messages, failure, false)
      case 'release':
        return this.#endings.release(batch, messages)
      case 'suspect':
        this.#suspects.hold({ batch, failure, at: now })
        return
      case 'again':
        return this.#queue.next([doubted])
      case 'split': {
        if (isRetry(batch)) this.#queue.retryFailed(messages.length)
        const halves = halvesOf(doubted, this.#grouping)
        if (halves) return this.#queue.next(halves)
        const { first: alone, behind } = firstOf(doubted, this.#grouping)
        this.#endings.release(batch, behind)
        return this.#queue.next([alone])
      }
    }
  }

  #failEach(batch: SendBatch, refused: readonly RefusedMessage[]): void {
    for (const { message, failure } of refused) this.#fail(batch, [message], failure)
  }

  /** @param isOwn the attempt was the message's own failure */
  #fail(origin: Origin, messages: readonly Message[], failure: Failure, isOwn = true): void {
    const counts = isOwn && failure.isOfPlace !== true && failure.blame !== 'throttled'
    const record = { at: new Date().toISOString(), counts, ...failure.answer }
    this.#end(origin, messages, { isOwn, counts, error: failure.answer.message, record, retryAfterMs: failure.retryAfterMs })
  }

  #end(origin: Origin, messages: readonly Message[], attempt: Attempt): void {
    if (this.#isDraining) this.#endings.release(origin, messages) // it would not be recorded any more
    else this.#endings.fail(origin, messages, attempt)
  }
}
