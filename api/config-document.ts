/**
 * Configuration as code: a YAML text becomes a checked document, or one error that says where and why. Nothing here
 * does I/O; api/config-apply.ts makes it so.
 *
 *   account: { name }            api_tokens: [{ name, token }]
 *   databases: [{ name, url | hostname …, slot, publication, … }]      sinks: [{ name, database, source, destination, … }]
 */
import { X509Certificate } from 'node:crypto'
import { Ajv } from 'ajv'
import { Type, type Static } from 'typebox'
import { isMap, isNode, isPair, isScalar, LineCounter, parseDocument, visit, type Document, type Node } from 'yaml'
import { EngineError } from '../engine/errors.ts'
import { Name, TlsMode, type Connection } from '../engine/state/resources.ts'
import type { DatabaseInput, SinkInput } from '../engine/state/resource-store.ts'
import { newSink, SinkPatch } from './sink-form.ts'

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
  lines: Readonly<{ account: number }>
  tokens: readonly (Static<typeof Token> & Readonly<{ line: number }>)[]
  databases: readonly ConfiguredDatabase[]
  sinks: readonly Readonly<{ line: number; database: string; input: SinkInput }>[]
}>

const SECTIONS = new Set(['account', 'api_tokens', 'databases', 'sinks'])
const DATABASE_NOT_YET = ['primary']
const NOT_YET = new Set(['users', 'functions', 'transforms', 'http_endpoints', 'change_retentions', 'wal_pipelines'])
const SINK_NOT_YET = ['initial_backfill']
/** Postgres cuts longer ones without an error, so that what is made is never found again. */
const MAX_NAME_BYTES = 63

const ajv = new Ajv({ allErrors: true })
const checkAccount = ajv.compile(Account)
const checkToken = ajv.compile(Token)
const checkDatabase = ajv.compile(DatabaseForm)

/** The place of something in the file, for errors. */
class Reader {
  readonly #file: string
  readonly #lines = new LineCounter()
  readonly document: Document.Parsed

  constructor(source: string, file: string) {
    this.#file = file
    this.document = parseDocument(source, { lineCounter: this.#lines, merge: true, uniqueKeys: true })
    const [error] = this.document.errors
    if (error) throw this.wrong(error.pos[0], error.message.split('\n')[0] ?? 'not valid YAML')
  }

  line(offset: number): number {
    return this.#lines.linePos(offset).line
  }

  at(...path: readonly (string | number)[]): number {
    for (let length = path.length; length > 0; length--) {
      const node = this.document.getIn(path.slice(0, length), true) as Node | undefined
      if (isScalar(node) && node.range) return node.range[0]
      const key = this.#key(path.slice(0, length)) // a mapping begins below its key
      if (key !== undefined) return key
      if (node?.range) return node.range[0]
    }
    return 0
  }

  #key(path: readonly (string | number)[]): number | undefined {
    const parent: unknown = path.length > 1 ? this.document.getIn(path.slice(0, -1), true) : this.document.contents
    if (!isMap(parent)) return undefined
    const pair = parent.items.find((item) => isScalar(item.key) && item.key.value === path.at(-1))
    return (pair?.key as Node | undefined)?.range?.[0]
  }

  wrong(offset: number, reason: string): EngineError {
    const { line, col } = this.#lines.linePos(offset)
    return new EngineError('CONFIG_INVALID', `${this.#file}:${line}:${col}: ${reason}`, { file: this.#file, line, column: col })
  }
}

/**
 * @param source YAML
 * @param file named in errors
 * @param env for `${VAR}` and `${VAR:-default}` in values
 * @throws EngineError CONFIG_INVALID: file, line, column and reason
 */
export function parseConfig(source: string, file: string, env: Readonly<Record<string, string | undefined>>): ConfigDocument {
  const reader = new Reader(source, file)
  interpolate(reader, env)
  let root: unknown
  try {
    root = reader.document.toJS({ maxAliasCount: 1000 })
  } catch (error) {
    throw reader.wrong(0, error instanceof Error ? error.message : String(error))
  }
  if (isCircular(root)) throw reader.wrong(0, 'an alias (*) stands inside of what its anchor (&) holds')
  if (!isObject(root)) throw reader.wrong(0, 'expected a mapping with account, api_tokens, databases and sinks')
  for (const key of Object.keys(root)) checkSection(reader, key)

  const { account } = root
  if (account === undefined) throw reader.wrong(0, 'the section "account" is missing: account: { name: … }')
  if (!checkAccount(account)) throw reader.wrong(reader.at('account'), reasons(checkAccount.errors))

  const tokens = list(reader, root, 'api_tokens').map((token, i) => {
    if (!checkToken(token)) throw reader.wrong(reader.at('api_tokens', i), reasons(checkToken.errors))
    return { ...(token as Static<typeof Token>), line: reader.line(reader.at('api_tokens', i)) }
  })
  const databases = list(reader, root, 'databases').map((form, i) => {
    for (const key of DATABASE_NOT_YET)
      if (isObject(form) && form[key] !== undefined) throw reader.wrong(reader.at('databases', i, key), `${key} is not supported yet`)
    if (!checkDatabase(form))
      throw reader.wrong(reader.at('databases', i, ...firstField(checkDatabase.errors)), reasons(checkDatabase.errors))
    return configuredDatabase(reader, form as DatabaseForm, i)
  })
  const sinks = list(reader, root, 'sinks').map((form, i) => configuredSink(reader, form, i))
  noTwice(
    reader,
    'api_tokens',
    tokens.map(({ name }) => name),
  )
  noTwice(
    reader,
    'databases',
    databases.map(({ input }) => input.name),
  )
  noTwice(
    reader,
    'sinks',
    sinks.map(({ input }) => input.settings.name),
  )
  const slots = databases.map(({ input: { connection: c, slotName } }) => `${c.hostname}:${c.port}/${slotName}`)
  const twice = slots.findIndex((slot, i) => slots.indexOf(slot) !== i)
  if (twice >= 0)
    throw reader.wrong(
      reader.at('databases', twice, 'slot'),
      `the slot "${databases[twice]?.input.slotName}" is already another database's: each needs its own`,
    )
  return {
    file,
    account: (account as Static<typeof Account>).name,
    lines: { account: reader.line(reader.at('account')) },
    tokens,
    databases,
    sinks,
  }
}

function checkSection(reader: Reader, key: string): void {
  if (SECTIONS.has(key)) return
  const offset = keyOffset(reader, key)
  if (NOT_YET.has(key)) throw reader.wrong(offset, `the section "${key}" is not supported yet`)
  // any other key may hold anchors for the sections below it; without one it is most likely misspelt. Of a misspelt section
  // a single value may well have an anchor, so inside only a mapping or a list with one makes a holder of them
  const held = reader.document.getIn([key], true)
  let anchored = isAnchored(held)
  if (isNode(held)) visit(held, { Collection: (_, node) => void (anchored ||= isAnchored(node)) })
  if (!anchored)
    throw reader.wrong(offset, `unknown section "${key}"; known are ${[...SECTIONS].join(', ')}, and any mapping with an &anchor`)
}

const isAnchored = (node: unknown): boolean => isNode(node) && 'anchor' in node && node.anchor !== undefined

function configuredDatabase(reader: Reader, form: DatabaseForm, i: number): ConfiguredDatabase {
  const here = (field: string, reason: string) => reader.wrong(reader.at('databases', i, field), `${field}: ${reason}`)
  const slotName = form.slot?.name ?? form.slot_name
  const publicationName = form.publication?.name ?? form.publication_name
  if (slotName === undefined) throw here('slot', 'is missing: slot: { name: …, create_if_not_exists: true }')
  if (publicationName === undefined) throw here('publication', 'is missing: publication: { name: …, create_if_not_exists: true }')
  if (!/^[a-z0-9_]{1,63}$/.test(slotName)) throw here('slot', `"${slotName.slice(0, 80)}" is not a slot name: up to 63 of a-z, 0-9 and "_"`)
  if (Buffer.byteLength(publicationName) > MAX_NAME_BYTES)
    throw here('publication', `"${publicationName.slice(0, 80)}" is too long: Postgres takes names of up to ${MAX_NAME_BYTES} bytes`)
  const { init_sql: initSql } = form.publication ?? {}
  return {
    line: reader.line(reader.at('databases', i)),
    input: {
      name: form.name,
      connection: connectionOf(form, here),
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

function connectionOf(form: DatabaseForm, here: (field: string, reason: string) => EngineError): Connection {
  const ssl = form.ssl ?? true
  if (form.ca_cert !== undefined && !isCertificate(form.ca_cert))
    throw here('ca_cert', 'is not a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----')
  const ca = form.ca_cert === undefined ? {} : { caCert: form.ca_cert }
  if (form.url === undefined) {
    if (form.hostname === undefined) throw here('hostname', 'is missing (or give url)')
    if (form.database === undefined) throw here('database', 'is missing (or give url)')
    const { hostname, database, port = 5432, username = 'postgres', password = 'postgres' } = form
    return { hostname, port, database, username, password, ssl, ...ca }
  }
  const both = (['hostname', 'port', 'database', 'username', 'password'] as const).find((field) => form[field] !== undefined)
  if (both) throw here(both, 'is given beside url, which says it too')
  if (!URL.canParse(form.url)) throw here('url', 'is not postgresql://user:password@host:port/database')
  const url = new URL(form.url)
  if (url.protocol !== 'postgresql:' && url.protocol !== 'postgres:') throw here('url', 'must begin with postgresql://')
  if (url.search !== '') throw here('url', 'has parameters; write them as fields, such as ssl')
  if (![url.pathname, url.username, url.password].every(isDecodable)) throw here('url', 'has a % that encodes nothing; write it as %25')
  const database = decodeURIComponent(url.pathname.slice(1))
  if (url.hostname === '' || database === '') throw here('url', 'names no host or no database')
  return {
    hostname: url.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: url.port === '' ? 5432 : Number(url.port),
    database,
    username: decodeURIComponent(url.username) || 'postgres',
    password: decodeURIComponent(url.password),
    ssl,
    ...ca,
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

function configuredSink(reader: Reader, form: unknown, i: number): ConfigDocument['sinks'][number] {
  if (!isObject(form)) throw reader.wrong(reader.at('sinks', i), 'expected a mapping')
  for (const key of SINK_NOT_YET)
    if (form[key] !== undefined && form[key] !== false && form[key] !== null)
      throw reader.wrong(reader.at('sinks', i, key), `${key} is not supported yet`)
  const { initial_backfill: _, ...fields } = form
  const { destination } = fields
  if (isObject(destination) && typeof destination['type'] === 'string' && !/^(?:sequin_|tailrace_)?stream$/.test(destination['type'])) {
    throw reader.wrong(
      reader.at('sinks', i, 'destination', 'type'),
      `sinks of type "${destination['type'].slice(0, 40)}" are not supported yet; known is "sequin_stream"`,
    )
  }
  try {
    const input = newSink(fields)
    return { line: reader.line(reader.at('sinks', i)), database: input.settings.database, input }
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    const [field = ''] = Object.keys(error.context)
    throw reader.wrong(reader.at('sinks', i, ...field.split('.')), error.message)
  }
}

/** Fields that take texts alone: a password of digits stays what it is, zeros in front too. */
const TEXTS = new Set(
  [...Object.entries(DatabaseForm.properties), ...Object.entries(Token.properties), ...Object.entries(SinkPatch.properties)]
    .filter(([, schema]) => 'type' in schema && schema.type === 'string')
    .map(([name]) => name),
)

/** Replaces variables in the values, where they stand, so that errors still know their lines. */
function interpolate(reader: Reader, env: Readonly<Record<string, string | undefined>>): void {
  visit(reader.document, {
    Scalar(key, node, path) {
      if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return
      const replaced = node.value.replaceAll(
        /\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}/g,
        (_, name: string, fallback: string | undefined) => {
          const value = env[name] || fallback
          if (value === undefined)
            throw reader.wrong(node.range?.[0] ?? 0, `the variable ${name} is not set; give it a default as in \${${name}:-value}`)
          return value
        },
      )
      // a plain value is read as YAML would read it (a port stays a number); a quoted one stays a text
      const [holder] = path.slice(-1)
      const field = isPair(holder) && isScalar(holder.key) ? String(holder.key.value) : ''
      node.value = node.type === 'PLAIN' && !TEXTS.has(field) ? plain(replaced) : replaced
    },
  })
}

const plain = (value: string): string | number | boolean => {
  if (value === 'true' || value === 'false') return value === 'true'
  return /^-?(?:0|[1-9][0-9]{0,14})$/.test(value) ? Number(value) : value
}

function list(reader: Reader, root: Readonly<Record<string, unknown>>, section: string): unknown[] {
  const value = root[section]
  if (value === undefined || value === null) return []
  if (!Array.isArray(value)) throw reader.wrong(reader.at(section), `${section}: expected a list`)
  return value
}

function noTwice(reader: Reader, section: string, names: readonly string[]): void {
  for (const [i, name] of names.entries())
    if (names.indexOf(name) !== i) throw reader.wrong(reader.at(section, i), `${section}: the name "${name}" stands there twice`)
}

function keyOffset(reader: Reader, key: string): number {
  const { contents } = reader.document
  if (!isMap(contents)) return 0
  const pair = contents.items.find((item) => isScalar(item.key) && item.key.value === key)
  return (pair?.key as Node | undefined)?.range?.[0] ?? 0
}

type AjvErrors = typeof checkDatabase.errors
const firstField = (errors: AjvErrors): string[] => {
  const [error] = errors ?? []
  const path = error?.instancePath.split('/').slice(1) ?? []
  const unknown: unknown = error?.params['additionalProperty']
  return typeof unknown === 'string' ? [...path, unknown] : path
}

function reasons(errors: AjvErrors): string {
  return [
    ...new Set(
      (errors ?? []).map(({ instancePath, message, params, keyword }) => {
        const field = instancePath.slice(1).replaceAll('/', '.')
        if (keyword === 'additionalProperties') return `"${String(params['additionalProperty']).slice(0, 60)}" is not a known field`
        return `${field ? `${field}: ` : ''}${message ?? 'is wrong'}`
      }),
    ),
  ].join('; ')
}

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
