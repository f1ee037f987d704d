/**
 * Reads from a source at a moment when given commits are visible. The stream may be ahead of what a query sees: Postgres
 * sends a transaction once its commit is in the write-ahead log, and shows it to others a little later, with synchronous
 * replication perhaps much later. So a snapshot is taken, and taken again until it has them; what is read is read in it.
 *
 * Connections are few, read-only, with the pinned settings; values come as Postgres prints them.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { DatabaseError, Pool, type Client, type ClientConfig, type FieldDef, type PoolClient } from 'pg'
import { EngineError } from '../../errors.ts'
import { askWithin, cut, TooMuch } from '../../postgres/client-cut.ts'
import type { Connection } from '../../postgres/client-config.ts'
import { CommitGate, SNAPSHOT_COLUMNS, type SnapshotRow } from './commit-gate.ts'
import { sourceClient } from './source-client.ts'
import { toSourceError } from './source-error.ts'

/** Ids of transactions, without their epoch, as the stream has them. */
type Xids = ReadonlySet<number>
/** Holds rows as arrays of the texts that Postgres prints. */
export type Rows = Readonly<{ fields: readonly FieldDef[]; rows: readonly (readonly (string | null)[])[] }>
/** Asks within the snapshot. */
export type ReadRows = (sql: string, params: readonly unknown[]) => Promise<Rows>

const CONNECTIONS = 2
const STATEMENT_MS = 5_000
/** A connection that has not answered a read after this, which no read needs, doesn't answer any more. */
const READ_MS = 20_000
const IDLE_MS = 30_000
/** After this a caller whose transaction is still not visible is told so, and asks again. */
const VISIBLE_MS = 3_000
const LOOK_MS = [1, 2, 5, 10, 20, 50] as const
const MAX_BYTES = 64 * 1024 * 1024
/** as it comes */
const RAW = { getTypeParser: () => (text: string) => text } as unknown as NonNullable<ClientConfig['types']>

/** Reads from one source, at moments when given commits are visible. */
export class SnapshotReader {
  readonly #pool: Pool
  readonly #gate = new CommitGate()

  constructor(connection: Connection, name: string) {
    this.#pool = new Pool({
      ...sourceClient(connection, name, { statement_timeout: STATEMENT_MS, default_transaction_read_only: 'on' }),
      max: CONNECTIONS,
      idleTimeoutMillis: IDLE_MS,
      allowExitOnIdle: true,
    })
    this.#pool.on('error', () => {}) // an idle one was ended: the next is a new one
    this.#pool.on('connect', (client) => client.on('error', () => {})) // of one that is cut off, whoever reads is told by the query
  }

  /**
   * @param commits transactions that have to be visible
   * @param work reads in one snapshot; what it throws ends the read
   * @throws EngineError SOURCE_UNREACHABLE, SOURCE_REFUSED …: nothing could be read. ENRICHMENT_FAILED: Postgres refused a query
   */
  async read<T>(commits: Xids, work: (read: ReadRows) => Promise<T>): Promise<T> {
    const client = await this.#pool.connect().catch((error: unknown) => {
      throw toSourceError(error, 'connecting')
    })
    let isSound = false
    const silence = setTimeout(() => cut(client as unknown as Client), READ_MS)
    try {
      await this.#begin(client, commits)
      const result = await work((sql, params) => rowsOf(client, sql, params).catch((error: unknown) => Promise.reject(placed(error, sql))))
      await client.query('commit')
      isSound = true
      return result
    } catch (error) {
      isSound = await client.query('rollback').then(
        () => !(error instanceof TooMuch),
        () => false,
      )
      throw failureOf(error)
    } finally {
      if (isSound) void release(client).finally(() => clearTimeout(silence))
      else {
        clearTimeout(silence)
        client.release(true)
      }
    }
  }

  async close(): Promise<void> {
    await this.#pool.end()
  }

  async #begin(client: PoolClient, commits: Xids): Promise<void> {
    const until = performance.now() + VISIBLE_MS
    for (let looks = 0; ; looks++) {
      const [, { rows }] = (await client.query(BEGIN)) as unknown as [unknown, { rows: [SnapshotRow] }]
      const [hidden] = this.#gate.hidden(rows[0], commits)
      if (hidden === undefined) return
      await client.query('rollback')
      if (performance.now() > until)
        throw new EngineError(
          'SOURCE_UNREACHABLE',
          `the commit of transaction ${hidden} is in the write-ahead log, but not visible to queries yet`,
        )
      await delay(LOOK_MS[Math.min(looks, LOOK_MS.length - 1)])
    }
  }
}

/** Without what a query may have left in the session: settings, advisory locks, temporary tables. Nobody waits for it. */
async function release(client: PoolClient): Promise<void> {
  try {
    await client.query('discard all')
    client.release()
  } catch {
    client.release(true)
  }
}

/** In one round trip. */
const BEGIN = `begin transaction isolation level repeatable read, read only; select ${SNAPSHOT_COLUMNS}`

async function rowsOf(client: PoolClient, sql: string, params: readonly unknown[]): Promise<Rows> {
  const asked = { text: sql, values: [...params], rowMode: 'array' as const, types: RAW }
  return askWithin(client as unknown as Client, MAX_BYTES, () => client.query<(string | null)[]>(asked))
}

/** What Postgres says of a query names a character: people look for a line. */
function placed(error: unknown, sql: string): unknown {
  const { position, hint, code } = error as DatabaseError
  if (!(error instanceof DatabaseError)) return error
  const before =
    position === undefined
      ? undefined
      : [...sql]
          .slice(0, Number(position) - 1)
          .join('')
          .split('\n')
  if (before) error.message += `, line ${before.length}, column ${[...(before.at(-1) as string)].length + 1}`
  if (hint !== undefined) error.message += `; ${hint}`
  else if (code === '22P02' && error.message.includes('"{')) error.message += '; a parameter is an array: = any($1)'
  return error
}

/** What no query could have done better: the connection, or a server that has no room or is going down. */
const ELSEWHERE = /^(?:08(?!P01)|28|3D|53|57P|58|40)/

function failureOf(error: unknown): EngineError {
  if (error instanceof EngineError) return error
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  const isOfQuery = error instanceof TooMuch || (/^[0-9A-Z]{5}$/.test(code) && !ELSEWHERE.test(code) && code !== 'EPIPE')
  if (!isOfQuery) return toSourceError(error, 'connecting')
  const message = error instanceof TooMuch ? `${error.message} for one batch of messages` : (error as Error).message
  return new EngineError('ENRICHMENT_FAILED', code === '' ? message : `${message} (${code})`, {}, { cause: error })
}
