/**
 * Finds out how far back a sink can be replayed, from what the state database knows of its generations and of the points of their
 * partitions. Every generation that is whole reaches back to where it opens; the first that is not, from the newest on,
 * ends the reach.
 */
import { comparePositions, type Position } from '../../position.ts'
import type { ReaderName, TopicName } from '../../log/log.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { READING, READING_COLUMNS, readerIn } from '../generations.ts'
import { OWNER_COLUMNS, type ParkedOwner } from '../parked/parked-hand-over.ts'
import type { Takes } from '../span.ts'
import { pointsOf, type ReplayPoint } from './replay-points.ts'

/** A generation as far as it can be replayed. */
export type KnownGeneration = ParkedOwner &
  Readonly<{
    topic: TopicName
    reader: ReaderName
    opensAt: Position
    /** nothing from there on is its own; undefined: it is open */
    endsAt: Position | undefined
    takes: Takes
    /** by partition, the first record that may have something for the generation */
    begins: readonly number[]
    /** its topic is gone, or is being deleted */
    dropped: boolean
    /** when its last message was finished, µs since the epoch; undefined: it is delivered, or waits for its turn */
    endedUs: number | undefined
    /** by partition, its points, the lowest first; undefined for a partition that has never been served */
    points: readonly (readonly ReplayPoint[] | undefined)[]
  }>

/** Tells how far back a sink can be replayed. */
export type Reach = Readonly<{
  /** every message above it is kept; undefined: every message the sink ever had */
  above: Position | undefined
  /** nothing of what is not kept was committed later, µs since the epoch */
  latestUs: number
  /** the oldest generation that has something of it */
  oldest: number
}>

/**
 * Reads the generations of a sink that have opened, oldest first. @param query of a transaction, which keeps them as they are until
 * its end
 */
export async function knownGenerations(query: Query, sinkId: string, lock = false): Promise<readonly KnownGeneration[]> {
  const generations = await ask(
    query,
    `select ${READING}, g.regrouped, g.rewinds, g.dropped_at is not null as dropped, extract(epoch from g.drained_at)::float8 as ended
     from tailrace.generation g where g.sink_id = $1::text::uuid and g.lsn is not null order by g.generation ${lock ? 'for update' : ''}`,
    [sinkId],
  )
  const terms = await ask(query, `select key from tailrace.term where kind = 'partition' and key like $1 || '.%'`, [sinkId])
  const lines = await ask(query, 'select generation, partition, begins from tailrace.reader_line where sink_id = $1::text::uuid', [sinkId])
  const nameOf = ({ generation, partition }: Readonly<{ generation: number; partition: number }>) => `${generation}/${partition}`
  const begins = new Map(rowsOf({ generation: 'int', partition: 'int', begins: 'int' }, lines).map((row) => [nameOf(row), row.begins]))
  const served = new Set(rowsOf({ key: 'text' }, terms).map(({ key }) => key.slice(sinkId.length + 1)))
  const known = new Map((await pointsOf(query, sinkId)).map((of) => [nameOf(of), of.points]))
  const columns = { ...READING_COLUMNS, ...OWNER_COLUMNS, dropped: 'boolean', ended: 'number?' } as const
  return rowsOf(columns, generations).flatMap(({ topic, opens: opensAt, ends: endsAt, ended, ...row }) => {
    if (topic === undefined || !opensAt) return []
    const { generation, shape } = row
    const names = Array.from({ length: shape.partitions }, (_, partition) => nameOf({ generation, partition }))
    return {
      ...row,
      topic,
      reader: readerIn(topic, { sinkId, generation }),
      points: names.map((name) => known.get(name) ?? (served.has(name) ? [] : undefined)),
      begins: names.map((name) => begins.get(name) ?? 0),
      opensAt,
      endsAt,
      endedUs: ended === undefined ? undefined : ended * 1_000_000,
    }
  })
}

/**
 * Finds out how far back a sink can be replayed. @param generations oldest first, up to the one that is delivered. @returns
 * undefined: nothing is kept
 */
export function reachOf(generations: readonly KnownGeneration[]): Reach | undefined {
  let later: KnownGeneration | undefined
  for (const each of generations.toReversed()) {
    const lowest = each.points.map((points) => points && points[0])
    const isKnown = lowest.every((point, partition) => point !== undefined || each.points[partition] === undefined)
    if (each.dropped || !isKnown) return later && { above: later.opensAt, latestUs: each.endedUs ?? Infinity, oldest: later.generation }
    const trimmed = lowest.flatMap((point, partition) => (point && point.offset > (each.begins[partition] ?? 0) ? [point] : []))
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
