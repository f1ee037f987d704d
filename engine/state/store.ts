/**
 * The state database: what Tailrace keeps about itself, in the schema "tailrace" of a Postgres. Migrations are applied at
 * the start, each in a transaction of its own; a state that a newer version has written is refused.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, Pool, escapeLiteral, type ClientConfig } from 'pg'
import { EngineError, errorText } from '../errors.ts'
import { clientConfig, type Connection } from '../postgres/client-config.ts'
import type { Query } from '../postgres/query.ts'
import { rowOf } from '../postgres/rows.ts'
import { tlsRefusal } from '../postgres/tls-refusal.ts'
import { stateUnavailable } from './asking.ts'

/** The state database, open and migrated. */
export interface Store extends AsyncDisposable {
  readonly query: Query
  /**
   * All statements of `work` or none; the session is its own.
   * @param lock a row that is locked first, on the way of what `work` asks first, which must only read: it sees what others left there
   */
  transaction<T>(work: (query: Query) => Promise<T>, lock?: RowLock): Promise<T>
}

/** Names a row that a transaction locks. @property how as SQL says it */
export type RowLock = Readonly<{ table: string; id: string; how: 'update' | 'no key update' }>

const MIGRATIONS = join(import.meta.dirname, 'migrations')
/** Any number that is ours: one process migrates at a time. */
const MIGRATION_LOCK = 7_376_001
const MIGRATION_LOCK_LIMIT = '60s'
/** What any statement may take, parked messages in bulk included; without a limit a server that hangs would hold each request for ever. */
const STATEMENT_LIMIT_MS = 20_000
const CONNECT_LIMIT_MS = 10_000
/** The next statement fails when a session has ended while it was lent out; its own event needs a listener, or it ends the process. */
const ignored = (): void => {}

/**
 * Opens the state database, and brings its schema up to date. @param statementLimitMs what a statement may take; only tests say
 * another than the product's
 * @throws EngineError STATE_TOO_NEW, STATE_UNAVAILABLE, TLS_REFUSED
 */
export async function openStore(
  connection: Connection,
  poolSize: number,
  onIdleError: (error: Error) => void,
  statementLimitMs = STATEMENT_LIMIT_MS,
): Promise<Store> {
  const config = clientConfig(connection, 'tailrace state', '-c search_path=tailrace,public')
  const pool = new Pool({
    ...config,
    max: poolSize,
    pipeline: true, // of what is asked in one go nothing waits for the answer before it
    connectionTimeoutMillis: Math.min(CONNECT_LIMIT_MS, statementLimitMs), // waiting for a free session included
    statement_timeout: statementLimitMs,
    query_timeout: Math.ceil(statementLimitMs * 1.25), // for a server that can't even say that it gave up
  })
  const turns = new Turns(statementLimitMs)
  let isEnding = false
  // after its end a pool still hears of sessions that have not closed yet, from a server that stops next
  pool.on('error', (error) => isEnding || onIdleError(error))
  async function inTransaction<T>(work: (query: Query) => Promise<T>, lock?: RowLock): Promise<T> {
    const client = await answered(pool.connect())
    client.on('error', ignored)
    try {
      const begun = answered(client.query(lock ? `begin; ${lockOf(lock)}` : 'begin'))
      begun.catch(ignored) // the next statement fails with it
      if (!lock) await begun
      const result = await work((sql, params) => second(begun, answered(client.query(sql, params && [...params]))))
      await begun
      await answered(client.query('commit'))
      client.release()
      return result
    } catch (error) {
      if (isUnavailable(error)) client.release(true) // nothing passes on it any more; the server undoes what was begun
      else
        await client.query('rollback').then(
          () => client.release(),
          (lost: Error) => client.release(lost),
        )
      throw error
    } finally {
      client.off('error', ignored)
    }
  }
  const store: Store = {
    query: (sql, params) => answered(pool.query(sql, params && [...params])),
    transaction: (work, lock) => (lock ? turns.take(`${lock.table} ${lock.id}`, () => inTransaction(work, lock)) : inTransaction(work)),
    [Symbol.asyncDispose]: () => {
      isEnding = true
      return pool.end()
    },
  }
  try {
    await migrate(config)
    return store
  } catch (error) {
    await pool.end()
    if (error instanceof EngineError) throw error
    const { hostname, port, database } = connection
    const where = `the state database ${database} at ${hostname}:${port}`
    const refusal = tlsRefusal(error, where)
    if (refusal) throw refusal
    const text = errorText(error)
    throw new EngineError('STATE_UNAVAILABLE', `${where}: ${text}`, { hostname, port, database }, { cause: error })
  }
}

/** On a session of its own: a migration takes the time it takes. */
async function migrate(config: ClientConfig): Promise<void> {
  const files = readdirSync(MIGRATIONS)
    .filter((file) => /^\d{4}-.*\.sql$/.test(file))
    .sort()
  const client = new Client(config)
  client.on('error', ignored)
  try {
    await client.connect()
    await client.query(`set lock_timeout = '${MIGRATION_LOCK_LIMIT}'`) // another process may be frozen while it holds it
    await client.query('select pg_advisory_lock($1)', [MIGRATION_LOCK])
    await client.query('reset lock_timeout')
    const schema = await client.query(`select from pg_namespace where nspname = 'tailrace'`)
    if (schema.rows.length === 0) await client.query('create schema tailrace') // one made for us needs no right to make it
    const known = await client.query(`select from pg_tables where schemaname = 'tailrace' and tablename = 'migration'`)
    if (known.rows.length === 0)
      await client.query(
        'create table tailrace.migration (number int primary key, name text not null, applied_at timestamptz not null default now())',
      )
    const { rows } = await client.query('select coalesce(max(number), 0) as newest from tailrace.migration')
    const { newest } = rowOf({ newest: 'int' }, rows[0])
    if (newest > files.length) {
      throw new EngineError(
        'STATE_TOO_NEW',
        `the state database is at version ${newest}; this version of Tailrace knows versions up to ${files.length}`,
        {
          version: newest,
          known: files.length,
        },
      )
    }
    for (const [i, file] of files.entries()) {
      if (i < newest) continue
      await client.query('begin')
      await client.query(readFileSync(join(MIGRATIONS, file), 'utf8'))
      await client.query('insert into tailrace.migration (number, name) values ($1, $2)', [i + 1, file])
      await client.query('commit')
    }
  } finally {
    await client.end().catch(ignored) // its lock ends with it, and a transaction that failed
  }
}

/**
 * Those of this process that lock the same row come one after the other, and who waits has no session: each would have one, until
 * none is left for anything else.
 */
class Turns {
  readonly #limitMs: number
  readonly #last = new Map<string, Promise<void>>()

  /** @param limitMs as long as the server would let one wait for the row */
  constructor(limitMs: number) {
    this.#limitMs = limitMs
  }

  /** @throws EngineError STATE_UNAVAILABLE: the turn has not come in time */
  async take<T>(key: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(key)
    const { promise, resolve } = Promise.withResolvers<void>()
    const ended = Promise.all([before, promise]).then(() => {
      if (this.#last.get(key) === ended) this.#last.delete(key)
    })
    this.#last.set(key, ended)
    try {
      if (before && !(await this.#inTime(before)))
        throw new EngineError('STATE_UNAVAILABLE', `the state database: the row ${key} has been locked for ${this.#limitMs} ms`)
      return await work()
    } finally {
      resolve()
    }
  }

  async #inTime(before: Promise<void>): Promise<boolean> {
    const limit = new AbortController()
    const tooLong = sleep(this.#limitMs, false, { signal: limit.signal }).catch(() => false)
    return Promise.race([before.then(() => true), tooLong]).finally(() => limit.abort())
  }
}

/** Without parameters, so that it goes in one message with what begins the transaction. */
const lockOf = ({ table, id, how }: RowLock): string => `select from ${table} where id = ${escapeLiteral(id)} for ${how}`

/** @returns the answer to what was asked behind another; where that failed, why it did */
async function second<T>(first: Promise<unknown>, answer: Promise<T>): Promise<T> {
  const [before, after] = await Promise.allSettled([first, answer])
  if (before.status === 'rejected') throw before.reason
  if (after.status === 'rejected') throw after.reason
  return after.value
}

const isUnavailable = (error: unknown): boolean => error instanceof EngineError && error.code === 'STATE_UNAVAILABLE'

/**
 * What the server says of a statement passes through. That it can't serve now is ours to tell, as are failures without a
 * SQLSTATE: of the socket, and of the driver's own limits.
 */
async function answered<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer
  } catch (error) {
    if (!(error instanceof Error) || error instanceof TypeError || error instanceof RangeError) throw error
    throw stateUnavailable(error) ?? error
  }
}
