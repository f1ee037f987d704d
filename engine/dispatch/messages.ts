/**
 * Changes the state of one message of the window: handed out, freed, ended, and the order of its group that follows from it.
 *
 *   fresh ─cursor─▶ inFlight ⇄ ready ─▶ … ─▶ finished        (waiting: behind an earlier one of its group)
 *
 *  Of each group that has something unfinished and looked at, the messages form a chain in the window's rings, and only the first
 *  of a chain may be handed out. No object per group, nothing is scanned twice: a message is linked when the cursor passes it
 *  and comes up when its predecessor ends.
 *
 *  `pending` counts a message from its first delivery to its end, lapsed and returned or not; one that is only presumed
 *  to be with a client of a former owner counts while it is presumed so.
 */
import { countPending, type Dispatcher } from './dispatcher.ts'
import { groupUnblocked } from './parked/parked-groups.ts'
import type { SeqHeap } from './seq-heap.ts'
import { openView, STATE, type WindowPack } from './window.ts'

/** Tells whether a group has messages in the parked store, so that what the log holds of it waits. */
export const isParked = ({ grouping, parked }: Dispatcher, group: number): boolean =>
  grouping && parked.byKey.size > 0 && parked.byKey.has(group)

function groupOf({ window }: Dispatcher, seq: number): number {
  const pack = window.packOf(seq)
  return openView(pack).group(seq - pack.firstSeq)
}

// ── becoming deliverable ──────────────────────────────────────────────────────────────────────────

/**
 * Finds the next message in line that was delivered before, or freed; Infinity: none. One that was never delivered counts only
 * below max_ack_pending.
 */
export function nextReady(d: Dispatcher): number {
  const again = top(d, d.again)
  return d.pending.full ? again : Math.min(again, top(d, d.freed))
}

/** Takes the message that `nextReady` found out of the line. */
export function takeReady({ again, freed }: Dispatcher, seq: number): void {
  if (again.peek() === seq) again.pop()
  else freed.pop()
}

/** Puts a message in line. */
export function makeReady({ window: w, again, freed }: Dispatcher, seq: number): void {
  const slot = seq & w.mask
  w.states[slot] = STATE.ready
  if (w.deliveries[slot] === 0) freed.push(seq)
  else again.push(seq)
}

/** Tells whether any message waits in line, max_ack_pending aside. */
export const anyReady = (d: Dispatcher): boolean => top(d, d.again) !== Infinity || top(d, d.freed) !== Infinity

/** The lowest entry that is still deliverable; what changed its state since is dropped here. */
function top({ window: w }: Dispatcher, heap: SeqHeap): number {
  for (;;) {
    const seq = heap.peek()
    if (seq === Infinity || (seq >= w.base && w.states[seq & w.mask] === STATE.ready)) return seq
    heap.pop()
  }
}

// ── the order of a group ──────────────────────────────────────────────────────────────────────────

/** Begins a group that has nothing open with its first message. */
export function beginGroup({ heads, window: w }: Dispatcher, group: number, seq: number): void {
  heads.set(group, seq)
  w.tails[seq & w.mask] = seq
}

/** Adds a message behind those of its group. @returns true when it is the first */
export function joinGroup(d: Dispatcher, group: number, seq: number): boolean {
  const { mask, tails, links } = d.window
  const head = d.heads.get(group)
  if (head === undefined) {
    beginGroup(d, group, seq)
    return true
  }
  const tail = tails[head & mask] ?? head
  links[tail & mask] = seq - tail
  tails[head & mask] = seq
  return false
}

/** Finds the next message of the same group that was looked at, finished or not; -1: there is none. */
export function behind({ window: { mask, links } }: Dispatcher, seq: number): number {
  const link = links[seq & mask]
  return link ? seq + link : -1
}

/** Takes the first message of a group out, and lets the next unfinished one come up. */
function leaveGroup(d: Dispatcher, group: number, head: number): void {
  const { heads, window: w } = d
  if (heads.get(group) !== head) return
  const { mask, tails, states } = w
  let next = behind(d, head)
  while (next >= 0 && states[next & mask] === STATE.finished) next = behind(d, next) // an ack from before a crash may end a later one first
  if (next < 0) heads.delete(group)
  else {
    tails[next & mask] = tails[head & mask] ?? next
    heads.set(group, next)
    if (states[next & mask] === STATE.waiting && !isParked(d, group)) makeReady(d, next)
  }
  if (d.parked.blocked > 0) unblock(d, group)
}

/** The messages of a group that are under way are the first of those that the window holds of it. */
function unblock({ heads, window: w, parked }: Dispatcher, group: number): void {
  const head = heads.get(group)
  const state = head === undefined ? undefined : w.states[head & w.mask]
  if (state !== STATE.inFlight && state !== STATE.moving) groupUnblocked(parked, group)
}

// ── with a client ─────────────────────────────────────────────────────────────────────────────────

/** Marks a message as handed out under a lease. */
export function hand(d: Dispatcher, seq: number, lease: number): void {
  const w = d.window
  const slot = seq & w.mask
  const deliveries = w.deliveries[slot] ?? 0
  if (deliveries === 0) countPending(d, 1)
  if (deliveries < 0xffff) w.deliveries[slot] = deliveries + 1
  w.states[slot] = STATE.inFlight
  w.leases[slot] = lease
  d.inFlight++
}

/** Marks a message as presumed to be with a client of a former owner. @param delivered known to be, rather than possibly */
export function presume(d: Dispatcher, seq: number, lease: number, delivered: boolean): void {
  const w = d.window
  const slot = seq & w.mask
  w.deliveries[slot] = delivered ? 1 : 0
  w.states[slot] = STATE.inFlight
  w.leases[slot] = lease
  d.inFlight++
  countPending(d, 1)
}

/** Makes a message that was in flight deliverable again, in its turn. */
export function free(d: Dispatcher, seq: number): void {
  const w = d.window
  const slot = seq & w.mask
  d.inFlight--
  if (w.deliveries[slot] === 0) countPending(d, -1)
  if (!d.grouping) return makeReady(d, seq)
  const group = groupOf(d, seq)
  if (d.heads.get(group) === seq && !isParked(d, group)) makeReady(d, seq)
  else w.states[slot] = STATE.waiting
  if (d.parked.blocked > 0) unblock(d, group)
}

// ── ending ────────────────────────────────────────────────────────────────────────────────────────

/**
 * Finishes a message that is in flight, ready or waiting. `settle` follows once after many.
 * @param count so many that stand in a row, of one pack, and in flight under one lease
 */
export function end(d: Dispatcher, seq: number, count = 1): void {
  const w = d.window
  const slot = seq & w.mask
  const isHeld = w.states[slot] === STATE.inFlight
  if (isHeld) {
    d.inFlight -= count
    d.leases.letGo(w.leases[slot], count)
  }
  if (isHeld || w.deliveries[slot] !== 0) countPending(d, -count)
  close(d, seq, count)
}

/** Finishes messages that stand in a row, of one pack, and lets the next one of each group come up. */
export function close(d: Dispatcher, seq: number, count = 1): void {
  const w = d.window
  const { states, mask } = w
  const pack = w.packOf(seq)
  const view = openView(pack)
  for (let each = seq; each < seq + count; each++) states[each & mask] = STATE.finished
  w.open -= count
  pack.open -= count
  if (pack.open === 0) pack.view = undefined
  let from = seq
  let to = seq + count
  // void neighbours join the finished range, so that they don't split it
  while (from > w.base && states[(from - 1) & mask] === STATE.void) from--
  while (to < w.end && states[to & mask] === STATE.void) to++
  d.ranges.add(from, to)
  if (d.grouping) for (let each = seq; each < seq + count; each++) leaveGroup(d, view.group(each - pack.firstSeq), each)
}

/** Marks messages that have nothing to deliver, so that they are part of no order, nor of what a commit records. */
export function makeVoid({ window: w }: Dispatcher, pack: WindowPack, seq: number): void {
  w.states[seq & w.mask] = STATE.void
  w.open--
  if (--pack.open === 0) pack.view = undefined
}

/** Moves the window's base to the lowest unfinished message. */
export function settle({ window: w, ranges }: Dispatcher): void {
  let base = w.base
  for (;;) {
    if (ranges.count && ranges.start(0) <= base && ranges.end(0) > base) {
      base = ranges.end(0)
      ranges.dropBelow(base)
    } else if (base < w.end && w.states[base & w.mask] === STATE.void) base++
    else break
  }
  if (base === w.base) return
  ranges.dropBelow(base)
  w.advance(base)
}
