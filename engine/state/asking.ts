/** Asks the state database, with its failures as errors of the engine: it can't serve now, or it says no. */
import { EngineError, errorText } from '../errors.ts'
import { faultOf, sqlstateOf } from '../postgres/sqlstate.ts'
import type { Query } from '../postgres/query.ts'

/** The SQLSTATE of a row that is there already, because another process was faster. */
export const UNIQUE_VIOLATION = '23505'

/** Asks the state database. @throws EngineError STATE_UNAVAILABLE: trying again may help; INTERNAL: the statement was refused */
export async function ask(query: Query, sql: string, params: readonly unknown[]): ReturnType<Query> {
  try {
    return await query(sql, params)
  } catch (error) {
    if (error instanceof EngineError) throw error
    const sqlstate = sqlstateOf(error) ?? ''
    const text = `the state database: ${errorText(error)}`
    throw stateUnavailable(error) ?? new EngineError('INTERNAL', text, { sqlstate }, { cause: error })
  }
}

/**
 * Makes the error STATE_UNAVAILABLE of a failure that passes by itself: the state database is away, read-only, in recovery, out of
 * connections, refuses the login or a right, or has undone a transaction: all of it passes, or a person mends it while work that
 * needs the state waits.
 * @returns undefined: it is the statement that was refused
 */
export function stateUnavailable(error: unknown): EngineError | undefined {
  const sqlstate = sqlstateOf(error)
  if (faultOf(sqlstate) === 'other') return undefined
  const text = errorText(error)
  const message = `the state database: ${text}`
  if (sqlstate === undefined) return new EngineError('STATE_UNAVAILABLE', message, {}, { cause: error })
  return new EngineError('STATE_UNAVAILABLE', `${message} (${sqlstate})`, { sqlstate }, { cause: error })
}
