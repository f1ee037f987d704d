/**
 * Writes of a partition's owner to the state database. Each carries the owner's term and is refused when a newer one exists
 * (docs/rules.md, rule 19); the row of the term is locked while a write lasts, so a take-over sees it or prevents it.
 */
import { EngineError } from '../errors.ts'
import { sqlstateOf } from '../postgres/sqlstate.ts'
import { ask } from '../state/asking.ts'
import type { Query, Row } from '../postgres/query.ts'
import { rowsOf } from '../postgres/rows.ts'

/** Names a partition of a sink, in the generation that it is delivered in. */
export type PartitionKey = Readonly<{ sinkId: string; generation: number; partition: number }>
/** The key of a partition's term in the state database. */
export const termKey = ({ sinkId, generation, partition }: PartitionKey): string => `${sinkId}.${generation}/${partition}`

/** Says who writes: a partition and the term of its owner. */
export type Owner = Readonly<{ key: PartitionKey; term: number }>

/** SQLSTATE: the row that another one belongs to is gone */
const FOREIGN_KEY_VIOLATION = '23503'

/**
 * @param sql one statement that takes from `owner`, which has a row for who owns the partition: $3 sink, $4 generation,
 *   $5 partition, further parameters from $6 on
 * @param options columns to return of the rows written; a further part of the statement, which may look at `written`; the lock on
 * the row of
 *   the term: one that changes it takes `no key update`, as two that shared it would wait for each other
 * @returns the rows written
 * @throws EngineError PARTITION_FENCED: another owner has taken over; PARTITION_GONE: its sink is deleted; STATE_UNAVAILABLE
 */
export async function writeAsOwner(
  query: Query,
  { key, term }: Owner,
  sql: string,
  params: readonly unknown[],
  {
    returning = '1 as one',
    further = '',
    lock = 'share',
  }: Readonly<{ returning?: string; further?: string; lock?: 'share' | 'no key update' }> = {},
): Promise<readonly Row[]> {
  const { sinkId, generation, partition } = key
  const answer = await ask(
    query,
    `with owner as (select from tailrace.term where kind = 'partition' and key = $1::text and term = $2::bigint for ${lock}),
     written as (${sql} returning ${returning})${further}
     select (select count(*) from owner) as held, (select coalesce(jsonb_agg(w), '[]') from written w) as written`,
    [termKey(key), term, sinkId, generation, partition, ...params],
  ).catch((error: Error) => {
    if (sqlstateOf(error.cause) !== FOREIGN_KEY_VIOLATION) throw error
    throw new EngineError('PARTITION_GONE', `the sink of partition ${partition} is deleted`, { partition }, { cause: error })
  })
  const [done] = rowsOf({ held: 'int', written: (value): readonly Row[] => (Array.isArray(value) ? value : []) }, answer)
  if (done && done.held > 0) return done.written
  throw new EngineError('PARTITION_FENCED', `another process owns partition ${partition} (term ${term} has passed)`, { partition, term })
}
