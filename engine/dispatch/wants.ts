/** Gathers what a dispatcher needs of its owner into one value: looked at after every change, instead of a question for each need. */
import { wantsCommit } from './commits.ts'
import { hasRoom, isDrained, type Dispatcher } from './dispatcher.ts'
import { nextLapse } from './ends.ts'
import { isParkingFull, isStuck } from './parked/parking.ts'

/** Tells what a dispatcher needs of its owner now. */
export type Wants = Readonly<{
  /** the reader may go on */
  records: boolean
  /** a commit should renew the promise of what may be handed out */
  commit: boolean
  /** messages that failed, or were delivered too often, are to be recorded; or what blocks the window may be parked */
  store: boolean
  /** when the next visibility time ends (monotonic ms), or Infinity */
  lapseAt: number
  /** everything read was looked at: only what is under way, or waits for it, is left in the window */
  isLookedAt: boolean
  /** everything before the generation's end is finished, parked messages aside */
  isDrained: boolean
}>

/** Says what a dispatcher needs of its owner now. */
export function wants(d: Dispatcher): Wants {
  const mustRecord = d.failures.length > 0 || d.discards.length > 0 || d.parkedDiscards.length > 0
  return {
    records: hasRoom(d),
    commit: wantsCommit(d),
    store: mustRecord || (!isParkingFull(d) && isStuck(d)),
    lapseAt: nextLapse(d),
    isLookedAt: d.window.cursor === d.window.end,
    isDrained: isDrained(d),
  }
}
