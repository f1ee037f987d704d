/** Databases of a configuration document: what is wrong with one is told at its place. Nothing here does I/O. */
import { X509Certificate } from 'node:crypto'
import { Type, type Static } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import { TlsMode, type Database } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { Name } from '../../engine/resource-name.ts'
import type { DatabaseInput } from '../../engine/state/resource-store.ts'
import { fits } from './config-forms.ts'
import type { ConfigReader } from './config-reader.ts'
import { secretsMeant } from '../sinks/secret-form.ts'
import { isObject, readOnly } from '../http/form.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

/** for all databases of a document together */
export const MAX_AWAIT_MS = 300_000

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

export type ConfiguredDatabase = Readonly<{
  line: number
  input: DatabaseInput
  createSlot: boolean
  createPublication: boolean
  initSql?: string
  awaitMs: number
  intervalMs: number
}>

const NOT_YET = ['primary']
/** Postgres cuts longer ones without an error, so that what is made is never found again. */
const MAX_NAME_BYTES = 63

const checkDatabase = schemaCheck(DatabaseForm)

export const slotKey = ({ input: { connection: c, slotName } }: ConfiguredDatabase): string => `${c.hostname}:${c.port}/${slotName}`

/** @param stored the databases that the account has @returns undefined: something is wrong with it, which is told */
export function configuredDatabase(
  reader: ConfigReader,
  given: unknown,
  i: number,
  stored: readonly Database[],
): ConfiguredDatabase | undefined {
  if (!isObject(given)) return reader.wrong(reader.at('databases', i), 'expected a mapping')
  let isWhole = true
  const fields: Record<string, unknown> = { ...given }
  for (const key of NOT_YET) {
    const { [key]: value } = fields
    delete fields[key]
    if (value === undefined || value === null) continue
    reader.wrong(reader.at('databases', i, key), `${key} is not supported yet`)
    isWhole = false
  }
  if (!fits(reader, checkDatabase, fields, ['databases', i])) return undefined
  const form = fields as DatabaseForm
  const here: Tell = (field, reason) => {
    reader.wrong(reader.at('databases', i, field), `${field} ${reason}`)
    isWhole = false
  }
  const slotName = form.slot?.name ?? form.slot_name
  const publicationName = form.publication?.name ?? form.publication_name
  if (slotName === undefined) here('slot', 'is missing: slot: { name: …, create_if_not_exists: true }')
  else if (!/^[a-z0-9_]{1,63}$/.test(slotName)) here('slot', `"${slotName.slice(0, 80)}" is not a slot name: up to 63 of a-z, 0-9 and "_"`)
  if (publicationName === undefined) here('publication', 'is missing: publication: { name: …, create_if_not_exists: true }')
  else if (Buffer.byteLength(publicationName) > MAX_NAME_BYTES)
    here('publication', `"${publicationName.slice(0, 80)}" is too long: Postgres takes names of up to ${MAX_NAME_BYTES} bytes`)
  const known = stored.find(({ name }) => name === form.name)?.connection.password
  const connection = connectionOf(form, known, here)
  if (!isWhole || !connection || slotName === undefined || publicationName === undefined) return undefined
  const { init_sql: initSql } = form.publication ?? {}
  return {
    line: reader.line(reader.at('databases', i)),
    input: {
      name: form.name,
      connection,
      poolSize: form.pool_size ?? 10,
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
}

type Tell = (field: string, reason: string) => void

function connectionOf(form: DatabaseForm, known: string | undefined, here: Tell): Connection | undefined {
  const ssl = form.ssl ?? true
  if (form.ca_cert !== undefined && !isCertificate(form.ca_cert))
    here('ca_cert', 'is not a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----')
  const ca = form.ca_cert === undefined ? {} : { caCert: form.ca_cert }
  if (form.hostname?.includes('/')) here('hostname', 'must be a name or an address, not a folder of sockets')
  if (form.url === undefined) {
    if (form.hostname === undefined) here('hostname', 'is missing (or give url)')
    if (form.database === undefined) here('database', 'is missing (or give url)')
    const { hostname, database, port = 5432, username = 'postgres' } = form
    const password = secretsMeant(form.password ?? 'postgres', known, (reason) => here('password', reason)) as string
    return hostname !== undefined && database !== undefined ? { hostname, port, database, username, password, ssl, ...ca } : undefined
  }
  for (const field of ['hostname', 'port', 'database', 'username', 'password'] as const)
    if (form[field] !== undefined) here(field, 'is given beside url, which says it too')
  const parts = partsOfUrl(form.url)
  if (typeof parts !== 'string') {
    const password = secretsMeant(parts.password, known, (reason) => here('url', `has a password that ${reason}`)) as string
    return { ...parts, password, ssl, ...ca }
  }
  here('url', parts)
  return undefined
}

/** @returns the reason when it can't be used */
export function partsOfUrl(text: string): Omit<Connection, 'ssl' | 'caCert'> | string {
  if (!URL.canParse(text)) return 'is not postgresql://user:password@host:port/database'
  const url = new URL(text)
  if (url.protocol !== 'postgresql:' && url.protocol !== 'postgres:') return 'must begin with postgresql://'
  if (url.search !== '') return 'has parameters; write them as fields, such as ssl'
  if (![url.pathname, url.username, url.password].every(isDecodable)) return 'has a % that encodes nothing; write it as %25'
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
