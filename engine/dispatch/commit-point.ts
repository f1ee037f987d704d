/** What a commit says, from the window and its finished ranges. Pure: nothing here changes anything. */
import type { FinishedRange, MessageRef } from '../log/log.ts'
import { comparePositions, type Position } from '../position.ts'
import type { FinishedRanges } from './finished-ranges.ts'
import { compareRefs, laterRef } from './restored.ts'
import type { Window } from './window.ts'

/** The next messages that may be handed out are promised in advance, so that handing out waits for no commit. */
const AHEAD_MESSAGES = 2_000
/** Beyond the read head the promise is in records; few, because what arrives below it after a crash waits for the visibility time. */
const AHEAD_RECORDS = 8
/** After so long without a record the promise ends at the read head: what arrives after a crash then comes at once. */
const QUIET_MS = 100

/** The greatest accepted position before a message of the window: the filter of a restart from there. */
export function filterBefore(window: Window, seq: number, readFilter: Position): Position {
  if (seq >= window.end) return readFilter
  const pack = window.packOf(seq)
  const index = seq - pack.firstSeq
  if (index === 0 || !pack.view) return pack.filterBefore
  const before = pack.view.position(index - 1)
  return comparePositions(before, pack.filterBefore) > 0 ? before : pack.filterBefore
}

/** @param unread ranges that a former owner finished and that this one has not read yet */
export function finishedRefs(window: Window, ranges: FinishedRanges, unread: readonly FinishedRange[]): FinishedRange[] {
  const refs: FinishedRange[] = []
  for (let i = 0; i < ranges.count; i++) refs.push({ from: window.refOf(ranges.start(i)), to: window.refAfter(ranges.end(i) - 1) })
  refs.push(...unread)
  return refs
}

/** How far the reader is, and since when it has been so. */
export type Reading = Readonly<{
  window: Window
  /** when the last record came (monotonic ms) */
  readAt: number
  /** what a former owner may have handed out */
  formerly: MessageRef
}>

/** Up to where messages may be handed out once the next commit is durable. @param promised by the last one */
export function handOutTarget({ window, readAt, formerly }: Reading, promised: MessageRef, now: number): MessageRef {
  const head = laterRef({ offset: window.nextOffset, index: 0 }, formerly)
  const isBeyond = compareRefs(promised, head) >= 0
  if (isBeyond && now - readAt >= QUIET_MS) return head
  const seq = window.cursor + AHEAD_MESSAGES
  const target = seq < window.end ? window.refOf(seq) : { offset: window.nextOffset + AHEAD_RECORDS, index: 0 }
  return laterRef(laterRef(promised, formerly), target)
}

/** When a promise beyond the read head ends there; Infinity: it is not beyond it. */
export function quietAt({ window, readAt, formerly }: Reading, promised: MessageRef): number {
  const head = laterRef({ offset: window.nextOffset, index: 0 }, formerly)
  return compareRefs(promised, head) > 0 ? readAt + QUIET_MS : Infinity
}

/** Whether the promise should be renewed: less than half of it is left, or it reaches beyond the head of a quiet log. */
export function wantsHandOut(reading: Reading, promised: MessageRef, now: number): boolean {
  const { window, readAt } = reading
  if (promised.offset >= window.nextOffset) {
    if (now - readAt >= QUIET_MS) return quietAt(reading, promised) <= now
    return promised.offset - window.nextOffset < AHEAD_RECORDS / 2
  }
  const seq = window.seqOf(promised.offset, promised.index)
  return seq < 0 || seq - window.cursor < AHEAD_MESSAGES / 2
}
