/** Makes the driver's configuration of a checked connection. */
import type { ClientConfig } from 'pg'
import { GuardedSocket } from './guarded-socket.ts'

/** Says how to reach a Postgres, in checked plain values; the password is decrypted only in memory. */
export type Connection = Readonly<{
  hostname: string
  port: number
  database: string
  username: string
  password: string
  ssl: boolean | 'disable' | 'prefer' | 'require' | 'verify-ca' | 'verify-full'
  /** ssl is "prefer", and the server offered no TLS when it was asked */
  withoutTls?: true
  caCert?: string
}>

/**
 * Makes the driver's configuration of a database that an account names: it is reached through the guard, and with its own password
 * alone. Where that is empty, pg would take PGPASSWORD or a line of .pgpass from the service's environment and give it to whatever
 * server is named.
 */
export function accountClient(connection: Connection, applicationName: string, options?: string): ClientConfig {
  return {
    ...clientConfig(connection, applicationName, options),
    password: () => connection.password,
    stream: () => new GuardedSocket(),
  }
}

/** Makes the driver's configuration of a connection. @param options startup options, such as PINNED_OPTIONS of a source's connections */
export function clientConfig(connection: Connection, applicationName: string, options?: string): ClientConfig {
  return {
    host: connection.hostname,
    port: connection.port,
    database: connection.database,
    user: connection.username,
    password: connection.password,
    ssl: tls(connection),
    application_name: applicationName,
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
    ...(options ? { options } : {}),
  }
}

/**
 * libpq's modes: `require` (and true) encrypts without checking, verify-ca checks the chain, verify-full the name too. As
 * with libpq, `require` checks the chain as soon as it has an authority to check with. The name is the host's, which pg hands on.
 * `prefer` is `require`, unless the server was found to offer no TLS (tls-choice.ts).
 */
function tls({ ssl, withoutTls, caCert }: Connection): ClientConfig['ssl'] {
  if (ssl === false || ssl === 'disable' || withoutTls) return false
  if ((ssl === true || ssl === 'require' || ssl === 'prefer') && caCert === undefined) return { rejectUnauthorized: false }
  const ca = caCert === undefined ? {} : { ca: caCert }
  if (ssl === 'verify-full') return { rejectUnauthorized: true, ...ca }
  return { rejectUnauthorized: true, checkServerIdentity: () => undefined, ...ca }
}
