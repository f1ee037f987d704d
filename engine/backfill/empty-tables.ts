/**
 * Which of many tables are empty: said of all of them by one mark and a few queries, where each by itself would take two marks and twenty.
 *
 *  T1. At the mark each sink has a stream of its own. The snapshot that shows no row of a table shows everything that was streamed
 *      up to the mark. So every row that the table gets is in the stream behind the mark, and nothing is left to be read.
 *  T2. The table is the same at the mark and in the snapshot, and what Postgres or the user refuses is not said here: of such a table
 *      nothing is known, and its backfill finds out by itself.
 */
import type { Position } from '../position.ts'
import { EngineError } from '../errors.ts'
import { rowOf } from '../postgres/rows.ts'
import type { RunningBackfill } from '../state/backfills.ts'
import type { StreamingSource } from './backfill-run.ts'
import { whereOf } from './page-query.ts'
import type { PageSession } from './page-session.ts'
import { describeSources, type SourceTable } from './source-table.ts'

/** A file of more bytes may hold so many dead rows that it takes long to see that there are no others. */
const SMALL_BYTES = 1024 * 1024

/**
 * The backfills that have nothing to read. @property position a place in the stream behind which every row of them stands
 * @property small others, which have little to read: their files are small
 */
export type EmptyTables = Readonly<{ position: Position; ids: readonly string[]; small: readonly string[] }>

type Described = Readonly<{ backfill: RunningBackfill; table: SourceTable }>

/**
 * Finds the backfills whose tables have no rows; settles when what is streamed up to there is durable.
 * @param backfills of whole tables that one sink takes, as many as may be described at once
 * @returns undefined: the sink has no stream of its own yet
 * @throws what one of them fails with, or all of them
 */
export async function emptyTables(
  { windows, marks, durable, database, signal }: StreamingSource,
  session: PageSession,
  backfills: readonly RunningBackfill[],
): Promise<EmptyTables | undefined> {
  const describe = async (some: readonly RunningBackfill[]): Promise<readonly Described[]> => {
    await session.begin(windows, signal)
    const tables = await describeSources(session.query, database.slot.publication, some)
    return some.flatMap((backfill, i) => {
      const table = tables[i]
      return table && !(table instanceof EngineError) ? [{ backfill, table }] : []
    })
  }
  const described = await describe(backfills)
  await session.end()
  const { position, own } = await marks.write(
    (mark) => ({
      position: mark.position,
      own: described.filter(({ backfill, table }) => mark.ownStream(backfill.sinkId, table.relation) !== undefined),
    }),
    signal,
  )
  if (own.length === 0) return described.length > 0 ? undefined : { position, ids: [], small: [] }
  const prints = new Map(own.map(({ backfill, table }) => [backfill.id, table.print]))
  const again = await describe(own.map(({ backfill }) => backfill))
  const same = again.filter(({ backfill, table }) => table.print === prints.get(backfill.id))
  const small = await satisfying(
    session,
    same,
    ({ table }) =>
      `(select coalesce(sum(pg_relation_size(l.relid)), pg_relation_size(${table.relation.oid})) <= ${SMALL_BYTES}
        from pg_partition_tree(${table.relation.oid}) l where l.isleaf)`,
  )
  const empty = await satisfying(session, small, ({ table }) => `not exists (select from ${table.from}${whereOf(table)})`)
  await session.end()
  await durable(position)
  const idsOf = (some: readonly Described[]) => some.map(({ backfill }) => backfill.id)
  return { position, ids: idsOf(empty), small: idsOf(small.filter((one) => !empty.includes(one))) }
}

/** @param condition as SQL, which may be null */
async function satisfying(
  session: PageSession,
  described: readonly Described[],
  condition: (one: Described) => string,
): Promise<readonly Described[]> {
  if (described.length === 0) return []
  const { rows } = await session.query(`select array[${described.map((one) => `(${condition(one)})::text`).join(', ')}] as answers`)
  const { answers } = rowOf({ answers: 'texts' }, rows[0])
  return described.filter((_, i) => answers[i] === 'true')
}
