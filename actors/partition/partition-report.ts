/** Reports how a partition is: its figures, and what keeps messages from flowing. */
import { countInFlight, countUnfinished, oldestUs } from '../../engine/dispatch/dispatcher.ts'
import type { OwnedPartition } from './owned-partition.ts'
import { troubleOf, type PartitionFigures, type Trouble } from '../../engine/status.ts'

/** Gathers the figures of a partition. Offsets are records of the log; `head` is the next one, as far as this reader has seen. */
export function figuresOf({
  key,
  dispatcher: d,
  commits,
  trimming,
  discarded,
  handedOut,
  store,
  sender,
}: OwnedPartition): PartitionFigures {
  const { stats, keptMessages } = trimming
  const { committed } = commits
  const head = d.closed ? d.window.nextOffset : Math.max(stats.next, d.window.nextOffset) // the last pack holds no message
  return {
    partition: key.partition,
    committed: committed.offset,
    committedIndex: committed.index,
    read: d.window.nextOffset,
    head,
    lag: head - committed.offset,
    inFlight: countInFlight(d),
    unfinished: countUnfinished(d),
    oldestMs: Math.max(0, Date.now() - Math.min(oldestUs(d) / 1000, Date.now())),
    parked: d.parked.openRows,
    parkedGroups: d.parked.byKey.size,
    discardedLately: discarded.others?.messages ?? 0,
    windowBytes: d.window.bytes,
    logBytes: stats.bytes,
    keptBytes: stats.finishedBytes,
    keptMessages,
    delivered: handedOut,
    term: store.term,
    ...sender?.figures(),
  }
}

/** Says what keeps messages of a partition from flowing, if anything does. */
export function partitionTrouble({ parked, dispatcher, discarded, sender }: OwnedPartition): Trouble | undefined {
  const { trouble: error, jammed } = parked
  const { bySize } = discarded
  if (error !== undefined) return troubleOf(error)
  if (jammed)
    return {
      code: 'PARKING_FULL',
      message: `${dispatcher.parked.byKey.size} groups are parked, as many as may be: reading waits until some of their messages are acknowledged`,
    }
  if (bySize)
    return {
      code: 'MESSAGE_TOO_LARGE',
      message: `${bySize.messages} messages larger than MAX_MESSAGE_MB were discarded, the last one at ${bySize.lastAt.toISOString()}`,
    }
  return sender?.trouble
}
