/** Asks the state database, with its failures as errors of the engine: the server is away, or it says no. */
import { EngineError } from '../errors.ts'
import type { Query } from '../wal/connection/slot.ts'

/** SQLSTATE of a row that is there already: another process was faster. */
export const UNIQUE_VIOLATION = '23505'

/** @throws EngineError STATE_UNAVAILABLE: trying again may help; INTERNAL: the statement was refused */
export async function ask(query: Query, sql: string, params: readonly unknown[]): ReturnType<Query> {
  try {
    return await query(sql, params)
  } catch (error) {
    if (error instanceof EngineError) throw error
    const sqlstate = error instanceof Error && 'code' in error ? String(error.code) : ''
    const refused = /^[0-9A-Z]{5}$/.test(sqlstate) && !/^(08|53|57)/.test(sqlstate) // the server answers, and says no
    throw new EngineError(
      refused ? 'INTERNAL' : 'STATE_UNAVAILABLE',
      `the state database: ${error instanceof Error ? error.message : String(error)}`,
      { sqlstate },
      { cause: error },
    )
  }
}
