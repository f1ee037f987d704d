/** The form of a database in the configuration file. Nothing here does I/O. */
import { X509Certificate } from 'node:crypto'
import { Type, type Static } from 'typebox'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { Name } from '../../engine/resource-name.ts'
import type { Reason } from '../../engine/schema-reasons.ts'
import { NOUN_OF, type DatabaseInput } from '../../engine/state/resource-store.ts'
import { TlsMode } from '../../engine/state/resources.ts'
import { checker, invalid, readOnly, type ResourceForm } from './form.ts'
import { secretMeant } from './secret-form.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

/** A document may have a start wait so long for its servers, for all its databases together. */
export const MAX_AWAIT_MS = 300_000

const DEFAULT_POOL_SIZE = 10

/** The schema of an entry of `databases`. */
export const DatabaseForm = Type.Object(
  {
    name: Name,
    url: Type.Optional(text('postgresql://user:password@host:port/database, instead of the parts')),
    hostname: Type.Optional(text('host of the server')),
    port: Type.Optional(Type.Integer({ minimum: 1, maximum: 65_535 })),
    database: Type.Optional(text('database on the server')),
    username: Type.Optional(text('user with LOGIN, REPLICATION and SELECT')),
    password: Type.Optional(Type.String()),
    ssl: Type.Optional(TlsMode),
    ca_cert: Type.Optional(text('certificate authority in PEM')),
    pool_size: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
    annotations: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
    slot: Type.Optional(Type.Object({ name: text('name of the slot'), create_if_not_exists: Type.Optional(Type.Boolean()) }, strict)),
    publication: Type.Optional(
      Type.Object(
        {
          name: text('name of the publication'),
          create_if_not_exists: Type.Optional(Type.Boolean()),
          init_sql: Type.Optional(text('SQL that makes it')),
        },
        strict,
      ),
    ),
    slot_name: Type.Optional(text('older form of slot.name')),
    publication_name: Type.Optional(text('older form of publication.name')),
    await_database: Type.Optional(
      Type.Object(
        {
          timeout_ms: Type.Optional(Type.Integer({ minimum: 0, maximum: MAX_AWAIT_MS })),
          interval_ms: Type.Optional(Type.Integer({ minimum: 500, maximum: MAX_AWAIT_MS })),
        },
        strict,
      ),
    ),
    ipv6: Type.Optional(Type.Boolean()),
    use_local_tunnel: Type.Optional(Type.Literal(false)),
    queue_interval: Type.Optional(Type.Integer()),
    queue_target: Type.Optional(Type.Integer()),
    ...readOnly(),
  },
  strict,
)
type DatabaseForm = Static<typeof DatabaseForm>

/** A database of a file: what is stored of it, and how its publication and slot are made. */
export type DatabaseEntry = Readonly<{
  input: DatabaseInput
  createSlot: boolean
  createPublication: boolean
  initSql?: string
  awaitMs: number
  intervalMs: number
}>

/** Postgres cuts longer ones without an error, so that what is made is never found again. */
const MAX_NAME_BYTES = 63

const check = checker(DatabaseForm)

/** Describes how databases stand in a file. */
export const DATABASE: ResourceForm<'database', DatabaseEntry> = {
  section: 'databases',
  noun: NOUN_OF.database,
  schema: DatabaseForm,
  ignored: [
    { path: ['tables'], why: 'the publication says which tables are streamed' },
    { path: ['publication', 'schemas'], why: 'a publication that is made has all tables, unless init_sql has another statement' },
  ],
  notYet: ['primary'],
  read: (entry, { known }) => {
    const form = check(entry)
    const reasons: Reason[] = []
    const here = (field: string, reason: string) => void reasons.push([field, reason])
    const slotName = form.slot?.name ?? form.slot_name
    const publicationName = form.publication?.name ?? form.publication_name
    if (slotName === undefined) here('slot', 'is missing: slot: { name: …, create_if_not_exists: true }')
    else if (!/^[a-z0-9_]{1,63}$/.test(slotName))
      here('slot', `"${slotName.slice(0, 80)}" is not a slot name: up to 63 of a-z, 0-9 and "_"`)
    if (publicationName === undefined) here('publication', 'is missing: publication: { name: …, create_if_not_exists: true }')
    else if (Buffer.byteLength(publicationName) > MAX_NAME_BYTES)
      here('publication', `"${publicationName.slice(0, 80)}" is too long: Postgres takes names of up to ${MAX_NAME_BYTES} bytes`)
    const connection = connectionOf(form, known?.connection.password, here)
    if (reasons.length > 0 || !connection || slotName === undefined || publicationName === undefined) throw invalid(reasons)
    const { init_sql: initSql } = form.publication ?? {}
    return {
      input: {
        name: form.name,
        connection,
        poolSize: form.pool_size ?? DEFAULT_POOL_SIZE,
        annotations: form.annotations ?? {},
        slotName,
        publicationName,
      },
      createSlot: form.slot?.create_if_not_exists ?? false,
      createPublication: form.publication?.create_if_not_exists ?? false,
      ...(initSql === undefined ? {} : { initSql }),
      awaitMs: form.await_database ? (form.await_database.timeout_ms ?? 30_000) : 0,
      intervalMs: form.await_database?.interval_ms ?? 3000,
    }
  },
  entry: ({ name, connection, poolSize, annotations, slot }, secret) => {
    const { hostname, port, database, username, password, ssl, caCert } = connection
    return {
      name,
      hostname,
      port,
      database,
      username,
      password: secret(password),
      ssl,
      ...(caCert !== undefined && { ca_cert: caCert }),
      ...(poolSize !== DEFAULT_POOL_SIZE && { pool_size: poolSize }),
      ...(Object.keys(annotations).length > 0 && { annotations }),
      slot: { name: slot.name },
      publication: { name: slot.publication },
    }
  },
}

function connectionOf(
  form: DatabaseForm,
  known: string | undefined,
  here: (field: string, reason: string) => void,
): Connection | undefined {
  const ssl = form.ssl ?? true
  if (form.ca_cert !== undefined && !isCertificate(form.ca_cert))
    here('ca_cert', 'is not a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----')
  const ca = form.ca_cert === undefined ? {} : { caCert: form.ca_cert }
  if (form.hostname?.includes('/')) here('hostname', 'must be a host name or an IP address, not a folder with a Unix socket')
  if (form.url === undefined) {
    if (form.hostname === undefined) here('hostname', 'is missing (or give url)')
    if (form.database === undefined) here('database', 'is missing (or give url)')
    const { hostname, database, port = 5432, username = 'postgres' } = form
    const password = secretMeant(form.password ?? 'postgres', known, (reason) => here('password', reason))
    return hostname !== undefined && database !== undefined ? { hostname, port, database, username, password, ssl, ...ca } : undefined
  }
  for (const field of ['hostname', 'port', 'database', 'username', 'password'] as const)
    if (form[field] !== undefined) here(field, 'is given beside url, which contains it: give one of the two')
  const parts = partsOfUrl(form.url)
  if (typeof parts !== 'string') {
    const password = secretMeant(parts.password, known, (reason) => here('url', `has a password that ${reason}`))
    return { ...parts, password, ssl, ...ca }
  }
  here('url', parts)
  return undefined
}

/** Takes the URL of a database apart. @returns its parts, or the reason why it can't be used */
export function partsOfUrl(text: string): Omit<Connection, 'ssl' | 'caCert'> | string {
  if (!URL.canParse(text)) return 'must have the form postgresql://user:password@host:port/database'
  const url = new URL(text)
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
