/**
 * What is sent in one request, and how it is taken apart when the request fails, or is taken in part: by groups, so that no two batches hold
 * messages of one group, and what is sent at the same time needs no order. Pure.
 */
import type { Batch, Message } from '../../engine/dispatch/batch.ts'
import type { Failure } from '../../sinks/push.ts'

/** A batch that goes in one request, and what has become of it so far. All of its messages have failed before, or none has. */
export type SendBatch = Batch &
  Readonly<{
    /** when it, or what it was part of, failed for the first time (monotonic ms) */
    doubtedSince?: number
    /** how often the destination said that it is too much at the moment */
    throttles: number
    /** it has been through the sink's functions */
    isStaged: boolean
  }>

/** Makes a batch of messages that have not been sent yet. */
export const sendBatchOf = ({ generation, partition }: Batch, messages: readonly Message[]): SendBatch => ({
  generation,
  partition,
  messages,
  throttles: 0,
  isStaged: false,
})

/** Makes a batch of some of the messages of another one. */
export const partOf = (batch: SendBatch, messages: readonly Message[]): SendBatch => ({
  ...batch,
  throttles: messages.length === batch.messages.length ? batch.throttles : 0,
  messages,
})

/** Tells whether the messages of a batch have failed before: such are sent apart from others. */
export const isRetry = ({ messages }: SendBatch): boolean => messages[0]?.former !== undefined

/** Gives what names the group of a message in its partition; without grouping each message is its own group. */
export const groupOf = (message: Message, grouping: boolean): unknown => (grouping ? message.view.group(message.place) : message)

/** Divides a batch into two of about the same size. @returns undefined: it is of one group */
export function halvesOf(batch: SendBatch, grouping: boolean): readonly [SendBatch, SendBatch] | undefined {
  const groups = [...Map.groupBy(batch.messages, (message) => groupOf(message, grouping)).keys()]
  if (groups.length < 2) return undefined
  const first = new Set(groups.slice(0, Math.ceil(groups.length / 2)))
  const half = (isFirst: boolean) => batch.messages.filter((message) => first.has(groupOf(message, grouping)) === isFirst)
  return [partOf(batch, half(true)), partOf(batch, half(false))]
}

/** Divides a batch into the first message alone, the messages behind it in its group, and those of other groups. */
export function firstOf(
  batch: SendBatch,
  grouping: boolean,
): Readonly<{ first: SendBatch; behind: readonly Message[]; rest: SendBatch | undefined }> {
  const [first, ...others] = batch.messages
  const group = first && groupOf(first, grouping)
  const behind = others.filter((message) => groupOf(message, grouping) === group)
  const rest = others.filter((message) => groupOf(message, grouping) !== group)
  return { first: partOf(batch, batch.messages.slice(0, 1)), behind, rest: rest.length > 0 ? partOf(batch, rest) : undefined }
}

/** Adds up the bytes of the bodies of a batch. */
export const bytesOf = ({ messages }: SendBatch): number =>
  messages.reduce((sum, { view, place }) => sum + view.bodyEnd(place) - view.bodyStart(place), 0)

// ── what was taken in part ────────────────────────────────────────────────────────────────────────

/** A message that the destination did not take, and what it said. */
export type RefusedMessage = Readonly<{ message: Message; failure: Failure }>

/**
 * Divides messages into those that were delivered, those that were refused (one of each group), and those that are sent again
 * behind the refused ones, delivered or not.
 */
type Judged = Readonly<{ done: readonly Message[]; bad: readonly RefusedMessage[]; behind: readonly Message[] }>

/**
 * Divides messages by what their destination says of each.
 * @param failures one for each message, in order; undefined: it was taken
 * @param options.keyed one document per key: its last message says all, and what came before need not be sent again
 */
export function judgedBy(
  messages: readonly Message[],
  failures: readonly (Failure | undefined)[],
  { grouping, keyed }: Readonly<{ grouping: boolean; keyed: boolean }>,
): Judged {
  const saidLast = keyed ? lastDelivered(messages, failures) : undefined
  const blocked = new Set<unknown>()
  const done: Message[] = []
  const bad: RefusedMessage[] = []
  const behind: Message[] = []
  for (const [i, message] of messages.entries()) {
    const group = groupOf(message, grouping)
    const failure = failures[i]
    if (blocked.has(group)) behind.push(message)
    else if (!failure || (failure.blame === 'message' && (saidLast?.(message, i) ?? false))) done.push(message)
    else {
      bad.push({ message, failure })
      blocked.add(group)
    }
  }
  return { done, bad, behind }
}

/** Whether a later message of the same key was delivered. */
function lastDelivered(messages: readonly Message[], failures: readonly unknown[]): (message: Message, i: number) => boolean {
  const keyOf = ({ view, place }: Message) =>
    `${view.relation(place)} ${view.buffer.toString('latin1', view.keyStart(place), view.keyEnd(place))}`
  const last = new Map<string, number>()
  for (const [i, message] of messages.entries()) if (failures[i] === undefined) last.set(keyOf(message), i)
  return (message, i) => (last.get(keyOf(message)) ?? -1) > i
}
