/**
 * What people decide of messages that wait outside the log, or were given up: the row first, durably, then the dispatcher. A
 * message that is being sent at that moment may arrive all the same.
 */
import type { Dispatcher } from '../../engine/dispatch/dispatcher.ts'
import { MAX_ENDED, type Chosen, type ParkedStore } from '../../engine/dispatch/parked/parked-store.ts'
import type { DiscardedMessages } from './discarded-messages.ts'
import type { SinkObserver } from '../sink/sink-observer.ts'

/**
 *  redeliver     tried at once: a back-off ends, and what was discarded is open again, as if it had never failed
 *  acknowledge   done, as if it had been delivered
 *  discard       given up, on record
 */
export const MESSAGE_EDITS = ['redeliver', 'acknowledge', 'discard'] as const
export type MessageEdit = (typeof MESSAGE_EDITS)[number]

type Parts = Readonly<{
  dispatcher: Dispatcher
  store: ParkedStore
  observer: SinkObserver
  discarded: DiscardedMessages
  /** told of what is discarded */
  gaveUp: (messages: number) => void
  isClosed: () => boolean
}>

/** @param chosen `discarded`: all that were given up, to be redelivered. @returns how many messages it held for */
export async function editParked(parts: Parts, edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number> {
  if (edit === 'redeliver') return redeliver(parts, chosen)
  return chosen === 'discarded' ? 0 : end(parts, edit, chosen)
}

async function redeliver({ dispatcher, store, discarded, isClosed }: Parts, chosen: Chosen | 'discarded'): Promise<number> {
  let count = 0
  if (chosen !== 'discarded') {
    const rows = await store.hurry(chosen)
    count += rows.length
    for (const { offset, index, origin } of rows) {
      const group = dispatcher.parked.groupAt(offset, index, origin)
      if (group && !isClosed()) dispatcher.parked.hurry(group)
    }
  }
  if (typeof chosen === 'string' && chosen !== 'discarded') return count
  const rows = await store.reopen(chosen === 'discarded' ? undefined : chosen, entry('to be delivered again, by hand'))
  if (!isClosed()) dispatcher.parking.reopened(rows)
  discarded.reopened(rows.length)
  return count + rows.length
}

async function end(
  { dispatcher, store, observer, gaveUp, isClosed }: Parts,
  edit: 'acknowledge' | 'discard',
  chosen: Chosen,
): Promise<number> {
  let count = 0
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
