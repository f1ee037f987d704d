/** What a replay has left for the next owner of a partition: where it goes on, and whether it is its turn at all. */
import { EngineError } from '../../errors.ts'
import { commitFromJson, type StoredCommit } from '../../log/commit-json.ts'
import type { Commit } from '../../log/log.ts'
import { ask } from '../../state/asking.ts'
import type { Query } from '../../wal/connection/slot.ts'
import type { PartitionKey } from '../fenced-write.ts'

/**
 * To be asked after the term is taken: a replay raises the terms of what it changes, so what it did is either seen here, or
 * it is refused.
 * @param committed of the log: what an owner of a later term wrote stands
 * @returns the commit to go on from
 * @throws EngineError GENERATION_WAITS: an earlier generation is to be delivered first
 */
export async function commitToGoOnFrom(query: Query, key: PartitionKey, committed: Commit | undefined): Promise<Commit | undefined> {
  const { sinkId, generation, partition } = key
  // a replay that is being put into effect holds these rows: what is read after them is what it leaves
  await ask(query, 'select from tailrace.generation where sink_id = $1::text::uuid and generation = $2 for share', [sinkId, generation])
  const { rows } = await ask(
    query,
    `select r.term, r.content, exists (
       select from tailrace.generation e where e.sink_id = $1::text::uuid and e.generation < $2 and e.drained_at is null and e.lsn is not null
     ) as waits
     from (select) as one
     left join tailrace.rewound_partition r on r.sink_id = $1::text::uuid and r.generation = $2 and r.partition = $3`,
    [sinkId, generation, partition],
  )
  const row = rows[0]
  if (row?.waits === true)
    throw new EngineError('GENERATION_WAITS', `generation ${generation} waits: a replay has gone back to an earlier one`, { generation })
  if (!row || row.term === null || row.term === undefined || (committed && committed.term >= Number(row.term))) return committed
  return row.content === null ? undefined : commitFromJson(row.content as StoredCommit)
}
