/**
 * Whether a source has something better to do than to be read by backfills: its slot is about to be lost, or a standby of it falls behind.
 * Asked while backfills read, every few seconds.
 */
import { MB, sizeText } from '../../engine/amounts.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'

const EVERY_MS = 5_000
/** A slot is in danger with less than this share of max_slot_wal_keep_size left. */
const LEAST_LEFT = 0.25

const COLUMNS = { status: 'text?', left: 'number?', kept: 'number', standby: 'text?', lag: 'number?' } as const

type Options = Readonly<{
  /** on the source, while it streams */
  query: Query
  slot: string
  maxStandbyLagBytes: number
}>

/** Knows whether a source should be left alone for now. */
export class SourceStrain {
  readonly #options: Options
  #lookedAt = -Infinity
  #looking: Promise<void> | undefined
  /** what is wrong, in words; undefined: nothing that is known */
  cause: string | undefined

  constructor(options: Options) {
    this.#options = options
  }

  /** Looks again, if that was long ago. Settles when it is known how the source is. */
  async look(): Promise<void> {
    if (performance.now() - this.#lookedAt < EVERY_MS) return
    const isFirst = this.#lookedAt === -Infinity
    this.#looking ??= this.#ask().finally(() => {
      this.#lookedAt = performance.now()
      this.#looking = undefined
    })
    if (isFirst || this.cause !== undefined) await this.#looking
  }

  async #ask(): Promise<void> {
    const { query, slot, maxStandbyLagBytes } = this.#options
    try {
      const [row] = rowsOf(
        COLUMNS,
        await query(
          `select s.wal_status::text as status, s.safe_wal_size::float8 as left, k.setting::float8 * ${MB} as kept, l.name as standby, l.lag
           from pg_catalog.pg_replication_slots s join pg_catalog.pg_settings k on k.name = 'max_slot_wal_keep_size'
           left join lateral (
             select r.application_name::text as name, pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), r.replay_lsn)::float8 as lag
             from pg_catalog.pg_stat_replication r where r.replay_lsn is not null and not pg_catalog.pg_is_in_recovery()
               and not exists (select from pg_catalog.pg_replication_slots o where o.active_pid = r.pid and o.slot_type = 'logical')
             order by 2 desc limit 1) l on true
           where s.slot_name = $1`,
          [slot],
        ),
      )
      this.cause = row && strainOf(row, maxStandbyLagBytes)
    } catch {} // it is asked again; a run that can't ask ends soon
  }
}

type Row = Readonly<{
  status: string | undefined
  left: number | undefined
  kept: number
  standby: string | undefined
  lag: number | undefined
}>

function strainOf({ status, left, kept, standby, lag }: Row, maxStandbyLagBytes: number): string | undefined {
  if (status !== undefined && status !== 'reserved' && status !== 'extended')
    return `the replication slot is about to be lost (wal_status is ${status}): see what holds up its source, or raise max_slot_wal_keep_size`
  if (left !== undefined && kept > 0 && left < kept * LEAST_LEFT)
    return `the replication slot has ${sizeText(left)} of ${sizeText(kept)} left before it is lost: see what holds up its source, or raise max_slot_wal_keep_size`
  if (lag !== undefined && lag > maxStandbyLagBytes)
    return `standby "${standby ?? ''}" of the source is ${sizeText(lag)} behind (TAILRACE_BACKFILL_STANDBY_LAG_MB)`
  return undefined
}
