/** What a partition whose messages are sent needs of its sink, and what it tells the sink of each request. */
import type { AckPending } from '../../engine/dispatch/ack-pending.ts'
import type { Failure, Load, Outcome, PushWire } from '../../sinks/push.ts'
import type { DestinationState } from './destination-state.ts'
import type { PreparationOptions } from './piece-preparation.ts'
import type { Piece } from './pieces.ts'

export type PushPartitionOptions = PreparationOptions &
  Readonly<{
    /** what speaks to the destination now; undefined: its settings can't be used */
    wire: () => Pick<PushWire, 'maxMessages' | 'maxBytes' | 'overheadBytes' | 'judgesEach'> | undefined
    /** One of the two is told, once and after it has returned. */
    send: (load: Load, signal: AbortSignal, ended: (outcome: Outcome) => void, broken: (error: unknown) => void) => void
    /** Whether it may have one more than so many requests under way, whatever other partitions want. */
    mayGoOn: (requests: number) => boolean
    destination: DestinationState
    isActive: () => boolean
    /** messages under way from all partitions of the sink that live here */
    underWay: AckPending
    limits: () => Readonly<{ maxRetries: number | null; fillMs: number }>
    clock: () => number
    random: () => number
    /** told of each request that was answered */
    sent: (sent: Sent) => void
    /** so many messages were in flight that nothing of the partition knew of; they go again */
    forgotten: (messages: number) => void
    /** nothing can be sent: perhaps no partition has anything left but suspects */
    exhausted: () => void
  }>

/** How a request ended, for those who count and keep records. */
export type Sent = Readonly<{
  partition: number
  piece: Piece
  /** what of it was delivered; undefined: nothing */
  delivered: Piece | undefined
  failures: readonly Failure[]
  status: number
  /** of what was delivered */
  answer: Extract<Outcome, { kind: 'delivered' }>['answer']
  tookMs: number
}>
