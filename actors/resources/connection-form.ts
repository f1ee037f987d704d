/** The form of a connection to a Postgres: by its parts or as a URL, of a database and of its primary. Nothing here does I/O. */
import { X509Certificate } from 'node:crypto'
import { Type } from 'typebox'
import type { Connection } from '../../engine/postgres/client-config.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import { TlsMode } from '../../engine/state/resources.ts'
import { obfuscated, secretMeant } from './secret-form.ts'

const text = (description: string) => Type.String({ minLength: 1, description })

/** The schemas of the fields by which a Postgres is reached. */
export const connectionFields = {
  url: Type.Optional(text('postgresql://user:password@host:port/database, instead of the parts')),
  hostname: Type.Optional(text('host of the server')),
  port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
  database: Type.Optional(text('database on the server')),
  username: Type.Optional(text('user with LOGIN, REPLICATION and SELECT')),
  password: Type.Optional(Type.String()),
  ssl: Type.Optional(TlsMode),
  ca_cert: Type.Optional(text('certificate authority in PEM')),
}
/** The fields by which a Postgres is reached, as they are given. */
export type ConnectionForm = Readonly<{
  url?: string | undefined
  hostname?: string | undefined
  port?: number | undefined
  database?: string | undefined
  username?: string | undefined
  password?: string | undefined
  ssl?: Connection['ssl'] | undefined
  ca_cert?: string | undefined
}>

/** Tells why a field is refused. */
export type Tell = (field: string, reason: string) => void

/** Gathers why fields are refused. @param prefix in front of each field */
export const gathered =
  (reasons: Reason[], prefix = ''): Tell =>
  (field, reason) =>
    void reasons.push([`${prefix}${field}`, reason])

const PARTS = ['hostname', 'port', 'database', 'username', 'password'] as const

/**
 * A connection as it is stored: its password may be given as it is shown. @property mayMove whoever asks may have that password sent to
 * another server
 */
export type StoredConnection = Readonly<{ connection: Connection; mayMove: boolean }>

/** The settings that decide which server gets the password, and how surely it is that server. */
const SERVER = ['hostname', 'port', 'ssl', 'caCert'] as const

/**
 * Reads the password of a connection. Whoever may name the server that a password is sent to may learn it, so not everyone may have a
 * stored one sent to another server.
 * @param given as it stands in the form. @param server where it is to be sent
 */
function passwordOf(
  given: string,
  server: Pick<Connection, (typeof SERVER)[number]>,
  { known, tell }: Readonly<{ known: StoredConnection | undefined; tell: (reason: string) => void }>,
): string {
  const stored = known?.connection
  const password = secretMeant(given, stored?.password, tell)
  const isKept = stored !== undefined && password === stored.password && password !== given
  if (isKept && !known?.mayMove && SERVER.some((field) => server[field] !== stored[field]))
    tell('must be given again in full where hostname, port, ssl or ca_cert change, unless by who has the scope "admin"')
  return password
}

/** Reads a whole connection. @returns undefined: something is wrong with it, and told */
export function connectionOf(form: ConnectionForm, known: StoredConnection | undefined, tell: Tell): Connection | undefined {
  // whoever names an authority wants to be sure of the server
  const ssl = form.ssl ?? (form.ca_cert === undefined ? 'prefer' : true)
  if (form.ca_cert !== undefined && !isCertificate(form.ca_cert))
    tell('ca_cert', 'is not a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----')
  const tls = { ssl, ...(form.ca_cert !== undefined && { caCert: form.ca_cert }) }
  if (form.hostname?.includes('/')) tell('hostname', 'must be a host name or an IP address, not a folder with a Unix socket')
  if (form.url === undefined) {
    if (form.hostname === undefined) tell('hostname', 'is missing (or give url)')
    if (form.database === undefined) tell('database', 'is missing (or give url)')
    const { hostname, database, port = 5432, username = 'postgres' } = form
    if (hostname === undefined || database === undefined) return undefined
    const server = { hostname, port, ...tls }
    const password = passwordOf(form.password ?? 'postgres', server, { known, tell: (reason) => tell('password', reason) })
    return { ...server, database, username, password }
  }
  for (const field of PARTS) if (form[field] !== undefined) tell(field, 'is given beside url, which contains it: give one of the two')
  const parts = partsOfUrl(form.url)
  if (typeof parts !== 'string') {
    const server = { ...parts, ...tls }
    return {
      ...server,
      password: passwordOf(parts.password, server, { known, tell: (reason) => tell('url', `has a password that ${reason}`) }),
    }
  }
  tell('url', parts)
  return undefined
}

/**
 * Reads a connection of which some fields are given anew. @returns the same object as before: none is; undefined: something is wrong
 * with it, and told
 */
export function changedConnection(form: ConnectionForm, known: StoredConnection, tell: Tell): Connection | undefined {
  const { connection: stored } = known
  const given = Object.fromEntries(
    Object.entries(form).filter(([field, value]) => Object.hasOwn(connectionFields, field) && value !== undefined),
  )
  if (Object.keys(given).length === 0) return stored
  const { withoutTls, ssl, caCert, ...parts } = stored
  const tls = { ...(ssl !== 'prefer' && { ssl }), ...(caCert !== undefined && { ca_cert: caCert }) }
  const before = form.url === undefined && { ...parts, password: obfuscated(parts.password) }
  const changed = connectionOf({ ...tls, ...before, ...given }, known, tell)
  const isThere = changed && changed.ssl === ssl && changed.hostname === stored.hostname && changed.port === stored.port
  return isThere && withoutTls ? { ...changed, withoutTls } : changed
}

/** Gives the fields of a connection. @param secret shows its password */
export function connectionEntry(
  { hostname, port, database, username, password, ssl, caCert }: Connection,
  secret: (text: string) => string,
): Readonly<Record<string, unknown>> {
  return {
    ...{ hostname, port, database, username, password: secret(password) },
    ...(ssl !== 'prefer' && { ssl }),
    ...(caCert !== undefined && { ca_cert: caCert }),
  }
}

/** Takes the URL of a database apart. @returns its parts, or the reason why it can't be used */
export function partsOfUrl(given: string): Omit<Connection, 'ssl' | 'caCert' | 'withoutTls'> | string {
  if (!URL.canParse(given)) return 'must have the form postgresql://user:password@host:port/database'
  const url = new URL(given)
  if (url.protocol !== 'postgresql:' && url.protocol !== 'postgres:') return 'must begin with postgresql://'
  if (url.search !== '') return 'must have no parameters (behind ?): give them as fields, such as ssl'
  if (![url.pathname, url.username, url.password].every(isDecodable)) return 'has a % that encodes no character: write it as %25'
  const database = decodeURIComponent(url.pathname.slice(1))
  if (url.hostname === '' || database === '') return 'names no host or no database'
  return {
    hostname: url.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: url.port === '' ? 5432 : Number(url.port),
    database,
    username: decodeURIComponent(url.username) || 'postgres',
    password: decodeURIComponent(url.password),
  }
}

/** Node takes any text as an authority, and then knows none. */
function isCertificate(pem: string): boolean {
  try {
    return new X509Certificate(pem).subject !== ''
  } catch {
    return false
  }
}

function isDecodable(part: string): boolean {
  try {
    decodeURIComponent(part)
    return true
  } catch {
    return false
  }
}
