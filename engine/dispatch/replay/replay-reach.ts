/**
 * How far back a sink can be replayed, from what the state database knows of its generations and of the points of their
 * partitions. Every generation that is whole reaches back to where it opens; the first that is not, from the newest on,
 * ends the reach.
 */
import { comparePositions, type Position, toPosition } from '../../position.ts'
import { readerOf, type ReaderName, type TopicName } from '../../log/log.ts'
import { ask } from '../../state/asking.ts'
import { ownTopic } from '../../wal/routing/routing.ts'
import type { Query } from '../../postgres/query.ts'
import { topicOfGeneration } from '../generations.ts'
import { parkedOwner, type ParkedOwner } from '../parked/parked-hand-over.ts'
import { takesOf, type Takes } from '../span.ts'
import { pointsOf, type ReplayPoint } from './replay-points.ts'

export type KnownGeneration = ParkedOwner &
  Readonly<{
    topic: TopicName
    reader: ReaderName
    opensAt: Position
    /** nothing from there on is its own; undefined: it is open */
    endsAt: Position | undefined
    takes: Takes
    /** of each partition the first record that may have something for it */
    begins: readonly number[]
    /** its topic is gone, or is being deleted */
    dropped: boolean
    /** when its last message was finished, µs since the epoch; undefined: it is delivered, or waits for its turn */
    endedUs: number | undefined
    /** of each partition, the lowest first; none: undefined where it has never been served */
    points: readonly (readonly ReplayPoint[] | undefined)[]
  }>

export type Reach = Readonly<{
  /** every message above it is kept; undefined: every message the sink ever had */
  above: Position | undefined
  /** nothing of what is not kept was committed later, µs since the epoch */
  latestUs: number
  /** the oldest generation that has something of it */
  oldest: number
}>

/** Those that have opened, oldest first. @param query of a transaction, which keeps them as they are until its end */
export async function knownGenerations(query: Query, sinkId: string, lock = false): Promise<readonly KnownGeneration[]> {
  const generations = await ask(
    query,
    `select generation, shape, topic, regrouped, rewinds, history, lsn, idx, ends_history, ends_lsn, ends_idx, takes, dropped_at is not null as dropped,
       extract(epoch from drained_at)::float8 as ended
     from tailrace.generation where sink_id = $1::text::uuid and lsn is not null order by generation ${lock ? 'for update' : ''}`,
    [sinkId],
  )
  const terms = await ask(query, `select key from tailrace.term where kind = 'partition' and key like $1 || '.%'`, [sinkId])
  const lines = await ask(query, 'select generation, partition, begins from tailrace.reader_line where sink_id = $1::text::uuid', [sinkId])
  const begins = new Map(lines.rows.map((row) => [`${String(row.generation)}/${String(row.partition)}`, Number(row.begins)]))
  const served = new Set(terms.rows.map(({ key }) => String(key).slice(sinkId.length + 1)))
  const known = new Map((await pointsOf(query, sinkId)).map(({ generation, partition, points }) => [`${generation}/${partition}`, points]))
  return generations.rows.flatMap((row) => {
    const owner = parkedOwner(row)
    const { generation, shape } = owner
    const topic = topicOfGeneration(sinkId, row)
    if (topic === undefined) return []
    const points = Array.from({ length: shape.partitions }, (_, partition) => {
      const name = `${generation}/${partition}`
      return known.get(name) ?? (served.has(name) ? [] : undefined)
    })
    return {
      ...owner,
      topic,
      reader: readerOf(topic, ownTopic({ sinkId, generation })),
      points,
      begins: points.map((_, partition) => begins.get(`${generation}/${partition}`) ?? 0),
      endsAt: toPosition({ history: row.ends_history, lsn: row.ends_lsn, idx: row.ends_idx }),
      takes: takesOf(row.takes),
      dropped: row.dropped === true,
      opensAt: toPosition(row) as Position,
      endedUs: row.ended === null ? undefined : Number(row.ended) * 1_000_000,
    }
  })
}

/** @param generations oldest first, up to the one that is delivered. @returns undefined: nothing is kept */
export function reachOf(generations: readonly KnownGeneration[]): Reach | undefined {
  let later: KnownGeneration | undefined
  for (const each of generations.toReversed()) {
    const lowest = each.points.map((points) => points && points[0])
    const isKnown = lowest.every((point, partition) => point !== undefined || each.points[partition] === undefined)
    if (each.dropped || !isKnown) return later && { above: later.opensAt, latestUs: each.endedUs ?? Infinity, oldest: later.generation }
    const trimmed = lowest.filter(
      (point, partition) => point !== undefined && point.offset > (each.begins[partition] ?? 0),
    ) as ReplayPoint[]
    if (trimmed.length > 0)
      return {
        above: trimmed.map(({ position }) => position).reduce((a, b) => (comparePositions(a, b) >= 0 ? a : b)),
        latestUs: Math.max(...trimmed.map(({ latestUs }) => latestUs)),
        oldest: each.generation,
      }
    later = each
  }
  return later && { above: undefined, latestUs: -Infinity, oldest: later.generation }
}
