/**
 * What goes where: a routing version compiled for one relation. A pure function of (version, relation), so that every
 * run over the same log sends the same messages to the same partitions (correctness 6).
 */
import { takesTable } from '../../state/source-filter.ts'
import type { TopicName } from '../../log/log.ts'
import type { ACTIONS, RoutedStream, Routing } from '../../state/resources.ts'

/** Tables of this schema are Tailrace's own and are never streamed. */
export const INTERNAL_SCHEMA = 'tailrace'

/** Bits of `Target.actions`. */
export const ACTION_BIT = { insert: 1, update: 2, delete: 4 } as const satisfies Record<(typeof ACTIONS)[number], number>
export const ALL_ACTIONS = 7

export const actionBits = (actions: readonly (typeof ACTIONS)[number][]): number =>
  actions.reduce((bits, action) => bits | ACTION_BIT[action], 0)

/** A stream that takes changes of a table. */
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

/** The topic of a generation that has one of its own, as all had before there were streams; and the name of a reader in any topic. */
export const ownTopic = (sink: Readonly<{ sinkId: string; generation: number }>): TopicName => `${sink.sinkId}.${sink.generation}`

/** The sink and the generation that a topic of its own, or a reader, is named by. */
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
