/**
 * From which record on each reader of a stream needs it, in the state database: a partition's owner stores its line there, and
 * what lies below the lines of all readers is trimmed (stream-trim.ts). A line is stored before anything above the former one
 * may go, and carries its owner's term: one that was set back by a replay is never raised by whoever had it before (correctness 45).
 */
import type { Query } from '../wal/connection/slot.ts'
import { writeAsOwner, type Owner } from './fenced-write.ts'

/** The line of who has left the stream, has delivered what was its own, and keeps nothing of it to be replayed. */
export const NOTHING_NEEDED = Number.MAX_SAFE_INTEGER

/** @throws EngineError PARTITION_FENCED, STATE_UNAVAILABLE */
export async function storeLine(query: Query, owner: Owner, line: number): Promise<void> {
  await writeAsOwner(
    query,
    owner,
    `update tailrace.reader_line set line = greatest(line, $6::bigint) from owner
     where sink_id = $3::text::uuid and generation = $4::int and partition = $5::int`,
    [line],
  )
}
