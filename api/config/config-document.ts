/**
 * Configuration as code: a YAML text becomes a checked document, or one error that says of every mistake where it is and
 * what was expected. Nothing here does I/O; api/config/config-apply.ts makes it so.
 *
 *   account: { name }            api_tokens: [{ name, token }]            http_endpoints: [{ name, url, headers, … }]
 *   databases: [{ name, url | hostname …, slot, publication, … }]      sinks: [{ name, database, source, destination, … }]
 */
import { Type, type TSchema } from 'typebox'
import { schemaCheck } from '../../engine/schema-check.ts'
import type { Account as StoredAccount, Database, Sink } from '../../engine/state/resources.ts'
import { Name } from '../../engine/resource-name.ts'
import { secretFields, type HttpEndpoint } from '../../engine/state/destinations.ts'
import type { EndpointInput, SinkInput } from '../../engine/state/resource-store.ts'
import { ConfigReader, refusal, type Problem } from './config-reader.ts'
import { checked, fits } from './config-forms.ts'
import { configuredDatabase, DatabaseForm, slotKey, type ConfiguredDatabase } from './configured-databases.ts'
import { configuredFunction, type ConfiguredFunction } from './configured-functions.ts'
import { secretsMeant, urlMeant } from '../sinks/secret-form.ts'
import { kindOf } from '../sinks/destination-form.ts'
import { DESTINATIONS } from '../../sinks/destination-types.ts'
import { flatFunction } from '../functions/function-form.ts'
import { EndpointIn, isSummary, newEndpoint } from '../sinks/endpoint-form.ts'
import { isObject, readOnly, withoutNulls } from '../http/form.ts'
import { newSink, SinkPatch } from '../sinks/sink-form.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

export const Account = Type.Object({ name: text('name of the account'), ...readOnly() }, strict)
export const Token = Type.Object(
  { name: Name, token: Type.String({ minLength: 8, description: 'the token itself' }), ...readOnly() },
  strict,
)

export type ConfigDocument = Readonly<{
  file: string
  account: string
  tokens: readonly Readonly<{ name: string; token: string; line: number }>[]
  databases: readonly ConfiguredDatabase[]
  functions: readonly ConfiguredFunction[]
  endpoints: readonly Readonly<{ line: number; input: EndpointInput }>[]
  sinks: readonly Readonly<{ line: number; database: string; input: SinkInput }>[]
  /** what stops nothing, and should be known */
  notices: readonly string[]
}>

const SECTIONS = new Set(['account', 'api_tokens', 'databases', 'functions', 'http_endpoints', 'sinks'])
/** older names of sections */
const OLDER = new Set(['transforms'])
const NOT_YET = new Set(['users', 'change_retentions', 'wal_pipelines'])
const SINK_NOT_YET = ['initial_backfill']

/** Of the sections whose entries are read as they stand. */
const FORMS: ReadonlyMap<string, TSchema> = new Map(
  Object.entries({ api_tokens: Token, databases: DatabaseForm, http_endpoints: EndpointIn, sinks: SinkPatch }),
)

const checkAccount = schemaCheck(Account)
const checkToken = schemaCheck(Token)

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
  const { document, problems } = readDocument(source, { file, env, read })
  if (!document) throw refusal(problems)
  return document
}

/** What the account has: secrets may be given as they are shown, and stay. */
export type StoredResources = Readonly<{
  account?: StoredAccount
  databases: readonly Database[]
  endpoints: readonly HttpEndpoint[]
  sinks: readonly Sink[]
}>
const NOTHING: StoredResources = { databases: [], endpoints: [], sinks: [] }

/**
 * @property file named in errors @property env for variables; undefined: they were replaced before
 * @property stored of the account that the document is for; absent: it names one itself
 * @property maxEntries of all sections together; absent: any number
 * @property maxCharacters of what variables are replaced by, and of all texts where aliases repeat them; absent: any number
 */
type Reading = Readonly<{
  file: string
  env: Readonly<Record<string, string | undefined>> | undefined
  read?: ((path: string) => string) | undefined
  stored?: StoredResources
  maxEntries?: number
  maxCharacters?: number
}>

/** The text with its variables replaced, as far as they are set. @throws EngineError CONFIG_INVALID: it is not YAML */
export function interpolated(source: string, file: string, env: Reading['env'], maxCharacters?: number): ConfigReader {
  const reader = new ConfigReader(source, file)
  reader.interpolate(env, TEXTS, maxCharacters)
  return reader
}

/**
 * The same for who has more to say of the functions before it is refused.
 * @returns the document, or what is wrong with it; the functions that could be read either way
 * @throws EngineError CONFIG_INVALID: nothing of it can be read
 */
export function readDocument(
  source: string,
  { file, env, read, stored = NOTHING, maxEntries = Infinity, maxCharacters = Infinity }: Reading,
): Readonly<{ document: ConfigDocument | undefined; functions: readonly ConfiguredFunction[]; problems: readonly Problem[] }> {
  const reader = interpolated(source, file, env, maxCharacters)
  const root = rootOf(reader)
  if (charactersIn(root, maxCharacters) > maxCharacters)
    reader.fail(0, `has more than ${maxCharacters} characters where aliases (*) and variables stand for their texts`)
  const entries = Object.values(root).reduce((sum: number, forms) => sum + (Array.isArray(forms) ? forms.length : 0), 0)
  if (entries > maxEntries) reader.fail(0, `has ${entries} entries, more than ${maxEntries}: apply it in parts`)
  for (const [key, held] of Object.entries(root)) checkSection(reader, key, held)
  const account = accountNamed(reader, root['account'], stored.account)
  const tokens = each(reader, root, 'api_tokens', configuredToken)
  const databases = each(reader, root, 'databases', (_reader, form, i) => configuredDatabase(reader, form, i, stored.databases))
  if (root['functions'] !== undefined && root['transforms'] !== undefined)
    reader.wrong(reader.keyOffset('transforms'), 'transforms is the older name of functions: give one of them')
  const section = root['transforms'] === undefined ? 'functions' : 'transforms'
  const functions = each(reader, root, section, (_reader, form, i) => configuredFunction(reader, form, [section, i], read))
  const endpoints = each(reader, root, 'http_endpoints', (_reader, form, i) => configuredEndpoint(reader, form, i, stored.endpoints))
  const sinks = each(reader, root, 'sinks', (_reader, form, i) => configuredSink(reader, form, i, stored.sinks))
  for (const i of repeated(databases.map((database) => database && slotKey(database))))
    reader.wrong(
      reader.at('databases', i, 'slot'),
      `the slot "${databases[i]?.input.slotName}" is already another database's: each needs its own`,
    )
  const { problems } = reader
  const readable = functions.filter((fn) => fn !== undefined)
  if (problems.length > 0) return { document: undefined, functions: readable, problems }
  const document = {
    file,
    account,
    tokens: tokens.filter((token) => token !== undefined),
    databases: databases.filter((database) => database !== undefined),
    functions: readable,
    endpoints: endpoints.filter((endpoint) => endpoint !== undefined),
    sinks: sinks.filter((sink) => sink !== undefined),
    notices: reader.notices,
  }
  return { document, functions: readable, problems }
}

/** The files that its functions name, and where. @throws EngineError CONFIG_INVALID: nothing of it can be read */
export function functionFiles(reader: ConfigReader): readonly Readonly<{ path: string; offset: number }>[] {
  const root = rootOf(reader)
  return ['functions', 'transforms'].flatMap((section) => {
    const { [section]: forms } = root
    return (Array.isArray(forms) ? forms : []).flatMap((form: unknown, i) => {
      const flat = flatFunction(form)
      const path = isObject(flat) ? flat['file'] : undefined
      return typeof path === 'string' && path !== '' ? [{ path, offset: reader.at(section, i, 'file') }] : []
    })
  })
}

function rootOf(reader: ConfigReader): Readonly<Record<string, unknown>> {
  let root: unknown
  try {
    root = reader.document.toJS({ maxAliasCount: 1000 })
  } catch (error) {
    return reader.fail(0, error instanceof Error ? error.message : String(error))
  }
  if (isCircular(root)) return reader.fail(0, 'an alias (*) stands inside of what its anchor (&) holds')
  if (!isObject(root)) return reader.fail(0, 'expected a mapping with account, api_tokens, databases and sinks')
  return Object.fromEntries(Object.entries(root).filter(([, section]) => section !== null))
}

/** @returns of all texts together, and one for whatever else stands there; more than `enough` of them aren't counted */
function charactersIn(value: unknown, enough: number): number {
  let characters = typeof value === 'string' ? value.length : 1
  if (typeof value === 'object' && value !== null)
    for (const held of Object.values(value)) {
      characters += charactersIn(held, enough - characters)
      if (characters > enough) return characters
    }
  return characters
}

/** A document for an account that is there need not name it. */
function accountNamed(reader: ConfigReader, form: unknown, stored: StoredAccount | undefined): string {
  if (form === undefined && stored) return stored.name
  if (form === undefined) reader.wrong(0, 'the section "account" is missing: account: { name: … }')
  else if (fits(reader, checkAccount, withoutNulls(Account, form), ['account'])) {
    const { name } = form as { name: string }
    if (!stored || name === stored.name) return name
    reader.wrong(reader.at('account', 'name'), `account.name is "${name}", and the token is of the account "${stored.name}"`)
  }
  return ''
}

/** @param held what stands there */
function checkSection(reader: ConfigReader, key: string, held: unknown): void {
  if (SECTIONS.has(key) || OLDER.has(key)) return
  const offset = reader.keyOffset(key)
  if (NOT_YET.has(key)) return reader.wrong(offset, `the section "${key}" is not supported yet`)
  // any other key may hold anchors for the sections below it. Of a misspelt section a single value may well have an anchor, so
  // inside only a mapping or a list with one makes a holder of them
  if (reader.isAnchorHolder(key)) return
  const known = `known are ${[...SECTIONS].join(', ')}`
  // whoever sent the file may have put in what its anchors hold, and left them out: a mapping is taken for such a holder
  if (isObject(held)) reader.notice(offset, `"${key}" is not a section and is ignored; ${known}`)
  else reader.wrong(offset, `unknown section "${key}"; ${known}, and mappings of other names are ignored`)
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
  for (const i of repeated(names)) reader.wrong(reader.at(section, i), `${section}: the name "${names[i] as string}" stands there twice`)
  const schema = FORMS.get(section)
  return forms.map((form, i) => configured(reader, schema ? withoutNulls(schema, form) : form, i))
}

/** @returns where a text stands that stood before */
function repeated(texts: readonly unknown[]): number[] {
  const seen = new Set<unknown>()
  return texts.flatMap((text, i) => {
    if (typeof text !== 'string') return []
    if (seen.has(text)) return [i]
    seen.add(text)
    return []
  })
}

function configuredToken(reader: ConfigReader, form: unknown, i: number): ConfigDocument['tokens'][number] | undefined {
  if (!fits(reader, checkToken, form, ['api_tokens', i])) return undefined
  const { name, token } = form as { name: string; token: string }
  return { name, token, line: reader.line(reader.at('api_tokens', i)) }
}

function configuredSink(
  reader: ConfigReader,
  form: unknown,
  i: number,
  stored: readonly Sink[],
): ConfigDocument['sinks'][number] | undefined {
  if (!isObject(form)) return reader.wrong(reader.at('sinks', i), 'expected a mapping')
  let isWhole = true
  for (const key of SINK_NOT_YET)
    if (form[key] !== undefined && form[key] !== false && form[key] !== null) {
      reader.wrong(reader.at('sinks', i, key), `${key} is not supported yet`)
      isWhole = false
    }
  const { initial_backfill: _, ...fields }: Record<string, unknown> = form
  const { destination } = fields
  const kind = kindOf(destination)
  if (kind !== undefined && isObject(destination)) {
    const before = stored.find(({ name }) => name === form['name'])?.destination
    const known: Readonly<Record<string, unknown>> = before?.type === kind ? before : {}
    const secrets = secretFields(DESTINATIONS, kind).filter((name) => destination[name] !== undefined)
    const meant = secrets.map((name) => {
      const tell = (reason: string) => {
        reader.wrong(reader.at('sinks', i, 'destination', name), `destination.${name} ${reason}`)
        isWhole = false
      }
      return [name, secretsMeant(destination[name], known[name], tell)] as const
    })
    fields['destination'] = { ...destination, ...Object.fromEntries(meant) }
  }
  if (!isWhole) return undefined
  const input = checked(reader, ['sinks', i], () => newSink(fields))
  return input ? { line: reader.line(reader.at('sinks', i)), database: input.settings.database, input } : undefined
}

function configuredEndpoint(
  reader: ConfigReader,
  form: unknown,
  i: number,
  stored: readonly HttpEndpoint[],
): ConfigDocument['endpoints'][number] | undefined {
  if (!isObject(form)) return reader.wrong(reader.at('http_endpoints', i), 'expected a mapping')
  const before = stored.find(({ name }) => name === form['name'])
  const known = before?.encryptedHeaders
  const { encrypted_headers: given, url: givenUrl } = form
  let isWhole = true
  const tell = (reason: string) => {
    reader.wrong(reader.at('http_endpoints', i, 'encrypted_headers'), `encrypted_headers ${reason}`)
    isWhole = false
  }
  if (isSummary(given) && !known) tell('are told only by their number: give them themselves')
  const tellUrl = (reason: string) => {
    reader.wrong(reader.at('http_endpoints', i, 'url'), `url ${reason}`)
    isWhole = false
  }
  const address = typeof givenUrl === 'string' ? { url: urlMeant(givenUrl, before?.url, tellUrl) } : {}
  const encrypted = isSummary(given) ? known : secretsMeant(given, known, tell)
  if (!isWhole) return undefined
  const input = checked(reader, ['http_endpoints', i], () => newEndpoint({ ...form, ...address, ...(encrypted !== undefined && { encrypted_headers: encrypted }) })) // prettier-ignore
  if (!input) return undefined
  const { url } = input
  if (url === undefined) return reader.wrong(reader.at('http_endpoints', i, 'webhook.site'), 'is for the API: a file names its addresses')
  return { line: reader.line(reader.at('http_endpoints', i)), input: { ...input, url } }
}

/** Fields that take texts alone. */
const TEXTS = new Set(
  [DatabaseForm, Token, SinkPatch, EndpointIn, ...DESTINATIONS.values()]
    .flatMap(({ properties }) => Object.entries(properties))
    .filter(([, schema]) => 'type' in schema && schema.type === 'string')
    .map(([name]) => name),
)

/** Aliases may make it so; nothing here or in the state database can hold that. */
function isCircular(value: unknown, above = new Set<unknown>(), done = new Set<unknown>()): boolean {
  if (typeof value !== 'object' || value === null || done.has(value)) return false
  if (above.has(value)) return true
  above.add(value)
  if (Object.values(value).some((held) => isCircular(held, above, done))) return true
  above.delete(value)
  done.add(value)
  return false
}
