/**
 * Messages that leave the window for the parked store: parked because they block it, or discarded because they were
 * delivered too often. While the store writes, a message is `moving`: not handed out, not finished, its ack waits.
 * The order is: row durable, then finished here, then committed (correctness 22).
 */
import type { MessageView } from '../../log/message-view.ts'
import type { RefList } from '../ack-id.ts'
import type { OpenMessages } from '../open-messages.ts'
import { refKey, type Held, type ParkedGroup, type ParkedRef } from './parked-group.ts'
import { STATE, type WindowPack } from '../window.ts'

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

export type Move = Readonly<{
  seq: number
  offset: number
  index: number
  view: MessageView
  kind: 'park' | 'discard'
  deliveries: number
  failed?: Failed | undefined
}>

/** More finished ranges than this and the lowest open messages are parked until they melt (correctness 23). */
export const MAX_RANGES = 4_000
/** More parked groups than this and nothing more is parked: reading waits, and health says so. */
const MAX_PARKED_GROUPS = 100_000
/** Bounds of one bulk insert: what is copied at once. */
const MAX_MOVES = 1_000
const MAX_MOVE_BYTES = 8 * 1024 * 1024
/** A full window is emptied down to this share of its bound. */
const PARK_TO = 0.75

export class Parking {
  readonly #open: OpenMessages
  readonly #clock: () => number
  readonly #sends: boolean
  readonly #moving = new Map<number, Held>()
  #discards: Move[] = []
  #failures: Move[] = []
  #parkedDiscards: ParkedGroup[] = []

  constructor(open: OpenMessages, clock: () => number, sends: boolean) {
    this.#open = open
    this.#clock = clock
    this.#sends = sends
  }

  get full(): boolean {
    return this.#open.parked.size >= MAX_PARKED_GROUPS
  }
  get hasDiscards(): boolean {
    return this.#discards.length > 0 || this.#parkedDiscards.length > 0
  }

  get hasFailures(): boolean {
    return this.#failures.length > 0
  }

  /** Whether the window is full and nothing in it can be delivered, so that reading stands although other groups could go on. */
  stuck(windowBytes: number): boolean {
    const { window, ranges, pendingFull, anyReady } = this.#open
    if (ranges.count > MAX_RANGES) return true
    return window.bytes >= windowBytes && window.base < window.end && window.cursor === window.end && !pendingFull && !anyReady
  }

  /**
   * The lowest open messages, in bulk, until the window has room again. Each must come back by `moved` or `notMoved`.
   * @param all whatever was looked at, full window or not: the generation is to end
   */
  toPark(windowBytes: number, all = false): Move[] {
    const { window: w, ranges } = this.#open
    const moves: Move[] = []
    if ((!all && !this.stuck(windowBytes)) || this.#moving.size > 0 || this.full) return moves
    const byRanges = ranges.count > MAX_RANGES
    let bytes = 0
    let freed = 0
    let last: WindowPack | undefined
    for (let seq = w.base; seq < w.cursor && moves.length < MAX_MOVES && bytes < MAX_MOVE_BYTES; seq++) {
      const pack = w.packOf(seq)
      if (last && pack !== last) freed += last.bytes
      last = pack
      if (!all && !byRanges && w.bytes - freed <= windowBytes * PARK_TO) break
      const state = w.states[seq & w.mask]
      if (state !== STATE.inFlight && state !== STATE.waiting && state !== STATE.ready) continue
      const move = this.#start(seq, 'park')
      bytes += move.view.bodyEnd(move.index) - move.view.keyStart(move.index)
      moves.push(move)
    }
    return moves
  }

  /** Takes a lapsed message out because it was delivered too often. */
  discard(seq: number): void {
    this.#discards.push(this.#start(seq, 'discard'))
  }
  discardParked(groups: readonly ParkedGroup[]): void {
    this.#parkedDiscards.push(...groups)
  }

  /** Takes a message out that its owner could not deliver. */
  fail(seq: number, failed: Failed): void {
    this.#failures.push(this.#start(seq, failed.retryInMs === undefined ? 'discard' : 'park', failed))
  }

  /** To be recorded, as parked or as discarded. Each must come back by `moved` or `notRecorded`. */
  toFail(): Move[] {
    return this.#failures.splice(0, MAX_MOVES)
  }

  /**
   * The store failed, or did not say whether it has them: they are recorded when it works again, and not sent until then. To
   * write a row that is there already changes nothing.
   */
  notRecorded(moves: readonly Move[]): void {
    this.#failures.unshift(...moves)
  }

  /** To be recorded as discarded. Each must come back by `moved` or `notMoved`. */
  toDiscard(): Move[] {
    return this.#discards.splice(0, MAX_MOVES)
  }
  /** The same of parked messages; come back by `parkedEnded` or `notDiscarded`. */
  toDiscardParked(): ParkedGroup[] {
    return this.#parkedDiscards.splice(0, MAX_MOVES)
  }

  /** Whether any of these is on its way to the store. */
  isMoving({ offsets, indexes }: RefList): boolean {
    const { window } = this.#open
    return this.#moving.size > 0 && offsets.some((offset, i) => this.#moving.has(window.seqOf(offset, indexes[i] as number)))
  }

  /** @returns whether the message was held, under this lease if one is named: its visibility time is over */
  release(seq: number, lease?: number): boolean {
    const held = this.#moving.get(seq)
    if (!held || held.endsAt === 0 || (lease !== undefined && held.lease !== lease)) return false
    this.#moving.set(seq, { ...held, endsAt: 0, lease: 0 })
    return true
  }

  /** The rows are durable: the messages are finished in the log. */
  moved(moves: readonly Move[]): void {
    const open = this.#open
    for (const { seq, offset, index, view, kind } of moves) {
      const held = this.#moving.get(seq)
      if (!held) continue
      this.#moving.delete(seq)
      const group = open.grouping ? view.group(index) : refKey(offset, index)
      const place = { offset, index, commitTimeUs: view.commitTimeUs(index) }
      const isFirst = kind === 'park' && open.parked.park(group, place, held.isBackOff ? { ...held, pending: false } : held)
      const keepsCount = isFirst && !held.isBackOff
      if (held.pending && !keepsCount) open.countPending(-1)
      open.close(seq)
    }
    open.settle()
  }

  /** The store refused them: everything is as before; a discard is tried again at the end of another visibility time. */
  notMoved(moves: readonly Move[], ackWaitMs: number): void {
    const { window: w, leases } = this.#open
    for (const { seq, kind } of moves) {
      const held = this.#moving.get(seq)
      if (!held) continue
      this.#moving.delete(seq)
      const slot = seq & w.mask
      this.#open.inFlight++
      w.states[slot] = STATE.inFlight
      if (!this.#sends && (held.endsAt > 0 || kind === 'discard')) {
        const lease = leases.reserve()
        w.leases[slot] = lease
        leases.hold(lease, held.endsAt || this.#clock() + ackWaitMs, [seq])
      } else {
        if (!held.pending) this.#open.countPending(1) // `free` takes back what an undelivered message in flight counts
        this.#open.free(seq)
      }
    }
  }

  /** Rows of the parked store ended, by ack or by discard; a group that has none left goes back to the log. */
  parkedEnded(rows: readonly ParkedRef[]): void {
    const { parked, groups, grouping, window: w } = this.#open
    const now = this.#clock()
    for (const row of rows) {
      const { pending, emptied } = parked.finish(row, now)
      if (pending) this.#open.countPending(-1)
      const head = emptied && grouping ? groups.headOf(row.key) : undefined
      if (head !== undefined && w.states[head & w.mask] === STATE.waiting) this.#open.makeReady(head)
    }
  }

  /** The store has nothing open of these groups any more: what ended there without our hearing of it has ended. */
  parkedGone(gone: readonly ParkedGroup[]): void {
    for (const { key, open } of gone) this.parkedEnded(Array.from({ length: open }, () => ({ key, offset: -1, index: 0 })))
  }

  /** A message of a parked group has failed once more, as its row says, and is tried again at `until` (monotonic ms). */
  backOff(group: ParkedGroup, ref: Omit<ParkedRef, 'key'>, deliveries: number, until: number): void {
    if (group.pending) this.#open.countPending(-1)
    this.#open.parked.backOff(group, ref, deliveries, until)
  }

  /** Rows of the parked store that were discarded are open again: what the window holds of their groups waits for them. */
  reopened(rows: readonly ParkedRef[]): void {
    const { parked, groups, grouping, window: w } = this.#open
    for (const { key } of rows) {
      const head = grouping ? groups.headOf(key) : undefined
      const state = head === undefined ? undefined : w.states[head & w.mask]
      if (head !== undefined && state === STATE.ready) w.states[head & w.mask] = STATE.waiting
      if (parked.reopen(key, state === STATE.inFlight || state === STATE.moving)) this.#open.countPending(-1)
    }
  }

  notDiscarded(groups: readonly ParkedGroup[]): void {
    for (const group of groups) this.#open.parked.notDiscarded(group)
  }

  #start(seq: number, kind: Move['kind'], failed?: Failed): Move {
    const { window: w, leases } = this.#open
    const slot = seq & w.mask
    const inFlight = w.states[slot] === STATE.inFlight
    const lease = inFlight ? (w.leases[slot] as number) : 0
    const deliveries = failed?.attempts ?? (this.#sends ? 0 : (w.deliveries[slot] as number))
    const pending = inFlight || (w.deliveries[slot] as number) > 0
    if (failed) this.#moving.set(seq, { endsAt: this.#clock() + (failed.retryInMs ?? 0), lease: 0, deliveries, pending, isBackOff: true })
    else this.#moving.set(seq, { endsAt: inFlight && kind === 'park' ? leases.endOf(lease) : 0, lease, deliveries, pending })
    if (inFlight) {
      this.#open.inFlight--
      leases.letGo(lease)
    }
    w.states[slot] = STATE.moving
    const pack = w.packOf(seq)
    return { seq, offset: pack.offset, index: seq - pack.firstSeq, view: pack.view as MessageView, kind, deliveries, failed }
  }
}
