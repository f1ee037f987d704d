/** What an answer that judges each message of a batch means for it. Pure. */
import type { Message } from '../../engine/dispatch/batch.ts'
import { groupOf } from './send-batch.ts'
import type { Failure } from '../../sinks/push.ts'

/** A message that the destination did not take, and what it said. */
export type Refused = Readonly<{ message: Message; failure: Failure }>

/**
 * Divides messages into those that were delivered, those that were refused (one of each group), and those that are sent again
 * behind the refused ones, delivered or not.
 */
type Judged = Readonly<{ done: readonly Message[]; bad: readonly Refused[]; behind: readonly Message[] }>

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
  const bad: Refused[] = []
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
