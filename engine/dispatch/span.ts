/**
 * What of a stream is a generation's own: from where on it takes which actions, and where it ends (correctness 44). What is
 * saved of it grows with the routing: a pack names the version it was written under, and a later one than was looked at
 * means that there is more to know. No I/O.
 */
import { ACTION, MESSAGE_FLAG } from '../log/pack.ts'
import { comparePositions, type Position } from '../position.ts'
import { ACTION_BIT, ALL_ACTIONS } from '../wal/routing/routing.ts'
import type { PackView } from './window.ts'

export type Span = Readonly<{
  /** nothing from there on is its own; undefined: it is open */
  endsAt: Position | undefined
  /** which actions it takes, from a position on; none: all of them */
  takes: readonly Readonly<{ from: Position; actions: number }>[]
  /** all versions up to this one were looked at */
  version: number
}>

/**
 * @param view a pack whose positions are all of one routing version
 * @returns 1 for each message that is not the generation's own; undefined: all are
 */
export function notOwn({ takes, endsAt }: Span, view: PackView): Uint8Array | undefined {
  if (view.count === 0) return undefined
  const first = view.position(0)
  const actions = takes.findLast(({ from }) => comparePositions(from, first) <= 0)?.actions ?? ALL_ACTIONS
  const reachesEnd = endsAt !== undefined && view.compare(view.count - 1, endsAt) >= 0
  if (actions === ALL_ACTIONS && !reachesEnd) return undefined
  const drops = new Uint8Array(view.count)
  for (let i = 0; i < view.count; i++) if ((bitOf(view, i) & actions) === 0 || (reachesEnd && view.compare(i, endsAt) >= 0)) drops[i] = 1
  return drops
}

/** A row of a backfill is nobody's change: who has it has asked for it. */
function bitOf(view: PackView, i: number): number {
  const action = view.action(i)
  if ((view.flags(i) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.moved)) !== 0 || action === ACTION.update) return ACTION_BIT.update
  if (action === ACTION.insert) return ACTION_BIT.insert
  return action === ACTION.delete ? ACTION_BIT.delete : ALL_ACTIONS
}
