/**
 * Configuration as code: a YAML text becomes a checked document, or one error that says of every mistake where it is and
 * what was expected. Nothing here does I/O; actors/config/config-apply.ts makes it so.
 *
 *   account: { name }            api_tokens: [{ name, token }]            http_endpoints: [{ name, url, headers, … }]
 *   databases: [{ name, url | hostname …, slot, publication, … }]      sinks: [{ name, database, source, destination, … }]
 */
import { Type } from 'typebox'
import { EngineError, errorText } from '../../engine/errors.ts'
import { fieldsOf, isObject } from '../../engine/json.ts'
import { NO_RESOURCES, type EndpointInput, type ResourceLists, type SinkInput } from '../../engine/state/resource-store.ts'
import type { Account as StoredAccount } from '../../engine/state/resources.ts'
import type { Role } from '../../engine/state/users.ts'
import { DESTINATIONS } from '../../sinks/destination-types.ts'
import type { DatabaseEntry } from '../resources/database-form.ts'
import { checker, readOnly, withoutNulls, type FileSection } from '../resources/form.ts'
import { flatFunction } from '../resources/function-form.ts'
import { RESOURCE_FORMS } from '../resources/resource-forms.ts'
import { LEAST_TOKEN, TokenEntry, tokenEntry } from '../resources/token-form.ts'
import { placeOfFunction, type ConfiguredFunction } from './built-functions.ts'
import { USERS } from './config-users.ts'
import { ConfigReader, refusal, type Problem } from './config-reader.ts'

const strict = { additionalProperties: false } as const
const text = (description: string) => Type.String({ minLength: 1, description })

/** The schema of what a file says of its account. */
export const Account = Type.Object({ name: text('name of the account'), ...readOnly() }, strict)
const checkAccount = checker(Account)
const TOKENS: FileSection<Readonly<{ name: string }>, ReturnType<typeof tokenEntry>> = {
  section: 'api_tokens',
  noun: 'API token',
  schema: TokenEntry,
  read: tokenEntry,
}

/** Holds a database of a file, and the line where it stands. */
export type ConfiguredDatabase = DatabaseEntry & Readonly<{ line: number }>

/** A configuration file that nothing is wrong with, as far as it can be told without asking anyone. */
export type ConfigDocument = Readonly<{
  file: string
  account: string
  tokens: readonly (ReturnType<typeof tokenEntry> & Readonly<{ line: number }>)[]
  /** the file has the section of tokens, be it empty */
  hasTokens: boolean
  users: readonly Readonly<{ email: string; password: string; role: Role | undefined; line: number }>[]
  databases: readonly ConfiguredDatabase[]
  retentions: readonly Readonly<{ line: number; input: SinkInput }>[]
  functions: readonly ConfiguredFunction[]
  endpoints: readonly Readonly<{ line: number; input: EndpointInput }>[]
  sinks: readonly Readonly<{ line: number; input: SinkInput }>[]
  /** what stops nothing, and should be known */
  notices: readonly string[]
}>

const SECTIONS = new Set(['account', ...[TOKENS, USERS, ...Object.values(RESOURCE_FORMS)].map(({ section }) => section).toSorted()])
/** older names of sections */
const OLDER: Readonly<Record<string, string>> = {
  transforms: 'functions',
  change_capture_pipelines: 'change_retentions',
  wal_pipelines: 'change_retentions',
}

/**
 * Reads a configuration file. @param source YAML @param file named in errors
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

/**
 * Holds what the account has already and that has secrets: a document may give them as they are shown, and they stay. Functions have
 * none, and their code would be much to hand to a thread. @property mayMove a stored password of a database may be sent to another server without
 * being given again; absent: it may not
 */
export type StoredResources = Readonly<{ account?: StoredAccount; mayMove?: boolean }> & Omit<ResourceLists, 'functions'>

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

/** Replaces the variables of a text, as far as they are set. @throws EngineError CONFIG_INVALID: it is not YAML */
export function interpolated(source: string, file: string, env: Reading['env'], maxCharacters?: number): ConfigReader {
  const reader = new ConfigReader(source, file)
  reader.interpolate(env, TEXTS, maxCharacters)
  return reader
}

/**
 * Reads a document for who has more to say of its functions before it is refused.
 * @returns the document, or what is wrong with it; the functions that could be read either way
 * @throws EngineError CONFIG_INVALID: nothing of it can be read
 */
export function readDocument(
  source: string,
  { file, env, read, stored = NO_RESOURCES, maxEntries = Infinity, maxCharacters = Infinity }: Reading,
): Readonly<{ document: ConfigDocument | undefined; functions: readonly ConfiguredFunction[]; problems: readonly Problem[] }> {
  const reader = interpolated(source, file, env, maxCharacters)
  const root = rootOf(reader)
  if (charactersIn(root, maxCharacters) > maxCharacters)
    reader.fail(0, `the file has more than ${maxCharacters} characters once aliases (*) and variables are replaced`)
  const entries = Object.values(root).reduce((sum: number, forms) => sum + (Array.isArray(forms) ? forms.length : 0), 0)
  if (entries > maxEntries) reader.fail(0, `the file has ${entries} entries, more than ${maxEntries}: apply it in parts`)
  for (const [key, held] of Object.entries(root)) checkSection(reader, key, held)
  const account = accountNamed(reader, root['account'], stored.account)
  const tokens = entriesOf(reader, root, TOKENS)
  for (const { i, name, token } of tokens)
    if (token.length < LEAST_TOKEN)
      reader.notice(
        reader.at(TOKENS.section, i, 'token'),
        `the API token "${name}" has fewer than ${LEAST_TOKEN} characters, and can be guessed`,
      )
  const users = entriesOf(reader, root, USERS)
  const { database, change_retention, function: functionForm, http_endpoint, sink } = RESOURCE_FORMS
  const databases = entriesOf(reader, root, database, { known: stored.databases, mayMove: stored.mayMove })
  const section = nameOf(reader, root, functionForm.section)
  const functions = entriesOf(reader, root, { ...functionForm, section }, { textOf: read }).map(({ i, ...fn }) => ({
    ...fn,
    ...placeOfFunction(reader, [section, i], fn),
  }))
  const retentions = entriesOf(reader, root, { ...change_retention, section: nameOf(reader, root, change_retention.section) })
  const endpoints = entriesOf(reader, root, http_endpoint, { known: stored.endpoints })
  const sinks = entriesOf(reader, root, sink, { known: stored.sinks })
  const slots = databases.map(({ input: { connection: c, slotName } }) => `${c.hostname}:${c.port}/${slotName}`)
  for (const { i, input } of repeated(slots).flatMap((at) => databases[at] ?? []))
    reader.wrong(
      reader.at('databases', i, 'slot'),
      `database "${input.name}": slot.name "${input.slotName}" is already the slot of another database; each database needs a slot of its own`,
    )
  const { problems } = reader
  if (problems.length > 0) return { document: undefined, functions, problems }
  const unplaced = <T extends Readonly<{ i: number }>>(entries: readonly T[]) => entries.map(({ i: _i, ...entry }) => entry)
  const document = {
    file,
    account,
    tokens: unplaced(tokens),
    hasTokens: root[TOKENS.section] !== undefined,
    users: unplaced(users),
    databases: unplaced(databases),
    retentions: unplaced(retentions),
    functions,
    endpoints: unplaced(endpoints),
    sinks: unplaced(sinks),
    notices: reader.notices,
  }
  return { document, functions, problems }
}

/**
 * Finds the files that the functions of a document name, where it names them, and how messages name the function.
 * @throws EngineError CONFIG_INVALID: nothing of it can be read
 */
export function functionFiles(reader: ConfigReader): readonly Readonly<{ path: string; offset: number; named: string }>[] {
  const root = rootOf(reader)
  return ['functions', 'transforms'].flatMap((section) => {
    const { [section]: forms } = root
    return (Array.isArray(forms) ? forms : []).flatMap((form: unknown, i) => {
      const { name, file: path } = fieldsOf(flatFunction(form))
      const named = entryNamed({ section, noun: RESOURCE_FORMS.function.noun }, name, i)
      return typeof path === 'string' && path !== '' ? [{ path, offset: reader.at(section, i, 'file'), named }] : []
    })
  })
}

function rootOf(reader: ConfigReader): Readonly<Record<string, unknown>> {
  let root: unknown
  try {
    root = reader.document.toJS({ maxAliasCount: 1000 })
  } catch (error) {
    return reader.fail(0, errorText(error))
  }
  if (isCircular(root)) return reader.fail(0, 'an alias (*) stands inside the value of its own anchor (&)')
  if (!isObject(root)) return reader.fail(0, 'the file must be a mapping with account, api_tokens, databases and sinks')
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

/** Finds the account that a document is for; one that is read for a known account need not name it. */
function accountNamed(reader: ConfigReader, form: unknown, stored: StoredAccount | undefined): string {
  if (form === undefined && stored) return stored.name
  if (form === undefined) reader.wrong(0, 'the section "account" is missing: account: { name: … }')
  else {
    const name = readAt(reader, ['account'], () => checkAccount(withoutNulls(Account, form)).name, 'account')
    if (name === undefined || !stored || name === stored.name) return name ?? ''
    reader.wrong(reader.at('account', 'name'), `account.name is "${name}", and the API token is of the account "${stored.name}"`)
  }
  return ''
}

/** Finds under which of its names a section stands in a file; it may have only one. */
function nameOf(reader: ConfigReader, root: Readonly<Record<string, unknown>>, section: string): string {
  const older = Object.keys(OLDER).filter((name) => OLDER[name] === section)
  const [given = section, ...others] = [section, ...older].filter((name) => root[name] !== undefined)
  for (const other of others)
    reader.wrong(reader.keyOffset(other), `${other} is the older name of ${section}: give only one of the two sections`)
  return given
}

/** @param held what stands there */
function checkSection(reader: ConfigReader, key: string, held: unknown): void {
  if (SECTIONS.has(key) || Object.hasOwn(OLDER, key)) return
  const offset = reader.keyOffset(key)
  // any other key may hold anchors for the sections below it. Of a misspelt section a single value may well have an anchor, so
  // inside only a mapping or a list with one makes a holder of them
  if (reader.isAnchorHolder(key)) return
  const known = `known are ${[...SECTIONS].join(', ')}`
  // whoever sent the file may have put in what its anchors hold, and left them out: a mapping is taken for such a holder
  if (isObject(held)) reader.notice(offset, `"${key}" is not a section and is ignored; ${known}`)
  else reader.wrong(offset, `unknown section "${key}"; ${known}, and mappings of other names are ignored`)
}

type Beside<S> = Readonly<{
  known?: readonly S[]
  mayMove?: boolean | undefined
  textOf?: ((path: string) => string) | undefined
}>

/**
 * Reads the entries of a section. @param beside what they may refer to; `known`: what is stored of their type
 * @returns those that nothing is wrong with, with their lines, and where they stand in the section
 */
function entriesOf<S extends Readonly<{ name: string }>, I extends object>(
  reader: ConfigReader,
  root: Readonly<Record<string, unknown>>,
  { section, noun, schema, ignored = [], notYet = [], flat = (entry) => entry, read }: FileSection<S, I>,
  { known = [], mayMove = false, textOf }: Beside<S> = {},
): (I & Readonly<{ line: number; i: number }>)[] {
  const given = root[section] ?? []
  if (!Array.isArray(given)) {
    reader.wrong(reader.at(section), `the section "${section}" must be a list`)
    return []
  }
  const names = given.map((entry: unknown) => fieldsOf(entry)['name'])
  for (const i of repeated(names)) reader.wrong(reader.at(section, i), `${section}: the name "${String(names[i])}" is given twice`)
  return given.flatMap((one: unknown, i) => {
    const given = withoutNulls(schema, flat(one))
    const form = ignored.reduce((left, { path, why }) => {
      const rest = without(left, path)
      const named = entryNamed({ section, noun }, fieldsOf(given)['name'], i)
      if (rest !== left) reader.notice(reader.at(section, i, ...path), `${named}: ${path.join('.')} is ignored: ${why}`)
      return rest
    }, given)
    if (!isObject(form)) {
      reader.wrong(reader.at(section, i), `${section}, entry ${i + 1}: must be a mapping`)
      return []
    }
    const named = entryNamed({ section, noun }, form['name'], i)
    const early = notYet.filter((key) => form[key] !== undefined && form[key] !== null && form[key] !== false)
    for (const key of early) reader.wrong(reader.at(section, i, key), `${named}: ${key} is not supported yet`)
    const entry = Object.fromEntries(Object.entries(form).filter(([key]) => !notYet.includes(key)))
    const context = { known: known.find(({ name }) => name === entry['name']), mayMove, textOf }
    const said = readAt(reader, [section, i], () => read(entry, context), named)
    return said && early.length === 0 ? [{ ...said, line: reader.line(reader.at(section, i)), i }] : []
  })
}

/** Leaves out of a form the field at a path. @returns the same form where it has none */
function without(form: unknown, [name, ...below]: readonly string[]): unknown {
  if (!isObject(form) || name === undefined || !Object.hasOwn(form, name)) return form
  const { [name]: held, ...rest } = form
  if (below.length === 0) return rest
  const left = without(held, below)
  return left === held ? form : { ...form, [name]: left }
}

/** Names an entry in messages: by its name, or by its place where it has none. */
const entryNamed = ({ section, noun }: Pick<FileSection<never, never>, 'section' | 'noun'>, name: unknown, i: number): string =>
  typeof name === 'string' && name !== '' ? `${noun} "${name.slice(0, 100)}"` : `${section}, entry ${i + 1}`

/**
 * Runs a function that reads a part of the document, and tells at the part's fields why it is refused.
 * @param named the part, in messages @returns what the work gives; undefined: it is refused
 */
function readAt<T>(reader: ConfigReader, path: readonly (string | number)[], work: () => T, named: string): T | undefined {
  try {
    return work()
  } catch (error) {
    if (!(error instanceof EngineError) || error.code !== 'VALIDATION_FAILED') throw error
    for (const [field, reason] of Object.entries(error.context)) {
      const names = field === '' ? [] : field.split('.').map((part) => (/^\d+$/.test(part) ? Number(part) : part)) // a list is found by number
      reader.wrong(reader.at(...path, ...names), `${named}: ${field}${field && ' '}${reason}`)
    }
    return undefined
  }
}

/** Finds texts that stand in a list more than once. @returns the places of all but the first */
function repeated(texts: readonly unknown[]): number[] {
  const seen = new Set<unknown>()
  return texts.flatMap((text, i) => {
    if (typeof text !== 'string') return []
    if (seen.has(text)) return [i]
    seen.add(text)
    return []
  })
}

/** Fields that take texts alone. */
const TEXTS = new Set(
  [...[TOKENS, USERS, ...Object.values(RESOURCE_FORMS)].map(({ schema }) => schema), ...DESTINATIONS.values()]
    .flatMap(({ properties }) => Object.entries(properties))
    .filter(([, schema]) => 'type' in schema && schema.type === 'string')
    .map(([name]) => name),
)

/** Tells whether a value holds itself, which YAML's aliases allow; nothing here or in the state database can hold that. */
function isCircular(value: unknown, above = new Set<unknown>(), done = new Set<unknown>()): boolean {
  if (typeof value !== 'object' || value === null || done.has(value)) return false
  if (above.has(value)) return true
  above.add(value)
  if (Object.values(value).some((held) => isCircular(held, above, done))) return true
  above.delete(value)
  done.add(value)
  return false
}
