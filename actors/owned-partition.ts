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
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { RefList } from '../engine/dispatch/ack-id.ts'
import type { AckPending } from '../engine/dispatch/ack-pending.ts'
import type { Batch } from '../engine/dispatch/batch.ts'
import type { DeliveredMessages, DeliveredTogether } from '../engine/dispatch/delivered-messages.ts'
import type { Origin } from '../engine/dispatch/parked-groups.ts'
import { Dispatcher, type DispatchSettings, type Lane } from '../engine/dispatch/dispatcher.ts'
import type { PartitionKey } from '../engine/dispatch/fenced-write.ts'
import type { TakeBytes } from '../engine/dispatch/gathering.ts'
import { ParkedStore, type Chosen, type Discards } from '../engine/dispatch/parked-store.ts'
import type { Failed } from '../engine/dispatch/parking.ts'
import { EngineError, type ErrorCode } from '../engine/errors.ts'
import type { WindowBounds } from '../engine/dispatch/replay-window.ts'
import { commitToGoOnFrom } from '../engine/dispatch/rewound.ts'
import type { Released } from '../engine/dispatch/settlement.ts'
import type { Commit, Log, MessageRef, TopicName } from '../engine/log/log.ts'
import type { MessageView } from '../engine/log/message-view.ts'
import { Pack } from '../engine/log/pack.ts'
import type { Position } from '../engine/position.ts'
import type { Query } from '../engine/wal/slot.ts'
import { Bell } from './bell.ts'
import { GroupCommit } from './group-commit.ts'
import { DiscardedMessages } from './discarded-messages.ts'
import type { MessageEdit } from './parked-edits.ts'
import { ParkedTending } from './parked-tending.ts'
import type { SinkObserver } from './sink-observer.ts'
import type { Figures } from './status.ts'
import { Trimming } from './trimming.ts'

export type PartitionOptions = Readonly<{
  log: Log
  query: Query
  topic: TopicName
  key: PartitionKey
  /** names this process in the state database */
  holder: string
  grouping: boolean
  /** where its generation opens, once that is known */
  opensAt: Position | undefined
  keyed: boolean
  /** the owner's owner sends; otherwise clients ask */
  sends: boolean
  settings: () => DispatchSettings
  /** what is kept of what is finished */
  replay: () => WindowBounds
  pending: AckPending
  /** keeps the newest that clients acknowledge */
  delivered: DeliveredMessages
  /** 1 for each message of a pack that the sink's filter drops; undefined: none */
  drops: (pack: Pack) => Promise<Uint8Array | undefined> | undefined
  /** monotonic milliseconds */
  clock: () => number
  observer: SinkObserver
  /** something may be deliverable that wasn't */
  deliverable: () => void
  /** the last pack of the generation was met and nothing before it is unfinished: recorded */
  drained: () => void
  /** what stands in the way of that for so long is parked (correctness 24) */
  drainAfterMs?: number
}>

type ReadPack = Readonly<{ offset: number; decoded: Pack; bytes: number }>

const DRAIN_AFTER_MS = 30_000
/** How long a full window is left to clients, and to requests under way, before what blocks it is parked. */
const PARK_AFTER_MS = 1_000
const PARK_SENT_AFTER_MS = 5_000
/** What was sent and taken is committed after this. */
const COMMIT_SENT_AFTER_MS = 10
/** A backlog is read without a pause of the event loop longer than this. */
const READ_SLICE_MS = 5
/** Packs read while the filter of the sink is asked about the first of them: many, for those that wait go out in one call. */
const MAX_ASKED = 32
const MAX_ASKED_BYTES = 8 * 1024 * 1024

export class OwnedPartition {
  readonly #options: PartitionOptions
  readonly #store: ParkedStore
  readonly #dispatcher: Dispatcher
  readonly #commits = new GroupCommit()
  readonly #commitBell = new Bell()
  readonly #roomBell = new Bell()
  readonly #loops = new Set<Promise<void>>()
  readonly #parked: ParkedTending
  readonly #borrowed = new Set<() => void>()
  readonly #trimming: Trimming
  readonly #discarded: DiscardedMessages
  /** parked or discarded since the last commit began */
  #dirty = false
  #committed: MessageRef
  /** messages handed out since the take-over */
  #delivered = 0
  #timer: NodeJS.Timeout | undefined
  #timerAt = Infinity
  /** deliveries wait for a commit */
  #soon: NodeJS.Timeout | undefined
  #closed = false

  private constructor(
    options: PartitionOptions,
    store: ParkedStore,
    dispatcher: Dispatcher,
    from: Readonly<{ committed: MessageRef; discarded: DiscardedMessages; trimming: Trimming }>,
  ) {
    this.#options = options
    this.#store = store
    this.#dispatcher = dispatcher
    this.#trimming = from.trimming
    this.#discarded = from.discarded
    this.#committed = from.committed
    const { observer, clock, drained, sends, drainAfterMs = DRAIN_AFTER_MS } = options
    this.#parked = new ParkedTending({
      ...{
        dispatcher,
        store,
        observer,
        clock,
        drained,
        drainAfterMs,
        sends: sends === true,
        parkAfterMs: sends ? PARK_SENT_AFTER_MS : PARK_AFTER_MS,
      },
      isClosed: () => this.#closed,
      commit: () => this.#commitNow(),
      moved: () => this.#moved(),
      beforeDrained: () => from.trimming.noteAll(),
      committed: () => this.#committed,
      discarded: from.discarded,
    })
  }

  /** Takes the term, then reads what the former owner left, then makes the take-over durable. */
  static async takeOver(options: PartitionOptions): Promise<OwnedPartition> {
    const { log, query, topic, key, holder, grouping, keyed, sends, pending, clock, opensAt } = options
    const store = await ParkedStore.takeOver(query, key, { grouping, holder })
    const commit = await commitToGoOnFrom(query, key, await log.committed(topic, key.partition))
    const { groups, refs } = await store.load(commit?.next ?? { offset: 0, index: 0 })
    const discarded = new DiscardedMessages(await store.discards())
    const { next: head } = await log.stats(topic, key.partition)
    const restore = { commit, head, parkedRefs: refs, parkedGroups: groups, opensAt }
    const dispatcher = new Dispatcher({ ...key, settings: options.settings(), grouping, keyed, sends, pending, restore, clock })
    const taken = dispatcher.commitPoint(store.term, true) // the partition may move on before anything is handed out
    await log.commit(topic, key.partition, taken)
    dispatcher.committed(taken)
    const trimming = await Trimming.begin({
      ...{ log, topic, query, key, clock },
      bounds: options.replay,
      term: store.term,
      committed: taken,
    })
    const owned = new OwnedPartition(options, store, dispatcher, { committed: taken.next, discarded, trimming })
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

  /** Reads the log into the window for as long as there is room; while a filter is asked about a pack, the next ones are read. */
  read(signal: AbortSignal): Promise<void> {
    const failed = Promise.withResolvers<never>()
    failed.promise.catch(() => undefined)
    return this.#loop(() => Promise.race([this.#readOn(signal, failed.reject), failed.promise]))
  }

  async #readOn(signal: AbortSignal, failed: (error: unknown) => void): Promise<void> {
    const { log, topic, drops, deliverable } = this.#options
    const dispatcher = this.#dispatcher
    /** packs whose filter is asked: they are taken in in their order */
    const asked: Promise<void>[] = []
    let askedBytes = 0
    let announcing: NodeJS.Immediate | undefined
    const offer = ({ offset, decoded, bytes }: ReadPack, marks?: Uint8Array) => {
      if (signal.aborted) return
      dispatcher.offer(offset, decoded, marks)
      const { count, maxCommitTimeUs } = decoded.header
      this.#trimming.read({ offset, messages: count, bytes, latestUs: maxCommitTimeUs })
      this.#changed()
    }
    const ask = async (read: ReadPack, marks: Promise<Uint8Array | undefined> | undefined, before: Promise<void> | undefined) => {
      const found = await marks
      await before
      offer(read, found)
      asked.shift()
      askedBytes -= read.bytes
      // packs that were asked about together are offered together: few of a filter's messages are left of each
      announcing ??= setImmediate(() => {
        announcing = undefined
        deliverable()
      })
    }
    let sliceStart = performance.now()
    for await (const { offset, pack } of log.read(topic, this.partition, dispatcher.readFrom, signal)) {
      const decoded = Pack.decode(pack)
      if (decoded.header.closing) {
        await asked.at(-1)
        return this.#close(signal)
      }
      const read = { offset, decoded, bytes: pack.length }
      const marks = drops(decoded)
      if (!marks && asked.length === 0) {
        offer(read)
        deliverable()
      } else {
        const turn = ask(read, marks, asked.at(-1))
        turn.catch(failed)
        asked.push(turn)
        askedBytes += read.bytes
        if (asked.length >= MAX_ASKED || askedBytes > MAX_ASKED_BYTES) await asked[0]
      }
      if (signal.aborted) return
      while (!dispatcher.room() && !signal.aborted) {
        await this.#roomBell.wait(signal)
        sliceStart = performance.now()
      }
      if (performance.now() - sliceStart > READ_SLICE_MS) {
        await nextTurn()
        sliceStart = performance.now()
      }
    }
    if (!signal.aborted)
      throw new EngineError('LOG_TOPIC_UNKNOWN', `the log ended for ${topic}/${this.partition}`, { topic, partition: this.partition })
  }

  /** Makes acks durable, and the promise of what may be handed out next. */
  commit(signal: AbortSignal): Promise<void> {
    return this.#loop(async () => {
      for (;;) {
        await this.#commitBell.wait(signal, Math.max(1, this.#dispatcher.wantsCommitAt() - this.#options.clock()))
        if (signal.aborted && !this.#commits.waiting) return // who waits may be what a stop waits for
        if (!this.#commits.waiting && !this.#dirty && !this.#dispatcher.wantsCommit()) continue
        this.#dirty = false
        await this.#commits.write(() => this.#write(this.#dispatcher.commitPoint(this.#store.term)))
        this.#options.deliverable() // what waited for the promise
      }
    })
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
    if (this.#closed || !this.#options.log.holds(this.#options.topic)) return []
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
    const { finished, heldUntil, elsewhere, early } = this.#dispatcher.finish(refs, this.#keepAcked())
    const durable = finished > 0 ? this.#ended(finished, heldUntil) : this.#commits.settled()
    durable.catch(() => undefined) // may fail while the store is asked; it is awaited below
    if (elsewhere.offsets.length > 0) await this.#parked.inTurn(() => this.#finishMoved(elsewhere))
    await durable
    if (early) throw new EngineError('ACK_NOT_DURABLE', 'the partition has just moved and has not come to this message yet')
  }

  /** Messages were delivered. Their end will be durable; of parked ones it is when this settles. @throws EngineError STATE_UNAVAILABLE, STOPPING */
  async delivered(refs: RefList): Promise<void> {
    this.#mustLive()
    const { finished, heldUntil, elsewhere } = this.#dispatcher.finish(refs)
    if (finished > 0) {
      this.#commitSoon()
      this.#told(finished, heldUntil)
    }
    if (elsewhere.offsets.length > 0) await this.#parked.inTurn(() => this.#finishMoved(elsewhere))
  }

  /**
   * Messages taken are dropped by the sink's filter: finished, and nobody's delivery. Their end will be durable.
   * @param origin of those that another generation has named
   */
  drop(refs: RefList, origin?: Origin): void {
    if (this.#closed) return
    const { finished, elsewhere } = origin ? { finished: 0, elsewhere: refs } : this.#dispatcher.finish(refs)
    if (finished > 0) this.#moved()
    if (elsewhere.offsets.length === 0) return
    // until the store has ended them they stay with us; if it can't, they come again
    this.#parked
      .inTurn(() => this.#parked.finish(elsewhere, origin))
      .catch(() => (origin ? this.releaseParked(refs, origin) : this.release(elsewhere)))
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

  /** Messages of another generation come back. */
  releaseParked(refs: RefList, origin: Origin, lease?: number): void {
    if (this.#closed) return
    this.#released(this.#dispatcher.releaseParked(refs, origin, lease))
  }

  /** Messages come back. @param lease only those still held under it */
  release(refs: RefList, lease?: number): void {
    if (this.#closed) return
    this.#released(this.#dispatcher.release(refs, lease))
  }

  /** What somebody decided of parked messages, or of those that were given up. @returns how many it held for. @throws EngineError STATE_UNAVAILABLE */
  edit(edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number> {
    return this.#parked.edit(edit, chosen)
  }

  update(): void {
    this.#dispatcher.settings = this.#options.settings()
    this.#changed()
    this.#options.deliverable()
  }

  // ── the end ─────────────────────────────────────────────────────────────────────────────────────

  /** Hands out nothing more, and tells the next owner exactly what is with clients. */
  async drain(): Promise<void> {
    for (const giveBack of this.#borrowed) giveBack()
    this.#closed = true
    clearTimeout(this.#timer)
    clearTimeout(this.#soon)
    await this.ended()
    await this.#parked.inTurn(async () => undefined)
    try {
      await this.#commits.write(() => this.#write(this.#dispatcher.commitPoint(this.#store.term, true)))
      await this.#trimming.noteAll().catch(() => undefined) // then a replay's answer counts a little less
    } finally {
      this.#dispatcher.dispose()
    }
  }

  /** Void from here on: another owner may be at work. */
  close(cause: unknown): void {
    if (this.#closed) return
    this.#closed = true
    clearTimeout(this.#timer)
    clearTimeout(this.#soon)
    this.#commits.fail(cause)
    this.#dispatcher.dispose()
  }

  /** Settles when no loop works any more; they have been aborted. */
  async ended(): Promise<void> {
    await Promise.allSettled(this.#loops)
  }

  /** Offsets are records of the log; `head` is the next one, as far as this reader has seen. */
  figures(): Figures {
    const d = this.#dispatcher
    const { stats, keptMessages } = this.#trimming
    const head = d.closed ? d.window.nextOffset : Math.max(stats.next, d.window.nextOffset) // the last pack is nobody's message
    return {
      partition: this.partition,
      committed: this.#committed.offset,
      committedIndex: this.#committed.index,
      read: d.window.nextOffset,
      head,
      lag: head - this.#committed.offset,
      inFlight: d.inFlight,
      unfinished: d.unfinished,
      oldestMs: Math.max(0, Date.now() - Math.min(d.oldestUs() / 1000, Date.now())),
      parked: d.parked.openRows,
      parkedGroups: d.parked.size,
      discardedLately: this.#discarded.others?.messages ?? 0,
      windowBytes: d.window.bytes,
      logBytes: stats.bytes,
      keptBytes: stats.finishedBytes,
      keptMessages,
      delivered: this.#delivered,
      term: this.#store.term,
    }
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
  get trouble(): { code: ErrorCode; message: string } | undefined {
    const { trouble: error, jammed } = this.#parked
    const { bySize } = this.#discarded
    if (error !== undefined)
      return {
        code: error instanceof EngineError ? error.code : 'INTERNAL',
        message: error instanceof Error ? error.message : String(error),
      }
    if (jammed)
      return {
        code: 'PARKING_FULL',
        message: `${this.#dispatcher.parked.size} groups are parked; reading waits until some are acknowledged`,
      }
    if (bySize)
      return {
        code: 'MESSAGE_TOO_LARGE',
        message: `${bySize.messages} messages larger than MAX_MESSAGE_MB were discarded, the last one at ${bySize.lastAt.toISOString()}`,
      }
    return undefined
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** The generation ends here; nothing is read any more. */
  async #close(signal: AbortSignal): Promise<void> {
    this.#dispatcher.close()
    this.#changed()
    if (!signal.aborted) await once(signal, 'abort')
  }

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

  async #write(commit: Commit): Promise<void> {
    await this.#options.log.commit(this.#options.topic, this.partition, commit)
    this.#dispatcher.committed(commit)
    this.#committed = commit.next
    this.#trimming.committed(commit)
    this.#parked.committed()
  }

  #ended(messages: number, heldUntil: number): Promise<void> {
    const durable = this.#commitNow()
    this.#told(messages, heldUntil)
    return durable
  }

  #told(messages: number, heldUntil: number): void {
    const { observer, deliverable } = this.#options
    observer.acked({ messages, heldMs: this.#heldMs(heldUntil) })
    this.#changed()
    deliverable()
  }

  /** Nobody waits for this commit: many deliveries share one. A crash before it repeats them, as it does those under way. */
  #commitSoon(): void {
    this.#soon ??= setTimeout(() => {
      this.#soon = undefined
      this.#dirty = true
      this.#commitBell.ring()
    }, COMMIT_SENT_AFTER_MS)
  }

  #released({ messages, heldUntil }: Released): void {
    if (messages === 0) return
    this.#options.observer.returned({ messages, heldMs: this.#heldMs(heldUntil) })
    this.#changed()
    this.#options.deliverable()
  }

  /** What clients acknowledge can be looked at for a while. */
  #keepAcked(): (view: MessageView, place: number, offset: number, tries: number) => void {
    const { delivered, key } = this.#options
    const { generation, partition } = key
    const at = Date.now()
    const attempt = () => ({ at: new Date(at).toISOString(), counts: true })
    let together: DeliveredTogether | undefined
    return (view, place, offset, tries) => {
      if (together?.tries !== tries) together = { generation, partition, at, tries, attempt, formerAttempts: [], bytes: 256 }
      delivered.add(view, place, offset, place, together)
    }
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

  #commitNow(): Promise<void> {
    const durable = this.#commits.join()
    this.#commitBell.ring()
    return durable
  }

  #moved(): void {
    this.#dirty = true
    this.#commitBell.ring()
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
    if (dispatcher.room()) this.#roomBell.ring()
    if (dispatcher.wantsCommit()) this.#commitBell.ring()
    this.#parked.changed()
    const at = dispatcher.nextLapse()
    if (at < this.#timerAt) this.#arm(at)
  }

  #arm(at: number): void {
    clearTimeout(this.#timer)
    this.#timerAt = at
    this.#timer = setTimeout(() => this.#onTime(), Math.min(Math.max(1, Math.ceil(at - this.#options.clock())), 0x7fffffff))
    this.#timer.unref()
  }

  #onTime(): void {
    this.#timerAt = Infinity
    if (this.#closed) return
    this.#lapse()
    this.#changed()
    this.#options.deliverable()
  }
}
