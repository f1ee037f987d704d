/**
 * Knows which part of a stream is a generation's own: from where on it takes which actions, and where it ends (docs/rules.md, rule
 * 44). What is saved of it grows with the routing: a pack names the version it was written under, and a later one than was looked
 * at means that there is more to know. No I/O.
 */
import { ACTION, MESSAGE_FLAG, type PackHeader } from '../log/pack.ts'
import type { Weight } from '../log/weight.ts'
import { comparePositions, PART, positionOf, toPosition, type Part, type Position } from '../position.ts'
import type { Row } from '../postgres/query.ts'
import { ACTION_BIT, actionBits, ALL_ACTIONS } from '../wal/routing/routing.ts'
import type { PackView } from './window.ts'

/** Lists which actions a generation takes, from which position on; an empty list: all of them. */
export type Takes = readonly Readonly<{ from: Position; actions: number }>[]

/** Describes which part of its stream is a generation's own. */
export type Span = Readonly<{
  /** nothing from there on is its own; undefined: it is open */
  endsAt: Position | undefined
  takes: Takes
  /** all versions up to this one were looked at */
  version: number
}>

const isRow = (value: unknown): value is Row => typeof value === 'object' && value !== null

/** Reads a position that is answered as JSON; undefined: there is none yet. */
export const readPosition = (value: unknown): Position | undefined => (isRow(value) ? toPosition(value) : undefined)

/** Reads the column `part` of a position. */
export const readPart = (value: unknown): Part => (value === PART.row ? PART.row : PART.tombstone)

/** Reads the column `takes` of a generation. */
export const takesOf = (stored: unknown): Takes =>
  (Array.isArray(stored) ? stored : []).map((each) => ({ from: positionOf(each), actions: actionBits(each.actions) }))

/** Counts the bytes of those messages in some records that a generation doesn't take. @param actions those it takes, as bits */
export function bytesOfOthers(weight: Weight, actions: number): number {
  let others = 0
  for (const action of ['insert', 'update', 'delete'] as const) if ((actions & ACTION_BIT[action]) === 0) others += weight[action]
  return Math.min(weight.bytes, others)
}

/** Counts the messages of a pack that are the generation's own. @param others as `notOwn` says */
export const ownCount = (count: number, others: Uint8Array | undefined): number =>
  others ? others.reduce((own, isOther) => own - isOther, count) : count

/** Tells, without decoding it, whether a record may hold messages that are not the generation's own. */
export const mayHaveOthers = ({ takes, endsAt }: Pick<Span, 'takes' | 'endsAt'>, { count, last }: PackHeader): boolean =>
  count > 0 && (takes.some(({ actions }) => actions !== ALL_ACTIONS) || (endsAt !== undefined && comparePositions(last, endsAt) >= 0))

/**
 * @param of `splitsKeyChanges`: in the view a change of the primary key is one message still, and stands for a delete and an insert
 * @param view a pack whose positions are all of one routing version
 * @returns 1 for each message that is not the generation's own; undefined: all are
 */
export function notOwn(
  { takes, endsAt, splitsKeyChanges = false }: Pick<Span, 'takes' | 'endsAt'> & Readonly<{ splitsKeyChanges?: boolean | undefined }>,
  view: PackView,
): Uint8Array | undefined {
  if (view.count === 0) return undefined
  const first = view.position(0)
  const actions = takes.findLast(({ from }) => comparePositions(from, first) <= 0)?.actions ?? ALL_ACTIONS
  const reachesEnd = endsAt !== undefined && view.compare(view.count - 1, endsAt) >= 0
  if (actions === ALL_ACTIONS && !reachesEnd) return undefined
  const drops = new Uint8Array(view.count)
  for (let i = 0; i < view.count; i++)
    if ((bitOf(view, i, splitsKeyChanges) & actions) === 0 || (reachesEnd && view.compare(i, endsAt) >= 0)) drops[i] = 1
  return drops
}

/** A row of a backfill is nobody's change: who has it has asked for it. */
function bitOf(view: PackView, i: number, splitsKeyChanges: boolean): number {
  const action = view.action(i)
  if (splitsKeyChanges && (view.flags(i) & MESSAGE_FLAG.moved) !== 0) return ACTION_BIT.insert
  if (!splitsKeyChanges && (view.flags(i) & (MESSAGE_FLAG.tombstone | MESSAGE_FLAG.moved)) !== 0) return ACTION_BIT.update
  if (action === ACTION.update) return ACTION_BIT.update
  if (action === ACTION.insert) return ACTION_BIT.insert
  return action === ACTION.delete ? ACTION_BIT.delete : ALL_ACTIONS
}
