/**
 * How deliveries end: a message is finished, comes back, has failed, or its visibility time is over. What the parked store
 * has is left to the owner.
 *
 * An end is told of a message by its name, and finds it wherever it is by then: each function here says for every place what becomes
 * of the end. A client may name what was never its own, or tell an end twice. An owner that sends tells each end once and of what
 * it took; one that finds nothing would leave a message in flight for ever, and is an error at once.
 */
import { EngineError } from '../errors.ts'
import type { MessageView } from '../log/pack.ts'
import { refList, type RefList } from './ack-id.ts'
import type { Dispatcher } from './dispatcher.ts'
import { end, free, settle } from './messages.ts'
import { groupAt, groupsLapsed, groupsReleased, nextHeldEnd, rowReleased, type Origin, type Release } from './parked/parked-groups.ts'
import { startDiscard, startFailed, stopHolding, type FailedMessage } from './parked/parking.ts'
import { compareRefs, isParkedAhead } from './restored.ts'
import { openView, STATE } from './window.ts'

/** Tells what became of the ends of messages that an owner told. */
export type Finish = Readonly<{
  finished: number
  /** end of the visibility time of the first of them, 0 when it is over */
  heldUntil: number
  /** messages that the parked store has or is getting: the owner ends them there */
  elsewhere: RefList
  /** some were delivered by a former owner and are not read yet, so this ack can't be kept now */
  early: boolean
}>

/** Counts messages that came back, and tells when the visibility time of the first of them would have ended. */
export type Released = Readonly<{ messages: number; heldUntil: number }>

/**
 * Where a message is that an end is told of. In the window: `held` in flight, `freed` after it was delivered, `untouched` and never
 * delivered, `moving` to the parked store. Outside: `parked`, as far as is known; `ended` before, here or there; `unread`, of a former
 * owner's delivery; `unknown`.
 */
type Whereabouts = 'held' | 'freed' | 'untouched' | 'moving' | 'parked' | 'ended' | 'unread' | 'unknown'

/** @param seq -1: the window doesn't hold it */
function whereIs({ window: w, parked, restored }: Dispatcher, seq: number, offset: number, index: number): Whereabouts {
  const slot = seq & w.mask
  const state = seq < 0 ? undefined : w.states[slot]
  if (state === STATE.inFlight) return 'held'
  if (state === STATE.moving) return 'moving'
  const isFormers = compareRefs({ offset, index }, restored.ackableBelow) < 0
  if (state === STATE.ready || state === STATE.waiting) return isFormers || w.deliveries[slot] !== 0 ? 'freed' : 'untouched'
  if (state === STATE.fresh) return 'untouched'
  // what is parked stands in the window as finished, or as void, if it does; what a former owner parked may lie ahead of the reader
  if (offset < w.nextOffset || isParkedAhead(restored, offset, index)) return parked.openRows > 0 ? 'parked' : 'ended'
  return isFormers ? 'unread' : 'unknown'
}

/** An end has found nothing to end. @throws EngineError INTERNAL: the owner sends, so that it was a message in its hands */
function foundNothing({ sends }: Dispatcher, where: 'untouched' | 'unread' | 'unknown', offset: number, index: number): void {
  if (sends)
    throw new EngineError('INTERNAL', `message ${offset}.${index} ended without being in flight: it is ${where}`, { offset, index })
}

/**
 * Ends messages. Unknown, repeated and never delivered ones are ignored.
 * @param ended told of each, while it is still there
 * @throws EngineError INTERNAL: an owner that sends has not taken it
 */
export function finish(
  d: Dispatcher,
  refs: RefList,
  ended?: (view: MessageView, place: number, offset: number, tries: number) => void,
): Finish {
  const w = d.window
  const { offsets, indexes } = refs
  const elsewhere = refList()
  let finished = 0
  let heldUntil = 0
  let early = false
  for (let i = 0; i < offsets.length; i++) {
    const offset = offsets[i] as number
    const index = indexes[i] as number
    const seq = w.seqOf(offset, index)
    const where = whereIs(d, seq, offset, index)
    switch (where) {
      case 'held':
      case 'freed': {
        if (finished === 0) heldUntil = d.leases.endOf(w.leases[seq & w.mask])
        const count = where === 'held' ? countInRow(d, refs, i, seq) : 1
        if (ended) {
          const view = openView(w.packOf(seq))
          for (let more = 0; more < count; more++) ended(view, index + more, offset, w.deliveries[(seq + more) & w.mask] ?? 0)
        }
        end(d, seq, count)
        finished += count
        i += count - 1
        break
      }
      case 'moving':
      case 'parked':
        elsewhere.offsets.push(offset)
        elsewhere.indexes.push(index)
        break
      case 'ended':
        break
      case 'unread':
        early = true
        foundNothing(d, where, offset, index)
        break
      case 'untouched':
      case 'unknown':
        foundNothing(d, where, offset, index)
        break
      default:
        where satisfies never
    }
  }
  if (finished) settle(d)
  return { finished, heldUntil, elsewhere, early }
}

/**
 * How many messages of a list, from place i on, stand in a row in one record and are in flight under one lease: most of what is
 * handed out together is ended together.
 * @param seq of the first
 */
function countInRow({ window: w }: Dispatcher, { offsets, indexes }: RefList, i: number, seq: number): number {
  const { states, leases, mask } = w
  const { firstSeq, count: inPack } = w.packOf(seq)
  const most = firstSeq + inPack - seq
  const lease = leases[seq & mask]
  const [offset, index] = [offsets[i], indexes[i] as number]
  let count = 1
  while (
    count < most &&
    offsets[i + count] === offset &&
    indexes[i + count] === index + count &&
    states[(seq + count) & mask] === STATE.inFlight &&
    leases[(seq + count) & mask] === lease
  )
    count++
  return count
}

/**
 * Takes messages back from a client or sender: they are deliverable at once.
 * @param how under which lease, and with or without having been seen; the origin of messages parked under another generation
 * @throws EngineError INTERNAL: an owner that sends has not taken it
 */
export function release(
  d: Dispatcher,
  { offsets, indexes }: RefList,
  how: Release & Readonly<{ origin?: Origin | undefined }> = {},
): Released {
  const w = d.window
  const { lease, isUnseen, origin } = how
  let messages = 0
  let heldUntil = 0
  for (const [i, offset] of offsets.entries()) {
    const index = indexes[i] as number
    const seq = w.seqOf(offset, index)
    const where = origin ? 'parked' : whereIs(d, seq, offset, index)
    switch (where) {
      case 'held': {
        const slot = seq & w.mask
        if (lease !== undefined && w.leases[slot] !== lease) break
        if (messages++ === 0) heldUntil = d.leases.endOf(w.leases[slot])
        d.leases.letGo(w.leases[slot])
        const deliveries = w.deliveries[slot] ?? 0
        if (isUnseen && deliveries > 0 && deliveries < 0xffff) w.deliveries[slot] = deliveries - 1
        free(d, seq)
        break
      }
      case 'moving':
        stopHolding(d, seq, lease)
        break
      case 'parked': {
        const freed = rowReleased(d.parked, { offset, index, origin }, how)
        if (freed === undefined) break
        if (messages++ === 0) heldUntil = freed
        break
      }
      case 'freed':
      case 'ended':
        break
      case 'untouched':
      case 'unread':
      case 'unknown':
        foundNothing(d, where, offset, index)
        break
      default:
        where satisfies never
    }
  }
  return { messages, heldUntil }
}

/**
 * Takes back everything that is in flight, because whoever had it has told the end of all that it knows of. @returns how many
 * deliveries
 */
export function releaseAll(d: Dispatcher): number {
  const { window: w, leases } = d
  const held: number[] = []
  for (const { number, seqs } of leases.held()) for (const seq of seqs) if (w.holds(seq, number)) held.push(seq)
  for (const seq of held) {
    leases.letGo(w.leases[seq & w.mask])
    free(d, seq)
  }
  return held.length + groupsReleased(d.parked)
}

/**
 * Takes note that messages have failed, and are to be tried again or given up: those of the window go to the parked store.
 * @returns those that the store has or is getting: the caller's to record
 * @throws EngineError INTERNAL: an owner that sends has not taken it
 */
export function fail(d: Dispatcher, messages: readonly FailedMessage[]): FailedMessage[] {
  const elsewhere: FailedMessage[] = []
  for (const message of messages) {
    const { offset, index, failed } = message
    const seq = d.window.seqOf(offset, index)
    const where = whereIs(d, seq, offset, index)
    switch (where) {
      case 'held':
        startFailed(d, seq, failed)
        break
      case 'freed':
      case 'moving':
      case 'parked':
      case 'ended':
        elsewhere.push(message)
        break
      case 'untouched':
      case 'unread':
      case 'unknown':
        foundNothing(d, where, offset, index)
        break
      default:
        where satisfies never
    }
  }
  return elsewhere
}

/** Tells how often a message that is with a client has been delivered. @param origin of one that another generation has named */
export function deliveriesOf({ window: w, parked }: Dispatcher, offset: number, index: number, origin?: Origin): number {
  const group = groupAt(parked, { offset, index, origin })
  if (group || origin) return group?.deliveries ?? 0
  const seq = w.seqOf(offset, index)
  return seq < 0 ? 0 : (w.deliveries[seq & w.mask] ?? 0)
}

/** Frees what lapsed by `now` (monotonic ms). @returns how many deliveries; what was only presumed to be with a client is none */
export function lapse(d: Dispatcher, now: number): number {
  const { window: w, leases, parked } = d
  const most = d.settings.maxDeliveries ?? Infinity
  let lapsed = 0
  for (let lease = leases.lapsed(now); lease; lease = leases.lapsed(now)) {
    for (const seq of lease.seqs) {
      if (!w.holds(seq, lease.number)) continue
      const deliveries = w.deliveries[seq & w.mask] ?? 0
      if (deliveries > 0) lapsed++
      if (deliveries >= most) startDiscard(d, seq)
      else free(d, seq)
    }
  }
  const held = parked.inFlight
  d.parkedDiscards.push(...groupsLapsed(parked, now, most))
  return lapsed + held - parked.inFlight
}

/** Tells when the next visibility time ends (monotonic ms), or Infinity. */
export const nextLapse = ({ leases, parked }: Dispatcher): number => Math.min(leases.nextEnd(), nextHeldEnd(parked))
