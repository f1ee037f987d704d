/**
 * The shape of a sink: the settings that decide which stream it reads, and what a change of a key is to it. Sinks of one stream shape share
 * the stream, which is written once; a sink of another shape than before begins another generation.
 */
import { EngineError } from '../errors.ts'
import type { Sink, SinkSettings } from './resources.ts'
import { type SourceFilter, takesTable } from './source-filter.ts'
import { qualified } from '../postgres/table-name.ts'

/**
 * Holds the settings of a sink that decide which messages lie in its stream, where, in which order and in which words
 * (docs/rules.md, rule 43).
 */
export type StreamShape = Readonly<{
  partitions: number
  /** false: no order is asked for */
  grouping: boolean
  /** the columns that make the group, by "schema.table"; the primary key where there are none */
  groupColumns: Readonly<Record<string, readonly string[]>>
  /** names of tables in full, sorted, without lists that restrict nothing */
  source: SourceFilter
  timestampFormat: SinkSettings['timestamp_format']
  /** the sink that has the stream alone: messages of it may be dropped before they are written, or rows of a backfill are written to it */
  only?: string
}>

/** Says how a generation of a sink lays out its messages, as it is stored with the generation. */
export type GenerationShape = Pick<StreamShape, 'partitions' | 'grouping' | 'groupColumns'> &
  Readonly<{
    /** a change of the primary key is a delete and an insert; absent: it is an update */
    splitsKeyChanges?: boolean
    /** absent: of a version in which each generation had a topic of its own */
    stream?: StreamShape
  }>

/** Reads the column `shape` of a generation. @throws EngineError INTERNAL: it is something else */
export function readShape(value: unknown): GenerationShape {
  if (!isShape(value)) throw new EngineError('INTERNAL', 'the database answered no shape of a generation')
  return value
}

/** Only we write shapes: one with a number of partitions has the rest too. */
const isShape = (value: unknown): value is GenerationShape =>
  typeof value === 'object' && value !== null && 'partitions' in value && typeof value.partitions === 'number'

type Shaping = Pick<SinkSettings, 'partitions' | 'message_grouping' | 'tables'> &
  Partial<Pick<SinkSettings, 'key_changes' | 'source' | 'timestamp_format' | 'load_shedding_policy'> & Pick<Sink, 'hasBackfills'>>

/** Makes the shape of a sink, with full and sorted names, so that equal shapes are equal texts. @param id of the sink */
export function shapeOf(id: string, sink: Shaping): GenerationShape & Readonly<{ stream: StreamShape }> {
  const stream = streamShapeOf(id, sink)
  const { partitions, grouping, groupColumns } = stream
  return { partitions, grouping, groupColumns, ...(sink.key_changes === 'delete_insert' && { splitsKeyChanges: true }), stream }
}

function streamShapeOf(id: string, sink: Shaping): StreamShape {
  const source = selectionOf(sink.source ?? {})
  const columns = sink.tables.flatMap(({ name, group_column_names: names }) => {
    const table = qualified(name)
    const isTaken = takesTable(source, table.slice(0, table.indexOf('.')), table)
    return names && sink.message_grouping && isTaken ? [[table, names] as const] : []
  })
  return {
    partitions: sink.partitions,
    grouping: sink.message_grouping,
    groupColumns: Object.fromEntries(columns.sort(([a], [b]) => (a < b ? -1 : 1))),
    source,
    timestampFormat: sink.timestamp_format ?? 'iso8601',
    ...((sink.load_shedding_policy === 'discard_on_full' || sink.hasBackfills) && { only: id }),
  }
}

function selectionOf(source: SinkSettings['source']): SourceFilter {
  const sorted = (names: readonly string[]) => [...new Set(names)].sort()
  const { include_schemas, exclude_schemas, include_tables, exclude_tables } = source
  return {
    ...(include_schemas && { include_schemas: sorted(include_schemas) }),
    ...(exclude_schemas && { exclude_schemas: sorted(exclude_schemas) }),
    ...(include_tables && { include_tables: sorted(include_tables.map(qualified)) }),
    ...(exclude_tables && { exclude_tables: sorted(exclude_tables.map(qualified)) }),
  }
}

/** Tells whether two shapes put the same messages into the same groups; their partitions may differ. */
export function sameGroups(a: GenerationShape, b: GenerationShape): boolean {
  return a.grouping === b.grouping && canonical(a.groupColumns) === canonical(b.groupColumns)
}

/** Writes the shape of a stream as a text, the same for the same shape: two streams of one shape are one stream. */
export const streamText = ({ partitions, grouping, groupColumns, source, timestampFormat, only }: StreamShape): string =>
  canonical({ partitions, grouping, groupColumns, source, timestampFormat, only })

const MAX_NAMES = 3

/** Says in short, for people, what a stream selects. */
export function describeStream({ source, grouping, groupColumns, timestampFormat, only }: StreamShape): string {
  const { include_schemas, exclude_schemas, include_tables, exclude_tables } = source
  const parts = [
    namesOf(include_tables, 'every table'),
    include_schemas && `of schema ${namesOf(include_schemas)}`,
    exclude_schemas && `without schema ${namesOf(exclude_schemas)}`,
    exclude_tables && `without ${namesOf(exclude_tables)}`,
    ...(grouping ? groupsOf(groupColumns) : ['ungrouped']),
    timestampFormat !== 'iso8601' && `times as ${timestampFormat}`,
    only && 'for one sink alone',
  ]
  return parts.filter(Boolean).join('; ')
}

const groupsOf = (columns: StreamShape['groupColumns']): readonly string[] =>
  Object.entries(columns)
    .slice(0, MAX_NAMES)
    .map(([table, names]) => `${table} by ${namesOf(names)}`)

function namesOf(names: readonly string[] | null | undefined, all = 'none'): string {
  if (!names) return all
  if (names.length === 0) return 'none'
  const some = names.slice(0, MAX_NAMES).join(', ')
  return names.length > MAX_NAMES ? `${some} and ${names.length - MAX_NAMES} more` : some
}

/** Names sorted at every level: the state database keeps objects in an order of its own. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_name, part: unknown) =>
    typeof part === 'object' && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  )
}
