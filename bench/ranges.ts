/**
 * Ranges of the write-ahead log, each with a slot before it. All of them end with the last change, so that each can be drained
 * to its end by a system that is asked for exactly so many changes; a longer one begins earlier.
 */
import { Client } from 'pg'
import type { Bench } from './postgres.ts'
import { dropSlot } from './scenarios/drain.ts'
import { createWorkload, writeWorkload } from './workload.ts'

export type Ranges = AsyncDisposable &
  Readonly<{
    /** of a range, by its number of changes */
    slots: ReadonlyMap<number, string>
    changes: number
    sessions: number
    /** that writing took */
    seconds: number
    rowBytes: number
    walMb: number
  }>

const SESSIONS = 8

/** Makes the workload's tables, and writes as many changes as the longest range has; none at all where there are no ranges. */
export async function writeRanges(bench: Bench, lengths: readonly number[]): Promise<Ranges> {
  await using opened = new AsyncDisposableStack()
  const client = opened.adopt(new Client(bench.database), (each) => each.end())
  await client.connect()
  await createWorkload(bench.url)
  const slots = new Map<number, string>()
  const longestFirst = [...new Set(lengths)].sort((a, b) => b - a)
  let seconds = 0
  for (const [i, length] of longestFirst.entries()) {
    const slot = `bench_${length}`
    await client.query(`select pg_create_logical_replication_slot($1, 'pgoutput')`, [slot])
    opened.defer(() => dropSlot(client, slot))
    slots.set(length, slot)
    const changes = length - (longestFirst[i + 1] ?? 0)
    seconds += await writeWorkload({ url: bench.url, changes, sessions: SESSIONS, waitForDisk: false })
  }
  const { rows } = await client.query<{ mb: number | null; row: number | null }>(
    `select (select max(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn))::float8 from pg_replication_slots where slot_name = any($1)) / 1048576 as mb,
            (select avg(pg_column_size(m.*))::float8 from measured m) as row`,
    [[...slots.values()]],
  )
  const resources = opened.move()
  return {
    slots,
    changes: longestFirst[0] ?? 0,
    sessions: SESSIONS,
    seconds,
    rowBytes: Math.round(rows[0]?.row ?? 0),
    walMb: Math.round(rows[0]?.mb ?? 0),
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  }
}
