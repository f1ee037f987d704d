/** Which tables of sinks have a backfill that failed and none since, for the health of the sinks: looked at every ten seconds. */
import { Rounds } from '../../engine/bell.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import { ask } from '../../engine/state/asking.ts'
import type { HealthCheck } from '../../engine/status.ts'

const EVERY_MS = 10_000

/** Knows the backfills that have failed, as the state database has them. */
export class FailedBackfills extends Rounds {
  readonly #query: Query
  #checks: ReadonlyMap<string, readonly HealthCheck[]> = new Map()

  /** @param query of the state database */
  constructor(query: Query) {
    super()
    this.#query = query
  }

  /** Health checks of a sink about its failed backfills. */
  checks(sinkId: string): readonly HealthCheck[] {
    return this.#checks.get(sinkId) ?? []
  }

  protected override async round(): Promise<number> {
    const found = await ask(
      this.#query,
      `select b.sink_id, b.table_name as table, b.error ->> 'message' as reason from tailrace.backfill b where b.state = 'failed' and not exists (
         select from tailrace.backfill n where n.sink_id = b.sink_id and n.table_name = b.table_name and (n.inserted_at, n.id) > (b.inserted_at, b.id))
       order by b.table_name`,
      [],
    )
    const rows = rowsOf({ sink_id: 'text', table: 'text', reason: 'text?' }, found)
    this.#checks = new Map([...Map.groupBy(rows, (row) => row.sink_id)].map(([sinkId, failed]) => [sinkId, [failedCheck(failed)]]))
    return EVERY_MS
  }

  protected override failed(): number {
    return EVERY_MS // what was known holds; who needs the state database says that it is away
  }
}

/** So many tables are named. */
const NAMED = 10

function failedCheck(failed: readonly Readonly<{ table: string; reason: string | undefined }>[]): HealthCheck {
  const tables = failed.slice(0, NAMED).map(({ table }) => table)
  const why = failed[0]?.reason ?? 'it can not be read'
  const others = failed.length > NAMED ? ` and ${failed.length - NAMED} more` : ''
  const message =
    failed.length === 1
      ? `the backfill of ${tables.join()} has failed: ${why}. Correct that and resume it, or delete it`
      : `the backfills of ${failed.length} tables have failed: ${tables.join(', ')}${others}. The first: ${why}. Each of them says why: correct that and resume it, or delete it`
  return { name: 'Backfill', status: 'warning', error: { code: 'BACKFILL_FAILED', message } }
}
