/**
 * A partition whose messages are sent: takes what may go, sends it within what the destination takes, and does what its
 * answers mean. What the destination is like, all partitions of the sink learn together (destination-state.ts).
 *
 *  P1. Messages of one group are in one request at most; in it they stand in order, and what comes behind one that failed
 *      is sent again after it, delivered or not.
 *  P2. A message that failed is parked with its attempt recorded; its group waits, others go on. It is tried again beside
 *      others that have failed, never beside those that haven't. The same of one that a function of the sink fails at.
 *  P3. While the destination is down nothing is parked, and what was taken is given back.
 *  P4. A stop waits for what is under way, then gives it up: what was sent and not answered comes again.
 */
import type { Origin } from '../../engine/dispatch/parked/parked-group.ts'
import type { Discards } from '../../engine/dispatch/parked/parked-store.ts'
import type { Failure, Outcome } from '../../sinks/push.ts'
import type { Ticket } from './destination-state.ts'
import { EarliestTimer } from '../../engine/earliest-timer.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { judgedBy } from './judged-messages.ts'
import { PieceEndings, type Attempt } from './piece-endings.ts'
import { PieceQueue } from './piece-queue.ts'
import { PiecePreparation } from './piece-preparation.ts'
import type { PushPartitionOptions, Sent } from './push-partition-options.ts'
import { RetryBatch } from './retry-batch.ts'
import { Suspects } from './suspects.ts'
import { bytesOf, firstOf, groupsOf, halvesOf, partOf, type Piece } from './pieces.ts'
import type { HostedPartition } from '../sink/sink-host.ts'
import type { Figures, HealthCheck } from '../../engine/status.ts'

/** A stop waits so long for answers. */
const DRAIN_MS = 7_000
/** How often it is looked for messages whose end was forgotten. */
const LOOK_EVERY_MS = 1_000

export class PushPartition implements HostedPartition {
  readonly #owned: OwnedPartition
  readonly #options: PushPartitionOptions
  readonly #endings: PieceEndings
  readonly #queue: PieceQueue
  readonly #preparation: PiecePreparation
  /** requests under way, and what is done with their answers */
  #sends = 0
  /** settles when none is, for whoever waits for it */
  #idle: PromiseWithResolvers<void> | undefined
  readonly #abort = new AbortController()
  readonly #retryBatch = new RetryBatch()
  readonly #suspects: Suspects
  #downs: number
  #changes: number
  #isDraining = false
  /** ends the sending; absent: it has not begun, or has ended */
  #giveUp: ((error: unknown) => void) | undefined
  #isWoken = false
  readonly #timer: EarliestTimer

  constructor(owned: OwnedPartition, options: PushPartitionOptions) {
    this.#owned = owned
    this.#options = options
    this.#timer = new EarliestTimer(options.clock, () => this.wake())
    this.#suspects = new Suspects(options.destination)
    this.#endings = new PieceEndings(owned, options, this.#abort.signal)
    this.#queue = new PieceQueue({ owned, endings: this.#endings, retryBatch: this.#retryBatch }, options)
    this.#preparation = new PiecePreparation(options, {
      release: (piece) => this.#endings.release(piece),
      drop: (piece) => this.#endings.drop(piece),
      fail: (piece, error, record) => this.#end(piece, { isOwn: true, counts: true, error, record }),
      next: (pieces) => this.#queue.next(pieces),
    })
    this.#downs = options.destination.downs
    this.#changes = options.destination.changes
  }

  get partition(): number {
    return this.#owned.partition
  }
  get trouble(): HealthCheck['error'] | undefined {
    return this.#owned.trouble ?? this.#endings.trouble
  }
  get discarded(): Discards | undefined {
    return this.#owned.discarded
  }
  /** groups whose first message has failed and is tried again */
  failing(): number {
    return this.#owned.failing()
  }
  get isReady(): boolean {
    return this.#owned.isReady
  }
  names(origin: Origin): boolean {
    return this.#owned.names(origin)
  }
  update(): void {
    this.#owned.update()
  }
  figures(): Figures {
    return { ...this.#owned.figures(), requests: this.#sends, held: this.#suspects.count }
  }
  edit(...edit: Parameters<OwnedPartition['edit']>): Promise<number> {
    return this.#owned.edit(...edit)
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
  /** Whose fault it was of what is held. */
  decide(ruling: 'park' | 'release'): void {
    for (const { piece, failure } of this.#suspects.takeAll()) {
      if (ruling === 'park') this.#fail(piece, failure, true)
      else this.#endings.release(piece)
    }
  }

  // ── the loops ───────────────────────────────────────────────────────────────────────────────────

  read(signal: AbortSignal): Promise<void> {
    return this.#owned.read(signal)
  }
  commit(signal: AbortSignal): Promise<void> {
    return this.#owned.commit(signal)
  }
  tend(signal: AbortSignal): Promise<void> {
    return this.#owned.tend(signal)
  }
  trim(signal: AbortSignal): Promise<void> {
    return this.#owned.trim(signal)
  }

  /** Sends whatever may go, at every wake, until the signal is aborted or a sending breaks. */
  async deliver(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const stop = () => resolve()
    signal.addEventListener('abort', stop, { once: true })
    if (signal.aborted) stop()
    this.#giveUp = reject
    const looking = setInterval(() => this.#look(), LOOK_EVERY_MS).unref()
    this.#work()
    try {
      await promise
    } finally {
      clearInterval(looking)
      this.#giveUp = undefined
      signal.removeEventListener('abort', stop)
      this.#timer.stop()
    }
  }

  readonly #work = (): void => {
    this.#isWoken = false
    if (!this.#giveUp) return
    const { destination, clock, exhausted } = this.#options
    try {
      const lookedAt = clock()
      this.#follow()
      while (this.#sendOne()) {}
      if (this.isExhausted) exhausted()
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

  async drain(): Promise<void> {
    this.#isDraining = true
    const late = setTimeout(() => this.#abort.abort(), DRAIN_MS)
    await this.#allSent()
    clearTimeout(late)
    this.#queue.release()
    for (const { piece } of this.#suspects.takeAll()) this.#endings.release(piece)
    await this.#owned.drain()
  }

  close(cause: unknown): void {
    this.#owned.close(cause)
    this.#abort.abort()
    this.#queue.close()
    this.#suspects.takeAll()
    this.#endings.close() // whoever is still being asked has no say any more
  }

  async ended(): Promise<void> {
    await this.#allSent()
    await this.#owned.ended()
  }

  // ── sending ─────────────────────────────────────────────────────────────────────────────────────

  /** What has become of the destination since this partition last looked. */
  #follow(): void {
    const { destination } = this.#options
    if (this.#changes !== destination.changes) {
      this.#changes = destination.changes
      this.#retryBatch.forget()
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
    for (const { piece, at } of cleared.again) this.#queue.add({ ...piece, doubtedSince: at })
    for (const { piece, failure } of cleared.guilty) this.#fail(piece, failure, true)
  }

  #sendOne(): boolean {
    const { destination, isActive } = this.#options
    if (!isActive() || this.#isDraining || this.#abort.signal.aborted) return false
    for (const lane of destination.lanes()) {
      const piece = this.#queue.takeFor(lane)
      if (!piece) continue
      const ticket = destination.started(lane)
      this.#sends++
      if (this.#preparation.isNeeded(piece)) void this.#prepare(piece, ticket)
      else this.#send(piece, ticket)
      return true
    }
    return false
  }

  #sendEnded(): void {
    if (--this.#sends > 0) return
    this.#idle?.resolve()
    this.#idle = undefined
  }

  async #allSent(): Promise<void> {
    if (this.#sends > 0) await (this.#idle ??= Promise.withResolvers()).promise
  }

  async #prepare(piece: Piece, ticket: Ticket): Promise<void> {
    try {
      const prepared = await this.#preparation.run(piece, this.#abort.signal)
      if (prepared) return this.#send(prepared, ticket)
      this.#options.destination.aborted(ticket) // nothing of it was sent
      this.#sendEnded()
    } catch (error) {
      this.#broken(error)
    }
  }

  #send(piece: Piece, ticket: Ticket): void {
    this.#options.send(
      piece,
      this.#abort.signal,
      (outcome) => this.#ended(piece, ticket, outcome),
      (error) => this.#broken(error),
    )
  }

  /** Does what an answer means, and sends the next one while the connection is warm. Never throws. */
  #ended(piece: Piece, ticket: Ticket, outcome: Outcome): void {
    const broken = (error: unknown) => this.#broken(error)
    try {
      const ending = this.#apply(piece, ticket, outcome)
      if (ending) return void ending.then(() => this.#sendEnded(), broken)
    } catch (error) {
      return broken(error)
    }
    this.#sendEnded()
    if (outcome.kind === 'delivered') this.#goOn()
  }

  #goOn(): void {
    if (!this.#giveUp || !this.#options.mayGoOn(this.#sends)) return
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
  #apply(piece: Piece, ticket: Ticket, outcome: Outcome): Promise<void> | undefined {
    const { destination } = this.#options
    switch (outcome.kind) {
      case 'aborted':
        destination.aborted(ticket)
        this.#endings.release(piece)
        return undefined
      case 'delivered':
        destination.succeeded(ticket)
        if (piece.former) this.#retryBatch.passed()
        this.#tell(piece, ticket, { delivered: piece, status: outcome.status, answer: outcome.answer })
        return this.#endings.finish(piece)
      case 'failed':
        this.#tell(piece, ticket, { failures: [outcome.failure], status: outcome.failure.answer.status ?? 0 })
        this.#rule(piece, ticket, outcome.failure, 1)
        return undefined
      case 'each':
        return this.#applyEach(piece, ticket, outcome)
    }
  }

  #applyEach(piece: Piece, ticket: Ticket, { failures, status }: Extract<Outcome, { kind: 'each' }>): Promise<void> | undefined {
    const { destination, grouping, keyed } = this.#options
    const groups = groupsOf(piece, grouping)
    const { done, bad, behind } = judgedBy(piece, failures, { grouping, keyed })
    const delivered = done.length > 0 ? partOf(piece, done) : undefined
    this.#tell(piece, ticket, { delivered, failures: bad.map((i) => failures[i] as Failure), status })
    if (behind.length > 0) this.#endings.release(partOf(piece, behind))
    const judged = bad.filter((i) => failures[i]?.blame === 'message')
    const others = bad.filter((i) => failures[i]?.blame !== 'message')
    if (piece.former && others.length === 0) this.#retryBatch.passed()
    if (delivered) destination.succeeded(ticket)
    else if (others.length === 0) destination.judged(ticket)
    for (const i of judged) this.#fail(partOf(piece, [i]), failures[i] as Failure, true)
    if (others.length > 0) {
      const rest = partOf(piece, others)
      const first = failures[others[0] as number] as Failure
      if (first.blame === 'throttled' || !delivered) this.#rule(rest, ticket, first, new Set(others.map((i) => groups[i])).size)
      else for (const i of others) this.#fail(partOf(piece, [i]), failures[i] as Failure, true)
    }
    return delivered && this.#endings.finish(delivered)
  }

  #rule(piece: Piece, ticket: Ticket, failure: Failure, groups: number): void {
    const { destination, grouping, clock } = this.#options
    const [view] = piece.views
    const group = `${this.partition}/${view?.group(piece.places[0] as number)}`
    if (failure.blame === 'tooLarge' && piece.views.length > 1) destination.tooLarge(bytesOf(piece))
    const now = clock()
    const { doubtedSince, former, throttles } = piece
    const ruling = destination.failed({
      ticket,
      failure,
      messages: piece.views.length,
      group,
      groups,
      doubtedSince,
      throttles,
      isRetry: former !== undefined,
    })
    const doubted = { ...piece, doubtedSince: doubtedSince ?? now, throttles: throttles + (failure.blame === 'throttled' ? 1 : 0) }
    switch (ruling) {
      case 'park':
        return this.#fail(piece, failure, true)
      case 'putOff':
        return this.#fail(piece, failure, false)
      case 'release':
        return this.#endings.release(piece)
      case 'suspect':
        this.#suspects.hold({ piece, failure, at: now })
        return
      case 'again':
        return this.#queue.next([doubted])
      case 'split': {
        if (former) this.#retryBatch.failed(piece.views.length)
        const halves = halvesOf(doubted, grouping)
        if (halves) return this.#queue.next(halves)
        const { first, behind } = firstOf(doubted, grouping)
        if (behind) this.#endings.release(behind)
        return this.#queue.next([first])
      }
    }
  }

  /** @param isOwn the attempt was the message's own failure */
  #fail(piece: Piece, failure: Failure, isOwn: boolean): void {
    const counts = isOwn && failure.isOfPlace !== true && failure.blame !== 'throttled'
    const record = { at: new Date().toISOString(), counts, ...failure.answer }
    this.#end(piece, { isOwn, counts, error: failure.answer.message, record, retryAfterMs: failure.retryAfterMs })
  }

  #end(piece: Piece, attempt: Attempt): void {
    if (this.#isDraining) this.#endings.release(piece) // nobody would record it any more
    else this.#endings.fail(piece, attempt)
  }

  #tell(piece: Piece, { startedAt }: Ticket, { delivered, failures = [], status, answer }: Partial<Sent> & { status: number }): void {
    const { sent, clock } = this.#options
    sent({ partition: this.partition, piece, delivered, failures, status, answer, tookMs: clock() - startedAt })
  }
}
