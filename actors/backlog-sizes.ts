/** How large the backlog of each sink is: what the guard of backlog.ts compares with its bound. */
import type { Log } from '../engine/log/log.ts'
import type { Sink } from '../engine/state/resources.ts'
import type { ReadingGate } from '../engine/wal/gate.ts'
import type { BacklogOf } from './backlog.ts'

const MB = 1024 * 1024
/** How old may be what a backlog's size is made of. */
const TOPICS_MAX_AGE_MS = 30_000
const STATS_MAX_AGE_MS = 1_000

/** The sinks whose source waits when their backlog is full. @param gateOf of a running source */
export function boundedBacklogs(
  sinks: readonly Sink[],
  gateOf: (databaseId: string) => ReadingGate | undefined,
  log: Log,
): readonly BacklogOf[] {
  let sizes: Promise<ReadonlyMap<string, number>> | undefined
  return sinks.flatMap((sink) => {
    const gate = gateOf(sink.databaseId)
    if (!gate || sink.status === 'disabled' || sink.load_shedding_policy !== 'pause_on_full') return []
    const bytes = async () => ((sizes ??= backlogSizes(log)), (await sizes).get(sink.id) ?? 0)
    return [{ sinkId: sink.id, name: sink.name, maxBytes: sink.max_backlog_mb * MB, gate, bytes }]
  })
}

/** Bytes of all topics of each sink, whatever generation they are of. */
async function backlogSizes(log: Log): Promise<ReadonlyMap<string, number>> {
  const sizes = new Map<string, number>()
  for (const { topic, partitions } of await log.topics(TOPICS_MAX_AGE_MS)) {
    const sinkId = topic.slice(0, topic.lastIndexOf('.'))
    for (let partition = 0; partition < partitions; partition++) {
      const stats = await log.stats(topic, partition, STATS_MAX_AGE_MS).catch(() => undefined) // deleted meanwhile
      sizes.set(sinkId, (sizes.get(sinkId) ?? 0) + (stats?.bytes ?? 0))
    }
  }
  return sizes
}
