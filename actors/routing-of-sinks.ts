/** What a source needs to know of its sinks, as the next routing version. */
import { isDeepStrictEqual as same } from 'node:util'
import { shapeOf } from '../engine/state/generation-shape.ts'
import type { ResourceStore, Resources } from '../engine/state/resource-store.ts'
import type { RoutedSink, Sink } from '../engine/state/resources.ts'
import { qualified } from '../engine/state/table-name.ts'
import type { Store } from '../engine/state/store.ts'
import { saveRoutingVersion, type SavedVersion } from '../engine/wal/routing/routing-versions.ts'

/**
 * Puts what the sinks of a database are to receive into a routing version; the source switches at its mark. Read under
 * the database's lock, so that a process that has read before an edit can't put an older state above a newer one.
 */
export function saveRouting(store: Store, resources: ResourceStore, databaseId: string): Promise<SavedVersion> {
  return store.transaction(async (query) => {
    await query('select from source_database where id = $1 for no key update', [databaseId])
    const { sinks, generations } = await resources.load(query)
    const taking = sinks.filter((sink) => sink.databaseId === databaseId && sink.status !== 'disabled')
    return saveRoutingVersion(
      query,
      databaseId,
      taking.map((sink) => routed(sink, generations)),
    )
  })
}

/** Whether a source need not know that one has become the other. */
export function isRoutedAlike(before: Sink, after: Sink): boolean {
  const routing = (sink: Sink) => (sink.status === 'disabled' ? undefined : routed(sink, new Map()))
  return same(routing(before), routing(after))
}

/** Table names are qualified here, once. */
function routed(sink: Sink, generations: Resources['generations']): RoutedSink {
  const { include_tables: included, exclude_tables: excluded, ...schemas } = sink.source
  const { partitions, ...shape } = shapeOf(sink)
  return {
    sinkId: sink.id,
    generation: generations.get(sink.id) ?? 1,
    partitions,
    source: {
      ...schemas,
      ...(included ? { include_tables: included.map(qualified) } : {}),
      ...(excluded ? { exclude_tables: excluded.map(qualified) } : {}),
    },
    ...shape,
    actions: sink.actions,
    timestampFormat: sink.timestamp_format,
  }
}
