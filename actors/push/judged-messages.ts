/** What an answer that judges each message of a piece means for it. Pure. */
import { groupsOf, type Piece } from './pieces.ts'
import type { Failure } from '../../sinks/push.ts'

/** Places in the piece: delivered · refused, one of each group · to be sent again behind those, delivered or not. */
type Judged = Readonly<{ done: readonly number[]; bad: readonly number[]; behind: readonly number[] }>

/** @param options.keyed one document per key: its last message says all, and what came before need not be sent again */
export function judgedBy(
  piece: Piece,
  failures: readonly (Failure | undefined)[],
  { grouping, keyed }: Readonly<{ grouping: boolean; keyed: boolean }>,
): Judged {
  const saidLast = keyed ? lastDelivered(piece, failures) : undefined
  const blocked = new Set<number>()
  const done: number[] = []
  const bad: number[] = []
  const behind: number[] = []
  for (const [i, group] of groupsOf(piece, grouping).entries()) {
    const failure = failures[i]
    if (blocked.has(group)) behind.push(i)
    else if (!failure || (failure.blame === 'message' && (saidLast?.(i) ?? false))) done.push(i)
    else {
      bad.push(i)
      blocked.add(group)
    }
  }
  return { done, bad, behind }
}

/** Whether a later message of the same key was delivered. */
function lastDelivered({ views, places }: Piece, failures: readonly unknown[]): (i: number) => boolean {
  const keyOf = (i: number) => {
    const view = views[i] as Piece['views'][number]
    const place = places[i] as number
    return `${view.relation(place)} ${view.buffer.toString('latin1', view.keyStart(place), view.keyEnd(place))}`
  }
  const last = new Map<string, number>()
  for (const [i, failure] of failures.entries()) if (failure === undefined) last.set(keyOf(i), i)
  return (i) => (last.get(keyOf(i)) ?? -1) > i
}
