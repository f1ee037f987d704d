/**
 * What of a sink decides which partition a message goes to, in which order it comes, and what a change of a key is: its shape.
 * Two sinks of the same shape send every message to the same place; another shape is another generation.
 */
import type { SinkSettings } from './resources.ts'
import { qualified } from './table-name.ts'

export type GenerationShape = Readonly<{
  partitions: number
  /** false: no order is asked for */
  grouping: boolean
  /** the columns that make the group, by "schema.table"; the primary key where there are none */
  groupColumns: Readonly<Record<string, readonly string[]>>
  /** a change of the primary key is a delete and an insert; absent: it is an update */
  splitsKeyChanges?: boolean
}>

/** Names tables in full; sorted, so that equal shapes are equal texts. */
export function shapeOf(
  sink: Pick<SinkSettings, 'partitions' | 'message_grouping' | 'tables'> & Partial<Pick<SinkSettings, 'key_changes'>>,
): GenerationShape {
  const columns = new Map(
    sink.tables.flatMap(({ name, group_column_names: names }) =>
      names && sink.message_grouping ? [[qualified(name), names] as const] : [],
    ),
  )
  return {
    partitions: sink.partitions,
    grouping: sink.message_grouping,
    groupColumns: Object.fromEntries([...columns].sort(([a], [b]) => (a < b ? -1 : 1))),
    ...(sink.key_changes === 'delete_insert' && { splitsKeyChanges: true }),
  }
}

/** Whether both put the same messages into the same groups; their partitions may differ. */
export function sameGroups(a: GenerationShape, b: GenerationShape): boolean {
  return a.grouping === b.grouping && canonical(a.groupColumns) === canonical(b.groupColumns)
}

const canonical = (columns: GenerationShape['groupColumns']): string =>
  JSON.stringify(Object.entries(columns).sort(([a], [b]) => (a < b ? -1 : 1)))
