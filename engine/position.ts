/** The order key of a message, unique per sink: (history, commit LSN, index in the transaction, part).
 *  `history` counts the source's incarnations, because LSNs go back at a failover or a restore. */
import { EngineError } from './errors.ts'
import { parseLsn, type Lsn } from './lsn.ts'

/** The two messages that one change may have: the tombstone of the old key comes before the row. */
export const PART = { tombstone: 0, row: 1 } as const
/** Says which of the messages of one change a message is. */
export type Part = (typeof PART)[keyof typeof PART]

/** Says where a message stands among all messages of its database. */
export type Position = Readonly<{
  history: number
  /** the LSN in the transaction's Begin */
  lsn: Lsn
  /** index among all messages between Begin and Commit, wanted by a sink or not */
  idx: number
  part: Part
}>

/** The position below every other one. */
export const ORIGIN: Position = { history: 0, lsn: 0n, idx: 0, part: PART.tombstone }

/** Compares two positions. @returns below 0, 0 or above 0, as `a` stands before, at or after `b` */
export function comparePositions(a: Position, b: Position): number {
  if (a.history !== b.history) return a.history - b.history
  if (a.lsn !== b.lsn) return a.lsn < b.lsn ? -1 : 1
  if (a.idx !== b.idx) return a.idx - b.idx
  return a.part - b.part
}

const GREATEST_IDX = 2 ** 31 - 1

/** Gives the greatest position below every message of a transaction. */
export const belowTransaction = (history: number, lsn: Lsn): Position =>
  lsn > 0n ? endOfTransaction(history, lsn - 1n) : { ...ORIGIN, history }

/** Gives the greatest position of a transaction. */
export const endOfTransaction = (history: number, lsn: Lsn): Position => ({ history, lsn, idx: GREATEST_IDX, part: PART.row })

/** The greatest position below another one. */
export function positionBefore({ history, lsn, idx, part }: Position): Position {
  if (part === PART.row) return { history, lsn, idx, part: PART.tombstone }
  return idx > 0 ? { history, lsn, idx: idx - 1, part: PART.row } : belowTransaction(history, lsn)
}

/** Reads the position from the columns history, lsn and idx of a row. @returns undefined: the row has no position yet */
export function toPosition(row: Readonly<Record<string, unknown>>): Position | undefined {
  if (row.lsn === null || row.lsn === undefined) return undefined
  return { history: Number(row.history), lsn: parseLsn(String(row.lsn)), idx: Number(row.idx), part: PART.row }
}

/** Reads the position of a row that has one. @throws EngineError INTERNAL: it has none */
export function positionOf(row: Readonly<Record<string, unknown>>): Position {
  const position = toPosition(row)
  if (!position) throw new EngineError('INTERNAL', 'a row of the state database has no position')
  return position
}
