/**
 * What becomes of one message of the window: handed out, freed, ended, and the order that follows from it.
 *
 *   fresh ─cursor─▶ inFlight ⇄ ready ─▶ … ─▶ finished        (waiting: behind an earlier one of its group)
 *
 *  `pending` counts a message from its first delivery to its end, lapsed and returned or not; one that is only presumed
 *  to be with a client of a former owner counts while it is presumed so.
 */
import type { AckPending } from './ack-pending.ts'
import { FinishedRanges } from './finished-ranges.ts'
import { Groups } from './groups.ts'
import { Leases } from './leases.ts'
import type { ParkedGroups } from './parked/parked-groups.ts'
import { SeqHeap } from './seq-heap.ts'
import { STATE, type PackView, type Window, type WindowPack } from './window.ts'

export class OpenMessages {
  readonly window: Window
  readonly ranges = new FinishedRanges()
  readonly leases = new Leases()
  readonly groups: Groups
  readonly parked: ParkedGroups
  /** false: every message is for itself */
  readonly grouping: boolean
  inFlight = 0
  readonly #pending: AckPending
  #ownPending = 0
  /** deliverable: delivered before, and freed by the end of a predecessor */
  readonly #again = new SeqHeap()
  readonly #freed = new SeqHeap()

  constructor(window: Window, parked: ParkedGroups, grouping: boolean, pending: AckPending) {
    this.window = window
    this.groups = new Groups(window)
    this.parked = parked
    this.grouping = grouping
    this.#pending = pending
  }

  get pendingFull(): boolean {
    return this.#pending.full
  }
  countPending(by: number): void {
    this.#ownPending += by
    this.#pending.count += by
  }
  /** The owner is gone: its messages no longer count against the sink's bound. */
  dispose(): void {
    this.countPending(-this.#ownPending)
  }

  /** The group has messages in the parked store, so what the log holds of it waits. */
  isParked(group: number): boolean {
    return this.grouping && this.parked.size > 0 && this.parked.has(group)
  }

  groupOf(seq: number): number {
    const pack = this.window.packOf(seq)
    return (pack.view as PackView).group(seq - pack.firstSeq)
  }

  // ── becoming deliverable ────────────────────────────────────────────────────────────────────────

  /** Whether the next message in line was delivered before, and which it is; Infinity: none. New ones only below max_ack_pending. */
  nextReady(): number {
    const again = this.#top(this.#again)
    return this.#pending.full ? again : Math.min(again, this.#top(this.#freed))
  }

  takeReady(seq: number): void {
    if (this.#again.peek() === seq) this.#again.pop()
    else this.#freed.pop()
  }

  makeReady(seq: number): void {
    const slot = seq & this.window.mask
    this.window.states[slot] = STATE.ready
    if ((this.window.deliveries[slot] as number) > 0) this.#again.push(seq)
    else this.#freed.push(seq)
  }

  /** Whether anything waits in line, max_ack_pending aside. */
  get anyReady(): boolean {
    return this.#top(this.#again) !== Infinity || this.#top(this.#freed) !== Infinity
  }

  /** The lowest entry that is still deliverable; what changed its state since is dropped here. */
  #top(heap: SeqHeap): number {
    const w = this.window
    for (;;) {
      const seq = heap.peek()
      if (seq === Infinity || (seq >= w.base && w.states[seq & w.mask] === STATE.ready)) return seq
      heap.pop()
    }
  }

  // ── with a client ───────────────────────────────────────────────────────────────────────────────

  hand(seq: number, lease: number): void {
    const w = this.window
    const slot = seq & w.mask
    const deliveries = w.deliveries[slot] as number
    if (deliveries === 0) this.countPending(1)
    if (deliveries < 0xffff) w.deliveries[slot] = deliveries + 1
    w.states[slot] = STATE.inFlight
    w.leases[slot] = lease
    this.inFlight++
  }

  /** Presumed with a client of a former owner. @param delivered known to be, rather than possibly */
  presume(seq: number, lease: number, delivered: boolean): void {
    const w = this.window
    const slot = seq & w.mask
    w.deliveries[slot] = delivered ? 1 : 0
    w.states[slot] = STATE.inFlight
    w.leases[slot] = lease
    this.inFlight++
    this.countPending(1)
  }

  /** In flight no more: deliverable in its turn. */
  free(seq: number): void {
    const w = this.window
    const slot = seq & w.mask
    this.inFlight--
    if (w.deliveries[slot] === 0) this.countPending(-1)
    if (!this.grouping) return this.makeReady(seq)
    const group = this.groupOf(seq)
    if (this.groups.headOf(group) === seq && !this.isParked(group)) this.makeReady(seq)
    else w.states[slot] = STATE.waiting
    if (this.parked.anyBlocked) this.#unblock(group)
  }

  // ── ending ──────────────────────────────────────────────────────────────────────────────────────

  /**
   * A message in flight, ready or waiting is done. `settle` follows once after many.
   * @param count so many that stand in a row, of one pack, and in flight under one lease
   */
  end(seq: number, count = 1): void {
    const w = this.window
    const slot = seq & w.mask
    const held = w.states[slot] === STATE.inFlight
    if (held) {
      this.inFlight -= count
      this.leases.letGo(w.leases[slot] as number, count)
    }
    if (held || (w.deliveries[slot] as number) > 0) this.countPending(-count)
    this.close(seq, count)
  }

  /** Finishes messages that stand in a row, of one pack, and lets the next one of each group come up. */
  close(seq: number, count = 1): void {
    const pack = this.window.packOf(seq)
    const view = pack.view as PackView
    this.#finish(seq, count, pack)
    if (!this.grouping) return
    for (let each = seq; each < seq + count; each++) this.#leave(view.group(each - pack.firstSeq), each)
  }

  #leave(group: number, seq: number): void {
    if (this.groups.headOf(group) !== seq) return
    const next = this.groups.leave(group, seq)
    if (next >= 0 && this.window.states[next & this.window.mask] === STATE.waiting && !this.isParked(group)) this.makeReady(next)
    if (this.parked.anyBlocked) this.#unblock(group)
  }

  /** What is under way of a group is the beginning of what the window holds of it. */
  #unblock(group: number): void {
    const head = this.groups.headOf(group)
    const state = head === undefined ? undefined : this.window.states[head & this.window.mask]
    if (state !== STATE.inFlight && state !== STATE.moving) this.parked.unblock(group)
  }

  /** Nothing to deliver: never part of an order, nor of what a commit records. */
  makeVoid(pack: WindowPack, seq: number): void {
    this.window.states[seq & this.window.mask] = STATE.void
    this.window.open--
    if (--pack.open === 0) pack.view = undefined
  }

  /** Void neighbours join the finished range, so that they don't split it. */
  #finish(seq: number, count: number, pack: WindowPack): void {
    const w = this.window
    const { states, mask } = w
    for (let each = seq; each < seq + count; each++) states[each & mask] = STATE.finished
    w.open -= count
    pack.open -= count
    if (pack.open === 0) pack.view = undefined
    let from = seq
    let to = seq + count
    while (from > w.base && states[(from - 1) & mask] === STATE.void) from--
    while (to < w.end && states[to & mask] === STATE.void) to++
    this.ranges.add(from, to)
  }

  /** Moves the window's base to the lowest unfinished message. */
  settle(): void {
    const w = this.window
    let base = w.base
    for (;;) {
      if (this.ranges.count && this.ranges.start(0) <= base && this.ranges.end(0) > base) {
        base = this.ranges.end(0)
        this.ranges.dropBelow(base)
      } else if (base < w.end && w.states[base & w.mask] === STATE.void) base++
      else break
    }
    if (base === w.base) return
    this.ranges.dropBelow(base)
    w.advance(base)
  }
}
