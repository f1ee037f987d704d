/**
 * Whether a fresh snapshot of the source shows what streamed transactions did: a commit is streamed before it is visible
 * (docs/rules.md, rule 30).
 *
 *  G1. A number that the server has not given out yet is of another past: after a failover that lost commits, or of so long
 *      ago that numbers came round. What it did was visible long ago, or never will be; it is not waited for.
 *  G2. Such a number may be given out again. So nobody waits longer than PATIENCE_MS for one, by the monotonic clock.
 */

/** The columns, in SQL, that a gate is shown; the query must be outside of a transaction that writes. */
export const SNAPSHOT_COLUMNS = `pg_catalog.pg_current_snapshot()::text as snapshot, pg_catalog.age('3'::pg_catalog.xid)::text as age`
/** Holds a snapshot as SNAPSHOT_COLUMNS ask for it. */
export type SnapshotRow = Readonly<{ snapshot?: unknown; age?: unknown }>

/**
 * Asks which transactions have written their commit and wait for a standby before they become visible: to whoever has not seen them
 * stream. A role that may not see what others wait for gets all that run, if any commit may wait: it can't tell which ones do.
 * Of a prepared transaction another backend waits, which has no number.
 */
export const COMMITTING_QUERY = `select w.backend_xid::pg_catalog.text as xid from pg_catalog.pg_stat_activity w
    where w.wait_event operator(pg_catalog.=) 'SyncRep' and w.backend_xid is not null
  union all
  select p.transaction::pg_catalog.text from pg_catalog.pg_prepared_xacts p
    where exists (select from pg_catalog.pg_stat_activity w where w.wait_event operator(pg_catalog.=) 'SyncRep' and w.backend_xid is null)
  union all
  select (r.xid::pg_catalog.text::pg_catalog.int8 operator(pg_catalog.&) 4294967295)::pg_catalog.text
    from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) r(xid)
    where pg_catalog.current_setting('synchronous_standby_names') operator(pg_catalog.<>) ''
      and not pg_catalog.pg_has_role('pg_read_all_stats', 'usage')`

const PATIENCE_MS = 600_000
const MAX_HIDDEN = 10_000

/** Says which transactions a snapshot does not show yet. */
export class CommitGate {
  readonly #hiddenSince = new Map<number, number>()
  readonly #now: () => number

  /** @param now monotonic, in ms */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /** @param xids 0: not known. @returns those that are not visible yet */
  hidden(row: SnapshotRow, xids: Iterable<number>): readonly number[] {
    const isVisible = snapshotOf(String(row.snapshot), Number(row.age))
    const now = this.#now()
    const hidden: number[] = []
    if (this.#hiddenSince.size > MAX_HIDDEN) this.#hiddenSince.clear()
    for (const xid of xids) {
      if (xid === 0 || isVisible(xid)) this.#hiddenSince.delete(xid)
      else {
        const since = this.#hiddenSince.get(xid) ?? now
        this.#hiddenSince.set(xid, since)
        if (now - since <= PATIENCE_MS) hidden.push(xid)
      }
    }
    return hidden
  }
}

/** The lowest number of an ordinary transaction: what lower ones are as old as is not told. */
const FIRST_XID = 3
const EPOCH = 2 ** 32

/**
 * Reads a snapshot. @param text `xmin:xmax:xid,xid,…`, of 64 bits each
 * @param age how many numbers were given out since the first one, in 32 bits
 * @returns whether a transaction that has committed is visible, by the low 32 bits of its number
 */
export function snapshotOf(text: string, age: number): (xid: number) => boolean {
  const [xmin = 0, xmax = 0] = text.split(':').slice(0, 2).map(Number) // exact below 2^53, which takes centuries
  const running = new Set((text.split(':')[2] || undefined)?.split(',').map(Number))
  const next = age + FIRST_XID
  const low = xmax % EPOCH
  return (xid) => {
    if (((next - xid) | 0) <= 0) return true
    const behind = (low - xid) | 0 // within 2^31 of xmax, for numbers wrap around
    const whole = xmax - behind
    return whole < xmin || (whole < xmax && !running.has(whole))
  }
}
