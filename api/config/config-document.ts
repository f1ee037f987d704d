/**
 * Configuration as code: a YAML text becomes a checked document, or one error that says of every mistake where it is and
 * what was expected. Nothing here does I/O; api/config/config-apply.ts makes it so.
 *
 *   account: { name }            api_tokens: [{ name, token }]            http_endpoints: [{ name, url, headers, … }]
 *   databases: [{ name, url | hostname …, slot, publication, … }]      sinks: [{ name, database, source, destination, … }]
 */
import { X509Certificate } from 'node:crypto'
import { Ajv } from 'ajv'
import { Type, type Static } from 'typebox'
import { Name, TlsMode, type Connection } from '../../engine/state/resources.ts'
import { DESTINATIONS } from '../../engine/state/destinations.ts'
import type { DatabaseInput, EndpointInput, SinkInput } from '../../engine/state/resource-store.ts'
import { ConfigReader, refusal, type Problem } from './config-reader.ts'
import { checked, fits } from './config-forms.ts'
import { configuredFunction, type ConfiguredFunction } from './configured-functions.ts'
import { EndpointIn, newEndpoint } from '../sinks/endpoint-form.ts'
import { newSink, SinkPatch } from '../sinks/sink-form.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

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
        { timeout_ms: Type.Optional(Type.Integer({ minimum: 0 })), interval_ms: Type.Optional(Type.Integer({ minimum: 1 })) },
        strict,
      ),
    ),
    ipv6: Type.Optional(Type.Boolean()),
    use_local_tunnel: Type.Optional(Type.Literal(false)),
    queue_interval: Type.Optional(Type.Integer()),
    queue_target: Type.Optional(Type.Integer()),
  },
  strict,
)
type DatabaseForm = Static<typeof DatabaseForm>

const Account = Type.Object({ name: text('name of the account') }, strict)
const Token = Type.Object({ name: Name, token: Type.String({ minLength: 8, description: 'the token itself' }) }, strict)

export type ConfiguredDatabase = Readonly<{
  line: number
  input: DatabaseInput
  createSlot: boolean
  createPublication: boolean
  initSql?: string
  awaitMs: number
  intervalMs: number
}>
export type ConfigDocument = Readonly<{
  file: string
  account: string
  tokens: readonly (Static<typeof Token> & Readonly<{ line: number }>)[]
  databases: readonly ConfiguredDatabase[]
  functions: readonly ConfiguredFunction[]
  endpoints: readonly Readonly<{ line: number; input: EndpointInput }>[]
  sinks: readonly Readonly<{ line: number; database: string; input: SinkInput }>[]
}>

const SECTIONS = new Set(['account', 'api_tokens', 'databases', 'functions', 'http_endpoints', 'sinks'])
/** older names of sections */
const OLDER = new Set(['transforms'])
const DATABASE_NOT_YET = ['primary']
const NOT_YET = new Set(['users', 'change_retentions', 'wal_pipelines'])
const SINK_NOT_YET = ['initial_backfill']
/** Postgres cuts longer ones without an error, so that what is made is never found again. */
const MAX_NAME_BYTES = 63

const ajv = new Ajv({ allErrors: true })
const checkAccount = ajv.compile(Account)
const checkToken = ajv.compile(Token)
const checkDatabase = ajv.compile(DatabaseForm)

/**
 * @param source YAML
 * @param file named in errors
 * @param env for `${VAR}` and `${VAR:-default}` in values
 * @param read gives the text of a file that stands beside this one; absent: none can be named
 * @throws EngineError CONFIG_INVALID: file, line, column and reason of every mistake
 */
export function parseConfig(
  source: string,
  file: string,
  env: Readonly<Record<string, string | undefined>>,
  read?: (path: string) => string,
): ConfigDocument {
  const { document, problems } = readDocument(source, file, env, read)
  if (!document) throw refusal(problems)
  return document
}

/**
 * The same for who has more to say of the functions before it is refused.
 * @returns the document, or what is wrong with it; the functions that could be read either way
 * @throws EngineError CONFIG_INVALID: nothing of it can be read
 */
export function readDocument(
  source: string,
  file: string,
  env: Readonly<Record<string, string | undefined>>,
  read?: (path: string) => string,
): Readonly<{ document: ConfigDocument | undefined; functions: readonly ConfiguredFunction[]; problems: readonly Problem[] }> {
  const reader = new ConfigReader(source, file)
  reader.interpolate(env, TEXTS)
  const root = rootOf(reader)
  for (const key of Object.keys(root)) checkSection(reader, key)
  if (root['account'] === undefined) reader.wrong(0, 'the section "account" is missing: account: { name: … }')
  else fits(reader, checkAccount, root['account'], ['account'])
  const tokens = each(reader, root, 'api_tokens', configuredToken)
  const databases = each(reader, root, 'databases', configuredDatabase)
  if (root['functions'] !== undefined && root['transforms'] !== undefined)
    reader.wrong(reader.keyOffset('transforms'), 'transforms is the older name of functions: give one of them')
  const section = root['transforms'] === undefined ? 'functions' : 'transforms'
  const functions = each(reader, root, section, (_reader, form, i) => configuredFunction(reader, form, [section, i], read))
  const endpoints = each(reader, root, 'http_endpoints', configuredEndpoint)
  const sinks = each(reader, root, 'sinks', configuredSink)
  const slots = databases.map((database) => database && slotKey(database))
  for (const [i, slot] of slots.entries())
    if (slot !== undefined && slots.indexOf(slot) !== i)
      reader.wrong(
        reader.at('databases', i, 'slot'),
        `the slot "${databases[i]?.input.slotName}" is already another database's: each needs its own`,
      )
  const { problems } = reader
  const readable = functions.filter((fn) => fn !== undefined)
  if (problems.length > 0) return { document: undefined, functions: readable, problems }
  const document = {
    file,
    account: (root['account'] as Static<typeof Account>).name,
    tokens: tokens.filter((token) => token !== undefined),
    databases: databases.filter((database) => database !== undefined),
    functions: readable,
    endpoints: endpoints.filter((endpoint) => endpoint !== undefined),
    sinks: sinks.filter((sink) => sink !== undefined),
  }
  return { document, functions: readable, problems }
}

function rootOf(reader: ConfigReader): Readonly<Record<string, unknown>> {
  let root: unknown
  try {
    root = reader.document.toJS({ maxAliasCount: 1000 })
  } catch (error) {
    return reader.fail(0, error instanceof Error ? error.message : String(error))
  }
  if (isCircular(root)) return reader.fail(0, 'an alias (*) stands inside of what its anchor (&) holds')
  return isObject(root) ? root : reader.fail(0, 'expected a mapping with account, api_tokens, databases and sinks')
}

function checkSection(reader: ConfigReader, key: string): void {
  if (SECTIONS.has(key) || OLDER.has(key)) return
  const offset = reader.keyOffset(key)
  if (NOT_YET.has(key)) return reader.wrong(offset, `the section "${key}" is not supported yet`)
  // any other key may hold anchors for the sections below it; without one it is most likely misspelt. Of a misspelt section
  // a single value may well have an anchor, so inside only a mapping or a list with one makes a holder of them
  if (!reader.isAnchorHolder(key))
    reader.wrong(offset, `unknown section "${key}"; known are ${[...SECTIONS].join(', ')}, and any mapping with an &anchor`)
}

/** @returns what became of each; undefined where something is wrong */
function each<T>(
  reader: ConfigReader,
  root: Readonly<Record<string, unknown>>,
  section: string,
  configured: (reader: ConfigReader, form: unknown, i: number) => T | undefined,
): (T | undefined)[] {
  const forms = root[section] ?? []
  if (!Array.isArray(forms)) {
    reader.wrong(reader.at(section), `${section}: expected a list`)
    return []
  }
  const names = forms.map((form: unknown) => (isObject(form) ? form['name'] : undefined))
  for (const [i, name] of names.entries())
    if (typeof name === 'string' && names.indexOf(name) !== i)
      reader.wrong(reader.at(section, i), `${section}: the name "${name}" stands there twice`)
  return forms.map((form, i) => configured(reader, form, i))
}

function configuredToken(reader: ConfigReader, form: unknown, i: number): ConfigDocument['tokens'][number] | undefined {
  if (!fits(reader, checkToken, form, ['api_tokens', i])) return undefined
  return { ...(form as Static<typeof Token>), line: reader.line(reader.at('api_tokens', i)) }
}

const slotKey = ({ input: { connection: c, slotName } }: ConfiguredDatabase): string => `${c.hostname}:${c.port}/${slotName}`

function configuredDatabase(reader: ConfigReader, given: unknown, i: number): ConfiguredDatabase | undefined {
  if (!isObject(given)) return reader.wrong(reader.at('databases', i), 'expected a mapping')
  let isWhole = true
  const fields: Record<string, unknown> = { ...given }
  for (const key of DATABASE_NOT_YET) {
    if (fields[key] === undefined) continue
    reader.wrong(reader.at('databases', i, key), `${key} is not supported yet`)
    delete fields[key]
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
  const connection = connectionOf(form, here)
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

function connectionOf(form: DatabaseForm, here: Tell): Connection | undefined {
  const ssl = form.ssl ?? true
  if (form.ca_cert !== undefined && !isCertificate(form.ca_cert))
    here('ca_cert', 'is not a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----')
  const ca = form.ca_cert === undefined ? {} : { caCert: form.ca_cert }
  if (form.url === undefined) {
    if (form.hostname === undefined) here('hostname', 'is missing (or give url)')
    if (form.database === undefined) here('database', 'is missing (or give url)')
    const { hostname, database, port = 5432, username = 'postgres', password = 'postgres' } = form
    return hostname !== undefined && database !== undefined ? { hostname, port, database, username, password, ssl, ...ca } : undefined
  }
  for (const field of ['hostname', 'port', 'database', 'username', 'password'] as const)
    if (form[field] !== undefined) here(field, 'is given beside url, which says it too')
  const parts = partsOfUrl(form.url)
  if (typeof parts !== 'string') return { ...parts, ssl, ...ca }
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

function configuredSink(reader: ConfigReader, form: unknown, i: number): ConfigDocument['sinks'][number] | undefined {
  if (!isObject(form)) return reader.wrong(reader.at('sinks', i), 'expected a mapping')
  let isWhole = true
  for (const key of SINK_NOT_YET)
    if (form[key] !== undefined && form[key] !== false && form[key] !== null) {
      reader.wrong(reader.at('sinks', i, key), `${key} is not supported yet`)
      isWhole = false
    }
  const { initial_backfill: _, ...fields }: Record<string, unknown> = form
  const input = checked(reader, ['sinks', i], () => newSink(fields))
  return input && isWhole ? { line: reader.line(reader.at('sinks', i)), database: input.settings.database, input } : undefined
}

function configuredEndpoint(reader: ConfigReader, form: unknown, i: number): ConfigDocument['endpoints'][number] | undefined {
  if (!isObject(form)) return reader.wrong(reader.at('http_endpoints', i), 'expected a mapping')
  const input = checked(reader, ['http_endpoints', i], () => newEndpoint(form))
  if (!input) return undefined
  const { url } = input
  if (url === undefined) return reader.wrong(reader.at('http_endpoints', i, 'webhook.site'), 'is for the API: a file names its addresses')
  return { line: reader.line(reader.at('http_endpoints', i)), input: { ...input, url } }
}

/** Fields that take texts alone. */
const TEXTS = new Set(
  [DatabaseForm, Token, SinkPatch, EndpointIn, ...Object.values(DESTINATIONS)]
    .flatMap(({ properties }) => Object.entries(properties))
    .filter(([, schema]) => 'type' in schema && schema.type === 'string')
    .map(([name]) => name),
)

/** Aliases may make it so; nothing here or in the state database can hold that. */
function isCircular(value: unknown): boolean {
  try {
    JSON.stringify(value)
    return false
  } catch {
    return true
  }
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
