/**
 * Messages that leave the window for the parked store: parked because they block it, or discarded because they were
 * delivered too often. While the store writes, a message is `moving`: not handed out, not finished, its ack waits.
 * The order is: row durable, then finished here, then committed (docs/rules.md, rule 22).
 */
import { type MessageView, MESSAGE_FLAG } from '../../log/pack.ts'
import type { RefList } from '../ack-id.ts'
import { countPending, windowBytes, type Dispatcher } from '../dispatcher.ts'
import { anyReady, close, free, makeReady, settle } from '../messages.ts'
import { openView, STATE, type WindowPack } from '../window.ts'
import { refKey, rowEnded, rowFailed, rowParked, rowReopened, type ParkedGroup, type ParkedName, type ParkedRef } from './parked-groups.ts'

/** A message could not be delivered, and what follows from it. */
export type Failed = Readonly<{
  /** how often it has failed that counts */
  attempts: number
  /** until it is tried again; undefined: it is given up */
  retryInMs: number | undefined
  /** one line of it */
  error: string
  /** the attempt as it is recorded: plain JSON */
  record: Readonly<Record<string, unknown>>
}>

/** A message that could not be delivered. */
export type FailedMessage = ParkedName & Readonly<{ failed: Failed }>

/** A message on its way from the window to the parked store: to wait there, or as the record of what was given up. */
export type Move = Readonly<{
  seq: number
  offset: number
  index: number
  view: MessageView
  kind: 'park' | 'discard'
  deliveries: number
  failed?: Failed | undefined
}>

/** More finished ranges than this and the lowest open messages are parked until they melt (docs/rules.md, rule 23). */
export const MAX_RANGES = 4_000
/** More parked groups than this and nothing more is parked: reading waits, and health says so. */
const MAX_PARKED_GROUPS = 100_000
/** At most so many messages are parked by one insert, which copies them all at once. */
const MAX_MOVES = 1_000
const MAX_MOVE_BYTES = 8 * 1024 * 1024
/** A full window is emptied down to this share of its bound. */
const PARK_TO = 0.75

/** Tells whether nothing more can be parked. */
export const isParkingFull = ({ parked }: Dispatcher): boolean => parked.byKey.size >= MAX_PARKED_GROUPS

/** Tells whether the window is full and nothing in it can be delivered, so that reading stands although other groups could go on. */
export function isStuck(d: Dispatcher): boolean {
  const { window: w, ranges, pending } = d
  if (ranges.count > MAX_RANGES) return true
  return w.bytes >= windowBytes(d) && w.base < w.end && w.cursor === w.end && !pending.full && !anyReady(d)
}

// ── what is to move ───────────────────────────────────────────────────────────────────────────────

/**
 * The lowest open messages, in bulk, until the window has room again. Each must come back by `moved` or `notMoved`.
 * @param all whatever was looked at, full window or not: the generation is to end
 */
export function toPark(d: Dispatcher, all = false): Move[] {
  const { window: w, ranges } = d
  const moves: Move[] = []
  if ((!all && !isStuck(d)) || d.moving.size > 0 || isParkingFull(d)) return moves
  const byRanges = ranges.count > MAX_RANGES
  let bytes = 0
  let freed = 0
  let last: WindowPack | undefined
  for (let seq = w.base; seq < w.cursor && moves.length < MAX_MOVES && bytes < MAX_MOVE_BYTES; seq++) {
    const pack = w.packOf(seq)
    if (last && pack !== last) freed += last.bytes
    last = pack
    if (!all && !byRanges && w.bytes - freed <= windowBytes(d) * PARK_TO) break
    const state = w.states[seq & w.mask]
    if (state !== STATE.inFlight && state !== STATE.waiting && state !== STATE.ready) continue
    const move = start(d, seq, 'park')
    bytes += move.view.bodyEnd(move.index) - move.view.keyStart(move.index)
    moves.push(move)
  }
  return moves
}

/** Takes a lapsed message out because it was delivered too often. */
export function startDiscard(d: Dispatcher, seq: number): void {
  d.discards.push(start(d, seq, 'discard'))
}

/** Takes a message out that its owner could not deliver. */
export function startFailed(d: Dispatcher, seq: number, failed: Failed): void {
  d.failures.push(start(d, seq, failed.retryInMs === undefined ? 'discard' : 'park', failed))
}

/** Takes from a list those that go to the store in one statement next; each comes back by `moved`, by `notMoved`, or to the list. */
export const nextOf = <T extends Move | ParkedGroup>(waiting: T[]): T[] => waiting.splice(0, MAX_MOVES)

/** Whether any of these is on its way to the store. */
export const isMoving = ({ window, moving }: Dispatcher, { offsets, indexes }: RefList): boolean =>
  moving.size > 0 && offsets.some((offset, i) => moving.has(window.seqOf(offset, indexes[i] as number)))

/** Takes in that the visibility time of a message on its way to the store is over. @param lease if it is held under this one */
export function stopHolding({ moving }: Dispatcher, seq: number, lease?: number): void {
  const held = moving.get(seq)
  if (held && held.endsAt !== 0 && (lease === undefined || held.lease === lease)) moving.set(seq, { ...held, endsAt: 0, lease: 0 })
}

function start(d: Dispatcher, seq: number, kind: Move['kind'], failed?: Failed): Move {
  const { window: w, leases } = d
  const slot = seq & w.mask
  const isHeld = w.states[slot] === STATE.inFlight
  const lease = isHeld ? (w.leases[slot] ?? 0) : 0
  const before = w.deliveries[slot] ?? 0
  const deliveries = failed?.attempts ?? (d.sends ? 0 : before)
  const pending = isHeld || before > 0
  if (failed) d.moving.set(seq, { endsAt: d.clock() + (failed.retryInMs ?? 0), lease: 0, deliveries, pending, isBackOff: true })
  else d.moving.set(seq, { endsAt: isHeld && kind === 'park' ? leases.endOf(lease) : 0, lease, deliveries, pending })
  if (isHeld) {
    d.inFlight--
    leases.letGo(lease)
  }
  w.states[slot] = STATE.moving
  const pack = w.packOf(seq)
  return { seq, offset: pack.offset, index: seq - pack.firstSeq, view: openView(pack), kind, deliveries, failed }
}

// ── what the store has answered ───────────────────────────────────────────────────────────────────

/** Takes in that rows are durable: their messages are finished in the log. */
export function moved(d: Dispatcher, moves: readonly Move[]): void {
  for (const { seq, offset, index, view, kind } of moves) {
    const held = d.moving.get(seq)
    if (!held) continue
    d.moving.delete(seq)
    const key = d.grouping ? view.group(index) : refKey(offset, index)
    const row = { key, offset, index, commitTimeUs: view.commitTimeUs(index) }
    const isFirst = kind === 'park' && rowParked(d.parked, row, held.isBackOff ? { ...held, pending: false } : held)
    const keepsCount = isFirst && !held.isBackOff
    if (held.pending && !keepsCount) countPending(d, -1)
    close(d, seq)
  }
  settle(d)
}

/** Takes in that the store refused rows: everything is as before, and a discard is tried again at the end of another visibility time. */
export function notMoved(d: Dispatcher, moves: readonly Move[]): void {
  const { window: w, leases, sends } = d
  for (const { seq, kind } of moves) {
    const held = d.moving.get(seq)
    if (!held) continue
    d.moving.delete(seq)
    const slot = seq & w.mask
    d.inFlight++
    w.states[slot] = STATE.inFlight
    if (!sends && (held.endsAt > 0 || kind === 'discard')) {
      const lease = leases.reserve()
      w.leases[slot] = lease
      leases.hold(lease, held.endsAt || d.clock() + d.settings.ackWaitMs, [seq])
    } else {
      if (!held.pending) countPending(d, 1) // `free` takes back what an undelivered message in flight counts
      free(d, seq)
    }
  }
}

/** Takes in that parked rows ended, by ack or by discard; a group that has none left goes back to the log. */
export function parkedEnded(d: Dispatcher, rows: readonly ParkedRef[]): void {
  const { parked, heads, grouping, window: w } = d
  const now = d.clock()
  for (const row of rows) {
    const { pending, emptied } = rowEnded(parked, row, now)
    if (pending) countPending(d, -1)
    const head = emptied && grouping ? heads.get(row.key) : undefined
    if (head !== undefined && w.states[head & w.mask] === STATE.waiting) makeReady(d, head)
  }
}

/** Takes in that the store has nothing open of these groups any more: what ended there without our hearing of it has ended. */
export function parkedGone(d: Dispatcher, gone: readonly ParkedGroup[]): void {
  for (const { key, open } of gone)
    parkedEnded(
      d,
      Array.from({ length: open }, () => ({ key, offset: -1, index: 0 })),
    )
}

/** A message of a parked group has failed once more, as its row says, and is tried again at `until` (monotonic ms). */
export function parkedFailed(d: Dispatcher, ref: ParkedName, deliveries: number, until: number): void {
  if (rowFailed(d.parked, ref, deliveries, until)) countPending(d, -1)
}

/** Takes in that discarded rows are open again: what the window holds of their groups waits for them. */
export function parkedReopened(d: Dispatcher, rows: readonly ParkedRef[]): void {
  const { parked, heads, grouping, window: w } = d
  for (const { key } of rows) {
    const head = grouping ? heads.get(key) : undefined
    const state = head === undefined ? undefined : w.states[head & w.mask]
    if (head !== undefined && state === STATE.ready) w.states[head & w.mask] = STATE.waiting
    if (rowReopened(parked, key, state === STATE.inFlight || state === STATE.moving)) countPending(d, -1)
  }
}

// ── what is too large (docs/rules.md, rule 26) ────────────────────────────────────────────────────

/** Tells whether the source has left a message out for its size. */
export const isTooLarge = (view: MessageView, place: number): boolean => (view.flags(place) & MESSAGE_FLAG.discarded) !== 0

/** Makes the record of a message that is given up for its size, before any delivery. */
export function tooLarge(view: MessageView, place: number): Failed {
  const body = view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))
  const { bytes } = JSON.parse(`{${body}}}`) as { bytes: number }
  const error = `the message has ${bytes} bytes, more than MAX_MESSAGE_MB allows`
  return {
    attempts: 0,
    retryInMs: undefined,
    error,
    record: { at: new Date().toISOString(), counts: false, code: 'MESSAGE_TOO_LARGE', bytes },
  }
}
