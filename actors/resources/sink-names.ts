/** The names of schemas, tables and columns that a sink or a change retention has, to be looked for in its source. */
import { fieldsOf } from '../../engine/json.ts'
import { isRetention } from '../../engine/state/change-retentions.ts'
import type { SinkInput } from '../../engine/state/resource-store.ts'
import { namesOf, type SourceName } from '../../engine/state/source-names.ts'
import { isKeyed } from '../../sinks/destination-types.ts'

/** Lists every name that a sink or a change retention has, tables in full. */
export function sinkNames(input: Pick<SinkInput, 'source' | 'tables' | 'destination'>): readonly SourceName[] {
  const { destination, source } = input
  if (!isRetention(input)) return namesOf(input, isKeyed(destination))
  const { filters } = destination
  const columns = (Array.isArray(filters) ? filters : []).map((filter, i) => ({
    field: `filters.${i}`,
    column: String(fieldsOf(filter)['column_name']),
  }))
  return (source.include_tables ?? []).flatMap((name): SourceName[] => [
    { field: 'source_table_name', kind: 'table', name },
    ...columns.map((column) => ({ ...column, kind: 'table' as const, name })),
  ])
}
