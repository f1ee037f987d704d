/**
 * Who gets which message when, and what the log may be told of it: the one dispatcher of pull and push. It decides and
 * does no I/O; its owner reads, commits and parks, and tells it what happened. One owner calls it, never concurrently.
 *
 *  I1. Of a group only the lowest unfinished message is handed out, and one at a time (correctness, invariants 6 and 8). An
 *      owner that sends gets several of a group in one batch, the lowest first, and no more until it has told how they ended.
 *  I2. Nothing is handed out beyond what a durable commit promised (`handedOut`, correctness 20).
 *  I3. The commit point never passes an unfinished message; its filter belongs to that point, not to the read head.
 *  I4. Every message parked because it blocks lies below the window's base, so parked ones come first in position order; one
 *      that failed lies below what the window holds of its group. After a crash too, because what is finished below them is
 *      durable before their rows are (the owner commits in between).
 *  I5. A message costs array entries only; a Map entry exists only for a group with something looked at and unfinished.
 */
import type { Commit, MessageRef } from '../log/log.ts'
import type { MessageView } from '../log/message-view.ts'
import { PART, type Position } from '../position.ts'
import { refList, type RefList } from './ack-id.ts'
import type { AckPending } from './ack-pending.ts'
import { emptyBatch, type Batch } from './batch.ts'
import { filterBefore, finishedRefs, handOutTarget, quietAt, wantsHandOut, type Reading } from './commit-point.ts'
import { OpenMessages } from './open-messages.ts'
import { ParkedGroups, type Origin, type ParkedGroup } from './parked-groups.ts'
import { Parking, type Failed } from './parking.ts'
import { compareRefs, laterRef, Restored, START, type Restore } from './restored.ts'
import { isTooLarge, tooLarge } from './too-large.ts'
import { STATE, Window, type PackView, type WindowPack } from './window.ts'

export type DispatchSettings = Readonly<{
  /** visibility time of a delivered message */
  ackWaitMs: number
  /** a message delivered so often without ack is discarded when its visibility lapses; at most 65535; null: never */
  maxDeliveries: number | null
  windowBytes: number
  /** of one parked group, fetched at once; absent: one. An owner that sends has them in one batch */
  perGroup?: number
}>

export type DispatcherOptions = Readonly<{
  generation: number
  partition: number
  settings: DispatchSettings
  /** false: no order, every message for itself */
  grouping: boolean
  /** tombstones are delivered (sinks that keep documents by key), or finished at once */
  keyed: boolean
  /** the owner sends, and tells the end of each delivery; otherwise clients ask, and may go away without a word */
  sends?: boolean
  /** shared by the partitions of a sink */
  pending: AckPending
  restore: Restore
  /** monotonic milliseconds */
  clock: () => number
}>

export type TakeBytes = Readonly<{
  max: number
  /** what the answer adds to each body */
  overhead: number
  /** nothing is in the answer yet, so one message passes whatever its size */
  first: boolean
}>

export type Finish = Readonly<{
  finished: number
  /** end of the visibility time of the first of them, 0 when it is over */
  heldUntil: number
  /** those that the parked store has or is getting: the owner ends them there */
  elsewhere: RefList
  /** some were delivered by a former owner and are not read yet, so this ack can't be kept now */
  early: boolean
}>

/** Messages that came back, and the end of the visibility time that the first of them had. */
export type Released = Readonly<{ messages: number; heldUntil: number }>
/** Which messages a take is for: all, those that have never failed, or parked ones that have, the first of each group. */
export type Lane = 'all' | 'fresh' | 'failed'

/** Untouched messages kept ready: some answers. What is read much earlier than it is delivered has grown old to the garbage collector. */
const READ_AHEAD_BYTES = 4 * 1024 * 1024

export class Dispatcher {
  readonly window: Window
  readonly parked: ParkedGroups
  readonly parking: Parking
  settings: DispatchSettings
  readonly #options: DispatcherOptions
  readonly #restored: Restored
  readonly #open: OpenMessages
  readonly #sends: boolean
  /** the greatest accepted position read */
  #filter: Position
  #restoring = true
  #handedOut: MessageRef = START
  /** a commit is durable that doesn't tell the exact set of messages in flight: after a crash they are presumed */
  #mayHandOut: boolean
  #readAt: number
  #closed = false

  constructor(options: DispatcherOptions) {
    this.#options = options
    this.settings = options.settings
    this.#sends = options.sends === true
    this.#mayHandOut = this.#sends
    this.#readAt = options.clock()
    this.parked = new ParkedGroups(this.#sends)
    this.#restored = new Restored(options.restore, this.#readAt, this.#sends ? undefined : options.settings.ackWaitMs)
    this.#filter = this.#restored.filter
    this.window = new Window(this.#restored.next.offset)
    this.#open = new OpenMessages(this.window, this.parked, options.grouping, options.pending)
    this.parking = new Parking(this.#open, options.clock, this.#sends)
    for (const facts of options.restore.parkedGroups) {
      const { first, later } = this.#restored.parkedUntil(facts)
      this.parked.restore(facts, first, later)
    }
  }

  /** Where the reader begins. */
  get readFrom(): number {
    return this.#restored.next.offset
  }
  /** Messages with clients, or presumed to be. */
  get inFlight(): number {
    return this.#open.inFlight + this.parked.heldCount
  }
  get rangeCount(): number {
    return this.#open.ranges.count
  }
  /** Messages read and not finished, parked ones included. */
  get unfinished(): number {
    return this.window.open + this.parked.openRows
  }
  /** Messages lie ready, whether or not `max_ack_pending` lets them go, or were not looked at yet. */
  get hasReady(): boolean {
    return this.parked.readyCount > 0 || this.parked.wantsLoading || this.#open.anyReady || this.window.cursor < this.window.end
  }
  /** Commit time of the oldest unfinished message, µs since the epoch; Infinity: everything read is finished. */
  oldestUs(): number {
    const { window: w, parked } = this
    if (parked.size > 0) return parked.oldestUs() // below the window, all of them
    if (w.base === w.end) return Infinity
    const { view, firstSeq } = w.packOf(w.base)
    return (view as PackView).commitTimeUs(w.base - firstSeq)
  }

  /**
   * Whether the reader may go on: neither the window is full nor so much in it untouched that reading further would only
   * cost memory. A window that holds nothing open always has room, whatever the size of a pack.
   */
  room(): boolean {
    const { window } = this
    return window.base === window.end || (window.bytes < this.settings.windowBytes && window.freshBytes < READ_AHEAD_BYTES)
  }

  /** The generation's last pack was met: nothing of it comes after what was read. It stays unfinished, so that a restart meets it again. */
  close(): void {
    this.#closed = true
  }
  get closed(): boolean {
    return this.#closed
  }
  /** Everything before the last pack is finished; parked messages may be left. */
  get drained(): boolean {
    return this.#closed && this.window.base === this.window.end
  }

  dispose(): void {
    this.#open.dispose()
  }

  // ── reading ─────────────────────────────────────────────────────────────────────────────────────

  /**
   * Takes in the next record. Positions inside a pack grow, as one run of the source wrote it.
   * @param drops 1 for each message that the sink's filter drops: finished unseen
   */
  offer(offset: number, view: PackView, drops?: Uint8Array): void {
    this.#readAt = this.#options.clock()
    const pack = this.window.append(offset, view, this.#filter)
    const { count, firstSeq } = pack
    const accepted = count === 0 || view.compare(0, this.#filter) > 0 ? 0 : firstAbove(view, this.#filter)
    for (let i = 0; i < accepted; i++) this.#open.makeVoid(pack, firstSeq + i)
    if (accepted < count) this.#filter = view.position(count - 1)
    if (!this.#options.keyed)
      for (let i = accepted; i < count; i++) if (view.part(i) === PART.tombstone) this.#open.makeVoid(pack, firstSeq + i)
    if (drops) this.#drop(pack, accepted, drops)
    if (this.#restoring) this.#restore(pack, view)
    for (let i = accepted; i < count; i++) if (isTooLarge(view, i)) this.#giveUp(firstSeq + i, tooLarge(view, i))
    this.#open.settle()
  }

  #drop(pack: WindowPack, accepted: number, drops: Uint8Array): void {
    const { states, mask } = this.window
    for (let i = accepted; i < pack.count; i++)
      if (drops[i] === 1 && states[(pack.firstSeq + i) & mask] === STATE.fresh) this.#open.makeVoid(pack, pack.firstSeq + i)
  }

  /** Never to be delivered: on its way to be put on record, unless it is already. */
  #giveUp(seq: number, failed: Failed): void {
    const { states, mask } = this.window
    if ((states[seq & mask] as number) < STATE.moving) this.parking.fail(seq, failed)
  }

  /** Inside the former owner's zone every message is looked at as it is read, so that groups keep their order. */
  #restore(pack: WindowPack, view: PackView): void {
    const { offset, firstSeq, count } = pack
    const restored = this.#restored
    this.#restoring = restored.concerns(offset)
    if (!this.#restoring) return
    const { states, mask } = this.window
    for (const [from, to] of restored.finishedIn(offset, count))
      for (let seq = firstSeq + from; seq < firstSeq + to; seq++) if (states[seq & mask] === STATE.fresh) this.#open.close(seq)
    const held = new Map<number, number[]>()
    for (let index = 0; index < count; index++) {
      const seq = firstSeq + index
      if (states[seq & mask] !== STATE.fresh || compareRefs({ offset, index }, restored.ackableBelow) >= 0) continue
      const group = this.#options.grouping ? view.group(index) : 0
      const first = !this.#options.grouping || this.#open.groups.join(group, seq)
      const until = restored.invisibleUntil(offset, index)
      if (until > 0) held.set(until, [...(held.get(until) ?? []), seq])
      else if (first && !this.#open.isParked(group)) this.#open.makeReady(seq)
      else states[seq & mask] = STATE.waiting
    }
    for (const [endsAt, seqs] of held) {
      const lease = this.#open.leases.reserve()
      for (const seq of seqs) this.#open.presume(seq, lease, restored.surelyInFlight(offset, seq - firstSeq))
      this.#open.leases.hold(lease, endsAt, seqs)
    }
  }

  // ── handing out ─────────────────────────────────────────────────────────────────────────────────

  /**
   * Hands out deliverable messages in position order.
   * @param max at most so many
   * @param bytes a bound of the bodies with `overhead` bytes each; without one before it in the answer, one message always passes
   * @param lane where the owner sends, what has failed before is taken apart
   */
  take(max: number, bytes: TakeBytes, lane: Lane = 'all'): Batch | undefined {
    const now = this.#options.clock()
    this.lapse(now)
    if (!this.#mayHandOut) return undefined
    const lease = this.#open.leases.reserve()
    const batch = emptyBatch(this.#options.generation, this.#options.partition, lease)
    const call: Call = { batch, seqs: [], max, bytes, count: 0, taken: 0, full: false }
    const endsAt = this.#sends ? Infinity : now + this.settings.ackWaitMs
    this.#takeParked(call, endsAt, lane === 'failed')
    if (lane !== 'failed') {
      this.#takeReady(call)
      this.#takeFresh(call)
    }
    if (call.seqs.length) this.#open.leases.hold(lease, endsAt, call.seqs)
    return call.count ? call.batch : undefined
  }

  #takeParked(call: Call, endsAt: number, failed: boolean): void {
    for (let group = this.parked.peek(failed); group; group = this.parked.peek(failed)) {
      if (!group.pending && this.#open.pendingFull) return
      const view = group.view as MessageView
      if (!put(call, view, 0, group.offset, group.index, group.origin)) return
      if (!group.pending) this.#open.countPending(1)
      if (failed) {
        const batch = group.origin ? batchOf(call.batch, group.origin) : call.batch
        ;(batch.former ??= []).push({ attempts: group.deliveries, records: group.formerAttempts })
      }
      let behind = 0
      while (behind < group.behind.length && !call.full) {
        const { view: next, offset, index, origin } = group.behind[behind] as ParkedGroup['behind'][number]
        if (!put(call, next, 0, offset, index, origin)) break
        behind++
      }
      this.parked.take(call.batch.lease, endsAt, failed, behind)
    }
  }

  #takeReady(call: Call): void {
    const w = this.window
    for (let seq = this.#open.nextReady(); seq !== Infinity && !call.full; seq = this.#open.nextReady()) {
      const pack = w.packOf(seq)
      if (!put(call, pack.view as PackView, seq - pack.firstSeq, pack.offset, seq - pack.firstSeq)) return
      this.#open.takeReady(seq)
      this.#open.hand(seq, call.batch.lease)
      call.seqs.push(seq)
      if (this.#sends && this.#options.grouping) this.#takeBehind(call, seq)
    }
  }

  /** The messages of a group that wait behind one just handed out go with it, in order. */
  #takeBehind(call: Call, head: number): void {
    const w = this.window
    for (let seq = this.#open.groups.behind(head); seq >= 0 && !call.full; seq = this.#open.groups.behind(seq)) {
      const state = w.states[seq & w.mask]
      if (state === STATE.finished) continue
      if (state !== STATE.waiting) return
      const pack = w.packOf(seq)
      if (!put(call, pack.view as PackView, seq - pack.firstSeq, pack.offset, seq - pack.firstSeq)) return
      this.#open.hand(seq, call.batch.lease)
      call.seqs.push(seq)
    }
  }

  #takeFresh(call: Call): void {
    const w = this.window
    const { mask, states } = w
    const open = this.#open
    const { groups, grouping } = open
    while (w.cursor < w.end && !call.full) {
      const pack = w.packOf(w.cursor)
      const { firstSeq, offset, view } = pack
      if (!view) {
        w.cursor = firstSeq + pack.count
        continue
      }
      const promised = this.#promised(pack)
      for (let seq = w.cursor; seq < promised; w.cursor = ++seq) {
        if (states[seq & mask] !== STATE.fresh) continue
        if (open.pendingFull || call.full) return
        const place = seq - firstSeq
        if (grouping) {
          const group = view.group(place)
          const head = groups.headOf(group)
          if (head !== undefined || open.isParked(group)) {
            const mayJoin = this.#sends && head !== undefined && this.#isLastInHand(head, call.batch.lease)
            if (mayJoin && !put(call, view, place, offset, place)) return
            groups.join(group, seq)
            if (mayJoin) {
              open.hand(seq, call.batch.lease)
              call.seqs.push(seq)
            } else states[seq & mask] = STATE.waiting
            continue
          }
          if (!put(call, view, place, offset, place)) return
          groups.begin(group, seq)
        } else if (!put(call, view, place, offset, place)) return
        open.hand(seq, call.batch.lease)
        call.seqs.push(seq)
      }
      if (promised < firstSeq + pack.count) return
    }
  }

  /** Whether the last message of a group was handed out under this lease, and so all of them. */
  #isLastInHand(head: number, lease: number): boolean {
    const { tails, mask, states, leases } = this.window
    const tail = (tails[head & mask] as number) & mask
    return states[tail] === STATE.inFlight && leases[tail] === lease
  }

  /** The sequence number up to which a pack may be handed out: an owner that sends needs no promise, for it has what is out in hand. */
  #promised(pack: WindowPack): number {
    if (this.#sends) return pack.firstSeq + pack.count
    const { offset, index } = this.#handedOut
    return pack.firstSeq + (pack.offset < offset ? pack.count : pack.offset === offset ? Math.min(index, pack.count) : 0)
  }

  /** Whether a take might find something; one that must wait for its group may still disappoint it. */
  mayDeliver(lane: Lane = 'all'): boolean {
    if (!this.#mayHandOut) return false
    if (lane === 'failed') return this.parked.failedCount > 0
    if (this.parked.peek() || this.#open.nextReady() !== Infinity) return true
    const w = this.window
    if (this.#sends) return w.cursor < w.end
    return w.cursor < w.end && !this.#open.pendingFull && compareRefs(w.refOf(w.cursor), this.#handedOut) < 0
  }

  // ── what clients answer ─────────────────────────────────────────────────────────────────────────

  /**
   * Ends messages. Unknown, repeated and never delivered ones are ignored.
   * @param ended told of each, while it is still there
   */
  finish({ offsets, indexes }: RefList, ended?: (view: MessageView, place: number, offset: number, tries: number) => void): Finish {
    const w = this.window
    const elsewhere = refList()
    let finished = 0
    let heldUntil = 0
    let early = false
    for (let i = 0; i < offsets.length; i++) {
      const offset = offsets[i] as number
      const index = indexes[i] as number
      const seq = w.seqOf(offset, index)
      const state = seq < 0 ? -1 : (w.states[seq & w.mask] as number)
      if (state === STATE.inFlight || ((state === STATE.ready || state === STATE.waiting) && this.#wasDelivered(seq, offset, index))) {
        if (finished++ === 0) heldUntil = this.#open.leases.endOf(w.leases[seq & w.mask] as number)
        if (ended) ended(w.packOf(seq).view as PackView, index, offset, w.deliveries[seq & w.mask] as number)
        this.#open.end(seq)
      } else if (state === STATE.moving || ((seq < 0 || state === STATE.finished) && offset < w.nextOffset && this.parked.openRows > 0)) {
        // what failed is parked where it stood: messages before it may be open
        elsewhere.offsets.push(offset)
        elsewhere.indexes.push(index)
      } else if (offset >= w.nextOffset && compareRefs({ offset, index }, this.#restored.ackableBelow) < 0) early = true
    }
    if (finished) this.#open.settle()
    return { finished, heldUntil, elsewhere, early }
  }

  /** Messages parked under another generation come back. @param lease only those still held under it */
  releaseParked({ offsets, indexes }: RefList, origin: Origin | undefined, lease?: number): Released {
    let messages = 0
    let heldUntil = 0
    for (let i = 0; i < offsets.length; i++) {
      const ref = { offset: offsets[i] as number, index: indexes[i] as number, origin }
      const group = this.parked.groupAt(ref.offset, ref.index, origin)
      if (!group || (lease !== undefined && group.lease !== lease) || !this.parked.release(group, ref)) continue
      if (messages++ === 0) heldUntil = group.endsAt
    }
    return { messages, heldUntil }
  }

  /** Messages come back: deliverable at once. @param lease only those still held under it */
  release({ offsets, indexes }: RefList, lease?: number): Released {
    const w = this.window
    let messages = 0
    let heldUntil = 0
    for (let i = 0; i < offsets.length; i++) {
      const offset = offsets[i] as number
      const index = indexes[i] as number
      const seq = w.seqOf(offset, index)
      if (seq < 0 || w.states[seq & w.mask] === STATE.finished) {
        const parked = this.releaseParked({ offsets: [offset], indexes: [index] }, undefined, lease)
        if (messages === 0) heldUntil = parked.heldUntil
        messages += parked.messages
        continue
      }
      const slot = seq & w.mask
      if (w.states[slot] === STATE.moving) this.parking.release(seq, lease)
      if (w.states[slot] !== STATE.inFlight || (lease !== undefined && w.leases[slot] !== lease)) continue
      if (messages++ === 0) heldUntil = this.#open.leases.endOf(w.leases[slot] as number)
      this.#open.leases.letGo(w.leases[slot] as number)
      this.#open.free(seq)
    }
    return { messages, heldUntil }
  }

  /**
   * Messages have failed and are to be tried again, or given up. Those of the window go to the parked store; those that
   * are there already are the caller's to record, and are returned.
   */
  fail(refs: RefList, failures: readonly Failed[]): { elsewhere: RefList; elsewhereFailed: readonly Failed[] } {
    const w = this.window
    const elsewhere = refList()
    const elsewhereFailed: Failed[] = []
    for (const [i, failure] of failures.entries()) {
      const offset = refs.offsets[i] as number
      const index = refs.indexes[i] as number
      const seq = w.seqOf(offset, index)
      if (seq >= 0 && w.states[seq & w.mask] === STATE.inFlight) this.parking.fail(seq, failure)
      else {
        elsewhere.offsets.push(offset)
        elsewhere.indexes.push(index)
        elsewhereFailed.push(failure)
      }
    }
    return { elsewhere, elsewhereFailed }
  }

  /** How often a message that is handed out has been. @param origin of one that another generation has named */
  deliveriesOf(offset: number, index: number, origin?: Origin): number {
    const w = this.window
    const parked = this.parked.groupAt(offset, index, origin)
    if (parked || origin) return parked?.deliveries ?? 0
    const seq = w.seqOf(offset, index)
    return seq < 0 ? 0 : (w.deliveries[seq & w.mask] as number)
  }

  /** Frees what lapsed by `now` (monotonic ms). @returns how many deliveries; what was only presumed to be with a client is none */
  lapse(now: number): number {
    const w = this.window
    const { leases } = this.#open
    const maxDeliveries = this.settings.maxDeliveries ?? Infinity
    let lapsed = 0
    for (let lease = leases.lapsed(now); lease; lease = leases.lapsed(now)) {
      for (const seq of lease.seqs) {
        const slot = seq & w.mask
        if (seq < w.base || w.states[slot] !== STATE.inFlight || w.leases[slot] !== lease.number) continue
        if ((w.deliveries[slot] as number) > 0) lapsed++
        if ((w.deliveries[slot] as number) >= maxDeliveries) this.parking.discard(seq)
        else this.#open.free(seq)
      }
    }
    if (this.parked.nextEnd() <= now) {
      const held = this.parked.heldCount
      this.parking.discardParked(this.parked.lapse(now, maxDeliveries))
      lapsed += held - this.parked.heldCount
    }
    return lapsed
  }

  /** When the next visibility time ends (monotonic ms), or Infinity. */
  nextLapse(): number {
    return Math.min(this.#open.leases.nextEnd(), this.parked.nextEnd())
  }

  #wasDelivered(seq: number, offset: number, index: number): boolean {
    const { deliveries, mask } = this.window
    return (deliveries[seq & mask] as number) > 0 || compareRefs({ offset, index }, this.#restored.ackableBelow) < 0
  }

  // ── commits ─────────────────────────────────────────────────────────────────────────────────────

  /** Whether the promise of what may be handed out should be renewed by a commit. */
  wantsCommit(): boolean {
    if (!this.#mayHandOut) return true
    return !this.#sends && wantsHandOut(this.#reading(), this.#handedOut, this.#options.clock())
  }

  /** When `wantsCommit` will say so, although nothing changes until then (monotonic ms), or Infinity. */
  wantsCommitAt(): number {
    return this.#sends ? Infinity : quietAt(this.#reading(), this.#handedOut)
  }

  /**
   * What is true now; what it no longer promises is not handed out from here on.
   * @param clean nothing is handed out any more, or not yet: what is in flight is told, where it is known
   */
  commitPoint(term: number, clean = false): Commit {
    const w = this.window
    const unread = w.end === 0 // nothing read yet: what the former owner wrote still stands
    const former = laterRef(this.#handedOut, this.#restored.ackableBelow)
    const handedOut = clean || this.#sends ? former : handOutTarget(this.#reading(), former, this.#options.clock())
    if (compareRefs(handedOut, this.#handedOut) < 0) this.#handedOut = handedOut
    const inFlight = clean ? this.#inFlightNow() : undefined
    const next = unread ? this.#restored.next : w.refOf(w.base)
    return {
      next,
      filter: unread ? this.#restored.filter : filterBefore(w, w.base, this.#filter),
      finished: finishedRefs(
        w,
        this.#open.ranges,
        this.#restoring ? this.#restored.unreadRanges(unread ? next : { offset: w.nextOffset, index: 0 }) : [],
      ),
      handedOut,
      term,
      ...(inFlight ? { inFlight } : {}),
    }
  }

  /** A commit is durable: its promise holds, unless it tells the exact set of what is in flight, which a hand-out would change. */
  committed(commit: Commit): void {
    if (commit.inFlight) return
    this.#mayHandOut = true
    this.#handedOut = laterRef(this.#handedOut, commit.handedOut)
  }

  #reading(): Reading {
    return { window: this.window, readAt: this.#readAt, formerly: this.#restored.ackableBelow }
  }

  /** @returns undefined when the exact set can't be told: then a restart presumes, as after a crash */
  #inFlightNow(): Commit['inFlight'] {
    if (this.#sends) return [] // the owner has told the end of each
    const now = this.#options.clock()
    const w = this.window
    const held = this.#restored.unreadInFlight(this.#closed ? w.nextOffset + 1 : w.nextOffset, now)
    if (!held) return undefined
    for (const lease of this.#open.leases.held())
      for (const seq of lease.seqs)
        if (seq >= w.base && w.states[seq & w.mask] === STATE.inFlight && w.leases[seq & w.mask] === lease.number)
          held.push({ message: w.refOf(seq), invisibleForMs: Math.max(0, lease.endsAt - now) })
    for (const group of this.parked.groups()) {
      if (group.notBefore > now) return undefined
      if (group.state !== 'inFlight') continue
      const { offset, index, origin } = group
      held.push({ message: { offset, index }, invisibleForMs: Math.max(0, group.endsAt - now), ...(origin ? { origin } : {}) })
    }
    return held
  }
}

/** One take: what it may give, and what it has gathered. */
type Call = {
  readonly batch: Batch
  /** what it took of the window */
  readonly seqs: number[]
  readonly max: number
  readonly bytes: TakeBytes
  /** messages and bytes so far, those of other generations included */
  count: number
  taken: number
  full: boolean
}

/** Adds a message if it fits. @returns false: it doesn't, and the call is full */
function put(call: Call, view: MessageView, place: number, offset: number, index: number, origin?: Origin): boolean {
  const { count } = call
  const size = view.bodyEnd(place) - view.bodyStart(place)
  const must = count === 0 && call.bytes.first
  if (count >= call.max || (!must && call.taken + size + (count + 1) * call.bytes.overhead > call.bytes.max)) {
    call.full = true
    return false
  }
  const batch = origin ? batchOf(call.batch, origin) : call.batch
  batch.views.push(view)
  batch.places.push(place)
  batch.offsets.push(offset)
  batch.indexes.push(index)
  batch.bytes += size
  call.taken += size
  call.count = count + 1
  if (count + 1 === call.max) call.full = true
  return true
}

/** The last of the others when it has this origin: what comes lowest first stays so. */
function batchOf({ others, lease }: Batch, { generation, partition }: Origin): Batch {
  const last = others.at(-1)
  if (last?.generation === generation && last.partition === partition) return last
  const batch = emptyBatch(generation, partition, lease)
  others.push(batch)
  return batch
}

/** The first message whose position is above the filter, by halves: positions in a pack grow. */
function firstAbove(view: PackView, filter: Position): number {
  let low = 0
  let high = view.count
  while (low < high) {
    const mid = (low + high) >> 1
    if (view.compare(mid, filter) > 0) high = mid
    else low = mid + 1
  }
  return low
}
