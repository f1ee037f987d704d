/**
 * A sink partition while this process owns it: the dispatcher's decisions put into effect. The machine of the partition
 * (sink-partition.ts) runs the four loops; receive and ack come straight here, because an event and a new context for
 * each request would cost more than the request.
 *
 *  I1. Nothing is read or handed out before the term is taken, the parked rows and the commit are read, and a commit of
 *      this owner is durable.
 *  I2. An ack settles after the commit that holds it is durable, or is refused.
 *  I3. After `close` nothing is handed out, and no ack settles well; nor is anything handed out while the log can't be
 *      sure that the partition is still this process's.
 */
import { once } from 'node:events'
import type { RefList } from '../../engine/dispatch/ack-id.ts'
import type { Batch } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-group.ts'
import type { Dispatcher, Lane } from '../../engine/dispatch/dispatcher.ts'
import type { TakeBytes } from '../../engine/dispatch/gathering.ts'
import type { Chosen, Discards, ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import type { Failed } from '../../engine/dispatch/parked/parking.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Released } from '../../engine/dispatch/settlement.ts'
import type { Commit } from '../../engine/log/log.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import { EarliestTimer } from '../../engine/earliest-timer.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import { GatheredEnds } from './gathered-ends.ts'
import { ParkedTending } from './parked-tending.ts'
import { PartitionCommits } from './partition-commits.ts'
import type { PartitionOptions } from './partition-options.ts'
import { PartitionReading } from './partition-reading.ts'
import { figuresOf, troubleOf, type PartitionTrouble } from './partition-report.ts'
import type { Figures } from '../../engine/status.ts'
import { takeOver, type TakenOver } from './take-over.ts'
import type { Trimming } from './trimming.ts'

const DRAIN_AFTER_MS = 30_000
/** How long a full window is left to clients, and to requests under way, before what blocks it is parked. */
const PARK_AFTER_MS = 1_000
const PARK_SENT_AFTER_MS = 5_000

export class OwnedPartition {
  readonly #options: PartitionOptions
  readonly #store: ParkedStore
  readonly #dispatcher: Dispatcher
  readonly #commits: PartitionCommits
  readonly #loops = new Set<Promise<void>>()
  readonly #parked: ParkedTending
  readonly #borrowed = new Set<() => void>()
  readonly #trimming: Trimming
  readonly #reading: PartitionReading
  /** set to the visibility time that ends first */
  readonly #lapses: EarliestTimer
  readonly #discarded: DiscardedMessages
  readonly #ends: GatheredEnds
  /** messages handed out since the take-over */
  #delivered = 0
  #closed = false

  private constructor(options: PartitionOptions, { store, dispatcher, trimming, discarded, committed, hasParked }: TakenOver) {
    this.#options = options
    this.#store = store
    this.#dispatcher = dispatcher
    this.#trimming = trimming
    this.#discarded = discarded
    this.#ends = new GatheredEnds(
      (step) => this.#parked.inTurn(step),
      (refs) => this.#finishMoved(refs),
    )
    const { log, topic, reader, deliverable, observer, clock, drained, sends, drainAfterMs = DRAIN_AFTER_MS } = options
    const { drops, span, splitsKeyChanges } = options
    const changed = () => this.#changed()
    const home = { log, topic, reader, partition: this.partition, dispatcher, deliverable }
    this.#reading = new PartitionReading({
      ...home,
      trimming,
      drops,
      span,
      splitsKeyChanges,
      changed,
      sends: sends === true,
      isAlone: topic === reader,
      passed: () => this.#commits.passed(),
    })
    this.#commits = new PartitionCommits({
      ...home,
      term: store.term,
      parked: () => store.parked,
      committed,
      clock,
      written: (commit) => this.#written(commit),
    })
    this.#lapses = new EarliestTimer(clock, () => this.#onTime())
    this.#parked = new ParkedTending({
      dispatcher,
      store,
      observer,
      clock,
      drained,
      drainAfterMs,
      parkAfterMs: sends ? PARK_SENT_AFTER_MS : PARK_AFTER_MS,
      isClosed: () => this.#closed,
      commit: () => this.#commits.next(),
      moved: () => this.#moved(),
      beforeDrained: () => trimming.noteAll(),
      committed: () => this.#commits.committed,
      discarded,
      hasParked,
    })
  }

  /** Takes the term, then reads what the former owner left, then makes the take-over durable. */
  static async takeOver(options: PartitionOptions): Promise<OwnedPartition> {
    const owned = new OwnedPartition(options, await takeOver(options))
    owned.#changed()
    return owned
  }

  get partition(): number {
    return this.#options.key.partition
  }

  /** Whether a batch has the names of this partition: else those of one that it was parked in. */
  names({ generation, partition }: Origin): boolean {
    return generation === this.#options.key.generation && partition === this.#options.key.partition
  }

  // ── the loops ───────────────────────────────────────────────────────────────────────────────────

  /** Reads the log into the window for as long as there is room. */
  read(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.#reading.run(signal))
  }

  /** Makes acks durable, and the promise of what may be handed out next. */
  commit(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.#commits.run(signal))
  }

  /** Parks what blocks the window, discards what was delivered too often, fetches parked bodies by need. */
  tend(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.#parked.run(signal))
  }

  /** Messages are asked for: nothing to do. What sends puts its own loop in this one's place. */
  async deliver(signal: AbortSignal): Promise<void> {
    if (!signal.aborted) await once(signal, 'abort')
  }

  /** Deletes what lies below the committed offset and out of the replay window. */
  trim(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.#trimming.run(signal))
  }

  // ── requests ────────────────────────────────────────────────────────────────────────────────────

  /** @returns the messages taken, in batches of one name; none: there is nothing to deliver */
  take(max: number, bytes: TakeBytes, lane: Lane = 'all'): readonly Batch[] {
    if (this.#closed || !this.#options.log.holds(this.#options.reader)) return []
    this.#lapse()
    const batch = this.#dispatcher.take(max, bytes, lane)
    this.#changed() // also when nothing came: what was looked at may turn out to block the window
    if (!batch) return []
    const batches = [...batch.others, batch].filter(({ views }) => views.length > 0)
    const { views, places } = batches[0] as Batch
    const sinceCommitUs = Date.now() * 1000 - (views[0] as Batch['views'][number]).commitTimeUs(places[0] as number)
    const messages = batches.reduce((sum, each) => sum + each.views.length, 0)
    this.#delivered += messages
    this.#options.observer.delivered({ messages, bytes: batches.reduce((sum, each) => sum + each.bytes, 0), sinceCommitUs })
    return batches
  }

  /** Settles when the end of these messages is durable. @throws EngineError ACK_NOT_DURABLE, STOPPING, STATE_UNAVAILABLE */
  async finish(refs: RefList): Promise<void> {
    this.#mustLive()
    const acknowledged = this.#options.delivered.acknowledged(this.#options.key)
    const { finished, heldUntil, elsewhere, early } = this.#dispatcher.finish(refs, acknowledged.add)
    acknowledged.done()
    const durable = finished > 0 ? this.#ended(finished, heldUntil) : this.#commits.settled()
    durable.catch(() => undefined) // may fail while the store is asked; it is awaited below
    if (elsewhere.offsets.length > 0) await this.#ends.add(elsewhere)
    await durable
    if (early) throw new EngineError('ACK_NOT_DURABLE', 'the partition has just moved and has not come to this message yet')
  }

  /**
   * Messages were delivered. Their end will be durable; of parked ones it is when what is returned settles.
   * @returns undefined: there are none. @throws EngineError STOPPING; rejects with STATE_UNAVAILABLE, STOPPING
   */
  delivered(refs: RefList): Promise<void> | undefined {
    this.#mustLive()
    const { finished, heldUntil, elsewhere } = this.#dispatcher.finish(refs)
    if (finished > 0) {
      this.#commits.soon()
      this.#told(finished, heldUntil)
    }
    return elsewhere.offsets.length > 0 ? this.#ends.add(elsewhere) : undefined
  }

  /**
   * Messages taken are dropped by the sink's filter: finished, and nobody's delivery. Their end will be durable.
   * @param origin of those that another generation has named
   * @returns settles when those of the parked store are ended there, or are with us again; undefined: there are none
   */
  drop(refs: RefList, origin?: Origin): Promise<void> | undefined {
    if (this.#closed) return undefined
    const { finished, elsewhere } = origin ? { finished: 0, elsewhere: refs } : this.#dispatcher.finish(refs)
    if (finished > 0) this.#moved()
    if (elsewhere.offsets.length === 0) return undefined
    // until the store has ended them they stay with us; if it can't, they come again
    const ended = origin ? this.#parked.inTurn(() => this.#parked.finish(elsewhere, origin)) : this.#ends.add(elsewhere)
    return ended.catch(() => (origin ? this.releaseParked(refs, origin) : this.release(elsewhere)))
  }

  /** How often a message that was taken has been handed out, now included. */
  deliveriesOf(offset: number, index: number, origin?: Origin): number {
    return this.#dispatcher.deliveriesOf(offset, index, origin)
  }

  /**
   * Somebody works on messages that were taken, and hands them out only then.
   * @param giveBack called when the partition ends first: whoever has them next gets them at once. @returns to be called at the end of the work
   */
  borrow(giveBack: () => void): () => void {
    this.#borrowed.add(giveBack)
    return () => void this.#borrowed.delete(giveBack)
  }

  /** The same of messages parked under another generation: durable when it settles; unknown ones are ignored. */
  async finishParked(refs: RefList, origin: Origin): Promise<void> {
    this.#mustLive()
    await this.#parked.inTurn(async () => {
      this.#mustLive()
      await this.#parked.finish(refs, origin)
    })
  }

  /** Messages in flight although whoever sends has told the end of all that it took; 0 while an end is on its way to the store. */
  get forgotten(): number {
    return this.#closed || !this.#parked.isIdle ? 0 : this.#dispatcher.inFlight
  }

  /** Those come back. @throws EngineError INTERNAL: they can't be found */
  releaseForgotten(): void {
    this.#released({ messages: this.#dispatcher.releaseAll(), heldUntil: 0 })
    const { inFlight } = this.#dispatcher
    if (inFlight !== 0) throw new EngineError('INTERNAL', `${inFlight} messages are counted as in flight, and none is`, { inFlight })
  }

  /** Messages read that no take has looked at, and parked ones that are ready. */
  get waiting(): number {
    const { window, parked } = this.#dispatcher
    return window.end - window.cursor + parked.readyCount
  }

  /** Whether a take might find something. */
  mayDeliver(lane: Lane): boolean {
    return !this.#closed && this.#dispatcher.mayDeliver(lane)
  }

  /** Messages could not be delivered: they are tried again after a while, or given up. */
  fail(refs: RefList, failures: readonly Failed[], origin?: Origin): void {
    if (this.#closed) return
    const { elsewhere, elsewhereFailed } = origin ? { elsewhere: refs, elsewhereFailed: failures } : this.#dispatcher.fail(refs, failures)
    if (elsewhere.offsets.length > 0) this.#parked.failedAgain(elsewhere, elsewhereFailed, origin)
    this.#changed()
  }

  /** Messages of another generation come back. @param isUnseen no client has had them */
  releaseParked(refs: RefList, origin: Origin, lease?: number, isUnseen?: boolean): void {
    if (this.#closed) return
    this.#released(this.#dispatcher.releaseParked(refs, origin, lease, isUnseen))
  }

  /** Messages come back. @param lease only those still held under it; @param isUnseen no client has had them */
  release(refs: RefList, lease?: number, isUnseen?: boolean): void {
    if (this.#closed) return
    this.#released(this.#dispatcher.release(refs, lease, isUnseen))
  }

  /** What somebody decided of parked messages, or of those that were given up. @returns how many it held for. @throws EngineError STATE_UNAVAILABLE */
  edit(edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number> {
    return this.#parked.edit(edit, chosen)
  }

  update(): void {
    this.#dispatcher.settings = this.#options.settings()
    this.#trimming.update()
    this.#changed()
    this.#options.deliverable()
  }

  // ── the end ─────────────────────────────────────────────────────────────────────────────────────

  /** Hands out nothing more, and tells the next owner exactly what is with clients. */
  async drain(): Promise<void> {
    for (const giveBack of this.#borrowed) giveBack()
    this.#closed = true
    this.#lapses.stop()
    this.#commits.stop()
    await this.ended()
    await this.#parked.inTurn(async () => undefined)
    try {
      await this.#commits.last()
      await this.#trimming.noteAll().catch(() => undefined) // then a replay's answer counts a little less
    } finally {
      this.#dispatcher.dispose()
    }
  }

  /** Void from here on: another owner may be at work. */
  close(cause: unknown): void {
    if (this.#closed) return
    this.#closed = true
    this.#lapses.stop()
    this.#commits.stop()
    this.#commits.fail(cause)
    this.#dispatcher.dispose()
  }

  /** Settles when no loop works any more; they have been aborted. */
  async ended(): Promise<void> {
    await Promise.allSettled(this.#loops)
  }

  figures(): Figures {
    const { partition } = this
    const parts = { dispatcher: this.#dispatcher, trimming: this.#trimming, discarded: this.#discarded }
    return figuresOf({ ...parts, partition, committed: this.#commits.committed, delivered: this.#delivered, term: this.#store.term })
  }

  get isReady(): boolean {
    return this.#dispatcher.hasReady
  }

  /** Groups whose first message has failed and is tried again, when it is this process that sends. */
  failing(): number {
    return this.#dispatcher.parked.failing()
  }

  /** What was given up in the last day, but for its size; undefined: nothing. */
  get discarded(): Discards | undefined {
    return this.#discarded.others
  }

  /** What keeps messages from flowing, if anything does. */
  get trouble(): PartitionTrouble | undefined {
    return troubleOf({ tending: this.#parked, discarded: this.#discarded, parkedGroups: this.#dispatcher.parked.size })
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #loop(work: () => Promise<void>): Promise<void> {
    const loop = work()
    this.#loops.add(loop)
    const done = () => this.#loops.delete(loop)
    loop.then(done, done)
    return loop
  }

  #mustLive(): void {
    if (this.#closed) throw new EngineError('STOPPING', `partition ${this.partition} is stopping or moving`, { partition: this.partition })
  }

  #written(commit: Commit): void {
    this.#trimming.committed(commit)
    this.#parked.committed()
  }

  #ended(messages: number, heldUntil: number): Promise<void> {
    const durable = this.#commits.next()
    this.#told(messages, heldUntil)
    return durable
  }

  #told(messages: number, heldUntil: number): void {
    const { observer, deliverable } = this.#options
    observer.acked({ messages, heldMs: this.#heldMs(heldUntil) })
    this.#changed()
    deliverable()
  }

  #released({ messages, heldUntil }: Released): void {
    if (messages === 0) return
    this.#options.observer.returned({ messages, heldMs: this.#heldMs(heldUntil) })
    this.#changed()
    this.#options.deliverable()
  }

  /** How long a message has been with its client. @param heldUntil end of its visibility time; 0: it is over */
  #heldMs(heldUntil: number): number {
    const { ackWaitMs } = this.#dispatcher.settings
    return heldUntil === 0 ? ackWaitMs : Math.max(0, ackWaitMs - (heldUntil - this.#options.clock()))
  }

  /** What the parked store has or is getting, unless it could not be parked and is in the window again. */
  async #finishMoved(refs: RefList): Promise<void> {
    this.#mustLive()
    const { finished, heldUntil, elsewhere } = this.#dispatcher.finish(refs)
    const durable = finished > 0 ? this.#ended(finished, heldUntil) : undefined
    durable?.catch(() => undefined)
    if (elsewhere.offsets.length > 0) await this.#parked.finish(elsewhere)
    await durable
  }

  #moved(): void {
    this.#commits.changed()
    this.#changed()
    this.#options.deliverable()
  }

  #lapse(): void {
    const lapsed = this.#dispatcher.lapse(this.#options.clock())
    if (lapsed > 0) this.#options.observer.lapsed({ messages: lapsed, heldMs: this.#heldMs(0) })
  }

  /** After every change of the dispatcher: wakes the loops that it concerns. */
  #changed(): void {
    if (this.#closed) return
    const dispatcher = this.#dispatcher
    if (dispatcher.room()) this.#reading.ring()
    if (dispatcher.wantsCommit()) this.#commits.ring()
    this.#parked.changed()
    this.#lapses.by(dispatcher.nextLapse())
  }

  #onTime(): void {
    if (this.#closed) return
    this.#lapse()
    this.#changed()
    this.#options.deliverable()
  }
}
