/**
 * Reads what the state database holds for the next owner of a partition, in one statement: where a replay has it go on, whether
 * it is its turn at all, and whether there is more to read. Most partitions have nothing, and are spared the statements for it.
 */
import { EngineError } from '../../errors.ts'
import { commitFromJson, type StoredCommit, type Commit } from '../../log/log.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../postgres/query.ts'
import type { PartitionKey } from '../fenced-write.ts'

/**
 * @property commit to go on from
 * @property begins the first record that may have something for the generation: 0 in a topic that is its alone
 * @property line the first record of a stream that is kept for it, as it is stored
 */
type Inheritance = Readonly<{ commit: Commit | undefined; begins: number; line: number; hasParked: boolean; hasPoints: boolean }>

/**
 * Reads what a new owner inherits. It is asked after the term is taken: a replay raises the terms of what it changes, so what it
 * did is either seen here, or it is refused.
 * @param committed of the log: what an owner of a later term wrote stands
 * @throws EngineError GENERATION_WAITS: an earlier generation is to be delivered first
 */
export async function inheritanceOf(query: Query, key: PartitionKey, committed: Commit | undefined): Promise<Inheritance> {
  const { sinkId, generation, partition } = key
  const { rows } = await ask(
    query,
    `select r.term, r.content, exists (
       select from tailrace.generation e where e.sink_id = $1::text::uuid and e.generation < $2 and e.drained_at is null and e.lsn is not null
     ) as waits,
     exists (select from tailrace.parked p where p.sink_id = $1::text::uuid)
       or exists (select from tailrace.parked_backlog b where b.sink_id = $1::text::uuid and b.bytes <> 0) as parked,
     exists (select from tailrace.replay_point o where o.sink_id = $1::text::uuid and o.generation = $2 and o.partition = $3) as points,
     l.begins, l.line
     from (select) as one
     left join tailrace.reader_line l on l.sink_id = $1::text::uuid and l.generation = $2 and l.partition = $3
     left join tailrace.rewound_partition r on r.sink_id = $1::text::uuid and r.generation = $2 and r.partition = $3`,
    [sinkId, generation, partition],
  )
  const row = rows[0]
  if (row?.waits === true)
    throw new EngineError('GENERATION_WAITS', `generation ${generation} waits: a replay has gone back to an earlier one`, { generation })
  const [begins, line] = [Number(row?.begins ?? 0), Number(row?.line ?? 0)]
  return { commit: goesOnFrom(committed, row), begins, line, hasParked: row?.parked === true, hasPoints: row?.points === true }
}

/**
 * Decides where a partition goes on: where its last owner committed, or where a replay or a copy has left it for an owner of a later term.
 * @param left its row of tailrace.rewound_partition, if there is one: term and content
 */
export function goesOnFrom(committed: Commit | undefined, left: Readonly<Record<string, unknown>> | undefined): Commit | undefined {
  const { term, content } = left ?? {}
  if (term === null || term === undefined || (committed && committed.term >= Number(term))) return committed
  return content === null ? undefined : commitFromJson(content as StoredCommit)
}
