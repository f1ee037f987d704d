/**
 * The transactional logical message that names a routing version in the source's log, which is where the version takes effect
 * (correctness 6, 15). The first mark of a version counts; a repeated one, or one of an older version, says nothing. So a mark
 * may be written again whenever its fate is unknown.
 */
import type { Query } from '../../postgres/query.ts'

export const ROUTING_MARK = 'tailrace:routing'

/**
 * Writes the mark of a version into the source's log.
 * @param source queries on a session of the source database with synchronous_commit = local
 */
export async function emitRoutingMark(source: Query, version: Readonly<{ databaseId: string; version: number }>): Promise<void> {
  await source('select pg_logical_emit_message(true, $1, $2)', [
    ROUTING_MARK,
    JSON.stringify({ database: version.databaseId, version: version.version }),
  ])
}

/** @returns the version a mark names for this source; undefined: not ours, or not a mark at all (anybody may write one) */
export function parseRoutingMark(content: Buffer, databaseId: string): number | undefined {
  try {
    const mark: unknown = JSON.parse(content.toString('utf8'))
    if (typeof mark !== 'object' || mark === null || !('database' in mark) || !('version' in mark)) return undefined
    return mark.database === databaseId && Number.isSafeInteger(mark.version) ? (mark.version as number) : undefined
  } catch {
    return undefined
  }
}
