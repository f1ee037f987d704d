/**
 * Decides what goes where, by a routing version that is compiled for one relation. A pure function of (version, relation), so that every
 * run over the same log sends the same messages to the same partitions (docs/rules.md, rule 6).
 */
import { takesTable } from '../../state/source-filter.ts'
import type { TopicName } from '../../log/log.ts'
import type { ACTIONS, RoutedStream, Routing } from '../../state/resources.ts'
import type { Query } from '../../postgres/query.ts'

/** Tables of this schema are Tailrace's own and are never streamed. */
export const INTERNAL_SCHEMA = 'tailrace'

/** Bits of `Target.actions`. */
export const ACTION_BIT = { insert: 1, update: 2, delete: 4 } as const satisfies Record<(typeof ACTIONS)[number], number>
/** The bits of all actions, as `Target.actions` has them. */
export const ALL_ACTIONS = 7

/** Makes the bits of actions that `Target.actions` has. */
export const actionBits = (actions: readonly (typeof ACTIONS)[number][]): number =>
  actions.reduce((bits, action) => bits | ACTION_BIT[action], 0)

/** Describes a stream that takes changes of a table. */
export type Target = Readonly<{
  topic: TopicName
  partitions: number
  /** which actions are written to it, as bits */
  actions: number
  /** false: no order is asked for, messages spread by position */
  grouping: boolean
  /** the columns that make the group; undefined: the primary key */
  groupColumns: readonly string[] | undefined
  timestampFormat: RoutedStream['timestampFormat']
  /** a change of the primary key is a delete and an insert to it */
  splitsKeyChanges: boolean
  /** the sink that has it alone, of which messages may be dropped */
  only: string | undefined
}>

/**
 * Names the topic of a generation that has one of its own, as all had before there were streams. It is the name of a generation as
 * a reader too.
 */
export const ownTopic = (sink: Readonly<{ sinkId: string; generation: number }>): TopicName => `${sink.sinkId}.${sink.generation}`

/** Reads the sink and the generation from the name of a reader, or of a topic of its own. */
export function ownerOf(name: string): Readonly<{ sinkId: string; generation: number }> {
  const at = name.lastIndexOf('.')
  return { sinkId: name.slice(0, at), generation: Number(name.slice(at + 1)) }
}

/** The streams that take changes of a table, in the order of the version. */
export function compileTargets({ streams }: Routing, table: Readonly<{ schema: string; name: string }>): readonly Target[] {
  if (table.schema === INTERNAL_SCHEMA) return []
  const fullName = `${table.schema}.${table.name}`
  return streams
    .filter(({ source }) => takesTable(source, table.schema, fullName))
    .map((stream) => ({
      topic: stream.topic,
      partitions: stream.partitions,
      actions: stream.actions ? actionBits(stream.actions) : ALL_ACTIONS,
      grouping: stream.grouping,
      groupColumns: stream.groupColumns[fullName],
      timestampFormat: stream.timestampFormat,
      splitsKeyChanges: stream.splitsKeyChanges ?? false,
      only: stream.only,
    }))
}

/**
 * Prefix of the transactional logical message that names a routing version in the source's log, which is where the version takes effect
 * (docs/rules.md, rules 6 and 15). The first mark of a version counts; a repeated one, or one of an older version, says nothing. So a mark
 * may be written again whenever its fate is unknown.
 */
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

/** Reads a mark. @returns the version it names for this source; undefined: not ours, or not a mark at all (anybody may write one) */
export function parseRoutingMark(content: Buffer, databaseId: string): number | undefined {
  try {
    const mark: unknown = JSON.parse(content.toString('utf8'))
    if (typeof mark !== 'object' || mark === null || !('database' in mark) || !('version' in mark)) return undefined
    return mark.database === databaseId && typeof mark.version === 'number' && Number.isSafeInteger(mark.version) ? mark.version : undefined
  } catch {
    return undefined
  }
}
