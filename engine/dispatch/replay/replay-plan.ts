/**
 * Plans what a replay would do: the position it goes back to, and for each partition of the generation that holds it the place
 * in the log. Only looks: the log's facts stay true, so a plan may be made while the sink delivers, and is checked against
 * what is kept when it is put into effect (replay.ts).
 */
import { EngineError, fieldRefused } from '../../errors.ts'
import type { Log } from '../../log/log.ts'
import { formatLsn, type Lsn } from '../../lsn.ts'
import { belowTransaction, comparePositions, endOfTransaction, positionBefore, type Position } from '../../position.ts'
import { replayWindowMs, type Sink } from '../../state/resources.ts'
import { historyAt, type Incarnation } from '../../wal/history.ts'
import type { KnownGeneration, Reach } from './replay-reach.ts'
import { firstAt, seek, type FirstMessage, type ReplayPlace, type Sought } from './replay-search.ts'

/**
 * Says where a replay goes back to; what was committed there comes again too. @property fromUs commit time in µs since the epoch
 * @property offset of a record; the generation is the one that is delivered unless it is named
 */
export type ReplayTarget = Readonly<{ lsn: Lsn } | { fromUs: number } | { offset: number; partition: number; generation?: number }>

/** Holds the position that a replay goes back to, and the places in the log where its partitions begin. */
export type ReplayPlan = Readonly<{
  /** everything above it comes again */
  position: Position
  /** the number of the generation that it lies in */
  generation: number
  /** in each of its partitions */
  places: readonly ReplayPlace[]
  /** the first message that comes again */
  first: FirstMessage
}>

type PlanOf = Readonly<{
  log: Log
  sink: Pick<Sink, 'id' | 'name' | 'replay_window'>
  /** oldest first, up to the one that is delivered */
  generations: readonly KnownGeneration[]
  incarnations: readonly Incarnation[]
  reach: Reach | undefined
}>

/** Partitions that are looked into side by side. */
const AT_ONCE = 8

/**
 * Plans a replay. @returns undefined: there is nothing from there on
 * @throws EngineError REPLAY_OUT_OF_WINDOW; VALIDATION_FAILED: there is no such partition, generation or offset
 */
export async function planReplay(of: PlanOf, target: ReplayTarget): Promise<ReplayPlan | undefined> {
  const { reach, sink } = of
  if (!reach) throw new EngineError('REPLAY_OUT_OF_WINDOW', `sink "${sink.name}" ${whyNothing(of)}`)
  const kept = of.generations.filter(({ generation }) => generation >= reach.oldest)
  const sought = await positionOf(of, kept, reach, target)
  if (sought === 'the end') return undefined
  if (!sought || (reach.above && comparePositions(sought, reach.above) < 0)) throw await outOfWindow(of, kept, reach)
  const lastOpen = kept.findLastIndex(({ opensAt }) => comparePositions(opensAt, sought) <= 0)
  const last = kept[lastOpen]
  const wasOff = last?.endsAt && comparePositions(sought, last.endsAt) >= 0 && lastOpen + 1 < kept.length // between that one and the next
  const at = wasOff ? lastOpen + 1 : Math.max(0, lastOpen) // below all of them: everything comes again
  const generation = kept[at]
  if (!generation) throw await outOfWindow(of, kept, reach)
  // what its stream has from before it opened may stand behind where it begins, and is others'
  const position = wasOff || lastOpen < 0 ? generation.opensAt : sought
  const places = await seekAll(of, generation, { position })
  const first = lowest(places) ?? (await firstOf(of, kept.slice(at + 1), { position }))
  return first && { position, generation: generation.generation, places, first }
}

const whyNothing = ({ sink, generations }: PlanOf): string =>
  replayWindowMs(sink.replay_window) === 0
    ? 'keeps no acknowledged messages: its replay_window is 0'
    : generations.length === 0
      ? 'has not been given any messages yet'
      : 'keeps no acknowledged messages yet'

/** @returns undefined: it lies before what is kept */
async function positionOf(
  of: PlanOf,
  kept: readonly KnownGeneration[],
  reach: Reach,
  target: ReplayTarget,
): Promise<Position | 'the end' | undefined> {
  if ('lsn' in target) return belowTransaction(historyAt(of.incarnations, target.lsn), target.lsn)
  if ('offset' in target) return positionOfRecord(of, kept, target)
  if (target.fromUs <= reach.latestUs) return undefined
  const first = await firstOf(of, kept, target)
  return first ? belowTransaction(first.position.history, first.position.lsn) : 'the end'
}

async function positionOfRecord(
  { log, generations }: PlanOf,
  kept: readonly KnownGeneration[],
  { offset, partition, generation: named }: Extract<ReplayTarget, { offset: number }>,
): Promise<Position | 'the end' | undefined> {
  const generation = named === undefined ? generations.at(-1) : generations.find((each) => each.generation === named)
  if (!generation) throw fieldRefused('generation', `${named ?? ''} is not a generation that the sink has delivered`)
  const { points } = generation
  if (partition >= points.length) throw fieldRefused('partition', `must be below ${points.length}`)
  if (!kept.includes(generation) || (points[partition]?.[0]?.offset ?? generation.begins[partition] ?? 0) > offset) return undefined
  const { next } = await log.stats(generation.reader, partition)
  if (offset > next) throw fieldRefused('offset', `must be at most ${next}, where partition ${partition} ends`)
  const first = await firstAt(log, generation, partition, offset)
  return first ? positionBefore(first) : (kept[kept.indexOf(generation) + 1]?.opensAt ?? 'the end')
}

async function seekAll(of: PlanOf, generation: KnownGeneration, sought: Sought): Promise<ReplayPlace[]> {
  const { points } = generation
  const places: ReplayPlace[] = []
  for (let from = 0; from < points.length; from += AT_ONCE) {
    const some = points.slice(from, from + AT_ONCE)
    places.push(
      ...(await Promise.all(some.map((known, i) => seek(of.log, generation, { partition: from + i, points: known ?? [] }, sought)))),
    )
  }
  return places
}

async function firstOf(of: PlanOf, generations: readonly KnownGeneration[], sought: Sought): Promise<FirstMessage | undefined> {
  for (const generation of generations) {
    const first = lowest(await seekAll(of, generation, sought))
    if (first) return first
  }
  return undefined
}

const lowest = (places: readonly ReplayPlace[]): FirstMessage | undefined =>
  places.map(({ first }) => first).reduce((a, b) => (!a || (b && comparePositions(b.position, a.position) < 0) ? b : a), undefined)

/** Says where the window begins, by the first transaction that is whole. */
async function outOfWindow(of: PlanOf, kept: readonly KnownGeneration[], { above }: Reach): Promise<EngineError> {
  const position = above ? endOfTransaction(above.history, above.lsn) : undefined
  const first = await firstOf(of, kept, position ? { position } : { fromUs: -Infinity })
  if (!first)
    return new EngineError(
      'REPLAY_OUT_OF_WINDOW',
      `the replay window of sink "${of.sink.name}" is empty: it keeps no acknowledged messages`,
    )
  const lsn = formatLsn(first.position.lsn)
  const time = timeOf(first.commitTimeUs)
  return new EngineError('REPLAY_OUT_OF_WINDOW', `the replay window of sink "${of.sink.name}" begins at ${time} (LSN ${lsn})`, {
    lsn,
    time,
  })
}

/** Writes µs since the epoch as ISO 8601, with all six digits. */
export function timeOf(us: number): string {
  const micros = String(Math.trunc(us) % 1_000_000).padStart(6, '0')
  return `${new Date(us / 1000).toISOString().slice(0, 19)}.${micros}Z`
}
