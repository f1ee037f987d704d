/** Takes a partition over: all that its new owner does before anything is read or handed out. */
import { refList } from '../../engine/dispatch/ack-id.ts'
import { commitPoint, committed } from '../../engine/dispatch/commits.ts'
import { isDrained, newDispatcher, type Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import type { PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import type { ServedGeneration } from '../../engine/dispatch/generations.ts'
import { EngineError } from '../../engine/errors.ts'
import { ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import { inheritanceOf } from '../../engine/dispatch/replay/rewound.ts'
import type { Commit, Log, MessageRef, TopicName } from '../../engine/log/log.ts'
import { mustFitPartition } from '../../engine/wal/memories.ts'
import { comparePositions } from '../../engine/position.ts'
import { DiscardedMessages } from './discarded-messages.ts'
import { dispatchSettings, replayBounds, type PartitionSink } from './partition-sink.ts'
import { Trimming } from './trimming.ts'

/** Holds what a new owner of a partition begins with. */
export type TakenOver = Readonly<{
  store: ParkedStore
  dispatcher: Dispatcher
  trimming: Trimming
  discarded: DiscardedMessages
  committed: MessageRef
  /** of the sink there are rows in the parked store */
  hasParked: boolean
}>

/**
 * Looks whether log and state fit, takes the term, then reads what the former owner left, then makes the take-over durable. It may
 * take long, and somebody else may have the partition by then: who has it is not disturbed if it is known before the term is taken,
 * and what was read counts only if nobody can have had it meanwhile.
 * @param signal aborted when it is not to be taken over any more
 * @throws EngineError PARTITION_FENCED: it is not, or not for certain
 */
export async function takeOver(sink: PartitionSink, served: ServedGeneration, key: PartitionKey, signal: AbortSignal): Promise<TakenOver> {
  const { clock, pending, transport, surroundings } = sink
  const { log, query, holder, memory } = surroundings
  const { topic, reader, opensAt, shape } = served
  const { grouping } = shape
  const mustBeOurs = () => {
    if (!signal.aborted && log.holds(reader)) return
    const { partition } = key
    throw new EngineError('PARTITION_FENCED', `partition ${partition} was given to another process while it was taken over`, { partition })
  }
  await mustFitPartition(query, log, { ...key, reader })
  mustBeOurs()
  const store = await ParkedStore.takeOver(query, key, { grouping, holder, topic })
  const { commit: left, begins, line, hasParked, hasPoints } = await inheritanceOf(query, key, await log.committed(reader, key.partition))
  const commit = left && (await fitToPartition(log, topic, key.partition, left))
  const { groups, refs } = hasParked ? await store.load(commit?.next ?? { offset: begins, index: 0 }) : { groups: [], refs: refList() }
  const discarded = new DiscardedMessages(hasParked ? await store.discards() : undefined)
  const { next: head } = await log.stats(reader, key.partition)
  mustBeOurs()
  const restore = { commit, begins, head, parkedRefs: refs, parkedGroups: groups, opensAt }
  const { keyed, sends } = transport
  const purpose = { generation: key.generation, partition: key.partition, grouping, keyed, sends, pending, clock }
  const dispatcher = newDispatcher({ ...purpose, settings: dispatchSettings(sink, served), restore, ...(memory && { memory }) })
  const taken = { ...commitPoint(dispatcher, store.term, true), parked: store.parked } // the partition may move on before anything is handed out
  await log.commit(reader, key.partition, taken)
  committed(dispatcher, taken)
  const trimming = await Trimming.begin({
    log,
    topic,
    reader,
    query,
    key,
    clock,
    begins,
    line,
    bounds: () => replayBounds(sink, served),
    leftAt: () => (isDrained(dispatcher) ? dispatcher.window.nextOffset : undefined),
    term: store.term,
    committed: taken,
    hasPoints,
  })
  return { store, dispatcher, trimming, discarded, committed: taken.next, hasParked }
}

/**
 * A partition in Kafka that lost records may have as many others by now: the offset of a commit is within it again, and what
 * stands below was never read. Such a reader goes on with the first record above what it had accepted. As a rule that is the
 * marker that ends its generation, behind which nothing comes any more.
 */
async function fitToPartition(log: Log, topic: TopicName, partition: number, commit: Commit): Promise<Commit> {
  const before = commit.next.offset === 0 ? undefined : await log.headerAt(topic, partition, commit.next.offset - 1)
  if (!before || comparePositions(before.last, commit.accepted) <= 0) return commit
  const above = await log.offsetFor(topic, partition, { position: commit.accepted })
  const next = { offset: Math.min(above, commit.next.offset), index: 0 }
  // a marker tells others that they leave, too, and is passed by: then the rest of the commit stands
  return before.isMarker ? { ...commit, next } : { next, accepted: commit.accepted, finished: [], handedOut: next, term: commit.term }
}
