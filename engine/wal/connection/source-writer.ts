/**
 * Where what has to be written for a source goes: to its database, or, while that is a standby, to the primary of it. A standby that is
 * promoted is written to itself from then on. With `synchronous_commit` local nothing waits for another server.
 */
import { Client, Pool } from 'pg'
import type { Query } from '../../postgres/query.ts'
import type { Database } from '../../state/resources.ts'
import { sourceClient } from './source-client.ts'
import { toSourceError } from './source-error.ts'

/** Settings of sessions that write marks: a commit waits for no standby. */
export const WRITES_LOCALLY = { synchronous_commit: 'local' } as const
const QUERY_LIMIT_MS = 30_000

const IS_STANDBY = 'select pg_is_in_recovery() as standby'

/** Writes for one source over a while, on a session that is made when it is needed first. */
export class SourceWriter {
  readonly #own: Query
  readonly #primary: Pool | undefined
  readonly #slot: string

  /** @param own queries on the database itself, with WRITES_LOCALLY */
  constructor({ primary, slot }: Database, own: Query) {
    this.#own = own
    this.#slot = slot.name
    if (!primary) return
    this.#primary = new Pool({
      ...sourceClient(primary, `tailrace ${slot.name}`, WRITES_LOCALLY),
      max: 1,
      idleTimeoutMillis: 60_000,
      query_timeout: QUERY_LIMIT_MS,
    })
    this.#primary.on('error', () => undefined) // the next query makes another
  }

  /** @throws EngineError of toSourceError */
  readonly query: Query = async (sql, params) => {
    if (!this.#primary || !(await isStandby(this.#own))) return this.#own(sql, params)
    try {
      return await this.#primary.query<Record<string, unknown>>(sql, params && [...params])
    } catch (error) {
      throw toSourceError(error, 'connecting', { slot: this.#slot, of: 'primary' })
    }
  }

  /** Never rejects. */
  async end(): Promise<void> {
    await this.#primary?.end().catch(() => undefined)
  }
}

/** Writes once, on sessions that end with it. @param own queries on the database itself, with WRITES_LOCALLY */
export async function writeOnce({ primary, slot }: Database, own: Query, sql: string, params?: readonly unknown[]): ReturnType<Query> {
  if (!primary || !(await isStandby(own))) return own(sql, params)
  const client = new Client({ ...sourceClient(primary, `tailrace ${slot.name}`, WRITES_LOCALLY), query_timeout: QUERY_LIMIT_MS })
  client.on('error', () => undefined) // the query hears of it
  try {
    await client.connect()
    return await client.query<Record<string, unknown>>(sql, params && [...params])
  } finally {
    await client.end().catch(() => undefined)
  }
}

async function isStandby(own: Query): Promise<boolean> {
  return (await own(IS_STANDBY)).rows[0]?.['standby'] === true
}
