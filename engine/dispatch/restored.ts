/**
 * Knows what a new owner needs of the messages that it reads again: which are finished, which are parked, and which may still be
 * with a client of the former owner. Asked once per pack while the reader is inside that zone, then never again.
 */
import { MESSAGE_LONGEST_JITTERED_MS } from '../back-off.ts'
import type { Commit, FinishedRange, InFlight, MessageRef } from '../log/log.ts'
import { ORIGIN, type Position } from '../position.ts'
import type { RefList } from './ack-id.ts'
import { nameOf, type ParkedGroupFacts } from './parked/parked-groups.ts'

/** Holds what a new owner of a partition finds of the former one, in the log and in the state database. */
export type Restore = Readonly<{
  /** the last durable commit; none: the partition starts at `begins` */
  commit: Commit | undefined
  /** the first record that may have something for this reader */
  begins?: number
  /** the log's next offset at the take-over: nothing from there on can have been handed out */
  head: number
  /** messages at or above the committed offset that the parked store holds */
  parkedRefs: RefList
  parkedGroups: readonly ParkedGroupFacts[]
  /** where the generation opens: without a commit nothing up to there is accepted (docs/rules.md, rule 17) */
  opensAt?: Position | undefined
}>

/** The beginning of a partition's log. */
export const START: MessageRef = { offset: 0, index: 0 }

/** Orders two messages of a partition by their places in the log: below 0 when the first stands before the second. */
export const compareRefs = (a: MessageRef, b: MessageRef): number => a.offset - b.offset || a.index - b.index
/** The one of two places in a partition's log that stands behind the other. */
export const laterRef = (a: MessageRef, b: MessageRef): MessageRef => (compareRefs(a, b) >= 0 ? a : b)

/** Holds what a dispatcher remembers of its take-over until the reader has passed all that the former owner may have handed out. */
export type Restored = Readonly<{
  next: MessageRef
  accepted: Position
  /** messages below may have been handed out by a former owner, so an ack of them counts */
  ackableBelow: MessageRef
  /** ranges that the former owner finished: those below the record that is read are gone */
  finished: FinishedRange[]
  /** indexes of the messages that the parked store has, by record; those of a record that was read are gone */
  parked: Map<number, number[]>
  /** when the visibility time of a message ends (monotonic ms), by record and index: after a clean stop */
  inFlight: ReadonlyMap<number, ReadonlyMap<number, number>>
  /** the same by name, for messages that were parked under another generation */
  fromElsewhere: ReadonlyMap<number | string, number>
  /** everything below is presumed to be with a client, until `hiddenUntil` (monotonic ms) */
  hiddenBelow: MessageRef
  hiddenUntil: number
  /** the exact set in flight is not known: the former owner crashed, and had clients */
  presumes: boolean
  /** the former owner handed messages out; otherwise the source has only said where this reader joins */
  wasServed: boolean
  /** monotonic ms of the take-over */
  now: number
  /** visibility time; undefined: the owner sends. Nobody has anything for longer than its process lives: only back-offs are restored */
  ackWaitMs: number | undefined
  /** the last record that is special in any way */
  lastOffset: number
}>

/**
 * Reads what the former owner left. @param now monotonic ms of the take-over. @param ackWaitMs visibility time; undefined: the
 * owner sends
 */
export function restored({ commit, begins = 0, head, parkedRefs, opensAt }: Restore, now: number, ackWaitMs: number | undefined): Restored {
  const sends = ackWaitMs === undefined
  const next = commit?.next ?? { offset: begins, index: 0 }
  const handedOut = commit?.handedOut ?? START
  const finished = [...(commit?.finished ?? [])]
  const end = { offset: head, index: 0 }
  const ackableBelow = compareRefs(handedOut, end) < 0 ? handedOut : end
  const inFlight = new Map<number, Map<number, number>>()
  const fromElsewhere = new Map<number | string, number>()
  for (const { message, invisibleForMs, origin } of sends ? [] : (commit?.inFlight ?? [])) {
    const until = now + Math.min(invisibleForMs, ackWaitMs ?? 0)
    if (origin) fromElsewhere.set(nameOf({ ...message, origin }), until)
    else inFlight.set(message.offset, (inFlight.get(message.offset) ?? new Map<number, number>()).set(message.index, until))
  }
  const parked = new Map<number, number[]>()
  for (const [i, offset] of parkedRefs.offsets.entries()) {
    const ofRecord = parked.get(offset) ?? []
    ofRecord.push(...parkedRefs.indexes.slice(i, i + 1))
    parked.set(offset, ofRecord)
  }
  let lastOffset = Math.max(next.offset, ackableBelow.offset, finished.at(-1)?.to.offset ?? 0)
  for (const offset of [...parked.keys(), ...inFlight.keys()]) lastOffset = Math.max(lastOffset, offset)
  return {
    next,
    accepted: commit?.accepted ?? opensAt ?? ORIGIN,
    ackableBelow,
    finished,
    parked,
    inFlight,
    fromElsewhere,
    // after a clean stop the exact set is known; otherwise everything handed out may still be with a client
    hiddenBelow: commit?.inFlight || sends ? START : ackableBelow,
    hiddenUntil: now + (ackWaitMs ?? 0),
    presumes: commit?.inFlight === undefined && !sends,
    wasServed: commit !== undefined && commit.term > 0,
    now,
    ackWaitMs,
    lastOffset,
  }
}

/** Finished index ranges of a record, what the parked store has of it included. Asked once for each record, in ascending order. */
export function* finishedIn({ next, finished, parked }: Restored, offset: number, count: number): Iterable<readonly [number, number]> {
  if (offset < next.offset) yield [0, count]
  else if (offset === next.offset) yield [0, next.index]
  for (let first = finished[0]; first && first.to.offset < offset; first = finished[0]) finished.shift()
  for (const { from, to } of finished) {
    if (from.offset > offset) break
    yield [from.offset < offset ? 0 : from.index, to.offset > offset ? count : to.index]
  }
  for (const index of parked.get(offset) ?? []) yield [index, index + 1]
  parked.delete(offset)
}

/** Tells whether the parked store had a message at the take-over whose record has not been read yet. */
export const isParkedAhead = ({ parked }: Restored, offset: number, index: number): boolean => parked.get(offset)?.includes(index) === true

/** Tells until when an open message stays invisible (monotonic ms); 0: it is visible. */
export function invisibleUntil({ inFlight, hiddenBelow, hiddenUntil }: Restored, ref: MessageRef): number {
  const exact = inFlight.get(ref.offset)?.get(ref.index)
  if (exact !== undefined) return exact
  return compareRefs(ref, hiddenBelow) < 0 ? hiddenUntil : 0
}

/** Tells until when the first message of a parked group stays invisible, and how long a later one of it may be with a client. */
export function parkedUntil(restored: Restored, facts: ParkedGroupFacts): Readonly<{ first: number; later: number }> {
  const { offset, index, origin, hiddenMs = 0, laterHiddenMs = 0 } = facts
  const { now, ackWaitMs, presumes, hiddenUntil, wasServed, fromElsewhere } = restored
  // a stored time is of the state database's clock: never longer than the longest back-off (docs/rules.md, rule 36)
  const until = (ms: number) => (ms > 0 ? now + Math.min(ms, ackWaitMs ?? MESSAGE_LONGEST_JITTERED_MS) : 0)
  if (ackWaitMs === undefined) return { first: until(hiddenMs), later: 0 }
  if (origin === undefined) {
    const first = invisibleUntil(restored, { offset, index })
    return { first, later: presumes ? first : 0 }
  }
  if (!wasServed) return { first: until(hiddenMs), later: until(laterHiddenMs) } // just taken over from an ended generation
  if (presumes) return { first: hiddenUntil, later: hiddenUntil }
  return { first: fromElsewhere.get(nameOf(facts)) ?? 0, later: 0 }
}

/** Gives the finished ranges that lie beyond what has been read yet: a commit must not forget them. */
export const unreadRanges = ({ finished }: Restored, from: MessageRef): readonly FinishedRange[] =>
  finished.filter((r) => compareRefs(r.to, from) > 0).map((r) => ({ from: laterRef(r.from, from), to: r.to }))

/**
 * Gives the messages that are with clients and were not read yet, with the time left.
 * @param nextOffset the first record that was not read
 * @returns undefined: it is only presumed, so that a stop can't tell the exact set
 */
export function unreadInFlight({ hiddenBelow, inFlight, parked }: Restored, nextOffset: number, now: number): InFlight[] | undefined {
  if (compareRefs({ offset: nextOffset, index: 0 }, hiddenBelow) < 0) return undefined
  const held: InFlight[] = []
  for (const [offset, ofRecord] of inFlight) {
    if (offset < nextOffset) continue
    const toldByGroup = parked.get(offset)
    for (const [index, until] of ofRecord)
      if (!toldByGroup?.includes(index)) held.push({ message: { offset, index }, invisibleForMs: Math.max(0, until - now) })
  }
  return held
}
