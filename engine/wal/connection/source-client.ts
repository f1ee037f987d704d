/** Every connection to a source, replication and queries alike, with the pinned settings (correctness 10). */
import type { ClientConfig } from 'pg'
import { accountClient } from '../../postgres/client-config.ts'
import type { Connection } from '../../state/resources.ts'
import { PINNED_OPTIONS } from './session.ts'

/** application_name is cut there. */
const NAME_BYTES = 63

/** @param settings further settings of the session, such as wal_sender_timeout */
export function sourceClient(connection: Connection, name: string, settings: Readonly<Record<string, string | number>> = {}): ClientConfig {
  const more = Object.entries(settings).map(([key, value]) => ` -c ${key}=${value}`)
  return accountClient(connection, name.slice(0, NAME_BYTES), PINNED_OPTIONS + more.join(''))
}
