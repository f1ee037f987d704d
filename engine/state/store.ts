/**
 * The state database: what Tailrace keeps about itself, in the schema "tailrace" of a Postgres. Migrations are applied at
 * the start, each in a transaction of its own; a state that a newer version has written is refused.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Pool, type PoolClient } from 'pg'
import { EngineError } from '../errors.ts'
import { clientConfig } from '../postgres/client-config.ts'
import { tlsRefusal } from '../postgres/tls-refusal.ts'
import type { Connection } from './resources.ts'

type Row = Record<string, unknown>
export type Query = <R extends Row = Row>(sql: string, params?: readonly unknown[]) => Promise<{ rows: R[] }>

export interface Store extends AsyncDisposable {
  readonly query: Query
  /** All statements of `work` or none; the session is its own. */
  transaction<T>(work: (query: Query) => Promise<T>): Promise<T>
}

const MIGRATIONS = join(import.meta.dirname, 'migrations')
/** Any number that is ours: one process migrates at a time. */
const MIGRATION_LOCK = 7_376_001
const MIGRATION_LOCK_LIMIT = '60s'
/** A session that ends while it is lent out tells it to the next statement; without a listener it would end the process. */
const unheard = (): void => {}

/** @throws EngineError STATE_TOO_NEW, STATE_UNAVAILABLE, TLS_REFUSED */
export async function openStore(connection: Connection, poolSize: number, onIdleError: (error: Error) => void): Promise<Store> {
  const pool = new Pool({ ...clientConfig(connection, 'tailrace state', '-c search_path=tailrace,public'), max: poolSize })
  pool.on('error', onIdleError)
  const store: Store = {
    query: (sql, params) => pool.query(sql, params && [...params]),
    async transaction(work) {
      const client = await pool.connect()
      client.on('error', unheard)
      try {
        await client.query('begin')
        const result = await work((sql, params) => client.query(sql, params && [...params]))
        await client.query('commit')
        client.release()
        return result
      } catch (error) {
        await client.query('rollback').then(
          () => client.release(),
          (lost: Error) => client.release(lost),
        )
        throw error
      } finally {
        client.off('error', unheard)
      }
    },
    [Symbol.asyncDispose]: () => pool.end(),
  }
  try {
    const client = await pool.connect()
    client.on('error', unheard)
    await migrate(client)
    return store
  } catch (error) {
    await pool.end()
    if (error instanceof EngineError) throw error
    const { hostname, port, database } = connection
    const where = `the state database ${database} at ${hostname}:${port}`
    const refusal = tlsRefusal(error, where)
    if (refusal) throw refusal
    const text = error instanceof Error ? error.message : String(error)
    throw new EngineError('STATE_UNAVAILABLE', `${where}: ${text}`, { hostname, port, database }, { cause: error })
  }
}

async function migrate(client: PoolClient): Promise<void> {
  const files = readdirSync(MIGRATIONS)
    .filter((file) => /^\d{4}-.*\.sql$/.test(file))
    .sort()
  try {
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
    const { rows } = await client.query<{ newest: number }>('select coalesce(max(number), 0) as newest from tailrace.migration')
    const newest = rows[0]?.newest ?? 0
    if (newest > files.length) {
      throw new EngineError('STATE_TOO_NEW', `the state database is at version ${newest}, this program knows ${files.length}`, {
        version: newest,
        known: files.length,
      })
    }
    for (const [i, file] of files.entries()) {
      if (i < newest) continue
      await client.query('begin')
      await client.query(readFileSync(join(MIGRATIONS, file), 'utf8'))
      await client.query('insert into tailrace.migration (number, name) values ($1, $2)', [i + 1, file])
      await client.query('commit')
    }
    await client.query('select pg_advisory_unlock($1)', [MIGRATION_LOCK])
    client.off('error', unheard)
    client.release()
  } catch (error) {
    client.release(true) // the session, its transaction and its lock end with it
    throw error
  }
}
