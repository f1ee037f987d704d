/**
 * The ordinary session beside a run's replication connection, pinned as that is: for the catalogue, for marks, and for the
 * heartbeat that moves the slot of a source whose captured tables are idle, and sees whether the publication is still there.
 */
import { Pool } from 'pg'
import { EngineError } from '../../errors.ts'
import { formatLsn, type Lsn } from '../../lsn.ts'
import type { Database } from '../../state/resources.ts'
import { readSlotFacts } from './slot.ts'
import type { Query } from '../../postgres/query.ts'
import { sourceClient } from './source-client.ts'
import { SourceWriter, WRITES_LOCALLY } from './source-writer.ts'
import { isShutdown, toSourceError } from './source-error.ts'

/** Prefix of the logical message that a heartbeat writes. */
export const HEARTBEAT = 'tailrace:heartbeat'

type RunSessionOptions = Readonly<{
  database: Database
  heartbeatMs: number
  /** the server stops, and waits for those who read from it */
  shutdown: (error: unknown) => void
  /** that the slot's publication had when it was inspected */
  publicationOid: number
  /** it is another one of the name by now, or is gone */
  republished: (oid: number | undefined) => void
  /** a heartbeat failed: never a reason to stop */
  failed: (error: unknown) => void
}>

/** The ordinary session of a run. */
export class RunSession {
  readonly #options: RunSessionOptions
  readonly #pool: Pool
  readonly #writer: SourceWriter
  #heartbeat: NodeJS.Timeout | undefined
  #publicationOid: number | undefined

  constructor(options: RunSessionOptions) {
    this.#options = options
    this.#publicationOid = options.publicationOid
    const { connection, slot } = options.database
    this.#pool = new Pool({
      ...sourceClient(connection, `tailrace ${slot.name}`, WRITES_LOCALLY),
      max: 2,
      idleTimeoutMillis: 60_000,
      query_timeout: 30_000,
    })
    this.#pool.on('error', (error) => {
      if (isShutdown(error)) options.shutdown(error)
    }) // otherwise: the next query makes another
    this.#writer = new SourceWriter(options.database, this.query)
  }

  /** @throws EngineError of toSourceError */
  readonly query: Query = async (sql, params) => {
    try {
      return await this.#pool.query<Record<string, unknown>>(sql, params ? [...params] : undefined)
    } catch (error) {
      throw toSourceError(error, 'connecting', { slot: this.#options.database.slot.name })
    }
  }

  /** Writes to the database, or to the primary of a standby. @throws EngineError of toSourceError */
  readonly write: Query = (sql, params) => this.#writer.query(sql, params)

  /** Between the inspection and START_REPLICATION, which holds the slot, somebody else may have read from it. @throws EngineError SLOT_IN_USE */
  async checkSlotUnmoved(startLsn: Lsn): Promise<void> {
    const { slot } = this.#options.database
    const now = (await readSlotFacts(this.query, slot.name, slot.publication)).slot?.confirmedLsn
    if (now === undefined || now > startLsn) {
      const from = formatLsn(startLsn)
      throw new EngineError('SLOT_IN_USE', `another program moved slot "${slot.name}" beyond ${from} while the source started`, {
        slot: slot.name,
      })
    }
  }

  beginHeartbeat(): void {
    this.#heartbeat = setInterval(() => void this.#beat(), this.#options.heartbeatMs)
    void this.#beat()
  }

  stopHeartbeat(): void {
    clearInterval(this.#heartbeat)
  }

  /** Never rejects. */
  async end(): Promise<void> {
    await Promise.all([this.#writer.end(), this.#pool.end().catch(() => undefined)])
  }

  async #beat(): Promise<void> {
    try {
      const { rows } = await this.write(
        `select case when not pg_is_in_recovery() then pg_logical_emit_message(true, $1, '') end,
                (select oid::int8 from pg_publication where pubname = $2)::float8 as publication_oid`,
        [HEARTBEAT, this.#options.database.slot.publication],
      )
      const found = rows[0]?.publication_oid
      const oid = typeof found === 'number' ? found : undefined
      if (oid !== this.#publicationOid) this.#options.republished(oid)
      this.#publicationOid = oid
    } catch (error) {
      this.#options.failed(error)
    }
  }
}
