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
import { refList, type RefList } from '../../engine/dispatch/ack-id.ts'
import type { TakenBatch } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-groups.ts'
import { countInFlight, dispose, type Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { deliveriesOf, fail, finish, lapse, release, releaseAll, type Released } from '../../engine/dispatch/ends.ts'
import { mayDeliver, take, type Lane, type TakeBytes } from '../../engine/dispatch/take.ts'
import { wants } from '../../engine/dispatch/wants.ts'
import type { ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import type { FailedMessage } from '../../engine/dispatch/parked/parking.ts'
import type { PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import type { ServedGeneration } from '../../engine/dispatch/generations.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Commit, MessageRef } from '../../engine/log/log.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import { EarliestTimer } from '../../engine/earliest-timer.ts'
import { ParkedTending } from './parked-tending.ts'
import { PartitionCommits } from './partition-commits.ts'
import { dispatchSettings, type PartitionSink, type Sender } from './partition-sink.ts'
import { PartitionReading } from './partition-reading.ts'
import { withoutEnds, type SinkObserver } from './sink-observer.ts'
import { takeOver, type TakenOver } from './take-over.ts'
import { DeliveryTraces } from '../tracing/delivery-traces.ts'
import type { Trimming } from './trimming.ts'

/** Ends of parked messages that wait for their turn with the store. */
type Gathered = Readonly<{ refs: RefList; ended: Promise<void> }>

/** Puts into effect what the dispatcher of one partition decides, for as long as this process owns it. */
export class OwnedPartition {
  readonly sink: PartitionSink
  /** the generation that it is a partition of */
  readonly served: ServedGeneration
  readonly key: PartitionKey
  /** its number among those of its generation */
  readonly partition: number
  readonly store: ParkedStore
  readonly dispatcher: Dispatcher
  readonly reading: PartitionReading
  readonly commits: PartitionCommits
  readonly parked: ParkedTending
  readonly trimming: Trimming
  /** what sends its messages; undefined: clients ask for them */
  readonly sender: Sender | undefined
  /** what was given up in the last day */
  readonly discarded: DiscardedMessages
  /** messages handed out since the take-over */
  handedOut = 0
  /** stopping, or void: another owner may be at work */
  isClosed = false
  readonly observer: SinkObserver
  /** of the messages in its hands; undefined: nothing is traced */
  readonly traces: DeliveryTraces | undefined
  readonly #loops = new Set<Promise<void>>()
  readonly #borrowed = new Set<() => void>()
  /** set to the visibility time that ends first */
  readonly #lapses: EarliestTimer
  #gathered: Gathered | undefined

  private constructor(sink: PartitionSink, served: ServedGeneration, key: PartitionKey, taken: TakenOver) {
    const { store, dispatcher, trimming, discarded, committed, hasParked } = taken
    const { surroundings, transport, clock } = sink
    this.sink = sink
    this.served = served
    this.key = key
    this.partition = key.partition
    this.store = store
    this.dispatcher = dispatcher
    this.trimming = trimming
    this.discarded = discarded
    this.observer = transport.sends ? withoutEnds(surroundings.observer) : surroundings.observer
    this.traces = surroundings.traces && new DeliveryTraces(surroundings.traces, () => sink.sink)
    this.reading = new PartitionReading(this)
    this.commits = new PartitionCommits(this, committed)
    this.#lapses = new EarliestTimer(clock, () => this.#onTime())
    this.parked = new ParkedTending(this, hasParked)
    this.sender = transport.senderOf?.(this)
  }

  /**
   * Takes the term, then reads what the former owner left, then makes the take-over durable.
   * @param signal aborted when it is not to be taken over any more
   */
  static async takeOver(sink: PartitionSink, served: ServedGeneration, partition: number, signal: AbortSignal): Promise<OwnedPartition> {
    const key = { sinkId: sink.sink.id, generation: served.generation, partition }
    const owned = new OwnedPartition(sink, served, key, await takeOver(sink, served, key, signal))
    owned.changed()
    return owned
  }

  /** Whether a batch has the names of this partition: else those of one that it was parked in. */
  names({ generation, partition }: Origin): boolean {
    return generation === this.key.generation && partition === this.partition
  }

  // ── the loops ───────────────────────────────────────────────────────────────────────────────────

  /** Reads the log into the window for as long as there is room. */
  read(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.reading.run(signal))
  }

  /** Makes acks durable, and the promise of what may be handed out next. */
  commit(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.commits.run(signal))
  }

  /** Parks what blocks the window, discards what was delivered too often, fetches parked bodies by need. */
  tend(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.parked.run(signal))
  }

  /** Sends what may go; where clients ask there is nothing to do. */
  async deliver(signal: AbortSignal): Promise<void> {
    if (this.sender) return this.sender.deliver(signal)
    if (!signal.aborted) await once(signal, 'abort')
  }

  /** Deletes what lies below the committed offset and out of the replay window. */
  trim(signal: AbortSignal): Promise<void> {
    return this.#loop(() => this.trimming.run(signal))
  }

  // ── requests ────────────────────────────────────────────────────────────────────────────────────

  /** @returns the messages taken, in batches of one name; none: there is nothing to deliver */
  take(max: number, room: TakeBytes, lane: Lane = 'all'): readonly TakenBatch[] {
    if (this.isClosed || !this.sink.surroundings.log.holds(this.served.reader)) return []
    this.#lapse()
    const batch = take(this.dispatcher, max, room, lane)
    this.changed() // also when nothing came: what was looked at may turn out to block the window
    if (!batch) return []
    const batches = batch.others.length === 0 ? [batch] : [...batch.others, batch].filter(({ messages }) => messages.length > 0)
    let [messages, bytes] = [0, 0]
    for (const each of batches) {
      messages += each.messages.length
      bytes += each.bytes
    }
    this.handedOut += messages
    const [first] = batches[0]?.messages ?? []
    const sinceCommitUs = first ? Date.now() * 1000 - first.view.commitTimeUs(first.place) : 0
    this.observer.handedOut({ messages, bytes, sinceCommitUs })
    this.traces?.taken(batches)
    return batches
  }

  /**
   * Messages were acknowledged: settles when their end is durable; unknown ones are ignored.
   * @param named by this
   * @throws EngineError ACK_NOT_DURABLE, STOPPING, STATE_UNAVAILABLE
   */
  async finish(refs: RefList, named: Origin): Promise<void> {
    this.#mustLive()
    this.traces?.ended(refs, named, 'delivered')
    const origin = this.#originOf(named)
    if (origin) return this.#finishParked(refs, origin)
    const acknowledged = this.sink.delivered.acknowledged(this.key)
    const { finished, heldUntil, elsewhere, early } = finish(this.dispatcher, refs, acknowledged.add)
    acknowledged.done()
    const durable = finished > 0 ? this.#ackedDurably(finished, heldUntil) : this.commits.group.settled()
    durable.catch(() => undefined) // may fail while the store is asked; it is awaited below
    if (elsewhere.offsets.length > 0) await this.#endElsewhere(elsewhere)
    await durable
    if (early) throw new EngineError('ACK_NOT_DURABLE', 'the partition has just moved to this process, which has not read this message yet')
  }

  /**
   * Messages were delivered. Their end will be durable; of parked ones it is when what is returned settles.
   * @param named by this
   * @returns undefined: none is parked. @throws EngineError STOPPING; rejects with STATE_UNAVAILABLE, STOPPING
   */
  delivered(refs: RefList, named: Origin): Promise<void> | undefined {
    this.#mustLive()
    this.traces?.ended(refs, named, 'delivered')
    const origin = this.#originOf(named)
    if (origin) return this.#finishParked(refs, origin)
    const { finished, heldUntil, elsewhere } = finish(this.dispatcher, refs)
    if (finished > 0) {
      this.commits.soon()
      this.#acked(finished, heldUntil)
    }
    return elsewhere.offsets.length > 0 ? this.#endElsewhere(elsewhere) : undefined
  }

  /**
   * The sink's filter drops messages that were taken: they are finished without a delivery. Their end will be durable.
   * @param named by this
   * @returns settles when those of the parked store are ended there, or are with us again; undefined: there are none
   */
  drop(refs: RefList, named: Origin): Promise<void> | undefined {
    if (this.isClosed) return undefined
    this.traces?.ended(refs, named, 'dropped')
    const origin = this.#originOf(named)
    const { finished, elsewhere } = origin ? { finished: 0, elsewhere: refs } : finish(this.dispatcher, refs)
    if (finished > 0) this.moved()
    if (elsewhere.offsets.length === 0) return undefined
    // until the store has ended them they stay with us; if it can't, they come again
    const ended = origin ? this.parked.inTurn(() => this.parked.finish(elsewhere, origin)) : this.#endElsewhere(elsewhere)
    return ended.catch(() => this.release(elsewhere, named))
  }

  /** Tells how often a message that was taken has been handed out, this time included. @param named by this */
  deliveriesOf({ offset, index }: MessageRef, named: Origin): number {
    return deliveriesOf(this.dispatcher, offset, index, this.#originOf(named))
  }

  /**
   * Messages that were taken are being worked on, and are handed out only after that.
   * @param giveBack called when the partition ends first, so that its next owner gets them at once
   * @returns to be called at the end of the work
   */
  borrow(giveBack: () => void): () => void {
    this.#borrowed.add(giveBack)
    return () => void this.#borrowed.delete(giveBack)
  }

  /** Messages in flight although the sender has told the end of all that it took; 0 while an end is on its way to the store. */
  get forgotten(): number {
    return this.isClosed || !this.parked.isIdle ? 0 : countInFlight(this.dispatcher)
  }

  /** Makes forgotten messages deliverable again. @throws EngineError INTERNAL: they can't be found */
  releaseForgotten(): void {
    this.#released({ messages: releaseAll(this.dispatcher), heldUntil: 0 })
    const inFlight = countInFlight(this.dispatcher)
    if (inFlight !== 0)
      throw new EngineError('INTERNAL', `${inFlight} messages are counted as in flight, but none is in flight`, { inFlight })
  }

  /** Messages read that no take has looked at, and parked ones that are ready. */
  get waiting(): number {
    const { window, parked } = this.dispatcher
    return window.end - window.cursor + parked.readyCount
  }

  /** Whether a take might find something. */
  mayDeliver(lane: Lane): boolean {
    return !this.isClosed && mayDeliver(this.dispatcher, lane)
  }

  /** Messages could not be delivered: they are tried again after a while, or given up. @param named by this */
  fail(messages: readonly FailedMessage[], named: Origin): void {
    if (this.isClosed) return
    this.traces?.failed(messages, named)
    const origin = this.#originOf(named)
    const parked = origin ? messages.map((message) => ({ ...message, origin })) : fail(this.dispatcher, messages)
    if (parked.length > 0) this.parked.failedAgain(parked)
    this.changed()
  }

  /** Messages come back. @param named by this; @param lease only those still held under it; @param isUnseen no client has had them */
  release(refs: RefList, named: Origin, lease?: number, isUnseen?: boolean): void {
    if (this.isClosed) return
    this.traces?.released(refs, named)
    this.#released(release(this.dispatcher, refs, { lease, isUnseen, origin: this.#originOf(named) }))
  }

  /** The settings have changed. */
  update(): void {
    this.dispatcher.settings = dispatchSettings(this.sink, this.served)
    this.trimming.update()
    this.changed()
    this.sink.deliverable()
  }

  // ── the end ─────────────────────────────────────────────────────────────────────────────────────

  /** Hands out nothing more, and tells the next owner exactly what is with clients. */
  async drain(): Promise<void> {
    await this.sender?.drain()
    for (const giveBack of this.#borrowed) giveBack()
    this.isClosed = true
    this.#lapses.stop()
    this.commits.stop()
    await this.ended()
    await this.parked.inTurn(async () => undefined)
    try {
      await this.commits.last()
      await this.trimming.noteAll().catch(() => undefined) // then a replay's answer counts a little less
    } finally {
      dispose(this.dispatcher)
    }
  }

  /** Void from here on: another owner may be at work. */
  close(cause: unknown): void {
    if (!this.isClosed) {
      this.isClosed = true
      this.#lapses.stop()
      this.commits.stop()
      this.commits.group.fail(cause)
      dispose(this.dispatcher)
    }
    this.sender?.close()
  }

  /** Settles when no loop works any more; they have been aborted. */
  async ended(): Promise<void> {
    await this.sender?.ended()
    await Promise.allSettled(this.#loops)
  }

  // ── what its parts tell ─────────────────────────────────────────────────────────────────────────

  /** After every change of the dispatcher: wakes the loops that it concerns. */
  changed(): void {
    if (this.isClosed) return
    const wanted = wants(this.dispatcher)
    if (wanted.records) this.reading.room.ring()
    if (wanted.commit) this.commits.bell.ring()
    this.parked.changed(wanted)
    this.#lapses.by(wanted.lapseAt)
    this.sink.queueChanged()
  }

  /** The dispatcher changed: finished messages want a commit, others may be deliverable. */
  moved(): void {
    this.commits.changed()
    this.changed()
    this.sink.deliverable()
  }

  /** A commit is durable. */
  written(commit: Commit): void {
    this.trimming.committed(commit)
    this.parked.committed()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** Finds the partition whose names messages have that were parked before they came here; undefined: they have this one's. */
  #originOf(named: Origin): Origin | undefined {
    return this.names(named) ? undefined : { generation: named.generation, partition: named.partition }
  }

  #loop(work: () => Promise<void>): Promise<void> {
    const loop = work()
    this.#loops.add(loop)
    const done = () => this.#loops.delete(loop)
    loop.then(done, done)
    return loop
  }

  #mustLive(): void {
    if (this.isClosed) throw new EngineError('STOPPING', `partition ${this.partition} is stopping or moving`, { partition: this.partition })
  }

  /**
   * Ends messages that the parked store has or is getting. Those that wait for a turn with it go in one write: a write for each
   * would take longer than their deliveries.
   */
  #endElsewhere({ offsets, indexes }: RefList): Promise<void> {
    this.#gathered ??= this.#gather()
    const { refs, ended } = this.#gathered
    for (const offset of offsets) refs.offsets.push(offset)
    for (const index of indexes) refs.indexes.push(index)
    return ended
  }

  #gather(): Gathered {
    const refs = refList()
    const ended = this.parked.inTurn(() => {
      this.#gathered = undefined
      return this.#finishMoved(refs)
    })
    return { refs, ended }
  }

  /** Reports what has ended. @returns settles when that is durable */
  #ackedDurably(messages: number, heldUntil: number): Promise<void> {
    const durable = this.commits.next()
    this.#acked(messages, heldUntil)
    return durable
  }

  /** Reports what has ended, and looks what that makes possible. */
  #acked(messages: number, heldUntil: number): void {
    this.observer.acked({ messages, heldMs: this.#heldMs(heldUntil) })
    this.changed()
    this.sink.deliverable()
  }

  #released({ messages, heldUntil }: Released): void {
    if (messages === 0) return
    this.observer.returned({ messages, heldMs: this.#heldMs(heldUntil) })
    this.changed()
    this.sink.deliverable()
  }

  /** Tells how long a message has been with its client. @param heldUntil end of its visibility time; 0: it is over */
  #heldMs(heldUntil: number): number {
    const { ackWaitMs } = this.dispatcher.settings
    return heldUntil === 0 ? ackWaitMs : Math.max(0, ackWaitMs - (heldUntil - this.sink.clock()))
  }

  /** Ends messages parked under another generation: durable when it settles; unknown ones are ignored. */
  async #finishParked(refs: RefList, origin: Origin): Promise<void> {
    this.#mustLive()
    await this.parked.inTurn(async () => {
      this.#mustLive()
      await this.parked.finish(refs, origin)
    })
  }

  /** Ends what the parked store has or is getting, unless it could not be parked and is in the window again. */
  async #finishMoved(refs: RefList): Promise<void> {
    this.#mustLive()
    const { finished, heldUntil, elsewhere } = finish(this.dispatcher, refs)
    const durable = finished > 0 ? this.#ackedDurably(finished, heldUntil) : undefined
    durable?.catch(() => undefined)
    if (elsewhere.offsets.length > 0) await this.parked.finish(elsewhere)
    await durable
  }

  #lapse(): void {
    const lapsed = lapse(this.dispatcher, this.sink.clock())
    if (lapsed > 0) this.observer.lapsed({ messages: lapsed, heldMs: this.#heldMs(0) })
  }

  #onTime(): void {
    if (this.isClosed) return
    this.#lapse()
    this.changed()
    this.sink.deliverable()
  }
}
