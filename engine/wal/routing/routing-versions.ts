/**
 * New routing versions: saved in the state database, then named by a transactional logical message in the source's
 * log, which is where they take effect (correctness 6, 15). The first mark of a version counts; a repeated one, or one
 * of an older version, says nothing. So a mark may be written again whenever its fate is unknown.
 */
import { isDeepStrictEqual } from 'node:util'
import { ask, UNIQUE_VIOLATION } from '../../state/asking.ts'
import type { RoutedReader, RoutedStream, Routing, RoutingVersion } from '../../state/resources.ts'
import type { Query } from '../connection/slot.ts'
import { ownTopic } from './routing.ts'

export const ROUTING_MARK = 'tailrace:routing'

/** SQL for the name of a topic that no other ever was, or will be: the tag tells it from those of a state database that was put back. */
export const NEW_TOPIC = `'stream.' || nextval('tailrace.stream_number') || '.' || substr(md5(gen_random_uuid()::text), 1, 8)`

/** `isPlaced`: its mark has come back to a source, so it need not be written again. */
export type SavedVersion = RoutingVersion & Readonly<{ isNew: boolean; isPlaced: boolean }>

/** The newest version as it is stored. */
export type NewestVersion = Readonly<{ version: number; isPlaced: boolean; columns: Columns; routing: Routing }>
type Columns = Readonly<Record<string, unknown>>

/** @param state queries on the state database. @returns undefined: there is none */
export async function newestVersion(state: Query, databaseId: string): Promise<NewestVersion | undefined> {
  const { rows } = await state(
    `select version, lsn is not null as placed, sinks, streams, readers from tailrace.routing_version
     where database_id = $1 order by version desc limit 1`,
    [databaseId],
  )
  return rows[0] && { version: Number(rows[0].version), isPlaced: rows[0].placed === true, columns: rows[0], routing: routingOf(rows[0]) }
}

/**
 * Saves what goes where as the next version; the same as the newest one saves nothing.
 * @param state queries on the state database. @param newest the version that `routing` was made from
 * @throws what `isOvertaken` knows: there is a newer one by now, of a table that got other groups or of another process
 */
export async function saveRoutingVersion(
  state: Query,
  { databaseId, routing, newest }: Readonly<{ databaseId: string; routing: Routing; newest: NewestVersion | undefined }>,
): Promise<SavedVersion> {
  const columns = Object.entries(stored(routing))
  if (newest && columns.every(([column, value]) => isDeepStrictEqual(newest.columns[column], value)))
    return { databaseId, version: newest.version, ...routing, isNew: false, isPlaced: newest.isPlaced }
  const version = (newest?.version ?? 0) + 1
  await state(
    `insert into tailrace.routing_version (database_id, version, ${columns.map(([column]) => column).join(', ')}) values ($1, $2, ${columns.map((_, i) => `$${i + 3}`).join(', ')})`,
    [databaseId, version, ...columns.map(([, value]) => JSON.stringify(value))],
  )
  return { databaseId, version, ...routing, isNew: true, isPlaced: false }
}

export const isOvertaken = (error: unknown): boolean => error instanceof Error && 'code' in error && error.code === UNIQUE_VIOLATION

/** A sink as versions had it in which each of its generations had a topic of its own. */
type FormerSink = Omit<RoutedStream, 'topic' | 'only'> & Omit<RoutedReader, 'topic'>

/**
 * As it stands in the state database. What has topics of its own for each sink is kept as former processes understand it,
 * for they may have to go on from it.
 */
function stored({ streams, readers }: Routing): Columns {
  if (readers.length === 0) return { sinks: [], streams: [], readers: [] }
  const isFormer = readers.every((reader) => reader.topic === ownTopic(reader))
  if (!isFormer) return { streams, readers }
  const sinks = readers.map(({ topic: _reader, ...reader }, i) => {
    const { topic: _stream, only: _only, ...stream } = streams[i] as RoutedStream
    return { ...stream, ...reader }
  })
  return { sinks }
}

/** @param row with `sinks`, `streams` and `readers` of a version */
export function routingOf(row: Readonly<Record<string, unknown>>): Routing {
  if (row.streams) return { streams: row.streams as RoutedStream[], readers: row.readers as RoutedReader[] }
  const sinks = (row.sinks ?? []) as FormerSink[]
  return {
    streams: sinks.map(({ sinkId, generation, ...stream }) => ({ ...stream, topic: ownTopic({ sinkId, generation }), only: sinkId })),
    readers: sinks.map((sink) => ({
      sinkId: sink.sinkId,
      generation: sink.generation,
      topic: ownTopic(sink),
      actions: sink.actions ?? [],
    })),
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
