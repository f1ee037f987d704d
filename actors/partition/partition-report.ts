/** What a partition says of itself: its figures, and what keeps messages from flowing. */
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { EngineError, type ErrorCode } from '../../engine/errors.ts'
import type { MessageRef } from '../../engine/log/log.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import type { ParkedTending } from './parked-tending.ts'
import type { Figures } from '../../engine/status.ts'
import type { Trimming } from './trimming.ts'

type Reported = Readonly<{
  partition: number
  dispatcher: Dispatcher
  trimming: Trimming
  discarded: DiscardedMessages
  committed: MessageRef
  /** messages handed out since the take-over */
  delivered: number
  term: number
}>

/** Offsets are records of the log; `head` is the next one, as far as this reader has seen. */
export function figuresOf({ partition, dispatcher: d, trimming, discarded, committed, delivered, term }: Reported): Figures {
  const { stats, keptMessages } = trimming
  const head = d.closed ? d.window.nextOffset : Math.max(stats.next, d.window.nextOffset) // the last pack is nobody's message
  return {
    partition,
    committed: committed.offset,
    committedIndex: committed.index,
    read: d.window.nextOffset,
    head,
    lag: head - committed.offset,
    inFlight: d.inFlight,
    unfinished: d.unfinished,
    oldestMs: Math.max(0, Date.now() - Math.min(d.oldestUs() / 1000, Date.now())),
    parked: d.parked.openRows,
    parkedGroups: d.parked.size,
    discardedLately: discarded.others?.messages ?? 0,
    windowBytes: d.window.bytes,
    logBytes: stats.bytes,
    keptBytes: stats.finishedBytes,
    keptMessages,
    delivered,
    term,
  }
}

export type PartitionTrouble = { code: ErrorCode; message: string }

type Troubled = Readonly<{ tending: Pick<ParkedTending, 'trouble' | 'jammed'>; discarded: DiscardedMessages; parkedGroups: number }>

export function troubleOf({ tending, discarded, parkedGroups }: Troubled): PartitionTrouble | undefined {
  const { trouble: error, jammed } = tending
  const { bySize } = discarded
  if (error !== undefined)
    return {
      code: error instanceof EngineError ? error.code : 'INTERNAL',
      message: error instanceof Error ? error.message : String(error),
    }
  if (jammed)
    return {
      code: 'PARKING_FULL',
      message: `${parkedGroups} groups are parked; reading waits until some are acknowledged`,
    }
  if (bySize)
    return {
      code: 'MESSAGE_TOO_LARGE',
      message: `${bySize.messages} messages larger than MAX_MESSAGE_MB were discarded, the last one at ${bySize.lastAt.toISOString()}`,
    }
  return undefined
}
