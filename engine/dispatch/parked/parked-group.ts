/** A group of parked messages as a partition keeps it in memory, and the names of such messages. */
import type { MessageView } from '../../log/message-view.ts'

/** Where a message was parked whose generation has ended: with offset and index its name. Absent: it is of this partition. */
export type Origin = Readonly<{ generation: number; partition: number }>
/** One open group as the store knows it: its first message, and how many it holds. */
export type ParkedGroupFacts = Readonly<{
  key: number
  open: number
  offset: number
  index: number
  deliveries: number
  /** of its first message, µs since the epoch */
  commitTimeUs: number
  origin?: Origin | undefined
  /** of messages taken over from an ended generation: how long the first one, and any later one, may still be with a client */
  hiddenMs?: number
  laterHiddenMs?: number
}>
/** A message the store has finished or discarded. */
export type ParkedRef = Readonly<{ key: number; offset: number; index: number; origin?: Origin | undefined }>
/** A message of this partition that is being parked. */
export type ParkedPlace = Readonly<{ offset: number; index: number; commitTimeUs: number }>
/** How a message was held when it was parked. @property isBackOff it failed, and waits for its next try until `endsAt` */
export type Held = Readonly<{ endsAt: number; lease: number; deliveries: number; pending: boolean; isBackOff?: boolean }>

export type ParkedGroup = {
  readonly key: number
  /** open rows in the store */
  open: number
  state: 'idle' | 'loading' | 'ready' | 'inFlight' | 'backingOff' | 'discarding' | 'blocked'
  /** the first message; offset -1: not known until it is fetched */
  offset: number
  index: number
  origin: Origin | undefined
  /** of the first message, or of one before it while the first isn't known */
  commitTimeUs: number
  /** pull: how often it was handed out; push: how often it failed */
  deliveries: number
  /** counts as delivered and unacknowledged */
  pending: boolean
  lease: number
  /** monotonic ms */
  endsAt: number
  /** a later message of the group may be with a client until then: after a crash only */
  notBefore: number
  view: MessageView | undefined
  /** of the first message, while it is loaded */
  formerAttempts: readonly unknown[]
  /** the next ones, loaded with it: taken together, in order */
  behind: readonly LoadedBehind[]
  /** of what was taken behind the first, those whose end isn't told */
  readonly taken: Set<number | string>
}
/** @property attempts,formerAttempts of the first: how often it has failed, and what is on record of that */
export type LoadedWith = Readonly<{ attempts?: number; formerAttempts?: readonly unknown[]; behind?: readonly LoadedBehind[] }>
export type LoadedBehind = Readonly<{ offset: number; index: number; origin?: Origin | undefined; view: MessageView }>

/** Names a message by one number; also the key of a message that is its own group. A record holds fewer than 2^20. */
export const refKey = (offset: number, index: number): number => offset * 1_048_576 + index

/** The name of any parked message: a number for those of this partition, a text for the others. */
export const nameOf = (offset: number, index: number, origin: Origin | undefined): number | string =>
  origin ? `${origin.generation}.${origin.partition}.${offset}.${index}` : refKey(offset, index)

/** Nothing is known of its first message yet. */
export const newGroup = (key: number, open: number, commitTimeUs: number): ParkedGroup => ({
  key,
  open,
  state: 'idle',
  offset: -1,
  index: 0,
  origin: undefined,
  commitTimeUs,
  deliveries: 0,
  pending: false,
  lease: 0,
  endsAt: 0,
  notBefore: 0,
  view: undefined,
  formerAttempts: [],
  behind: [],
  taken: new Set(),
})

/** Those of earlier generations first. */
export function compareAge(a: ParkedGroup, b: ParkedGroup): number {
  const generations =
    a.origin && b.origin ? a.origin.generation - b.origin.generation : Number(b.origin !== undefined) - Number(a.origin !== undefined)
  return generations || a.offset - b.offset || a.index - b.index
}
