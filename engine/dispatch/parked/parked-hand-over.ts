/**
 * Parked messages of one generation become those of another: of the next one when theirs has ended, or of an earlier one that
 * a replay goes back to. They keep their names, and go to the partitions that log messages of their groups go to.
 */
import { EngineError } from '../../errors.ts'
import { ask } from '../../state/asking.ts'
import { readShape, sameGroups, type GenerationShape } from '../../state/generation-shape.ts'
import type { Query } from '../../postgres/query.ts'
import { rowsOf } from '../../postgres/rows.ts'
import { readRegrouped, regroup, type RegroupedRelation } from './rekeying.ts'

/** @property rewinds how often a replay has gone back to it, as it was read: what was begun before another one is void */
export type ParkedOwner = Readonly<{
  generation: number
  shape: GenerationShape
  rewinds: number
  regrouped?: RegroupedRelation | undefined
}>

/** Describes how an owner of parked messages is read from a row of tailrace.generation. */
export const OWNER_COLUMNS = { generation: 'int', shape: readShape, rewinds: 'int', regrouped: readRegrouped } as const

const REGROUPED = {
  history: 'int',
  lsn: 'text',
  idx: 'int',
  part: 'int',
  relation: 'int',
  record_key: 'text',
  flags: 'int',
  body: 'bytes',
} as const
const REGROUP_ROWS = 500
const REGROUP_BYTES = 8 * 1024 * 1024

/** The SQL that stands in front of a statement that changes what a generation owns: $1 sink, $2 generation, $3 its rewinds. */
export const WHILE_UNCHANGED = `with unchanged as (
  select from tailrace.generation where sink_id = $1::text::uuid and generation = $2 and rewinds = $3 for share)`

/**
 * Hands the parked messages of a generation to another one. It may be repeated. @throws EngineError GENERATION_WAITS: a replay has
 * gone back meanwhile; STATE_UNAVAILABLE
 */
export async function handParkedOver(query: Query, sinkId: string, from: ParkedOwner, to: Omit<ParkedOwner, 'rewinds'>): Promise<void> {
  const of = [sinkId, from.generation, from.rewinds]
  await ask(
    query,
    `${WHILE_UNCHANGED} delete from tailrace.parked using unchanged where sink_id = $1::text::uuid and owner_generation = $2 and state = 'done'`,
    of,
  )
  await move(query, of, to, 'discarded')
  const isBack = to.generation < from.generation // then groups are those of the primary key that the messages came with
  const { regrouped } = isBack ? from : to
  if (to.shape.grouping && (regrouped || !sameGroups(from.shape, to.shape))) await regroupAll(query, of, to, isBack ? undefined : regrouped)
  else await move(query, of, to, 'open')
}

/** Groups stay as they are. */
async function move(query: Query, of: readonly unknown[], to: Omit<ParkedOwner, 'rewinds'>, state: 'open' | 'discarded'): Promise<void> {
  await ask(
    query,
    `${WHILE_UNCHANGED} update tailrace.parked set owner_generation = $4, owner_partition = (group_hash % $5)::int
     from unchanged where sink_id = $1::text::uuid and owner_generation = $2 and state = $6`,
    [...of, to.generation, to.shape.partitions, state],
  )
}

async function regroupAll(
  query: Query,
  of: readonly unknown[],
  to: Omit<ParkedOwner, 'rewinds'>,
  regrouped: RegroupedRelation | undefined,
): Promise<void> {
  for (;;) {
    const some = await ask(
      query,
      `select * from (
         select history, lsn::text, idx, part, relation, record_key, flags, body, sum(octet_length(body)) over (rows unbounded preceding) - octet_length(body) as before
         from (select * from tailrace.parked where sink_id = $1::text::uuid and owner_generation = $2 and state = 'open' limit ${REGROUP_ROWS}) p) s
       where before < ${REGROUP_BYTES}`,
      of.slice(0, 2),
    )
    const rows = rowsOf(REGROUPED, some)
    if (rows.length === 0) return
    const groups = rows.map(({ record_key: recordKey, ...row }) => regroup({ ...row, recordKey }, to.shape, regrouped))
    const moved = await ask(
      query,
      `${WHILE_UNCHANGED} update tailrace.parked p
       set owner_generation = $4, owner_partition = (r.hash % $5)::int, group_hash = r.hash, group_key = r.key, flags = r.flags
       from unchanged, unnest($6::int[], $7::pg_lsn[], $8::int[], $9::smallint[], $10::bigint[], $11::text[], $12::smallint[])
         as r (history, lsn, idx, part, hash, key, flags)
       where p.sink_id = $1::text::uuid and p.owner_generation = $2
         and p.history = r.history and p.lsn = r.lsn and p.idx = r.idx and p.part = r.part returning 1 as one`,
      [
        ...of,
        to.generation,
        to.shape.partitions,
        ...(['history', 'lsn', 'idx', 'part'] as const).map((column) => rows.map((row) => row[column])),
        groups.map(({ hash }) => hash),
        groups.map(({ groupKey }) => groupKey),
        groups.map(({ flags }) => flags),
      ],
    )
    if (moved.rows.length === 0) throw goneBack(Number(of[1]))
  }
}

/** Makes the error that says that a hand-over is void because a replay has gone back. */
export const goneBack = (generation: number) =>
  new EngineError('GENERATION_WAITS', `a replay has gone back to generation ${generation} while it was handed over`, { generation })
