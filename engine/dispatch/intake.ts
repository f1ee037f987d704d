/**
 * Takes in what is read: what is not to be delivered is void at once, and within the former owner's zone every message gets the
 * state that it had there.
 */
import type { FinishedRange, MessageRef } from '../log/log.ts'
import { MESSAGE_FLAG } from '../log/pack.ts'
import type { Position } from '../position.ts'
import type { OpenMessages } from './open-messages.ts'
import type { Failed, Parking } from './parked/parking.ts'
import { compareRefs, type Restored } from './restored.ts'
import { isTooLarge, tooLarge } from './parked/too-large.ts'
import { STATE, type PackView, type Window, type WindowPack } from './window.ts'

type IntakeOptions = Readonly<{
  open: OpenMessages
  parking: Parking
  restored: Restored
  /** tombstones are delivered */
  keyed: boolean
  /** monotonic milliseconds */
  clock: () => number
}>

export class Intake {
  readonly #window: Window
  readonly #open: OpenMessages
  readonly #parking: Parking
  readonly #restored: Restored
  readonly #keyed: boolean
  readonly #clock: () => number
  /** the greatest accepted position read */
  #filter: Position
  #restoring = true
  #readAt: number

  constructor({ open, parking, restored, keyed, clock }: IntakeOptions) {
    this.#window = open.window
    this.#open = open
    this.#parking = parking
    this.#restored = restored
    this.#keyed = keyed
    this.#clock = clock
    this.#filter = restored.filter
    this.#readAt = clock()
  }

  get filter(): Position {
    return this.#filter
  }
  /** What is read is the former owner's zone: messages of it may be with clients. */
  get isRestoring(): boolean {
    return this.#restoring
  }
  /** when the last record came, or this owner (monotonic ms) */
  get readAt(): number {
    return this.#readAt
  }

  /** Ranges that the former owner finished and that are still to be read, from a message on. */
  unreadRanges(from: MessageRef): readonly FinishedRange[] {
    return this.#restoring ? this.#restored.unreadRanges(from) : []
  }

  /**
   * Takes in the next record. Positions inside a pack grow, as one run of the source wrote it.
   * @param drops 1 for each message that the sink's filter drops: finished unseen
   */
  offer(offset: number, view: PackView, drops?: Uint8Array): void {
    this.#readAt = this.#clock()
    const pack = this.#window.append(offset, view, this.#filter)
    const { count, firstSeq } = pack
    const accepted = count === 0 || view.compare(0, this.#filter) > 0 ? 0 : firstAbove(view, this.#filter)
    for (let i = 0; i < accepted; i++) this.#open.makeVoid(pack, firstSeq + i)
    if (accepted < count) this.#filter = view.position(count - 1)
    if (!this.#keyed) for (let i = accepted; i < count; i++) if (isTombstone(view, i)) this.#open.makeVoid(pack, firstSeq + i)
    this.#restoring &&= this.#restored.concerns(offset)
    if (this.#restoring) this.#restoreFinished(pack) // whatever the filter says by now
    if (drops) this.#drop(pack, accepted, drops)
    if (this.#restoring) this.#restoreOpen(pack, view)
    for (let i = accepted; i < count; i++) if (isTooLarge(view, i)) this.#giveUp(firstSeq + i, tooLarge(view, i))
    this.#open.settle()
  }

  #drop(pack: WindowPack, accepted: number, drops: Uint8Array): void {
    const { states, mask } = this.#window
    for (let i = accepted; i < pack.count; i++)
      if (drops[i] === 1 && states[(pack.firstSeq + i) & mask] === STATE.fresh) this.#open.makeVoid(pack, pack.firstSeq + i)
  }

  /** Never to be delivered: on its way to be put on record, unless it is already. */
  #giveUp(seq: number, failed: Failed): void {
    const { states, mask } = this.#window
    if ((states[seq & mask] as number) < STATE.moving) this.#parking.fail(seq, failed)
  }

  /** What a former owner finished, or the parked store has, stays finished here. */
  #restoreFinished({ offset, firstSeq, count }: WindowPack): void {
    const { states, mask } = this.#window
    for (const [from, to] of this.#restored.finishedIn(offset, count))
      for (let seq = firstSeq + from; seq < firstSeq + to; seq++) if (states[seq & mask] === STATE.fresh) this.#open.close(seq)
  }

  /** Inside the former owner's zone every message is looked at as it is read, so that groups keep their order. */
  #restoreOpen({ offset, firstSeq, count }: WindowPack, view: PackView): void {
    const restored = this.#restored
    const { states, mask } = this.#window
    const held = new Map<number, number[]>()
    for (let index = 0; index < count; index++) {
      const seq = firstSeq + index
      if (states[seq & mask] !== STATE.fresh || compareRefs({ offset, index }, restored.ackableBelow) >= 0) continue
      const group = this.#open.grouping ? view.group(index) : 0
      const first = !this.#open.grouping || this.#open.groups.join(group, seq)
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
}

/** What was one and is delivered as a delete isn't any more. */
const isTombstone = (view: PackView, i: number): boolean => (view.flags(i) & MESSAGE_FLAG.tombstone) !== 0

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
