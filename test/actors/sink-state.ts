/** A state database for tests of one sink, without the service around it. */
import { readdir, readFile } from 'node:fs/promises'
import type { Store } from '../../engine/state/store.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { createDatabase, type TestDatabase } from '../services/postgres.ts'
import { DATABASE, SINK } from './sink-fixture.ts'

const MIGRATIONS = new URL('../../engine/state/migrations/', import.meta.url)
const files = (await readdir(MIGRATIONS)).sort()
const schema = (await Promise.all(files.map((file) => readFile(new URL(file, MIGRATIONS), 'utf8')))).join(';\n')

/** With the sink of the fixture in it. */
export async function stateDatabase(): Promise<TestDatabase> {
  const db = await createDatabase(`create schema tailrace; set search_path = tailrace; ${schema}`)
  await db.query('insert into tailrace.account (id, name) values ($1, $2)', [SINK.accountId, 'a'])
  await db.query(
    `insert into tailrace.source_database (id, account_id, name, connection, password, slot_name, publication_name)
     values ($1, $2, 'shop', '{}', '', 's', 'p')`,
    [DATABASE.id, SINK.accountId],
  )
  await db.query(
    `insert into tailrace.sink (id, account_id, database_id, name, status, settings, destination) values ($1, $2, $3, 'orders', 'active', '{}', '{}')`,
    [SINK.id, SINK.accountId, DATABASE.id],
  )
  return db
}

export const queryOf =
  (db: TestDatabase): Query =>
  async (sql, params) => ({ rows: await db.query(sql, params) })

/** @param before called with the number of each statement of a transaction; what it throws ends the transaction there */
export function storeOf(
  db: TestDatabase,
  before: (statement: number) => void | Promise<void> = () => undefined,
): Pick<Store, 'query' | 'transaction'> {
  const query: Store['query'] = async (sql, params) => ({ rows: await db.query(sql, params) })
  return {
    query,
    transaction: async (work) => {
      const client = await db.connect()
      let statement = 0
      try {
        await client.query('begin')
        const result = await work(async (sql, params) => {
          await before(++statement)
          return client.query(sql, params && [...params])
        })
        await before(++statement)
        await client.query('commit')
        return result
      } finally {
        await client.end() // what is not committed is undone
      }
    },
  }
}
