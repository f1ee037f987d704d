/**
 * Decides what a commit says, and knows what a durable one has promised: up to where messages may be handed out (docs/rules.md,
 * rule 20), so that a new owner knows what a former one may have given to clients. An owner that sends needs no promise, for it has
 * what is out in hand.
 */
import type { Commit, FinishedRange, InFlight, MessageRef } from '../log/log.ts'
import { comparePositions, type Position } from '../position.ts'
import type { Dispatcher } from './dispatcher.ts'
import { compareRefs, laterRef, unreadInFlight, unreadRanges } from './restored.ts'
import type { WindowPack } from './window.ts'

/** The next messages that may be handed out are promised in advance, so that handing out waits for no commit. */
const AHEAD_MESSAGES = 2_000
/** Beyond the read head the promise is in records; few, because what arrives below it after a crash waits for the visibility time. */
const AHEAD_RECORDS = 8
/** After so long without a record the promise ends at the read head: what arrives after a crash then comes at once. */
const QUIET_MS = 100

// ── the promise ───────────────────────────────────────────────────────────────────────────────────

/** Whether a message may be handed out. */
export const isPromisedTo = ({ promised }: Dispatcher, ref: MessageRef): boolean => compareRefs(ref, promised) < 0

/** The sequence number up to which a pack may be handed out. */
export function endOfPromise({ sends, promised }: Dispatcher, { firstSeq, offset, count }: WindowPack): number {
  if (sends || offset < promised.offset) return firstSeq + count
  return firstSeq + (offset === promised.offset ? Math.min(promised.index, count) : 0)
}

/** Tells whether the promise should be renewed by a commit: less than half of it is left, or it reaches beyond the head of a quiet log. */
export function wantsCommit(d: Dispatcher): boolean {
  const { window: w, promised, sends } = d
  if (!d.isPromised || sends) return !d.isPromised
  if (promised.offset >= w.nextOffset) return isQuiet(d) ? wantsCommitAt(d) < Infinity : promised.offset - w.nextOffset < AHEAD_RECORDS / 2
  const seq = w.seqOf(promised.offset, promised.index)
  return seq < 0 || seq - w.cursor < AHEAD_MESSAGES / 2
}

/** Tells when `wantsCommit` will become true although nothing changes until then (monotonic ms), or Infinity. */
export const wantsCommitAt = (d: Dispatcher): number =>
  !d.sends && compareRefs(d.promised, headOf(d)) > 0 ? d.readAt + QUIET_MS : Infinity

const isQuiet = ({ clock, readAt }: Dispatcher): boolean => clock() - readAt >= QUIET_MS

/** Gives the end of what may be with clients at most: what was read, and what a former owner may have handed out. */
const headOf = ({ window, restored }: Dispatcher): MessageRef => laterRef({ offset: window.nextOffset, index: 0 }, restored.ackableBelow)

/**
 * Decides what the next commit promises; what that no longer covers is not handed out from here on.
 * @param isClean nothing is handed out any more, or not yet
 */
function nextPromise(d: Dispatcher, isClean: boolean): MessageRef {
  const former = laterRef(d.promised, d.restored.ackableBelow)
  const next = isClean || d.sends ? former : promiseAhead(d, former)
  if (compareRefs(next, d.promised) < 0) d.promised = next
  return next
}

function promiseAhead(d: Dispatcher, former: MessageRef): MessageRef {
  const { window: w } = d
  const head = headOf(d)
  if (compareRefs(former, head) >= 0 && isQuiet(d)) return head
  const seq = w.cursor + AHEAD_MESSAGES
  return laterRef(former, seq < w.end ? w.refOf(seq) : { offset: w.nextOffset + AHEAD_RECORDS, index: 0 })
}

// ── the commit ────────────────────────────────────────────────────────────────────────────────────

/**
 * Makes the commit of how things are now; what it no longer promises is not handed out from here on.
 * @param isClean nothing is handed out any more, or not yet: what is in flight is told, where it is known
 */
export function commitPoint(d: Dispatcher, term: number, isClean = false): Commit {
  const { window: w, restored } = d
  const isUnread = w.nextOffset === restored.next.offset // nothing read yet: what the former owner wrote still stands
  const handedOut = nextPromise(d, isClean)
  const inFlight = isClean ? inFlightNow(d) : undefined
  const next = isUnread ? restored.next : w.refOf(w.base)
  return {
    next,
    accepted: isUnread ? restored.accepted : acceptedBefore(d, w.base),
    finished: finishedNow(d, isUnread ? next : { offset: w.nextOffset, index: 0 }),
    handedOut,
    term,
    ...(inFlight ? { inFlight } : {}),
  }
}

/**
 * Takes note that a commit is durable: its promise holds from now on, unless it tells the exact set of messages in flight, which a
 * hand-out would change.
 */
export function committed(d: Dispatcher, { inFlight, handedOut }: Commit): void {
  if (inFlight) return
  d.isPromised = true
  d.promised = laterRef(d.promised, handedOut)
}

/** Gives the greatest position up to which everything is finished or parked. */
export const finishedUpTo = (d: Dispatcher): Position => acceptedBefore(d, d.window.base)

/** Gives the greatest accepted position before a message of the window, which a restart from there begins with. */
function acceptedBefore({ window: w, accepted }: Dispatcher, seq: number): Position {
  if (seq >= w.end) return accepted
  const pack = w.packOf(seq)
  const index = seq - pack.firstSeq
  if (index === 0 || !pack.view) return pack.acceptedBefore
  const before = pack.view.position(index - 1)
  return comparePositions(before, pack.acceptedBefore) > 0 ? before : pack.acceptedBefore
}

/** @param read up to where it is known what of the former owner's ranges is finished */
function finishedNow({ window: w, ranges, isRestoring, restored }: Dispatcher, read: MessageRef): FinishedRange[] {
  const refs: FinishedRange[] = []
  for (let i = 0; i < ranges.count; i++) refs.push({ from: w.refOf(ranges.start(i)), to: w.refAfter(ranges.end(i) - 1) })
  if (isRestoring) refs.push(...unreadRanges(restored, read))
  return refs
}

/** @returns undefined when the exact set can't be told: then a restart presumes, as after a crash */
function inFlightNow(d: Dispatcher): InFlight[] | undefined {
  if (d.sends) return [] // the owner has told the end of each
  const { window: w, closed, leases, parked } = d
  const now = d.clock()
  const held = unreadInFlight(d.restored, closed ? w.nextOffset + 1 : w.nextOffset, now)
  if (!held) return undefined
  for (const { number, endsAt, seqs } of leases.held())
    for (const seq of seqs) if (w.holds(seq, number)) held.push({ message: w.refOf(seq), invisibleForMs: Math.max(0, endsAt - now) })
  for (const { state, notBefore, offset, index, origin, endsAt } of parked.byKey.values()) {
    if (notBefore > now) return undefined
    if (state === 'inFlight')
      held.push({ message: { offset, index }, invisibleForMs: Math.max(0, endsAt - now), ...(origin ? { origin } : {}) })
  }
  return held
}
