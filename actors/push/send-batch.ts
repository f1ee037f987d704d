/**
 * What is sent in one request, and how it is taken apart when the request fails: by groups, so that no two batches hold
 * messages of one group, and what is sent at the same time needs no order. Pure.
 */
import type { Batch, Message } from '../../engine/dispatch/batch.ts'

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
