/** What a commit says, from the window and its finished ranges. Pure: nothing here changes anything. */
import type { FinishedRange, MessageRef } from '../log/log.ts'
import { comparePositions, type Position } from '../position.ts'
import type { FinishedRanges } from './finished-ranges.ts'
import { laterRef } from './restored.ts'
import type { Window } from './window.ts'

/** The next messages that may be handed out are promised in advance, so that handing out waits for no commit. */
const AHEAD_MESSAGES = 2_000
/** Beyond the read head the promise is in records; few, because what arrives below it after a crash waits for the visibility time. */
const AHEAD_RECORDS = 64

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

/** Up to where messages may be handed out once the next commit is durable. */
export function handOutTarget(window: Window, former: MessageRef): MessageRef {
  const seq = window.cursor + AHEAD_MESSAGES
  const target = seq < window.end ? window.refOf(seq) : { offset: window.nextOffset + AHEAD_RECORDS, index: 0 }
  return laterRef(former, target)
}

/** Whether less than half of the promise is left. */
export function wantsHandOut(window: Window, handedOut: MessageRef): boolean {
  if (handedOut.offset >= window.nextOffset) return handedOut.offset - window.nextOffset < AHEAD_RECORDS / 2
  const seq = window.seqOf(handedOut.offset, handedOut.index)
  return seq < 0 || seq - window.cursor < AHEAD_MESSAGES / 2
}
