/**
 * Takes in what is read: what is not to be delivered is void at once, and within the former owner's zone every message gets the
 * state that it had there.
 */
import { MESSAGE_FLAG } from '../log/pack.ts'
import type { Position } from '../position.ts'
import type { Dispatcher } from './dispatcher.ts'
import { close, isParked, joinGroup, makeReady, makeVoid, presume, settle } from './messages.ts'
import { isTooLarge, startFailed, tooLarge } from './parked/parking.ts'
import { compareRefs, finishedIn, invisibleUntil } from './restored.ts'
import { STATE, type PackView, type WindowPack } from './window.ts'

/**
 * Takes in the next record. Positions inside a pack grow, as one run of the source wrote it.
 * @param drops 1 for each message that the sink's filter drops: finished unseen
 */
export function offer(d: Dispatcher, offset: number, view: PackView, drops?: Uint8Array): void {
  const { window: w, accepted, keyed } = d
  d.readAt = d.clock()
  const pack = w.append(offset, view, accepted)
  const { count, firstSeq } = pack
  const firstAccepted = count === 0 || view.compare(0, accepted) > 0 ? 0 : firstAbove(view, accepted)
  for (let i = 0; i < firstAccepted; i++) makeVoid(d, pack, firstSeq + i)
  if (firstAccepted < count) d.accepted = view.position(count - 1)
  if (!keyed) for (let i = firstAccepted; i < count; i++) if (isTombstone(view, i)) makeVoid(d, pack, firstSeq + i)
  d.isRestoring &&= offset <= d.restored.lastOffset
  if (d.isRestoring) restoreFinished(d, pack) // whatever the sink's filter says by now
  if (drops)
    for (let i = firstAccepted; i < count; i++)
      if (drops[i] === 1 && w.states[(firstSeq + i) & w.mask] === STATE.fresh) makeVoid(d, pack, firstSeq + i)
  if (d.isRestoring) restoreOpen(d, pack, view)
  for (let i = firstAccepted; i < count; i++) if (isTooLarge(view, i)) giveUp(d, firstSeq + i, view, i)
  settle(d)
}

/** Gives up a message that is never to be delivered: it is put on record, unless it is already. */
function giveUp(d: Dispatcher, seq: number, view: PackView, place: number): void {
  const { states, mask } = d.window
  const state = states[seq & mask]
  if (state !== STATE.moving && state !== STATE.finished && state !== STATE.void) startFailed(d, seq, tooLarge(view, place))
}

/** Marks as finished what a former owner finished, or the parked store has. */
function restoreFinished(d: Dispatcher, { offset, firstSeq, count }: WindowPack): void {
  const { states, mask } = d.window
  for (const [from, to] of finishedIn(d.restored, offset, count))
    for (let seq = firstSeq + from; seq < firstSeq + to; seq++) if (states[seq & mask] === STATE.fresh) close(d, seq)
}

/** Inside the former owner's zone every message is looked at as it is read, so that groups keep their order. */
function restoreOpen(d: Dispatcher, { offset, firstSeq, count }: WindowPack, view: PackView): void {
  const { restored, grouping, leases } = d
  const { states, mask } = d.window
  const held = new Map<number, number[]>()
  for (let index = 0; index < count; index++) {
    const seq = firstSeq + index
    if (states[seq & mask] !== STATE.fresh || compareRefs({ offset, index }, restored.ackableBelow) >= 0) continue
    const group = grouping ? view.group(index) : 0
    const isFirst = !grouping || joinGroup(d, group, seq)
    const until = invisibleUntil(restored, { offset, index })
    if (until > 0) {
      const seqs = held.get(until)
      if (seqs) seqs.push(seq)
      else held.set(until, [seq])
    } else if (isFirst && !isParked(d, group)) makeReady(d, seq)
    else states[seq & mask] = STATE.waiting
  }
  for (const [endsAt, seqs] of held) {
    const lease = leases.reserve()
    for (const seq of seqs) presume(d, seq, lease, restored.inFlight.get(offset)?.has(seq - firstSeq) === true)
    leases.hold(lease, endsAt, seqs)
  }
}

/** Whether a message is delivered as a tombstone. One that a reader takes as a plain delete has lost the flag. */
const isTombstone = (view: PackView, i: number): boolean => (view.flags(i) & MESSAGE_FLAG.tombstone) !== 0

/** Finds the first message above the accepted position, by halves: positions in a pack grow. */
function firstAbove(view: PackView, accepted: Position): number {
  let low = 0
  let high = view.count
  while (low < high) {
    const mid = (low + high) >> 1
    if (view.compare(mid, accepted) > 0) high = mid
    else low = mid + 1
  }
  return low
}
