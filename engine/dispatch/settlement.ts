/**
 * How deliveries end: a message is finished, comes back, has failed, or its visibility time is over. What the parked store
 * has is left to the owner.
 */
import type { MessageView } from '../log/message-view.ts'
import { refList, type RefList } from './ack-id.ts'
import type { OpenMessages } from './open-messages.ts'
import type { ParkedGroups } from './parked/parked-groups.ts'
import type { Origin } from './parked/parked-group.ts'
import type { Failed, Parking } from './parked/parking.ts'
import { compareRefs, type Restored } from './restored.ts'
import { STATE, type PackView, type Window } from './window.ts'

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
export class Settlement {
  readonly #window: Window
  readonly #open: OpenMessages
  readonly #parked: ParkedGroups
  readonly #parking: Parking
  readonly #restored: Restored

  constructor({ open, parking, restored }: Readonly<{ open: OpenMessages; parking: Parking; restored: Restored }>) {
    this.#window = open.window
    this.#open = open
    this.#parked = open.parked
    this.#parking = parking
    this.#restored = restored
  }

  /**
   * Ends messages. Unknown, repeated and never delivered ones are ignored.
   * @param ended told of each, while it is still there
   */
  finish({ offsets, indexes }: RefList, ended?: (view: MessageView, place: number, offset: number, tries: number) => void): Finish {
    const w = this.#window
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
        if (finished === 0) heldUntil = this.#open.leases.endOf(w.leases[seq & w.mask] as number)
        const count = state === STATE.inFlight ? this.#inRow({ offsets, indexes }, i, seq) : 1
        if (ended) {
          const view = w.packOf(seq).view as PackView
          for (let more = 0; more < count; more++) ended(view, index + more, offset, w.deliveries[(seq + more) & w.mask] as number)
        }
        this.#open.end(seq, count)
        finished += count
        i += count - 1
      } else if (state === STATE.moving || this.#mayBeParked(state, offset, index)) {
        elsewhere.offsets.push(offset)
        elsewhere.indexes.push(index)
      } else if (offset >= w.nextOffset && compareRefs({ offset, index }, this.#restored.ackableBelow) < 0) early = true
    }
    if (finished) this.#open.settle()
    return { finished, heldUntil, elsewhere, early }
  }

  /**
   * How many messages of a list, from place i on, stand in a row in one record and are in flight under one lease: most of what is
   * handed out together is ended together.
   * @param seq of the first
   */
  #inRow({ offsets, indexes }: RefList, i: number, seq: number): number {
    const { states, leases, mask } = this.#window
    const { firstSeq, count: inPack } = this.#window.packOf(seq)
    const most = firstSeq + inPack - seq
    const lease = leases[seq & mask]
    let count = 1
    while (
      count < most &&
      offsets[i + count] === offsets[i] &&
      indexes[i + count] === (indexes[i] as number) + count &&
      states[(seq + count) & mask] === STATE.inFlight &&
      leases[(seq + count) & mask] === lease
    )
      count++
    return count
  }

  /** Messages parked under another generation come back. @param lease only those still held under it */
  releaseParked({ offsets, indexes }: RefList, origin: Origin | undefined, lease?: number, isUnseen = false): Released {
    let messages = 0
    let heldUntil = 0
    for (let i = 0; i < offsets.length; i++) {
      const ref = { offset: offsets[i] as number, index: indexes[i] as number, origin }
      const group = this.#parked.groupAt(ref.offset, ref.index, origin)
      if (!group || (lease !== undefined && group.lease !== lease) || !this.#parked.release(group, ref)) continue
      if (isUnseen && group.deliveries > 0) group.deliveries--
      if (messages++ === 0) heldUntil = group.endsAt
    }
    return { messages, heldUntil }
  }

  /**
   * Messages come back: deliverable at once.
   * @param lease only those still held under it
   * @param isUnseen no client has had them, so that this was no delivery; for an owner that doesn't send
   */
  release({ offsets, indexes }: RefList, lease?: number, isUnseen = false): Released {
    const w = this.#window
    let messages = 0
    let heldUntil = 0
    for (let i = 0; i < offsets.length; i++) {
      const offset = offsets[i] as number
      const index = indexes[i] as number
      const seq = w.seqOf(offset, index)
      if (seq < 0 || (w.states[seq & w.mask] as number) >= STATE.finished) {
        const parked = this.releaseParked({ offsets: [offset], indexes: [index] }, undefined, lease, isUnseen)
        if (messages === 0) heldUntil = parked.heldUntil
        messages += parked.messages
        continue
      }
      const slot = seq & w.mask
      if (w.states[slot] === STATE.moving) this.#parking.release(seq, lease)
      if (w.states[slot] !== STATE.inFlight || (lease !== undefined && w.leases[slot] !== lease)) continue
      if (messages++ === 0) heldUntil = this.#open.leases.endOf(w.leases[slot] as number)
      this.#open.leases.letGo(w.leases[slot] as number)
      const deliveries = w.deliveries[slot] as number
      if (isUnseen && deliveries > 0 && deliveries < 0xffff) w.deliveries[slot] = deliveries - 1
      this.#open.free(seq)
    }
    return { messages, heldUntil }
  }

  /** Everything that is in flight comes back: whoever had it has told the end of all that it knows of. @returns how many deliveries */
  releaseAll(): number {
    const w = this.#window
    const { leases } = this.#open
    const held: number[] = []
    for (const { number, seqs } of leases.held())
      for (const seq of seqs)
        if (seq >= w.base && w.states[seq & w.mask] === STATE.inFlight && w.leases[seq & w.mask] === number) held.push(seq)
    for (const seq of held) {
      leases.letGo(w.leases[seq & w.mask] as number)
      this.#open.free(seq)
    }
    return held.length + this.#parked.releaseAll()
  }

  /**
   * Messages have failed and are to be tried again, or given up. Those of the window go to the parked store; those that
   * are there already are the caller's to record, and are returned.
   */
  fail(refs: RefList, failures: readonly Failed[]): { elsewhere: RefList; elsewhereFailed: readonly Failed[] } {
    const w = this.#window
    const elsewhere = refList()
    const elsewhereFailed: Failed[] = []
    for (const [i, failure] of failures.entries()) {
      const offset = refs.offsets[i] as number
      const index = refs.indexes[i] as number
      const seq = w.seqOf(offset, index)
      if (seq >= 0 && w.states[seq & w.mask] === STATE.inFlight) this.#parking.fail(seq, failure)
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
    const w = this.#window
    const parked = this.#parked.groupAt(offset, index, origin)
    if (parked || origin) return parked?.deliveries ?? 0
    const seq = w.seqOf(offset, index)
    return seq < 0 ? 0 : (w.deliveries[seq & w.mask] as number)
  }

  /** Frees what lapsed by `now` (monotonic ms). @returns how many deliveries; what was only presumed to be with a client is none */
  lapse(now: number, maxDeliveries: number | null): number {
    const w = this.#window
    const { leases } = this.#open
    const most = maxDeliveries ?? Infinity
    let lapsed = 0
    for (let lease = leases.lapsed(now); lease; lease = leases.lapsed(now)) {
      for (const seq of lease.seqs) {
        const slot = seq & w.mask
        if (seq < w.base || w.states[slot] !== STATE.inFlight || w.leases[slot] !== lease.number) continue
        if ((w.deliveries[slot] as number) > 0) lapsed++
        if ((w.deliveries[slot] as number) >= most) this.#parking.discard(seq)
        else this.#open.free(seq)
      }
    }
    if (this.#parked.nextEnd() <= now) {
      const held = this.#parked.heldCount
      this.#parking.discardParked(this.#parked.lapse(now, most))
      lapsed += held - this.#parked.heldCount
    }
    return lapsed
  }

  /** When the next visibility time ends (monotonic ms), or Infinity. */
  nextLapse(): number {
    return Math.min(this.#open.leases.nextEnd(), this.#parked.nextEnd())
  }

  /**
   * Whether the parked store may have a message that the window has not as open: what is parked stands there as finished, or as
   * void; what was parked by a former owner may lie ahead of the reader, which has no say in it.
   * @param state -1: the window doesn't hold it
   */
  #mayBeParked(state: number, offset: number, index: number): boolean {
    if (this.#parked.openRows === 0 || (state >= 0 && state < STATE.finished)) return false
    return offset < this.#window.nextOffset || this.#restored.isParkedAhead(offset, index)
  }

  #wasDelivered(seq: number, offset: number, index: number): boolean {
    const { deliveries, mask } = this.#window
    return (deliveries[seq & mask] as number) > 0 || compareRefs({ offset, index }, this.#restored.ackableBelow) < 0
  }
}
