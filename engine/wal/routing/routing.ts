/**
 * What goes where: a routing version compiled for one relation. A pure function of (version, relation), so that every
 * run over the same log sends the same messages to the same partitions (correctness 6).
 */
import type { TopicName } from '../../log/log.ts'
import type { ACTIONS, RoutedSink, RoutingVersion, SourceFilter } from '../../state/resources.ts'
import { qualified } from '../../state/table-name.ts'

/** Tables of this schema are Tailrace's own and are never streamed. */
export const INTERNAL_SCHEMA = 'tailrace'

/** Bits of `Target.actions`. */
export const ACTION_BIT = { insert: 1, update: 2, delete: 4 } as const satisfies Record<(typeof ACTIONS)[number], number>

export type Target = Readonly<{
  sinkId: string
  topic: TopicName
  generation: number
  partitions: number
  /** which actions the sink takes, as bits */
  actions: number
  /** false: no order is asked for, messages spread by position */
  grouping: boolean
  /** the columns that make the group; undefined: the primary key */
  groupColumns: readonly string[] | undefined
  timestampFormat: RoutedSink['timestampFormat']
  /** a change of the primary key is a delete and an insert to it */
  splitsKeyChanges: boolean
}>

export const topicOf = (sink: Readonly<{ sinkId: string; generation: number }>): TopicName => `${sink.sinkId}.${sink.generation}`

/** The sinks that take changes of a table, in the order of the version. */
export function compileTargets(version: RoutingVersion, table: Readonly<{ schema: string; name: string }>): readonly Target[] {
  if (table.schema === INTERNAL_SCHEMA) return []
  const fullName = `${table.schema}.${table.name}`
  return version.sinks
    .filter((sink) => takesTable(sink.source, table.schema, fullName))
    .map((sink) => ({
      sinkId: sink.sinkId,
      topic: topicOf(sink),
      generation: sink.generation,
      partitions: sink.partitions,
      actions: sink.actions.reduce((bits, action) => bits | ACTION_BIT[action], 0),
      grouping: sink.grouping,
      groupColumns: sink.groupColumns[fullName],
      timestampFormat: sink.timestampFormat,
      splitsKeyChanges: sink.splitsKeyChanges ?? false,
    }))
}

/** Contract 9.2: given lists restrict; a table must pass those of schemas and those of tables. */
export function takesTable(filter: SourceFilter, schema: string, fullName: string): boolean {
  const { include_schemas, exclude_schemas, include_tables, exclude_tables } = filter
  if (include_schemas && !include_schemas.includes(schema)) return false
  if (exclude_schemas?.includes(schema)) return false
  if (include_tables && !include_tables.some((name) => qualified(name) === fullName)) return false
  return !exclude_tables?.some((name) => qualified(name) === fullName)
}
