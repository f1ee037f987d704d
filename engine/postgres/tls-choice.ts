/**
 * Finds out whether a server offers TLS, for connections whose user left that open. It is asked when a database is set up or
 * changed, and not at each connection: once a server has answered with TLS, nobody on the way can take it away again.
 */
import { once } from 'node:events'
import { setTimeout as pause } from 'node:timers/promises'
import type { Connection } from './client-config.ts'
import { GuardedSocket } from './guarded-socket.ts'

/** A message of 8 bytes with the code 80877103. @see PostgreSQL manual, "Message Formats": SSLRequest */
const SSL_REQUEST = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47])
const NO = 0x4e // N
const LIMIT_MS = 10_000

/**
 * Asks the server of a connection whether it offers TLS, if `ssl` is "prefer". @returns the connection with the answer; as it is when
 * the server can't be asked: whoever connects next tells why
 */
export async function withTlsChosen(connection: Connection): Promise<Connection> {
  if (connection.ssl !== 'prefer') return connection
  const { withoutTls: _, ...asked } = connection
  const answer = await firstByte(connection).catch(() => undefined)
  if (answer === undefined) return connection
  return answer === NO ? { ...asked, withoutTls: true } : asked
}

/** @returns undefined: none came in time */
async function firstByte({ hostname, port }: Connection): Promise<number | undefined> {
  const socket = new GuardedSocket()
  const limit = new AbortController()
  const asked = async () => {
    await once(socket, 'connect')
    socket.write(SSL_REQUEST)
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    return chunk[0]
  }
  try {
    socket.connect(port, hostname)
    return await Promise.race([asked(), pause(LIMIT_MS, undefined, { signal: limit.signal })])
  } finally {
    limit.abort()
    socket.on('error', () => undefined) // it has been told, or comes too late
    socket.destroy()
  }
}
