/** Messages that the source has not kept because they are too large (docs/rules.md, rule 26): what is put on record of them. */
import { type MessageView, MESSAGE_FLAG } from '../../log/pack.ts'
import type { Failed } from './parking.ts'

/** Tells whether the source has left a message out for its size. */
export const isTooLarge = (view: MessageView, place: number): boolean => (view.flags(place) & MESSAGE_FLAG.discarded) !== 0

/** Makes the record of a message that is given up for its size, before any delivery. */
export function tooLarge(view: MessageView, place: number): Failed {
  const body = view.buffer.toString('utf8', view.bodyStart(place), view.bodyEnd(place))
  const { bytes } = JSON.parse(`{${body}}}`) as { bytes: number }
  const error = `the message has ${bytes} bytes, more than MAX_MESSAGE_MB allows`
  return {
    attempts: 0,
    retryInMs: undefined,
    error,
    record: { at: new Date().toISOString(), counts: false, code: 'MESSAGE_TOO_LARGE', bytes },
  }
}
