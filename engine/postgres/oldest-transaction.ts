/** The transaction that is open for longest on a server: while it is, slots keep all log since then, and none can be made. */
import { fieldsOf } from '../json.ts'
import type { Query } from './query.ts'

/** An open transaction. @property pid of its process; null: it is prepared @property seconds its age; null: it is not shown to every user */
export type OldestTransaction = Readonly<{ xid: string; pid: number | null; prepared: string | null; seconds: number | null }>

/** An SQL expression: the transaction that is open for longest, but for that of the session that asks, as JSON that `readOldest` reads. */
export const OLDEST_TRANSACTION = `(select to_jsonb(o) from (
  select backend_xid::text as xid, pid, null as prepared, extract(epoch from now() - xact_start)::float8 as seconds, age(backend_xid) as age
    from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
  union all
  select transaction::text, null, gid, extract(epoch from now() - prepared)::float8, age(transaction) from pg_prepared_xacts
  order by age desc limit 1) o)`

/** Reads what `OLDEST_TRANSACTION` gives. @returns null: none is open */
export function readOldest(value: unknown): OldestTransaction | null {
  if (value === null) return null
  const { xid, pid, prepared, seconds } = fieldsOf(value)
  return {
    xid: String(xid),
    pid: typeof pid === 'number' ? pid : null,
    prepared: typeof prepared === 'string' ? prepared : null,
    seconds: typeof seconds === 'number' ? seconds : null,
  }
}

/** Asks a server for the transaction that is open for longest. */
export async function oldestTransaction(query: Query): Promise<OldestTransaction | null> {
  const { rows } = await query(`select ${OLDEST_TRANSACTION} as oldest`)
  return readOldest(rows[0]?.['oldest'] ?? null)
}

/** The SQL that ends an open transaction. */
export const ending = ({ pid, prepared }: OldestTransaction): string =>
  prepared === null ? `select pg_terminate_backend(${pid})` : `rollback prepared '${prepared.replaceAll("'", "''")}'`
