/**
 * Who gets which message when, and what the log may be told of it: the one dispatcher of pull and push. It decides and
 * does no I/O; its owner reads, commits and parks, and tells it what happened. One owner calls it, never concurrently.
 *
 *   read ──intake──▶ window, open messages ◀──take── who delivers ──▶ settlement
 *                         │ commit point                  ▲ promise: how far a durable commit lets it
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
import type { Commit } from '../log/log.ts'
import type { MessageView } from '../log/message-view.ts'
import type { Position } from '../position.ts'
import type { RefList } from './ack-id.ts'
import type { AckPending } from './ack-pending.ts'
import { emptyBatch, type Batch } from './batch.ts'
import { filterBefore, finishedRefs } from './commit-point.ts'
import { batchOf, put, type Gathering, type TakeBytes } from './gathering.ts'
import { HandOutPromise } from './hand-out-promise.ts'
import { Intake } from './intake.ts'
import { OpenMessages } from './open-messages.ts'
import { ParkedGroups } from './parked/parked-groups.ts'
import type { Origin, ParkedGroup } from './parked/parked-group.ts'
import { Parking, type Failed } from './parked/parking.ts'
import { ReadMemory } from './read-memory.ts'
import { Restored, type Restore } from './restored.ts'
import { Settlement, type Finish, type Released } from './settlement.ts'
import { STATE, Window, type PackView } from './window.ts'

export type DispatchSettings = Readonly<{
  /** visibility time of a delivered message */
  ackWaitMs: number
  /** a message delivered so often without ack is discarded when its visibility lapses; at most 65535; null: never */
  maxDeliveries: number | null
  windowBytes: number
  /** of one group in a batch; absent: one, also when the owner sends */
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
  /** what all partitions of the process hold; absent: it has no bound */
  memory?: ReadMemory
  /** monotonic milliseconds */
  clock: () => number
}>

/** Which messages a take is for: all, those that have never failed, or parked ones that have, the first of each group. */
export type Lane = 'all' | 'fresh' | 'failed'

/** Untouched messages kept ready: some answers. What is read much earlier than it is delivered has grown old to the garbage collector. */
const READ_AHEAD_BYTES = 4 * 1024 * 1024
/** The same while nobody asks: about an answer, of 1,000 messages of half a kB. The reader wakes with the first who does. */
const UNASKED_BYTES = 640 * 1024
/** Nobody asks who has not for so long. */
const ASKED_MS = 10_000

export class Dispatcher {
  readonly window: Window
  readonly parked: ParkedGroups
  readonly parking: Parking
  settings: DispatchSettings
  readonly #options: DispatcherOptions
  readonly #restored: Restored
  readonly #open: OpenMessages
  readonly #sends: boolean
  readonly #intake: Intake
  readonly #settlement: Settlement
  readonly #promise: HandOutPromise
  readonly #memory: ReadMemory
  #closed = false
  /** when a take came last (monotonic ms) */
  #askedAt = -Infinity

  constructor(options: DispatcherOptions) {
    this.#options = options
    this.#memory = options.memory ?? new ReadMemory()
    this.settings = options.settings
    this.#sends = options.sends === true
    this.parked = new ParkedGroups(this.#sends)
    this.#restored = new Restored(options.restore, options.clock(), this.#sends ? undefined : options.settings.ackWaitMs)
    this.window = new Window(this.#restored.next.offset, this.#memory)
    this.#open = new OpenMessages(this.window, this.parked, options.grouping, options.pending)
    this.parking = new Parking(this.#open, options.clock, this.#sends)
    const { keyed, clock } = options
    const parts = { open: this.#open, parking: this.parking, restored: this.#restored }
    this.#intake = new Intake({ ...parts, keyed, clock })
    this.#settlement = new Settlement(parts)
    const reading = () => ({ window: this.window, readAt: this.#intake.readAt, formerly: this.#restored.ackableBelow })
    this.#promise = new HandOutPromise({ reading, clock, sends: this.#sends })
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
    const oldest = parked.oldestUs() // of those that failed some may lie above the window's base
    if (w.base === w.end) return oldest
    const { view, firstSeq } = w.packOf(w.base)
    return Math.min(oldest, (view as PackView).commitTimeUs(w.base - firstSeq))
  }

  /**
   * Whether the reader may go on: neither the window is full nor so much in it untouched that reading further would only
   * cost memory. A window that holds nothing open always has room, whatever the size of a pack.
   */
  room(): boolean {
    const { window } = this
    return window.base === window.end || (window.bytes < this.windowBytes && window.freshBytes < this.#aheadBytes())
  }

  /** What the window may hold now. */
  get windowBytes(): number {
    return this.#memory.limit(this.settings.windowBytes)
  }

  /** Somebody has asked for messages lately, or what clients of the former owner have is still to be read. */
  get isAsked(): boolean {
    return this.#intake.isRestoring || this.#options.clock() - this.#askedAt < ASKED_MS
  }

  #aheadBytes(): number {
    return this.isAsked && !this.#memory.isFull ? READ_AHEAD_BYTES : UNASKED_BYTES
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
    this.window.leave()
  }

  /**
   * Takes in the next record. Positions inside a pack grow, as one run of the source wrote it.
   * @param drops 1 for each message that the sink's filter drops: finished unseen
   */
  offer(offset: number, view: PackView, drops?: Uint8Array): void {
    this.#intake.offer(offset, view, drops)
  }

  /** The greatest position taken in: what is not above it was taken in before, or is not to be. */
  get filter(): Position {
    return this.#intake.filter
  }

  /** The next record has nothing for this reader. */
  pass(offset: number): void {
    this.window.pass(offset)
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
    this.#askedAt = now
    this.lapse(now)
    if (!this.#promise.isGiven) return undefined
    const lease = this.#open.leases.reserve()
    const batch = emptyBatch(this.#options.generation, this.#options.partition, lease)
    const call: Gathering = { batch, seqs: [], max, bytes, count: 0, taken: 0, full: false }
    const endsAt = this.#sends ? Infinity : now + this.settings.ackWaitMs
    this.#takeParked(call, endsAt, lane === 'failed')
    if (lane !== 'failed') {
      this.#takeReady(call)
      this.#takeFresh(call)
    }
    if (call.seqs.length) this.#open.leases.hold(lease, endsAt, call.seqs)
    return call.count ? call.batch : undefined
  }

  #takeParked(call: Gathering, endsAt: number, failed: boolean): void {
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
      while (this.#takesTogether && behind < group.behind.length && !call.full) {
        const { view: next, offset, index, origin } = group.behind[behind] as ParkedGroup['behind'][number]
        if (!put(call, next, 0, offset, index, origin)) break
        behind++
      }
      this.parked.take(call.batch.lease, endsAt, failed, behind)
    }
  }

  #takeReady(call: Gathering): void {
    const w = this.window
    for (let seq = this.#open.nextReady(); seq !== Infinity && !call.full; seq = this.#open.nextReady()) {
      const pack = w.packOf(seq)
      if (!put(call, pack.view as PackView, seq - pack.firstSeq, pack.offset, seq - pack.firstSeq)) return
      this.#open.takeReady(seq)
      this.#open.hand(seq, call.batch.lease)
      call.seqs.push(seq)
      if (this.#takesTogether && this.#options.grouping) this.#takeBehind(call, seq)
    }
  }

  /** Messages of one group go together. */
  get #takesTogether(): boolean {
    return this.#sends && (this.settings.perGroup ?? 1) > 1
  }

  /** The messages of a group that wait behind one just handed out go with it, in order. */
  #takeBehind(call: Gathering, head: number): void {
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

  #takeFresh(call: Gathering): void {
    const w = this.window
    const { mask, states } = w
    const open = this.#open
    const { groups, grouping } = open
    const together = this.#takesTogether
    while (w.cursor < w.end && !call.full) {
      const pack = w.packOf(w.cursor)
      const { firstSeq, offset, view } = pack
      if (!view) {
        w.cursor = firstSeq + pack.count
        continue
      }
      const promised = this.#promise.endIn(pack)
      for (let seq = w.cursor; seq < promised; w.cursor = ++seq) {
        if (states[seq & mask] !== STATE.fresh) continue
        if (open.pendingFull || call.full) return
        const place = seq - firstSeq
        if (grouping) {
          const group = view.group(place)
          const head = groups.headOf(group)
          if (head !== undefined || open.isParked(group)) {
            const mayJoin = together && head !== undefined && this.#isLastInHand(head, call.batch.lease)
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

  /** Whether a take might find something; one that must wait for its group may still disappoint it. */
  mayDeliver(lane: Lane = 'all'): boolean {
    if (!this.#promise.isGiven) return false
    if (lane === 'failed') return this.parked.failedCount > 0
    if (this.parked.peek() || this.#open.nextReady() !== Infinity) return true
    const w = this.window
    if (this.#sends) return w.cursor < w.end
    return w.cursor < w.end && !this.#open.pendingFull && this.#promise.covers(w.refOf(w.cursor))
  }

  // ── what clients answer ─────────────────────────────────────────────────────────────────────────

  /**
   * Ends messages. Unknown, repeated and never delivered ones are ignored.
   * @param ended told of each, while it is still there
   */
  finish(...finish: Parameters<Settlement['finish']>): Finish {
    return this.#settlement.finish(...finish)
  }

  /** Messages parked under another generation come back. @param lease only those still held under it */
  releaseParked(...release: Parameters<Settlement['releaseParked']>): Released {
    return this.#settlement.releaseParked(...release)
  }

  /** Messages come back: deliverable at once. @param lease only those still held under it; @param isUnseen no client has had them */
  release(...release: Parameters<Settlement['release']>): Released {
    return this.#settlement.release(...release)
  }

  /** Everything that is in flight comes back. @returns how many deliveries */
  releaseAll(): number {
    return this.#settlement.releaseAll()
  }

  /**
   * Messages have failed and are to be tried again, or given up. Those of the window go to the parked store; those that
   * are there already are the caller's to record, and are returned.
   */
  fail(refs: RefList, failures: readonly Failed[]): ReturnType<Settlement['fail']> {
    return this.#settlement.fail(refs, failures)
  }

  /** How often a message that is handed out has been. @param origin of one that another generation has named */
  deliveriesOf(offset: number, index: number, origin?: Origin): number {
    return this.#settlement.deliveriesOf(offset, index, origin)
  }

  /** Frees what lapsed by `now` (monotonic ms). @returns how many deliveries; what was only presumed to be with a client is none */
  lapse(now: number): number {
    return this.#settlement.lapse(now, this.settings.maxDeliveries)
  }

  /** When the next visibility time ends (monotonic ms), or Infinity. */
  nextLapse(): number {
    return this.#settlement.nextLapse()
  }

  // ── commits ─────────────────────────────────────────────────────────────────────────────────────

  /** Whether the promise of what may be handed out should be renewed by a commit. */
  wantsCommit(): boolean {
    return this.#promise.wantsCommit()
  }

  /** When `wantsCommit` will say so, although nothing changes until then (monotonic ms), or Infinity. */
  wantsCommitAt(): number {
    return this.#promise.wantsCommitAt()
  }

  /**
   * What is true now; what it no longer promises is not handed out from here on.
   * @param clean nothing is handed out any more, or not yet: what is in flight is told, where it is known
   */
  commitPoint(term: number, clean = false): Commit {
    const w = this.window
    const unread = w.nextOffset === this.#restored.next.offset // nothing read yet: what the former owner wrote still stands
    const handedOut = this.#promise.next(clean)
    const inFlight = clean ? this.#inFlightNow() : undefined
    const next = unread ? this.#restored.next : w.refOf(w.base)
    return {
      next,
      filter: unread ? this.#restored.filter : filterBefore(w, w.base, this.#intake.filter),
      finished: finishedRefs(w, this.#open.ranges, this.#intake.unreadRanges(unread ? next : { offset: w.nextOffset, index: 0 })),
      handedOut,
      term,
      ...(inFlight ? { inFlight } : {}),
    }
  }

  /** A commit is durable: what it promised may be handed out. */
  committed(commit: Commit): void {
    this.#promise.committed(commit)
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
