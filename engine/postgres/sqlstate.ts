/**
 * Says whether trying again can help after a failure that came from PostgreSQL, from the socket to it or from the driver: one table for
 * sources and for the state database, by SQLSTATE and never by message text. A server that is failed over, restarted or set
 * back answers with many of these before it serves again, so what isn't plainly the statement's own fault counts as passing.
 * Nothing here does I/O.
 * @see PostgreSQL manual, "PostgreSQL Error Codes"
 */
import { codeOf } from '../errors.ts'

/** Says whether trying again can help after a failure. */
export type Fault =
  /** the server can't be reached, is stopping or starting, or has no connection, memory or disk left; or there is no SQLSTATE */
  | 'away'
  /** it answers and can't do this now: in recovery, read-only, a transaction undone by others, trouble with its files */
  | 'unable'
  /** it refuses the login, or has no such database: passwords are rotated, and databases restored, while others wait */
  | 'login'
  /** the user lacks a right, which only a person grants */
  | 'rights'
  /** it refuses the statement itself, for a reason that isn't known here */
  | 'other'

const CLASSES: Readonly<Record<string, Fault>> = {
  '08': 'away', // connection exception
  '25': 'unable', // invalid transaction state; 25006: a read-only transaction, as on a server that was demoted
  '28': 'login', // invalid authorization
  '40': 'unable', // transaction rollback: deadlocks, serialization
  '53': 'away', // insufficient resources: connections, memory, disk
  '57': 'away', // operator intervention: shutdown, crash, starting up, a statement that took too long
  '58': 'unable', // system error: files of the server
  XX: 'unable', // internal error; poolers say so of a connection that they lost
}
/** Codes that mean something else than their class. */
const CODES: Readonly<Record<string, Fault>> = {
  '3D000': 'login', // no such database
  '42501': 'rights',
  '55000': 'unable', // not in the state that is needed: a slot of a server in recovery, a database that takes no connections
  '55P03': 'unable', // a lock was not to be had
}

/**
 * Decides by its SQLSTATE whether trying again can help after a failure. @param sqlstate undefined: the failure came without one,
 * so not from the server
 */
export function faultOf(sqlstate: string | undefined): Fault {
  if (sqlstate === undefined) return 'away'
  return CODES[sqlstate] ?? CLASSES[sqlstate.slice(0, 2)] ?? 'other'
}

/** Reads the SQLSTATE of an error. @returns undefined: it has none. EPIPE has its form, but is a socket's code, as ECONNREFUSED is */
export function sqlstateOf(error: unknown): string | undefined {
  const code = codeOf(error)
  return code !== undefined && /^[0-9A-Z]{5}$/.test(code) && code !== 'EPIPE' ? code : undefined
}

/** There was no connection, so nothing was sent. */
const UNSENT: readonly unknown[] = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN']
/** The session ended, or whoever stands between lost it: that is no answer to the statement. */
const SESSION_LOST = /^(08|XX|57P0[1245]|40003)/

/**
 * Tells whether a statement that failed may have been carried out all the same, because only its answer was lost. What a server
 * refuses it has not done.
 */
export function mayBeDone(error: unknown): boolean {
  const sqlstate = sqlstateOf(error)
  if (sqlstate !== undefined) return SESSION_LOST.test(sqlstate)
  return !(error instanceof Error && 'code' in error && UNSENT.includes(error.code))
}
