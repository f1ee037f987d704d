/**
 * What people decide of messages that wait outside the log, or were given up: the row first, durably, then the dispatcher. A
 * message that is being sent at that moment may arrive all the same.
 */
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { MAX_ENDED, type Chosen, type ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import type { Failed } from '../../engine/dispatch/parked/parking.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import type { SinkObserver } from './sink-observer.ts'

/**
 *  redeliver     tried at once: a back-off ends, and what was discarded is open again, as if it had never failed
 *  acknowledge   done, as if it had been delivered
 *  discard       given up, on record
 */

type Parts = Readonly<{
  dispatcher: Dispatcher
  store: ParkedStore
  observer: SinkObserver
  discarded: DiscardedMessages
  /** told of what is discarded */
  gaveUp: (messages: number) => void
  isClosed: () => boolean
}>

/** @property entry what stands among the attempts of each message that it opens: no other has the same */
export type Redelivery = Readonly<{ chosen: Chosen | 'discarded'; entry: Failed['record'] }>
/** @param chosen `discarded`: all that were given up */
export const redelivery = (chosen: Chosen | 'discarded'): Redelivery => ({ chosen, entry: entry('to be delivered again, by hand') })

/** @param isAgain the store has not answered the last time: what it opened then is known only now. @returns how many messages it held for */
export async function redeliver(parts: Parts, { chosen, entry }: Redelivery, isAgain: boolean): Promise<number> {
  const { dispatcher, store, discarded, isClosed } = parts
  const { parked, parking } = dispatcher
  let count = 0
  if (chosen !== 'discarded') {
    count += (await store.hurry(chosen)).length
    const groups =
      typeof chosen === 'string' ? parked.groups() : chosen.map(({ offset, index, origin }) => parked.groupAt(offset, index, origin))
    for (const group of groups) if (group && !isClosed()) parked.hurry(group)
  }
  if (typeof chosen === 'string' && chosen !== 'discarded') return count
  const opened = await store.reopen(chosen === 'discarded' ? undefined : chosen, entry)
  const rows = isAgain ? await store.reopenedWith(entry) : opened
  if (!isClosed()) parking.reopened(rows)
  discarded.reopened(rows.length)
  return count + rows.length
}

/** @returns how many messages it held for: none of those that were given up */
export async function endParked(
  { dispatcher, store, observer, gaveUp, isClosed }: Parts,
  edit: 'acknowledge' | 'discard',
  chosen: Chosen | 'discarded',
): Promise<number> {
  let count = 0
  if (chosen === 'discarded') return count
  for (;;) {
    const isDiscard = edit === 'discard'
    const rows = await store.endChosen(
      chosen,
      isDiscard ? 'discarded' : 'done',
      entry(isDiscard ? 'discarded by hand' : 'acknowledged by hand'),
    )
    count += rows.length
    if (rows.length > 0 && !isClosed()) {
      dispatcher.parking.parkedEnded(rows)
      if (isDiscard) gaveUp(rows.length)
      else observer.acked({ messages: rows.length, heldMs: 0 })
    }
    if (typeof chosen !== 'string' || rows.length < MAX_ENDED || isClosed()) return count
  }
}

/** What stands among the attempts of a message. */
const entry = (message: string) => ({ at: new Date().toISOString(), counts: false, message })
