/**
 * What destinations have in common that keep a document for each row: an insert or update puts a whole document into an index,
 * a delete takes it out, and the row's primary key names it both times.
 */
import { ACTION, MESSAGE_FLAG } from '../engine/log/pack.ts'
import type { Blame, Failure, Load, Outcome } from './push.ts'

/** Far below the servers' own limits, which can be lower than their default of 100 MB; a smaller one is learnt. */
export const MAX_BODY_BYTES = 16 * 1024 * 1024

/** Message i of a load becomes no document, and why. */
export type Refused = Readonly<{ i: number; refusal: string }>

export const NO_OBJECT = 'the function made no object of it: a document is an object'

/** Whether message i leaves an old key behind, whose document goes whatever a function says. */
export const isTombstone = ({ views, places }: Load, i: number): boolean =>
  ((views[i]?.flags(places[i] ?? 0) ?? 0) & MESSAGE_FLAG.tombstone) !== 0

/** What message i does to its document when no function says otherwise. */
export const effectOf = (load: Load, i: number): 'index' | 'delete' =>
  isTombstone(load, i) || load.views[i]?.action(load.places[i] ?? 0) === ACTION.delete ? 'delete' : 'index'

/** The values of the primary key of message i's row; none: its table has no primary key. */
export function keyValues({ views, places }: Load, i: number): readonly (string | null)[] {
  const [view, place = 0] = [views[i], places[i]]
  return view ? (JSON.parse(view.buffer.toString('utf8', view.keyStart(place), view.keyEnd(place))) as (string | null)[]) : []
}

/** The name of the document of a row with this key. */
export const documentName = (values: readonly (string | null)[]): string => values.join('-')

/** Says something about the settings that a user should know, the first time only. */
export function once(warn: (text: string) => void): (text: string) => void {
  let isSaid = false
  return (text) => {
    if (!isSaid) warn(text)
    isSaid = true
  }
}

/**
 * The outcome of messages that went to an index of their own, named by a function or a table. An index that takes nothing is the
 * matter of those that go there, perhaps a few: others go on, and none is given up. A login that is refused is everybody's.
 */
export function ofOneIndex(outcome: Outcome): Outcome {
  const isOurs = ({ blame, answer }: Failure) => blame === 'refused' && answer.status !== 401
  const ofPlace = (failure: Failure, blame: Blame): Failure => ({ ...failure, blame, isOfPlace: true })
  if (outcome.kind === 'failed' && isOurs(outcome.failure)) return { kind: 'failed', failure: ofPlace(outcome.failure, 'rejected') }
  if (outcome.kind !== 'each') return outcome
  return { ...outcome, failures: outcome.failures.map((failure) => (failure && isOurs(failure) ? ofPlace(failure, 'message') : failure)) }
}
