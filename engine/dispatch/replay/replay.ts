/**
 * Puts a replay into effect, in one transaction of the state database: all of it holds when that is committed, and nothing
 * before. The sink's partitions have been stopped, wherever they run, and begin again after it (docs/rules.md, rule 25).
 *
 *  R1. The terms of all partitions that change are raised: whatever a former owner still writes is refused, and the commits
 *      in the log are older than what is left here for the next owner (rewound.ts).
 *  R2. It is refused when a partition is not as it was stopped: somebody has taken it over, and may have finished messages.
 *  R3. What is unfinished stays so, also below the position: a partition that has not come to it does not go forward.
 *  R4. Parked messages above the position come again from the log, those below go to the generation that is delivered next,
 *      and stay invisible while they are with clients.
 *  R5. Generations behind the position begin where they open, as if they had never been delivered.
 */
import { EngineError } from '../../errors.ts'
import { commitToJson, type Commit, type FinishedRange, type InFlight, type MessageRef } from '../../log/log.ts'
import { formatLsn } from '../../lsn.ts'
import { comparePositions, type Position } from '../../position.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { termKey } from '../fenced-write.ts'
import { handParkedOver } from '../parked/parked-hand-over.ts'
import type { ReplayPlan } from './replay-plan.ts'
import { insertPoint, type ReplayPoint } from './replay-points.ts'
import { knownGenerations, reachOf, type KnownGeneration } from './replay-reach.ts'
import type { ReplayPlace } from './replay-search.ts'
import { compareRefs, laterRef } from '../restored.ts'

/** Describes a generation of which every partition has stopped: the term of each, and its last commit. */
export type Stopped = Readonly<{ generation: number; terms: ReadonlyMap<number, number>; commits: ReadonlyMap<number, Commit | undefined> }>

/** Stands in the place of a term's holder while a replay sets back a partition that goes on elsewhere. */
export const REWINDING = 'rewinding'
/** Stands in the place of a term's holder for a partition of a generation that will be delivered again later. */
export const REWOUND = 'rewound'

/**
 * Puts a replay into effect. @param query of the transaction @returns about how many messages come again
 * @throws EngineError REPLAY_OUT_OF_WINDOW: meanwhile; PARTITION_MOVING: not every partition is stopped
 */
export async function rewind(query: Query, sinkId: string, plan: ReplayPlan, stopped: Stopped): Promise<number> {
  const { position } = plan
  await ask(query, 'select from tailrace.sink where id = $1::text::uuid for update', [sinkId])
  const known = await knownGenerations(query, sinkId, true)
  const generations = known.filter(({ generation }) => generation <= stopped.generation)
  mustReach(generations, plan)
  const [goal, ...later] = generations.filter(({ generation }) => generation >= plan.generation)
  if (!goal) throw movedOn()
  await mustBeStopped(query, sinkId, generations, stopped)

  const messages = count(goal, later, plan, stopped)
  const served = stopped.generation === goal.generation
  const terms = await raiseTerms(query, sinkId, goal, later)
  for (const [partition, place] of plan.places.entries()) {
    const term = terms.get(`${goal.generation}/${partition}`)
    if (term === undefined) continue // never served: it begins where its generation opens
    const committed = served ? stopped.commits.get(partition) : undefined
    const commit = committed
      ? rewound(place, position, committed, term)
      : begunAgain(place, position, withClients({ generation: goal.generation, partition }, plan, stopped), term)
    await saveCommit(query, { sinkId, generation: goal.generation, partition, term, commit })
    await movePoints(query, { sinkId, generation: goal.generation, partition, commit, place, position })
  }
  for (const each of later) {
    for (const partition of each.points.keys()) {
      const term = terms.get(`${each.generation}/${partition}`)
      if (term !== undefined) await saveCommit(query, { sinkId, generation: each.generation, partition, term, commit: undefined })
    }
  }
  await bringBackParked(query, sinkId, position, goal, later)
  const numbers = [sinkId, goal.generation]
  await ask(query, 'delete from tailrace.drained_partition where sink_id = $1::text::uuid and generation >= $2', numbers)
  await ask(
    query,
    `delete from tailrace.replay_point p where sink_id = $1::text::uuid and generation > $2 and record_offset > coalesce((
       select begins from tailrace.reader_line l where l.sink_id = p.sink_id and l.generation = p.generation and l.partition = p.partition), 0)`,
    numbers,
  )
  await ask(
    query,
    `update tailrace.generation set drained_at = null, rewinds = rewinds + 1
     where sink_id = $1::text::uuid and generation >= $2 and lsn is not null`,
    numbers,
  )
  return messages
}

/** Where a partition of an ended generation begins. */
function begunAgain({ ref }: ReplayPlace, position: Position, held: readonly InFlight[] | undefined, term: number): Commit {
  return { next: ref, accepted: position, finished: [], handedOut: ref, ...(held ? { inFlight: held } : {}), term }
}

/**
 * What clients have of the messages below, parked all of them, by the names that a partition of an ended generation has for them.
 * @returns undefined: not every owner has said it
 */
function withClients(
  of: Readonly<{ generation: number; partition: number }>,
  { places }: ReplayPlan,
  stopped: Stopped,
): InFlight[] | undefined {
  const held: InFlight[] = []
  for (const [partition, commit] of stopped.commits) {
    if (commit && !commit.inFlight) return undefined
    for (const { message, invisibleForMs, origin = { generation: stopped.generation, partition } } of commit?.inFlight ?? []) {
      const place = origin.generation === of.generation ? places[origin.partition]?.ref : undefined
      if (origin.generation > of.generation || (place && compareRefs(message, place) >= 0)) continue // it comes again
      const isOwn = origin.generation === of.generation && origin.partition === of.partition
      held.push(isOwn ? { message, invisibleForMs } : { message, invisibleForMs, origin })
    }
  }
  return held
}

/** Where a partition goes on: at the place sought, or where it is, if it has not come to it. */
function rewound({ ref }: ReplayPlace, position: Position, committed: Commit, term: number): Commit {
  const { next, accepted, finished, handedOut, inFlight } = committed
  const isBelow = (place: MessageRef) => compareRefs(place, ref) < 0
  return {
    ...(isBelow(next) ? { next, accepted } : { next: ref, accepted: position }),
    finished: finished.filter(({ from }) => isBelow(from)).map(({ from, to }) => ({ from, to: isBelow(to) ? to : ref })),
    handedOut: isBelow(handedOut) ? handedOut : ref,
    ...(inFlight ? { inFlight: inFlight.filter(({ message, origin }) => origin !== undefined || isBelow(message)) } : {}),
    term,
  }
}

/** About how many messages come again: those that have been finished since. */
function count(goal: KnownGeneration, later: readonly KnownGeneration[], { places }: ReplayPlan, stopped: Stopped): number {
  let messages = 0
  for (const [partition, place] of places.entries()) {
    const points = goal.points[partition] ?? []
    messages += Math.max(0, (points.at(-1)?.messages ?? 0) - place.messages)
    const committed = goal.generation === stopped.generation ? stopped.commits.get(partition) : undefined
    for (const range of committed?.finished ?? [])
      if (compareRefs(range.to, place.ref) > 0) messages += sizeOf({ from: laterRef(range.from, place.ref), to: range.to }, points)
  }
  for (const points of later.flatMap((each) => each.points)) messages += (points?.at(-1)?.messages ?? 0) - (points?.[0]?.messages ?? 0)
  return messages
}

/** How many messages a finished range has is known within a record; over several they are taken to be of common size. */
function sizeOf({ from, to }: FinishedRange, points: readonly ReplayPoint[]): number {
  const records = to.offset - from.offset
  const [first, last] = [points[0], points.at(-1)]
  const each = first && last && last.offset > first.offset ? (last.messages - first.messages) / (last.offset - first.offset) : 1
  return Math.max(0, Math.round(records * each) + to.index - from.index)
}

function mustReach(generations: readonly KnownGeneration[], { generation, position }: ReplayPlan): void {
  const reach = reachOf(generations)
  const isKept = reach && reach.oldest <= generation && (!reach.above || comparePositions(reach.above, position) <= 0)
  if (!isKept) throw movedOn()
}

const movedOn = () =>
  new EngineError('REPLAY_OUT_OF_WINDOW', 'the replay window has just moved on and begins after this place now: choose a later place')

const TERM = { key: 'text', term: 'int' } as const

/** Looks whether every partition stands still under the term that it stopped with. @throws EngineError PARTITION_MOVING */
export async function mustBeStopped(
  query: Query,
  sinkId: string,
  generations: readonly KnownGeneration[],
  stopped: Stopped,
): Promise<void> {
  const { generation, terms } = stopped
  const served = generations.find(({ endedUs }) => endedUs === undefined)?.generation
  const found = await ask(
    query,
    `select key, term from tailrace.term where kind = 'partition' and key like $1 || '.' || $2::int || '/%' order by key for update`,
    [sinkId, generation],
  )
  const moved = rowsOf(TERM, found)
    .map(({ key, term }) => ({ partition: Number(key.slice(key.lastIndexOf('/') + 1)), term }))
    .find(({ partition, term }) => terms.get(partition) !== term)
  if (served === generation && !moved) return
  const partition = moved?.partition ?? 0
  throw new EngineError(
    'PARTITION_MOVING',
    `partition ${partition} did not stop for the replay: it is moving, or its process does not answer`,
    {
      partition,
    },
  )
}

/** @returns the terms by "generation/partition": of those that have been served */
async function raiseTerms(
  query: Query,
  sinkId: string,
  goal: KnownGeneration,
  later: readonly KnownGeneration[],
): Promise<ReadonlyMap<string, number>> {
  const terms = new Map<string, number>()
  for (const [holder, generations] of [
    [REWINDING, [goal]],
    [REWOUND, later],
  ] as const) {
    const keys = generations.flatMap(({ generation, points }) =>
      [...points.keys()].map((partition) => termKey({ sinkId, generation, partition })),
    )
    const raised = await ask(
      query,
      `update tailrace.term set term = term + 1, holder = $2 where kind = 'partition' and key = any ($1) returning key, term`,
      [keys, holder],
    )
    for (const { key, term } of rowsOf(TERM, raised)) terms.set(key.slice(sinkId.length + 1), term)
  }
  return terms
}

type OfPartition = Readonly<{ sinkId: string; generation: number; partition: number }>

/** Saves where the next owner of a partition goes on, whatever the log has of earlier terms. */
export async function saveCommit(
  query: Query,
  { sinkId, generation, partition, term, commit }: OfPartition & Readonly<{ term: number; commit: Commit | undefined }>,
): Promise<void> {
  await ask(
    query,
    `insert into tailrace.rewound_partition (sink_id, generation, partition, term, content) values ($1::text::uuid, $2, $3, $4, $5::jsonb)
     on conflict (sink_id, generation, partition) do update set term = excluded.term, content = excluded.content`,
    [sinkId, generation, partition, term, commit ? JSON.stringify(commitToJson(commit)) : null],
  )
}

/** Points above the commit tell of what is unfinished now; one at the place where it goes on says how much lies before it. */
async function movePoints(
  query: Query,
  of: OfPartition & Readonly<{ commit: Commit; place: ReplayPlace; position: Position }>,
): Promise<void> {
  const { sinkId, generation, partition, commit, place, position } = of
  const key = [sinkId, generation, partition]
  await ask(
    query,
    'delete from tailrace.replay_point where sink_id = $1::text::uuid and generation = $2 and partition = $3 and record_offset > $4',
    [...key, commit.next.offset],
  )
  if (commit.next !== place.ref) return
  await insertPoint(query, key, { ...place.point, position })
}

/** Above the position they come again from the log; below it they are delivered first. */
async function bringBackParked(
  query: Query,
  sinkId: string,
  { history, lsn, idx, part }: Position,
  goal: KnownGeneration,
  later: readonly KnownGeneration[],
): Promise<void> {
  await ask(
    query,
    `delete from tailrace.parked where sink_id = $1::text::uuid and (history, lsn, idx, part) > ($2::int, $3::pg_lsn, $4::int, $5::smallint)`,
    [sinkId, history, formatLsn(lsn), idx, part],
  )
  for (const each of later) await handParkedOver(query, sinkId, each, goal)
  await ask(query, 'delete from tailrace.parked_backlog where sink_id = $1::text::uuid and generation > $2', [sinkId, goal.generation])
}
