/**
 * Every connection to a source, replication and queries alike, pins the settings that Postgres' text output follows (docs/rules.md,
 * rule 10). A database or a role may have others by default, and then keys of the stream and of look-ups differ and digits get lost.
 * Startup options rank above `alter database` and `alter role`.
 */
import type { ClientConfig } from 'pg'
import { accountClient, type Connection } from '../../postgres/client-config.ts'

/**
 * The startup options of a connection to a source. By them offsets are +00, intervals read "1 mon -3 days +04:05:06", and floats
 * keep all their digits.
 */
export const PINNED_OPTIONS = [
  'DateStyle=ISO',
  'IntervalStyle=postgres',
  'extra_float_digits=1',
  'bytea_output=hex',
  'TimeZone=UTC',
  'lc_monetary=C',
  'client_encoding=UTF8',
]
  .map((setting) => `-c ${setting}`)
  .join(' ')

/** application_name is cut there. */
const NAME_BYTES = 63

/**
 * Makes the driver's configuration of a connection to a source. @param settings further settings of the session, such as
 * wal_sender_timeout
 */
export function sourceClient(connection: Connection, name: string, settings: Readonly<Record<string, string | number>> = {}): ClientConfig {
  const more = Object.entries(settings).map(([key, value]) => ` -c ${key}=${value}`)
  return accountClient(connection, name.slice(0, NAME_BYTES), PINNED_OPTIONS + more.join(''))
}
