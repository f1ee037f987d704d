/** Commits and positions as plain JSON, as they are kept: an LSN is a text there, because it is beyond JSON's numbers. */
import { formatLsn, parseLsn } from '../lsn.ts'
import type { Part, Position } from '../position.ts'
import type { Commit, Reached } from './log.ts'

type StoredPosition = Readonly<{ history: number; lsn: string; idx: number; part: Part }>
export type StoredReached = StoredPosition & Readonly<{ xid?: number; commitTimeUs?: number }>
export type StoredCommit = Omit<Commit, 'filter'> & Readonly<{ filter: StoredPosition }>

const positionToJson = ({ history, lsn, idx, part }: Position): StoredPosition => ({ history, lsn: formatLsn(lsn), idx, part })
const positionFromJson = ({ history, lsn, idx, part }: StoredPosition): Position => ({ history, lsn: parseLsn(lsn), idx, part })

export const reachedToJson = ({ position, transaction }: Reached): StoredReached => ({ ...positionToJson(position), ...transaction })
export function reachedFromJson({ xid, commitTimeUs, ...position }: StoredReached): Reached {
  const isNamed = xid !== undefined && commitTimeUs !== undefined
  return { position: positionFromJson(position), ...(isNamed ? { transaction: { xid, commitTimeUs } } : {}) }
}

export const commitToJson = (commit: Commit): StoredCommit => ({ ...commit, filter: positionToJson(commit.filter) })
export const commitFromJson = (stored: StoredCommit): Commit => ({ ...stored, filter: positionFromJson(stored.filter) })
