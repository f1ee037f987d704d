/** Waits until what was committed in a source has come to the log, or to the destination of a sink: for as long as it comes on. */
import { setTimeout as delay } from 'node:timers/promises'
import { PageSession } from '../../engine/backfill/page-session.ts'
import { READING, READING_COLUMNS, readerIn } from '../../engine/dispatch/generations.ts'
import type { Log } from '../../engine/log/log.ts'
import { formatLsn, type Lsn } from '../../engine/lsn.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import { ask } from '../../engine/state/asking.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'

type SettlingOptions = Readonly<{
  sink: Sink
  database: Database
  log: Log
  /** the state database */
  state: Query
}>

/** A sink that has not come on for so long stands still. While it comes on it is waited for, however far it is behind. */
const STANDSTILL_MS = 45_000
/** But no longer than this in one call: who asks hears nothing meanwhile, and most clients wait for five minutes. */
const CALL_MS = 240_000
const LOOK_MS = 200

/** Waits, within one call of a comparison, until a sink has delivered what was written before; gives up where it stands still. */
export class Settling {
  readonly #options: SettlingOptions
  readonly #signal: AbortSignal
  readonly #endsAt = performance.now() + CALL_MS
  /** false: something stood still, or was too far behind */
  isSettled = true

  constructor(options: SettlingOptions, signal: AbortSignal) {
    this.#options = options
    this.#signal = signal
  }

  /** Waits until all that was committed before a place is in the log. @returns false: it does not come on */
  async durableBeyond(lsn: Lsn): Promise<boolean> {
    const { database } = this.#options
    const session = await PageSession.open(database.connection, 'tailrace verify', STANDSTILL_MS)
    const confirmed = async () => {
      const { rows } = await session.query(
        'select confirmed_flush_lsn::text as at, confirmed_flush_lsn >= $2::pg_lsn as there from pg_replication_slots where slot_name = $1',
        [database.slot.name, formatLsn(lsn)],
      )
      return { at: String(rows[0]?.['at']), isThere: rows[0]?.['there'] === true }
    }
    try {
      return await this.#comesOn(confirmed)
    } finally {
      session.close()
    }
  }

  /** Waits until the sink has finished all that was committed before a place. @returns false: it does not come on */
  async deliveredBeyond(lsn: Lsn): Promise<boolean> {
    const { log } = this.#options
    if (!(await this.durableBeyond(lsn))) return false
    for (const { reader, partition, head } of await this.#heads()) {
      const delivered = async () => {
        const { offset, index } = (await log.committed(reader, partition))?.next ?? { offset: 0, index: 0 }
        return { at: `${offset}.${index}`, isThere: offset >= head }
      }
      if (!(await this.#comesOn(delivered))) return false
    }
    return true
  }

  /** Looks until something has come to where it is awaited. @returns false: it stands still, or is so far behind that the call is over */
  async #comesOn(look: () => Promise<Readonly<{ at: string; isThere: boolean }>>): Promise<boolean> {
    let moved = performance.now()
    let last: string | undefined
    for (;;) {
      const { at, isThere } = await look()
      if (isThere) return true
      const now = performance.now()
      if (at !== last) moved = now
      last = at
      if (now - moved > STANDSTILL_MS || now > this.#endsAt) {
        this.isSettled = false
        return false
      }
      await delay(LOOK_MS, undefined, { signal: this.#signal })
    }
  }

  /** Where the log of the sink ends, by partition. */
  async #heads() {
    const { state, log, sink } = this.#options
    const found = await ask(
      state,
      `select ${READING} from tailrace.generation g where g.sink_id = $1::text::uuid and g.lsn is not null and g.drained_at is null`,
      [sink.id],
    )
    const readers = rowsOf(READING_COLUMNS, found).flatMap(({ generation, topic, shape }) =>
      topic === undefined ? [] : [{ reader: readerIn(topic, { sinkId: sink.id, generation }), partitions: shape.partitions }],
    )
    const heads: { reader: string; partition: number; head: number }[] = []
    for (const { reader, partitions } of readers)
      for (let partition = 0; partition < partitions; partition++)
        heads.push({ reader, partition, head: (await log.stats(reader, partition)).next })
    return heads
  }
}
