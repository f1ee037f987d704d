/**
 * Connection poolers between us and a server. Most of them pass no replication on, and one that shares a server's session among clients
 * would break the lock of a source. Some are known by their host names; any other gives itself away by the process that it claims to
 * be, which is not the one that answers.
 */
import { Client } from 'pg'
import { EngineError, errorText } from '../errors.ts'
import { accountClient, type Connection } from './client-config.ts'

/** Host names of poolers of managed services, none of which passes replication on. */
const POOLERS: readonly (readonly [name: RegExp, what: string])[] = [
  [/\.pooler\.supabase\.com$/i, 'the pooler of Supabase: give the host of the direct connection, db.<project>.supabase.co'],
  [/-pooler\.[a-z0-9.-]*neon\.tech$/i, 'the pooler of Neon: give the host without "-pooler"'],
  [/\.proxy-[a-z0-9]+\.[a-z0-9-]+\.rds\.amazonaws\.com(?:\.cn)?$/i, 'an RDS Proxy: give the endpoint of the instance or cluster'],
  [/^[a-z0-9-]*-?pooler[a-z0-9-]*\.[a-z0-9.-]*(?:xata\.sh|xata\.tech)$/i, 'a pooler of Xata: give the host of the direct connection'],
  [/-pool\.[a-z0-9.-]*\.db\.ondigitalocean\.com$/i, 'a connection pool of DigitalOcean: give the host of the cluster'],
]

/** Refuses the host name of a pooler that is known to pass no replication on. @throws EngineError SOURCE_POOLED */
export function refusePoolerName(hostname: string): void {
  const found = POOLERS.find(([name]) => name.test(hostname))
  if (found) throw new EngineError('SOURCE_POOLED', `hostname ${hostname.slice(0, 255)} is ${found[1]}`)
}

/** Tells whether a pooler stands between this session and its server: the process that was named at the login is not the one that answers. */
export async function isPooled(client: Client): Promise<boolean> {
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
  const { processID } = client as unknown as { processID: number | null } // missing in its type declarations
  return processID !== null && processID !== rows[0]?.pid
}

/** Refuses a pooler that passes no replication on. @throws EngineError SOURCE_POOLED */
export async function refusePoolerWithoutReplication(connection: Connection, client: Client): Promise<void> {
  if (!(await isPooled(client))) return
  const { hostname, port } = connection
  const config = { ...accountClient(connection, 'tailrace set-up'), replication: 'database' } // missing in its type declarations
  const replication = new Client(config)
  replication.on('error', () => {})
  try {
    await replication.connect()
    await replication.query('IDENTIFY_SYSTEM')
  } catch (cause) {
    throw new EngineError(
      'SOURCE_POOLED',
      `${hostname}:${port} is a connection pooler, and passes no replication on (${errorText(cause)}): give the address of the server itself`,
      {},
      { cause },
    )
  } finally {
    await replication.end().catch(() => undefined)
  }
}
