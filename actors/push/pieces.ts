/**
 * What is sent in one request, and how it is taken apart when the request fails: by groups, so that no two pieces hold
 * messages of one group, and what is sent at the same time needs no order. Pure.
 */
import type { RefList } from '../../engine/dispatch/ack-id.ts'
import type { Batch, Former } from '../../engine/dispatch/batch.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-group.ts'
import type { MessageView } from '../../engine/log/message-view.ts'

export type Piece = Readonly<{
  views: readonly MessageView[]
  places: readonly number[]
  offsets: readonly number[]
  indexes: readonly number[]
  /** of messages that another generation has named */
  origin: Origin | undefined
  /** of each message that has failed before; absent: none has. A piece holds such or others, never both */
  former?: readonly Former[]
  /** when it, or what it was part of, failed for the first time (monotonic ms) */
  doubtedSince: number | undefined
  /** how often the destination said that it is too much at the moment */
  throttles: number
  /** those that lack values for ever: their rows are gone, and what became of them follows */
  gone?: ReadonlySet<MessageView>
  /** it has been through the sink's functions */
  isStaged: boolean
  /** what they made of each message; absent: the default message goes out */
  payloads?: readonly (Uint8Array | undefined)[]
  /** the row that enriches each message; absent: none do */
  enrichments?: readonly (Uint8Array | undefined)[]
  /** where they send all of them */
  route?: Readonly<Record<string, unknown>>
}>

export const pieceOf = (batch: Batch, origin: Origin | undefined): Piece => ({
  views: batch.views,
  places: batch.places,
  offsets: batch.offsets,
  indexes: batch.indexes,
  origin,
  ...(batch.former && { former: batch.former }),
  doubtedSince: undefined,
  throttles: 0,
  isStaged: false,
})

/** Each of its messages as a piece of its own. */
export function singlesOf({ views, places, offsets, indexes, former }: Batch, origin: Origin | undefined): Piece[] {
  const singles: Piece[] = []
  for (let i = 0; i < views.length; i++)
    singles.push({
      views: [views[i] as MessageView],
      places: [places[i] as number],
      offsets: [offsets[i] as number],
      indexes: [indexes[i] as number],
      origin,
      ...(former && { former: [former[i] as Former] }),
      doubtedSince: undefined,
      throttles: 0,
      isStaged: false,
    })
  return singles
}

export const refsOf = ({ offsets, indexes }: Piece): RefList => ({ offsets: [...offsets], indexes: [...indexes] })

/** The messages at these places of a piece, in its order. */
export function partOf(piece: Piece, chosen: readonly number[]): Piece {
  const pick = <T>(list: readonly T[]): T[] => chosen.map((i) => list[i] as T)
  return {
    ...piece,
    throttles: chosen.length === piece.views.length ? piece.throttles : 0,
    views: pick(piece.views),
    places: pick(piece.places),
    offsets: pick(piece.offsets),
    indexes: pick(piece.indexes),
    ...(piece.former && { former: pick(piece.former) }),
    ...(piece.payloads && { payloads: pick(piece.payloads) }),
    ...(piece.enrichments && { enrichments: pick(piece.enrichments) }),
  }
}

/** A number for each message's group; without grouping each message is its own. */
export function groupsOf({ views, places }: Piece, grouping: boolean): readonly number[] {
  return views.map((view, i) => (grouping ? view.group(places[i] as number) : i))
}

/** Two pieces of about the same size. @returns undefined: it is of one group */
export function halvesOf(piece: Piece, grouping: boolean): readonly [Piece, Piece] | undefined {
  const groups = groupsOf(piece, grouping)
  const order = [...new Set(groups)]
  if (order.length < 2) return undefined
  const first = new Set(order.slice(0, Math.ceil(order.length / 2)))
  const chosen = (isFirst: boolean) => groups.flatMap((group, i) => (first.has(group) === isFirst ? [i] : []))
  return [partOf(piece, chosen(true)), partOf(piece, chosen(false))]
}

/** The first message alone, the messages behind it in its group, and those of other groups. */
export function firstOf(piece: Piece, grouping: boolean): Readonly<{ first: Piece; behind: Piece | undefined; rest: Piece | undefined }> {
  const groups = groupsOf(piece, grouping)
  const behind: number[] = []
  const rest: number[] = []
  for (let i = 1; i < groups.length; i++) (groups[i] === groups[0] ? behind : rest).push(i)
  return {
    first: partOf(piece, [0]),
    behind: behind.length > 0 ? partOf(piece, behind) : undefined,
    rest: rest.length > 0 ? partOf(piece, rest) : undefined,
  }
}

/** Of the bodies. */
export function bytesOf({ views, places }: Piece): number {
  return views.reduce((sum, view, i) => sum + view.bodyEnd(places[i] as number) - view.bodyStart(places[i] as number), 0)
}
