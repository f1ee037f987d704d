/**
 * Who gets which message when, and what the log may be told of it: the one dispatcher of pull and push, as plain data. It decides
 * and does no I/O; its owner reads, commits and parks, and tells it what happened. One owner calls it, never concurrently. What
 * changes it are functions that take it first, each file those of one event:
 *
 *   read ──intake──▶ window, messages ◀──take── who delivers ──▶ ends
 *                         │ commits: what is finished    ▲ and how far a durable commit lets it hand out
 *                         ▼ parking: what blocks, has failed or is given up leaves for the parked store
 *
 *  I1. Of a group only the lowest unfinished message is handed out, and one at a time (docs/rules.md, rule 49). An
 *      owner that sends gets several of a group in one batch, the lowest first, and no more until it has told how they ended.
 *  I2. Nothing is handed out beyond what a durable commit promised (`promised`; docs/rules.md, rule 20).
 *  I3. The commit point never passes an unfinished message; its accepted position belongs to that point, not to the read head.
 *  I4. Every message parked because it blocks lies below the window's base, so parked ones come first in position order; one
 *      that failed lies below what the window holds of its group. After a crash too, because what is finished below them is
 *      durable before their rows are (the owner commits in between).
 *  I5. A message costs array entries only; a Map entry exists only for a group with something looked at and unfinished.
 */
import type { MessageRef } from '../log/log.ts'
import type { Position } from '../position.ts'
import type { AckPending } from './ack-pending.ts'
import { FinishedRanges } from './finished-ranges.ts'
import { GroupHeads } from './group-heads.ts'
import { Leases } from './leases.ts'
import { groupFound, newParkedGroups, oldestParkedUs, type Held, type ParkedGroup, type ParkedGroups } from './parked/parked-groups.ts'
import type { Move } from './parked/parking.ts'
import { ReadMemory } from './read-memory.ts'
import { parkedUntil, restored, START, type Restore, type Restored } from './restored.ts'
import { SeqHeap } from './seq-heap.ts'
import { openView, Window } from './window.ts'

/** The settings of a dispatcher that may change while it works. */
export type DispatchSettings = Readonly<{
  /** visibility time of a delivered message */
  ackWaitMs: number
  /** a message delivered so often without ack is discarded when its visibility lapses; at most 65535; null: never */
  maxDeliveries: number | null
  windowBytes: number
  /** of one group in a batch; absent: one, also when the owner sends */
  perGroup?: number
}>

/** Says whose messages a dispatcher hands out, and how. */
type Purpose = Readonly<{
  generation: number
  partition: number
  /** false: no order, every message for itself */
  grouping: boolean
  /** tombstones are delivered (sinks that keep documents by key), or finished at once */
  keyed: boolean
  /** shared by the partitions of a sink */
  pending: AckPending
  /** monotonic milliseconds */
  clock: () => number
}>

/** Holds what a dispatcher begins with. */
export type DispatcherOptions = Purpose &
  Readonly<{
    settings: DispatchSettings
    restore: Restore
    /** the owner sends, and tells the end of each delivery; otherwise clients ask, and may go away without a word */
    sends?: boolean
    /** what all partitions of the process hold; absent: it has no bound */
    memory?: ReadMemory
  }>

/** The state of one partition's dispatcher. */
export type Dispatcher = Purpose & {
  readonly sends: boolean
  readonly memory: ReadMemory
  readonly restored: Restored
  settings: DispatchSettings

  // what is read
  readonly window: Window
  /** the greatest accepted position read: what is not above it was taken in before, or is not to be */
  accepted: Position
  /** when the last record came, or this owner (monotonic ms) */
  readAt: number
  /** what is read is the former owner's zone: messages of it may be with clients */
  isRestoring: boolean
  /** the generation's last pack was met: nothing of it comes after what was read. It stays unfinished, so that a restart meets it again */
  closed: boolean

  // what is handed out
  /** the first open message of each group that has one which was looked at */
  readonly heads: GroupHeads
  /** deliverable: delivered before, and freed by the end of a predecessor; both may hold what is deliverable no more */
  readonly again: SeqHeap
  readonly freed: SeqHeap
  readonly leases: Leases
  /** messages of the window with clients, or presumed to be */
  inFlight: number
  /** this partition's part of `pending` */
  ownPending: number
  /** when a take came last (monotonic ms) */
  askedAt: number

  // what is finished, and promised
  /** above the window's base */
  readonly ranges: FinishedRanges
  /**
   * messages below may be handed out, once a commit is durable that doesn't tell the exact set in flight: after a crash they are
   * presumed
   */
  promised: MessageRef
  isPromised: boolean

  // what leaves the window
  readonly parked: ParkedGroups
  /** on their way to the parked store, by sequence number */
  readonly moving: Map<number, Held>
  /** of which: delivered too often; failed, or never to be delivered */
  readonly discards: Move[]
  readonly failures: Move[]
  /** groups whose first message, in the parked store, was delivered too often */
  readonly parkedDiscards: ParkedGroup[]
}

/**
 * So many bytes of untouched messages are kept ready, enough for some answers. What is read much earlier than it is delivered has
 * grown old to the garbage collector.
 */
const READ_AHEAD_BYTES = 4 * 1024 * 1024
/**
 * While nobody asks, so many bytes are kept ready: about one answer, of 1,000 messages of half a kB. The reader wakes with the
 * first who asks.
 */
const UNASKED_BYTES = 640 * 1024
/** When nobody has asked for so long, less is kept ready. */
const ASKED_MS = 10_000

/** Begins where the former owner of a partition has left it. */
export function newDispatcher({ restore, sends = false, memory = new ReadMemory(), ...options }: DispatcherOptions): Dispatcher {
  const { settings, clock } = options
  const now = clock()
  const former = restored(restore, now, sends ? undefined : settings.ackWaitMs)
  const parked = newParkedGroups(sends)
  for (const facts of restore.parkedGroups) {
    const { first, later } = parkedUntil(former, facts)
    groupFound(parked, facts, first, later)
  }
  return {
    ...options,
    sends,
    memory,
    restored: former,
    window: new Window(former.next.offset, memory),
    accepted: former.accepted,
    readAt: now,
    isRestoring: true,
    closed: false,
    heads: new GroupHeads(),
    again: new SeqHeap(),
    freed: new SeqHeap(),
    leases: new Leases(),
    inFlight: 0,
    ownPending: 0,
    askedAt: -Infinity,
    ranges: new FinishedRanges(),
    promised: START,
    isPromised: sends,
    parked,
    moving: new Map(),
    discards: [],
    failures: [],
    parkedDiscards: [],
  }
}

/** Gives the bytes that the window may hold now. */
export const windowBytes = ({ memory, settings }: Dispatcher): number => memory.limit(settings.windowBytes)

/** Tells whether somebody has asked for messages lately, or messages that clients have from the former owner are still to be read. */
export const isAsked = (d: Dispatcher): boolean => d.isRestoring || d.clock() - d.askedAt < ASKED_MS

/**
 * Tells whether the reader may go on: neither the window is full nor so much in it untouched that reading further would only
 * cost memory. A window that holds nothing open always has room, whatever the size of a pack.
 */
export function hasRoom(d: Dispatcher): boolean {
  const { window } = d
  if (window.base === window.end) return true
  return window.bytes < windowBytes(d) && window.freshBytes < (isAsked(d) && !d.memory.isFull ? READ_AHEAD_BYTES : UNASKED_BYTES)
}

/** Tells whether everything before the end of the generation is finished; parked messages may be left. */
export const isDrained = ({ closed, window }: Dispatcher): boolean => closed && window.base === window.end

/** Counts the messages that are with clients, or presumed to be. */
export const countInFlight = ({ inFlight, parked }: Dispatcher): number => inFlight + parked.inFlight

/** Counts the messages that clients have had for at least so long, or are presumed to have. */
export const countHeldFor = ({ sends, leases, settings, clock }: Dispatcher, ms: number): number =>
  sends ? 0 : leases.countEndingBy(clock() + settings.ackWaitMs - ms)

/** Counts the messages that were read and are not finished, parked ones included. */
export const countUnfinished = ({ window, parked }: Dispatcher): number => window.open + parked.openRows

/** Gives the commit time of the oldest unfinished message, in µs since the epoch; Infinity: everything read is finished. */
export function oldestUs({ window: w, parked }: Dispatcher): number {
  const oldest = oldestParkedUs(parked) // of those that failed some may lie above the window's base
  if (w.base === w.end) return oldest
  const pack = w.packOf(w.base)
  return Math.min(oldest, openView(pack).commitTimeUs(w.base - pack.firstSeq))
}

/** Adds to the number of messages that are with clients. */
export function countPending(d: Dispatcher, by: number): void {
  d.ownPending += by
  d.pending.count += by
}

/** Ends a dispatcher whose owner is gone: its messages no longer count against the sink's bound, nor its memory against the process's. */
export function dispose(d: Dispatcher): void {
  countPending(d, -d.ownPending)
  d.window.leave()
}
