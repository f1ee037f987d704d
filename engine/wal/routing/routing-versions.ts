/**
 * New routing versions: saved in the state database, then named by a transactional logical message in the source's
 * log, which is where they take effect (correctness 6, 15). The first mark of a version counts; a repeated one, or one
 * of an older version, says nothing. So a mark may be written again whenever its fate is unknown.
 */
import { ask, UNIQUE_VIOLATION } from '../../state/asking.ts'
import type { RoutedSink, RoutingVersion } from '../../state/resources.ts'
import type { Query } from '../connection/slot.ts'

export const ROUTING_MARK = 'tailrace:routing'

/** `isPlaced`: its mark has come back to a source, so it need not be written again. */
export type SavedVersion = RoutingVersion & Readonly<{ isNew: boolean; isPlaced: boolean }>

/**
 * Saves what goes where as the next version; the same as the newest one saves nothing.
 * @param state queries on the state database
 */
export async function saveRoutingVersion(state: Query, databaseId: string, sinks: readonly RoutedSink[]): Promise<SavedVersion> {
  for (;;) {
    const { rows } = await state(
      'select version, sinks = $2::jsonb as same, lsn is not null as placed from tailrace.routing_version where database_id = $1 order by version desc limit 1',
      [databaseId, JSON.stringify(sinks)],
    )
    const newest = rows[0]
    if (newest?.same === true) return { databaseId, version: Number(newest.version), sinks, isNew: false, isPlaced: newest.placed === true }
    const version = Number(newest?.version ?? 0) + 1
    try {
      await state('insert into tailrace.routing_version (database_id, version, sinks) values ($1, $2, $3)', [
        databaseId,
        version,
        JSON.stringify(sinks),
      ])
      return { databaseId, version, sinks, isNew: true, isPlaced: false }
    } catch (error) {
      if (!(error instanceof Error && 'code' in error && error.code === UNIQUE_VIOLATION)) throw error // another process was faster: look again
    }
  }
}

/**
 * The versions that take effect nowhere yet, oldest first: what is older than one that does holds with it, or never will.
 * @param state queries on the state database
 */
export async function unplacedVersions(state: Query, databaseId: string): Promise<readonly number[]> {
  const { rows } = await ask(
    state,
    `select version from tailrace.routing_version v where database_id = $1 and lsn is null and not exists (
       select from tailrace.routing_version n where n.database_id = $1 and n.version > v.version and n.lsn is not null
     ) order by version`,
    [databaseId],
  )
  return rows.map(({ version }) => Number(version))
}

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
