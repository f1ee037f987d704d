/**
 * From which record on each reader of a stream needs it stands in the state database: a partition's owner stores its line, and what
 * lies below the lines of all readers is trimmed here. A line is stored before anything above the former one may go, and carries
 * its owner's term: one that was set back by a replay is never raised by whoever had it before. One process at a time does so for a
 * database, by a lease in the state database that has nothing to do with who streams the source; should two do it at once, nothing
 * is lost, for lines only grow, and a replay goes back no further than to its own (docs/rules.md, rule 45).
 */
import type { Log } from '../log/log.ts'
import { ask } from '../state/asking.ts'
import type { Query } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'
import { writeAsOwner, type Owner } from './fenced-write.ts'

/** The line of who has left the stream, has delivered what was its own, and keeps nothing of it to be replayed. */
export const NOTHING_NEEDED = Number.MAX_SAFE_INTEGER

/** Stores which record a partition needs first. @throws EngineError PARTITION_FENCED, STATE_UNAVAILABLE */
export async function storeLine(query: Query, owner: Owner, line: number): Promise<void> {
  await writeAsOwner(
    query,
    owner,
    `update tailrace.reader_line set line = greatest(line, $6::bigint) from owner
     where sink_id = $3::text::uuid and generation = $4::int and partition = $5::int`,
    [line],
  )
}

const LEASE = '5 seconds'

/**
 * Names a database whose streams this process trims. @property isHeldUp one that has left a stream needs more of it than those that
 * go on
 */
export type TrimmedDatabase = Readonly<{ databaseId: string; isHeldUp: boolean }>

/** Trims the streams of databases, each while it has their lease. */
export class StreamTrim {
  readonly #query: Query
  readonly #log: Log
  readonly #holder: string
  /** by "topic/partition": what was trimmed here */
  readonly #trimmed = new Map<string, number>()

  /** @param query of the state database. @param holder names this process there */
  constructor({ query, log, holder }: Readonly<{ query: Query; log: Log; holder: string }>) {
    this.#query = query
    this.#log = log
    this.#holder = holder
  }

  /**
   * Trims once what may go. @returns the databases whose lease this process has. @throws EngineError STATE_UNAVAILABLE, and those
   * of the log
   */
  async run(): Promise<readonly TrimmedDatabase[]> {
    const found = await ask(
      this.#query,
      `with held as (
         insert into tailrace.trim_lease as l (database_id, holder, ends_at) select id, $1, now() + interval '${LEASE}' from tailrace.source_database
         on conflict (database_id) do update set holder = excluded.holder, ends_at = excluded.ends_at where l.holder = $1 or l.ends_at < now()
         returning l.database_id
       )
       select held.database_id, needed.topic, needed.partition, min(needed.line) as line,
         coalesce(min(needed.line) filter (where ends_lsn is not null and drained_at is null)
           < min(needed.line) filter (where lsn is not null and ends_lsn is null), false) as held_up
       from held left join (
         select s.database_id, g.topic, l.partition, l.line, g.lsn, g.ends_lsn, g.drained_at
         from tailrace.generation g join tailrace.sink s on s.id = g.sink_id join tailrace.reader_line l on l.sink_id = g.sink_id and l.generation = g.generation
         where g.topic is not null and (g.dropped_at is null or g.drained_at is null) and l.line < $2
       ) needed on needed.database_id = held.database_id
       group by held.database_id, needed.topic, needed.partition`,
      [this.#holder, NOTHING_NEEDED],
    )
    const rows = rowsOf({ database_id: 'text', topic: 'text?', partition: 'int?', line: 'int?', held_up: 'boolean' }, found)
    const known = new Set<string>()
    for (const { topic, partition, line } of rows) {
      if (topic === undefined || partition === undefined || line === undefined) continue
      const key = `${topic}/${partition}`
      known.add(key)
      if (line <= (this.#trimmed.get(key) ?? 0)) continue
      await this.#log.trim(topic, partition, line)
      this.#trimmed.set(key, line)
    }
    for (const key of this.#trimmed.keys()) if (!known.has(key)) this.#trimmed.delete(key)
    const byDatabase = Map.groupBy(rows, ({ database_id }) => database_id)
    return [...byDatabase].map(([databaseId, of]) => ({ databaseId, isHeldUp: of.some((row) => row.held_up) }))
  }
}
