/**
 * Looks every minute at what a source is set up with: its slot, publication and tables, in the process that has the source. What it finds
 * stands in the health of the database.
 */
import { Client } from 'pg'
import type { EngineError } from '../../engine/errors.ts'
import { isPooled } from '../../engine/postgres/pooler.ts'
import { rowOf } from '../../engine/postgres/rows.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { Rounds } from '../../engine/bell.ts'
import type { Database } from '../../engine/state/resources.ts'
import { readSlotFacts } from '../../engine/wal/connection/slot.ts'
import { judgeOwnSlot } from '../../engine/wal/connection/slot-check.ts'
import { sourceClient } from '../../engine/wal/connection/source-client.ts'
import { toSourceError } from '../../engine/wal/connection/source-error.ts'
import { sourceTables, type SourceTable } from '../../engine/wal/source-tables.ts'

const EVERY_MS = 60_000
/** A server with very many tables is asked less often: what is asked of it takes no more than this share of the time. */
const MOST_SHARE = 0.02
const LIMIT_MS = 30_000

/**
 * A database and its slot as they were seen. @property slotError why its slot can't be read; undefined: it can @property hasStandbys servers that follow this one and
 * could keep the slot for their promotion @property isFailover they do; undefined: the server is too old to know
 */
export type Seen = Readonly<{
  at: Date
  tables: readonly SourceTable[]
  slotError: EngineError | undefined
  isPooled: boolean
  hasStandbys: boolean
  isFailover: boolean | undefined
  /** the publication publishes through the roots of partitioned tables, and updates and deletes */
  viaRoot: boolean
  publishesOldRows: boolean
}>

const SERVER = { hasStandbys: 'boolean', isFailover: 'boolean?', viaRoot: 'boolean', publishesOldRows: 'boolean' } as const

/** Looks at a source each minute, and after a ring. */
export class SourceSight extends Rounds {
  readonly #database: Database
  readonly #isOurs: () => boolean
  /** undefined: it was not looked at yet, or can't be asked now */
  seen: Seen | undefined

  /** @param isOurs false: another process has the source, and looks itself */
  constructor(database: Database, isOurs: () => boolean) {
    super()
    this.#database = database
    this.#isOurs = isOurs
  }

  protected override async round(): Promise<number> {
    if (!this.#isOurs()) {
      this.seen = undefined
      return EVERY_MS
    }
    const from = performance.now()
    this.seen = await look(this.#database)
    return Math.max(EVERY_MS, (performance.now() - from) / MOST_SHARE)
  }

  /** Its source tells why it can't be asked. */
  protected override failed(): number {
    this.seen = undefined
    return EVERY_MS
  }
}

async function look({ connection, slot }: Database): Promise<Seen> {
  const client = new Client({ ...sourceClient(connection, `tailrace checks ${slot.name}`), query_timeout: LIMIT_MS })
  client.on('error', () => undefined) // the query hears of it
  const query: Query = (sql, params) => client.query<Record<string, unknown>>(sql, params && [...params])
  try {
    await client.connect()
    const facts = await readSlotFacts(query, slot.name, slot.publication)
    const { rows } = await query(
      `select exists (select from pg_replication_slots where slot_type = 'physical' and active) as "hasStandbys",
         (select (to_jsonb(s) ->> 'failover')::boolean from pg_replication_slots s where slot_name = $1) as "isFailover",
         coalesce((select pubviaroot from pg_publication where pubname = $2), true) as "viaRoot",
         coalesce((select pubupdate or pubdelete from pg_publication where pubname = $2), false) as "publishesOldRows"`,
      [slot.name, slot.publication],
    )
    return {
      ...{ isFailover: undefined },
      ...rowOf(SERVER, rows[0]),
      at: new Date(),
      tables: await sourceTables(query, slot.publication),
      slotError: errorOf(() => judgeOwnSlot(facts, slot.name, slot.publication)),
      isPooled: await isPooled(client),
    }
  } finally {
    await client.end().catch(() => undefined)
  }
}

function errorOf(work: () => unknown): EngineError | undefined {
  try {
    work()
    return undefined
  } catch (error) {
    return toSourceError(error, 'connecting')
  }
}
