/**
 * Points of a partition's log that a replay may begin from, in the state database. A point is a fact of the log that stays
 * true whatever is acknowledged: every message above its position stands at or behind its record. So a position is
 * found from the point below it, also where a log holds records twice, and the lowest point says where the replay window
 * begins: it is raised before the log is trimmed, never after.
 */
import { formatLsn } from '../../lsn.ts'
import type { Position } from '../../position.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf, type RowOf } from '../../postgres/rows.ts'
import { writeAsOwner, type Owner } from '../fenced-write.ts'
import { readPart } from '../span.ts'

/** A place in a partition's log that a replay may begin from, and what is known of it. */
export type ReplayPoint = Readonly<{
  /** of the record */
  offset: number
  /** of the first record that must be there for reading to begin at this one */
  neededFrom: number
  /** the greatest position accepted before it */
  position: Position
  /** nothing before it was committed later, µs since the epoch */
  latestUs: number
  /** messages, and bytes of records, before it, counted from any beginning: differences tell */
  messages: number
  bytes: number
  /** when everything before it was finished, in ms that the partition's owners have served, counted from any beginning */
  reachedMs: number
}>
/** Of one partition, the lowest first. */
type PartitionPoints = Readonly<{ generation: number; partition: number; points: readonly ReplayPoint[] }>

const COLUMNS =
  'record_offset, needed_from, history, lsn, idx, part, extract(epoch from latest_commit)::float8 as latest, messages, bytes, reached_ms'
const POINT = {
  record_offset: 'int',
  needed_from: 'int',
  history: 'int',
  lsn: 'lsn',
  idx: 'int',
  part: readPart,
  latest: 'number',
  messages: 'int',
  bytes: 'int',
  reached_ms: 'int',
} as const
const WRITTEN =
  'sink_id, generation, partition, record_offset, needed_from, history, lsn, idx, part, latest_commit, messages, bytes, reached_ms'
const valuesOf = ({ offset, neededFrom, position, latestUs, messages, bytes, reachedMs }: ReplayPoint): unknown[] => [
  offset,
  neededFrom,
  position.history,
  formatLsn(position.lsn),
  position.idx,
  position.part,
  latestUs / 1_000_000,
  messages,
  bytes,
  reachedMs,
]
const MINE = 'sink_id = $3::text::uuid and generation = $4::int and partition = $5::int'

/** Keeps the replay points of a partition, for its owner. */
export class ReplayPoints {
  readonly #query: Query
  readonly #owner: Owner

  constructor(query: Query, owner: Owner) {
    this.#query = query
    this.#owner = owner
  }

  /** Reads the stored points, the lowest first. */
  async load(): Promise<readonly ReplayPoint[]> {
    const { sinkId, generation, partition } = this.#owner.key
    const found = await ask(
      this.#query,
      `select ${COLUMNS} from tailrace.replay_point
       where sink_id = $1::text::uuid and generation = $2 and partition = $3 order by record_offset`,
      [sinkId, generation, partition],
    )
    return rowsOf(POINT, found).map(toPoint)
  }

  /** @throws EngineError PARTITION_FENCED, STATE_UNAVAILABLE */
  async add(point: ReplayPoint): Promise<void> {
    await this.#write(
      `insert into tailrace.replay_point (${WRITTEN})
       select $3::text::uuid, $4::int, $5::int, $6::bigint, $7::bigint, $8::int, $9::pg_lsn, $10::int, $11::smallint, to_timestamp($12::float8), $13::bigint, $14::bigint, $15::bigint
       from owner on conflict (sink_id, generation, partition, record_offset) do nothing`,
      valuesOf(point),
    )
  }

  /**
   * Forgets the points below a record; undefined: all of them. Comes before a trim. @throws EngineError PARTITION_FENCED,
   * STATE_UNAVAILABLE
   */
  async drop(below?: number): Promise<void> {
    await this.#write(
      `delete from tailrace.replay_point p using owner where ${MINE} and ($6::bigint is null or record_offset < $6::bigint)`,
      [below ?? null],
    )
  }

  async #write(sql: string, params: readonly unknown[]): Promise<void> {
    await writeAsOwner(this.#query, this.#owner, sql, params)
  }
}

/** Stores a point in a transaction that is allowed to without a term. @param key sink, generation, partition */
export async function insertPoint(query: Query, key: readonly unknown[], point: ReplayPoint): Promise<void> {
  await ask(
    query,
    `insert into tailrace.replay_point (${WRITTEN})
     values ($1::text::uuid, $2, $3, $4, $5, $6, $7::pg_lsn, $8, $9, to_timestamp($10::float8), $11, $12, $13)
     on conflict (sink_id, generation, partition, record_offset) do nothing`,
    [...key, ...valuesOf(point)],
  )
}

/** Reads the replay points of all partitions of a sink. */
export async function pointsOf(query: Query, sinkId: string): Promise<readonly PartitionPoints[]> {
  const found = await ask(
    query,
    `select generation, partition, ${COLUMNS} from tailrace.replay_point where sink_id = $1::text::uuid order by generation, partition, record_offset`,
    [sinkId],
  )
  const known: { generation: number; partition: number; points: ReplayPoint[] }[] = []
  for (const { generation, partition, ...row } of rowsOf({ generation: 'int', partition: 'int', ...POINT }, found)) {
    const last = known.at(-1)
    if (last?.generation === generation && last.partition === partition) last.points.push(toPoint(row))
    else known.push({ generation, partition, points: [toPoint(row)] })
  }
  return known
}

const toPoint = ({ history, lsn, idx, part, ...row }: RowOf<typeof POINT>): ReplayPoint => ({
  offset: row.record_offset,
  neededFrom: row.needed_from,
  position: { history, lsn, idx, part },
  latestUs: Math.round(row.latest * 1_000_000),
  messages: row.messages,
  bytes: row.bytes,
  reachedMs: row.reached_ms,
})
