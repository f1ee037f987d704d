/**
 * Connection poolers between us and a server. Most of them pass no replication on, and one that shares a server's session among clients
 * would break the lock of a source. Some are known by their host names; any other gives itself away by the process that it claims to
 * be, which is not the one that answers.
 */
import { Client } from 'pg'
import { EngineError, errorText } from '../errors.ts'
import { accountClient, type Connection } from './client-config.ts'

/** Ends of the host names of managed services, what stands before them in that of a pooler, and what to do. None passes replication on. */
const POOLERS: readonly (readonly [end: string, before: string, what: string])[] = [
  ['.pooler.supabase.com', '', 'the pooler of Supabase: give the host of the direct connection, db.<project>.supabase.co'],
  ['neon.tech', '-pooler.', 'the pooler of Neon: give the host without "-pooler"'],
  ['.rds.amazonaws.com', '.proxy-', 'an RDS Proxy: give the endpoint of the instance or cluster'],
  ['.rds.amazonaws.com.cn', '.proxy-', 'an RDS Proxy: give the endpoint of the instance or cluster'],
  ['xata.sh', 'pooler', 'a pooler of Xata: give the host of the direct connection'],
  ['xata.tech', 'pooler', 'a pooler of Xata: give the host of the direct connection'],
  ['.db.ondigitalocean.com', '-pool.', 'a connection pool of DigitalOcean: give the host of the cluster'],
]

/** Refuses the host name of a pooler that is known to pass no replication on. @throws EngineError SOURCE_POOLED */
export function refusePoolerName(hostname: string): void {
  const name = hostname.toLowerCase()
  const found = POOLERS.find(([end, before]) => name.endsWith(end) && name.slice(0, 1 - end.length).includes(before)) // the dot may belong to both
  if (found) throw new EngineError('SOURCE_POOLED', `hostname ${hostname.slice(0, 255)} is ${found[2]}`)
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
