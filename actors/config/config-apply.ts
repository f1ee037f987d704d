/**
 * Makes a configuration document so: publications and slots first, then everything in one transaction, by the edits that the API makes.
 * Nothing is ever deleted; when a part fails nothing of it stays, and a slot or publication that was made for it is dropped again. All
 * that fails is told at once. A trial does the same without making anything, and its transaction is undone.
 *
 * A database that is known already doesn't stop the start because its server is down, or refuses what it took before: its
 * source says so, while the others go on and what the log holds is delivered. What the file says anew has to work.
 */
import { setTimeout as pause } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { EngineError, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { isOfConnecting, provision, type Beginning, type Provisioned } from '../../engine/wal/connection/provision.ts'
import { withTlsOf } from '../resources/database-edits.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import type { BackfillSettings } from '../../engine/state/backfills.ts'
import { FUNCTION_FIELDS } from '../../engine/state/function-kinds.ts'
import { unfitFunction, usersOf } from '../../engine/state/functions.ts'
import {
  NO_RESOURCES,
  NOUN_OF,
  accountLock,
  ownLists,
  ownList,
  withResource,
  type InputOf,
  type ResourceLists,
  type ResourceStore,
} from '../../engine/state/resource-store.ts'
import type { DatabaseInput, ResourceType, SinkInput, StoredOf } from '../../engine/state/resource-store.ts'
import type { Account, Sink } from '../../engine/state/resources.ts'
import { isOutsideIdentity, missingNames, newNames, reasonOf, refuseMissing, type SourceName } from '../../engine/state/source-names.ts'
import type { Store } from '../../engine/state/store.ts'
import { keyInUse } from '../../engine/state/vault-rotation.ts'
import type { UnstoredDatabases } from '../../engine/wal/connection/unstored-databases.ts'
import { sinkNames } from '../resources/sink-names.ts'
import { wrongTable } from '../../sinks/change-retention.ts'
import { isRetention, targetName, userName } from '../../engine/state/change-retentions.ts'
import { withoutAddress } from '../../engine/state/destinations.ts'
import { isUnsupported, unsupportedWords } from '../../sinks/unsupported-types.ts'
import { isElixir, unported, unportedWords } from '../../transforms/elixir.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import { MAX_AWAIT_MS, withoutEffect } from '../resources/database-form.ts'
import { initialForm } from '../resources/backfill-form.ts'
import { ON_EXAMPLE, rehearse } from '../resources/function-rehearsal.ts'
import { saveResource, type Edit } from '../resources/resource-edits.ts'
import { keysIn } from '../resources/secret-form.ts'
import { askedSourceOf, firstBackfills } from '../resources/wanted-backfills.ts'
import { changesOf, type ResourceChange } from './config-changes.ts'
import type { ConfigDocument, ConfiguredDatabase } from './config-document.ts'
import { exportedResources, type ExportedResource } from './config-export.ts'
import { refusal, type Problem } from './config-reader.ts'
import { builtFunction, writtenOf } from './built-functions.ts'
import { writeTokens } from './config-tokens.ts'
import { writeUsers } from './config-users.ts'

type ApplyOptions = Readonly<{
  store: Store
  resources: ResourceStore
  /** aborted when nobody waits for it any more */
  signal: AbortSignal
  /** what builds functions, and runs them once; absent: there are none */
  pool?: Pick<AccountPool, 'check' | 'test' | 'forget'> | undefined
  /** keeps in mind what is made on servers until it is stored; absent: nobody does */
  unstored?: Pick<UnstoredDatabases, 'during'> | undefined
  /** that it is for; absent: the document's own, made if need be */
  account?: Account
  /** nothing is made or stored, and what would be is told */
  isTrial?: boolean
  /** told why servers can't be reached; absent: whoever gave the document may know that */
  logger?: Pick<Logger, 'warn'>
}>

/**
 * Tells what a document changes. @property actions what is made on the servers of databases, in words @property notices what should
 * be known, and stops nothing @property resources those that the document has, as they are then
 */
export type ConfigOutcome = Readonly<{
  changes: readonly ResourceChange[]
  actions: readonly string[]
  notices: readonly string[]
  resources: readonly ExportedResource[]
}>

/** Ends the transaction of a trial. */
class TrialOver extends Error {
  readonly outcome: ConfigOutcome
  constructor(outcome: ConfigOutcome) {
    super('only a trial')
    this.outcome = outcome
  }
}

/**
 * Applies a document: makes what is missing on the servers of databases, and stores the resources. @throws EngineError
 * CONFIG_INVALID: file, line and reason of everything that fails, and nothing of it stays; STOPPING when aborted
 */
export async function applyConfig(given: ConfigDocument, options: ApplyOptions): Promise<ConfigOutcome> {
  const { unstored, isTrial = false } = options
  const makes = !isTrial && given.databases.some(({ createSlot, createPublication }) => createSlot || createPublication)
  return makes && unstored ? unstored.during((beginning) => apply(given, { ...options, beginning })) : apply(given, options)
}

async function apply(given: ConfigDocument, options: ApplyOptions & Readonly<{ beginning?: Beginning }>): Promise<ConfigOutcome> {
  const { store, resources, account, isTrial = false } = options
  const findings = new Findings(given)
  const made: Provisioned[] = []
  try {
    const former = account ?? (await accountNamed(store.query, given.account))
    const [known, streamed, sinks] = await Promise.all([
      knownTo(store.query, resources, former),
      storedNames(store.query, 'source_database', former),
      storedNames(store.query, 'sink', former),
    ])
    const { databases, away, unpublished, actions } = await provisionAll(given, { ...options, known, streamed, findings, made })
    const document = { ...given, databases }
    const held = await checkNames(document, { known, away, findings })
    await checkTables(document, { known, away, findings })
    const backfills = await initialBackfills(document, { known, sinks, away, unpublished, findings })
    const functions = await buildFunctions(document, { ...options, known, findings })
    return await store.transaction(
      async (query) => {
        const owner = account ?? (await resources.saveAccount(query, document.account))
        const [stored, key] = await Promise.all([knownTo(query, resources, owner), keyInUse(query)])
        const edit = { query, resources, account: owner, stored, key }
        const userChanges = await writeUsers(document, edit, ({ line, email }, error) =>
          findings.wrong({ line, named: `user "${email}"` }, error),
        )
        const tokenChanges = await writeTokens(document, edit, {
          maker: account ? 'apply' : 'file',
          refused: ({ line, name }, error) => findings.wrong({ line, named: `API token "${name}"` }, error),
          tell: (text, line) => findings.notice(line, text),
        })
        await writeAll(document, edit, { functions, backfills, held, findings })
        const isNamed = namedIn(document)
        const after = exportedResources(await knownTo(query, resources, owner), owner.id, resources.defaults)
        const outcome = {
          changes: [
            ...userChanges,
            ...tokenChanges,
            ...withBackfills(changesOf(exportedResources(stored, owner.id, resources.defaults), after, isNamed), document),
          ],
          actions,
          notices: findings.notices,
          resources: after.filter(isNamed),
        }
        if (isTrial) throw new TrialOver(outcome)
        return outcome
      },
      account && accountLock(account.id),
    )
  } catch (error) {
    if (error instanceof TrialOver) return error.outcome
    const left: string[] = []
    for (const { undo } of made.toReversed()) await undo().catch((reason: Error) => left.push(reason.message))
    if (left.length === 0) throw error
    const text = `${errorText(error)}; the slots or publications that were created for the file could not be dropped: ${left.join('; ')}`
    throw new EngineError('CONFIG_INVALID', text, {}, { cause: error })
  }
}

/** Where a resource stands in a document, and how messages name it. */
type Place = Readonly<{ line: number; named: string }>

const placeOf = (type: ResourceType, { line, input }: Readonly<{ line: number; input: Readonly<{ name: string }> }>): Place => ({
  line,
  named: `${NOUN_OF[type]} "${userName(input.name)}"`,
})

/** Gathers what is found in a document, to tell all of it at once. */
class Findings {
  readonly notices: string[]
  readonly problems: Problem[] = []
  readonly #file: string
  #cause: unknown

  constructor({ file, notices }: Pick<ConfigDocument, 'file' | 'notices'>) {
    this.#file = file
    this.notices = [...notices]
  }

  /** @param line where it stands; undefined: it is of the whole file */
  notice(line: number | undefined, text: string): void {
    this.notices.push(`${this.#file}:${line === undefined ? '' : `${line}:`} ${text}`)
  }

  /** @param named the resource that is wrong, in messages */
  wrong({ line, named }: Place, error: unknown): void {
    this.#cause ??= error
    const because = error instanceof EngineError ? { because: error.code } : {}
    this.problems.push({ file: this.#file, line, reason: `${named}: ${errorText(error)}`, ...because })
  }

  /** Takes in what the work is refused for. @throws EngineError CONFIG_INVALID: the state database itself fails, which ends it */
  async at(place: Place, work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      this.wrong(place, error)
      if (!(error instanceof EngineError) || error.code === 'STATE_UNAVAILABLE') this.refuse()
    }
  }

  /** @throws EngineError CONFIG_INVALID: something is wrong */
  refuse(): void {
    if (this.problems.length > 0) throw refusal(this.problems, this.#cause)
  }
}

async function accountNamed(query: Query, name: string): Promise<Account | undefined> {
  return rowsOf({ id: 'text', name: 'text' }, await query('select id, name from account where name = $1', [name]))[0]
}

/**
 * @returns the names of the databases or sinks that the account has, also of those whose secrets were stored under another key: no slot is
 * made anew, and no backfill begun again
 */
async function storedNames(query: Query, table: 'source_database' | 'sink', account: Account | undefined): Promise<ReadonlySet<string>> {
  const found = await query(`select name from ${table} where account_id = $1`, [account?.id ?? null])
  return new Set(rowsOf({ name: 'text' }, found).map(({ name }) => name))
}

/**
 * @returns what the account has. A document may put secrets in the place of those that were stored under another key: then nothing
 * is known
 */
async function knownTo(query: Query, resources: ResourceStore, account: Account | undefined): Promise<ResourceLists> {
  if (!account) return NO_RESOURCES
  const stored = await resources.load(query).catch((error: unknown) => {
    if (error instanceof EngineError && error.code === 'SECRET_UNREADABLE') return NO_RESOURCES
    throw error
  })
  return ownLists(stored, account.id)
}

/** @property known what the account has */
type Surroundings = Readonly<{ known: ResourceLists; findings: Findings }>

/**
 * Makes publications and slots. @param options `streamed`: the databases that are known, by name; `made`: gets what was, to be undone
 * @returns the databases with what was found out of their connections; by name those whose server can't be asked, and those that
 * only would get their publication
 */
async function provisionAll(
  document: ConfigDocument,
  {
    known,
    streamed,
    findings,
    made,
    signal,
    logger,
    account,
    beginning,
    isTrial = false,
  }: ApplyOptions & Surroundings & Readonly<{ streamed: ReadonlySet<string>; made: Provisioned[]; beginning?: Beginning }>,
): Promise<
  Readonly<{
    databases: readonly ConfiguredDatabase[]
    away: ReadonlySet<string>
    unpublished: ReadonlySet<string>
    actions: readonly string[]
  }>
> {
  const away = new Set<string>()
  const unpublished = new Set<string>()
  const actions: string[] = []
  const databases: ConfiguredDatabase[] = []
  const latest = performance.now() + MAX_AWAIT_MS
  for (const given of document.databases) {
    const { name, publicationName, slotName } = given.input
    const stored = known.databases.find((one) => one.name === name)
    let database = { ...given, input: asFound(given.input, stored) }
    const idle = withoutEffect(given.input)
    if (idle.length > 0)
      findings.notice(given.line, `the database "${name}" sets ${idle.join(', ')}: kept, and without effect here; sessions are opened as they are needed, and addresses of both kinds are tried`) // prettier-ignore
    try {
      signal.throwIfAborted()
      const done = await provisioned(database, { latest, isKnown: streamed.has(name), isTrial, beginning, signal })
      ;({ database } = done)
      made.push(done)
      if (database.input.connection.withoutTls)
        findings.notice(
          given.line,
          `the database "${name}" is read without TLS: ssl is not set, and the server offers none; set ssl: false to say that this is right`,
        )
      if (done.publicationCreated) actions.push(`create the publication "${publicationName}" in the database "${name}"`)
      if (done.publicationCreated && isTrial) unpublished.add(name)
      if (done.slotCreated) actions.push(`create the slot "${slotName}" in the database "${name}"`)
    } catch (error) {
      if (signal.aborted) throw new EngineError('STOPPING', 'stopped while the configuration was applied', {}, { cause: error })
      const code = error instanceof EngineError ? error.code : undefined
      if (code !== 'SLOT_MISSING') away.add(name)
      if (code !== 'SOURCE_UNREACHABLE') database = { ...database, input: await withTlsOf(database.input) }
      const { connection } = database.input
      const isAsBefore = isDeepStrictEqual(stored?.connection, connection)
      if (logger && !isAsBefore && isOfConnecting(error))
        logger.warn({ err: error, account: account?.name, database: name }, 'a database of a configuration could not be reached')
      const told = logger && !isAsBefore && isOfConnecting(error) ? withoutNetwork(connection) : error
      const isItsOwn = code === 'SOURCE_UNREACHABLE' || code === 'SOURCE_IN_RECOVERY' || code === 'SLOT_MISSING' || isAsBefore
      if (streamed.has(name) && isItsOwn)
        findings.notice(database.line, `${errorText(told)}; all else goes on without its source "${name}"`)
      else findings.wrong(placeOf('database', database), told)
    }
    databases.push(database)
  }
  return { databases, away, unpublished, actions }
}

/** A file doesn't say what was found out about a connection that is as it was. */
function asFound(input: DatabaseInput, stored: StoredOf<'database'> | undefined): DatabaseInput {
  const known = (given: Connection, before: Connection | null | undefined): Connection => {
    const { withoutTls, ...asked } = before ?? {}
    return withoutTls && isDeepStrictEqual(asked, given) ? { ...given, withoutTls } : given
  }
  const { connection, primary } = input
  return { ...input, connection: known(connection, stored?.connection), ...(primary && { primary: known(primary, stored?.primary) }) }
}

/**
 * Leaves the reason of a failed connection to the log: whoever has a token may name any address, and the answer must not tell what
 * is there.
 */
const withoutNetwork = ({ hostname, port, database }: Connection) =>
  new EngineError(
    'SOURCE_UNREACHABLE',
    `the database ${database} at ${hostname}:${port} could not be reached, or refused the login; the log of the service says why`,
  )

/**
 * Waits for a server that is still starting, when the file says so. @returns what was made, and the database with what was found out of
 * its connections
 */
async function provisioned(
  database: ConfiguredDatabase,
  {
    latest,
    isKnown,
    isTrial,
    beginning,
    signal,
  }: Readonly<{ latest: number; isKnown: boolean; isTrial: boolean; beginning: Beginning | undefined; signal: AbortSignal }>,
): Promise<Provisioned & Readonly<{ database: ConfiguredDatabase }>> {
  const { input, createSlot, createPublication, initSql, awaitMs, intervalMs } = database
  const deadline = Math.min(latest, performance.now() + awaitMs)
  for (;;) {
    try {
      const chosen = await withTlsOf(input)
      const done = await provision(chosen.connection, {
        primary: chosen.primary,
        slot: { name: input.slotName, create: createSlot && !isKnown },
        publication: { name: input.publicationName, create: createPublication, ...(initSql === undefined ? {} : { initSql }) },
        isTrial,
        beginning,
      })
      return { ...done, database: { ...database, input: chosen } }
    } catch (error) {
      const mayCome = !isKnown && error instanceof EngineError && error.code === 'SOURCE_UNREACHABLE'
      if (!mayCome || isTrial || performance.now() + intervalMs > deadline) throw error
      await pause(intervalMs, undefined, { signal })
    }
  }
}

/**
 * A new name that the source doesn't have is a mistake; one that a stored sink had already may have gone since.
 * @returns sinks that can't work as their tables are, with why: a file that ran elsewhere shall start
 */
async function checkNames(
  { databases, sinks: ofFile, retentions }: ConfigDocument,
  { known, away, findings }: Surroundings & Readonly<{ away: ReadonlySet<string> }>,
): Promise<ReadonlyMap<string, string>> {
  const held = new Map<string, string>()
  const sinks = [...retentions, ...ofFile]
  const missing = new Map<SinkInput, SourceName[]>()
  for (const [name, its] of Map.groupBy(sinks, ({ input }) => input.database)) {
    const { connection } =
      databases.find(({ input }) => input.name === name)?.input ?? known.databases.find((one) => one.name === name) ?? {}
    if (!connection || away.has(name)) continue // told when the sink is written, or told above
    const names = its.flatMap(({ input }) => sinkNames(input).map((one) => ({ ...one, input })))
    for (const { input, ...one } of await missingNames(connection, names)) missing.set(input, [...(missing.get(input) ?? []), one])
  }
  for (const { line, input } of sinks) {
    const place = placeOf(isRetention(input) ? 'change_retention' : 'sink', { line, input })
    const its = missing.get(input) ?? []
    const stored = known.sinks.find(({ name }) => name === input.name)
    const outside = its.find((one) => isOutsideIdentity(one) && (stored?.status !== 'active' || newNames([one], stored).length > 0))
    if (outside && input.status === 'active') held.set(input.name, `it ${reasonOf(outside)}`)
    const wrong = its.filter((one) => !isOutsideIdentity(one))
    await findings.at(place, async () => refuseMissing(newNames(wrong, stored)))
    for (const one of its) if (!held.has(input.name) || one !== outside) findings.notice(line, `the ${place.named} ${reasonOf(one)}`)
  }
  return held
}

/** Tells which change retentions have no table to write to: they wait for it. */
async function checkTables(
  { databases, retentions }: ConfigDocument,
  { known, away, findings }: Surroundings & Readonly<{ away: ReadonlySet<string> }>,
): Promise<void> {
  for (const { line, input } of retentions) {
    const target = targetName(input.destination) ?? ''
    const { connection } =
      databases.find((one) => one.input.name === target)?.input ?? known.databases.find(({ name }) => name === target) ?? {}
    if (!connection || away.has(target)) continue // told when it is written, or told above
    const wrong = await wrongTable(connection, input.destination)
    if (wrong !== undefined) findings.notice(line, `the change retention "${userName(input.name)}" waits: ${wrong}`)
  }
}

/** The backfills that new sinks begin with. */
type InitialBackfills = ReadonlyMap<SinkInput, readonly BackfillSettings[]>

/**
 * Looks up which backfills new sinks begin with. A sink that is there already begins with none.
 * @param sinks the names of those that are there @param away databases that can't be asked @param unpublished databases of which it
 * can't be known yet
 */
async function initialBackfills(
  document: ConfigDocument,
  { known, sinks, away, unpublished, findings }: Surroundings & Readonly<Record<'sinks' | 'away' | 'unpublished', ReadonlySet<string>>>,
): Promise<InitialBackfills> {
  const begun = new Map<SinkInput, readonly BackfillSettings[]>()
  for (const { line, input } of document.sinks) {
    const { name, database, source, initial_backfill: initial } = input
    if (initial === undefined || sinks.has(name) || unpublished.has(database)) continue
    const given = document.databases.find((one) => one.input.name === database)?.input
    const stored = known.databases.find((one) => one.name === database)
    const asked = given ? { connection: given.connection, publication: given.publicationName } : stored && askedSourceOf(stored)
    if (!asked) continue // told when the sink is written
    await findings.at(placeOf('sink', { line, input }), async () => {
      if (away.has(database)) throw new EngineError('SOURCE_UNREACHABLE', `initial_backfill needs the database "${database}"`)
      const first = await firstBackfills(asked, source, initial)
      if (first.length === 0) findings.notice(line, `the sink "${name}" takes no table that is published: its initial_backfill is of none`)
      begun.set(input, first)
    })
  }
  return begun
}

/** Shows with a sink that is made what it begins with, which is not stored with it. */
function withBackfills(changes: readonly ResourceChange[], { sinks }: ConfigDocument): readonly ResourceChange[] {
  return changes.map((change) => {
    if (change.resource_type !== 'sink' || change.action !== 'create') return change
    const { initial_backfill: initial } = sinks.find(({ input }) => input.name === change.name)?.input ?? {}
    return initial === undefined ? change : { ...change, new: { ...change.new, initial_backfill: initialForm(initial) } }
  })
}

/** Holds a resource of the document that is to be stored. */
type Entry<T extends ResourceType> = Readonly<{ line: number; input: InputOf<T> }>

/**
 * Builds the functions once, so that what is stored can be run; what is new is run on an example, too. A file of the original still
 * starts: its Elixir is stored, and pauses whoever has it.
 */
async function buildFunctions(
  document: ConfigDocument,
  { pool, known, findings }: Surroundings & Pick<ApplyOptions, 'pool'>,
): Promise<readonly Entry<'function'>[]> {
  const built: Entry<'function'>[] = []
  if (!pool) return built
  for (const fn of document.functions) {
    const { line } = fn
    const written = writtenOf(fn)
    if (isElixir(written)) {
      built.push({ line, input: unported(written) })
      continue
    }
    const input = await builtFunction(fn, document.file, pool)
    if (!('compiled' in input)) {
      findings.problems.push(input)
      continue
    }
    built.push({ line, input })
    if (known.functions.some(({ name, code }) => name === written.name && code === written.code)) continue
    for (const warning of await rehearse(input, ON_EXAMPLE, pool))
      findings.notice(line, `the function "${written.name}" fails ${warning}; it is saved all the same`)
  }
  return built
}

/** Stores what the document says of resources. @throws EngineError CONFIG_INVALID: with all that is wrong */
async function writeAll(
  document: ConfigDocument,
  begun: Edit,
  {
    functions,
    backfills,
    held,
    findings,
  }: Readonly<{
    functions: readonly Entry<'function'>[]
    backfills: InitialBackfills
    held: ReadonlyMap<string, string>
    findings: Findings
  }>,
): Promise<void> {
  let edit = begun
  const storedUnder = <T extends ResourceType>(type: T, name: string): StoredOf<T> | undefined =>
    ownList(edit.stored, type, edit.account.id).find((one) => one.name === name)
  const put = async <T extends ResourceType>(type: T, entries: readonly Entry<T>[]) => {
    for (const { line, input } of entries)
      await findings.at(placeOf(type, { line, input }), async () => {
        const before = storedUnder(type, input.name)
        edit = { ...edit, stored: withResource(edit.stored, type, await saveResource(edit, type, { input, before })) }
      })
  }
  for (const { line, input } of document.databases)
    await findings.at(placeOf('database', { line, input }), async () => refuseRenamed(input, storedUnder('database', input.name)))
  await put('database', document.databases)
  await put('change_retention', document.retentions)
  await put('function', functions)
  await put('http_endpoint', document.endpoints)
  for (const { line, input } of document.endpoints) {
    const lacking = input.kind === 'external' ? withoutAddress(input) : undefined
    if (lacking !== undefined) findings.notice(line, `the HTTP endpoint "${input.name}": its sinks keep their messages, for ${lacking}`)
    const keys = keysIn(input.url)
    if (keys.length > 0) findings.notice(line, `the HTTP endpoint "${input.name}" has what looks like a key in its URL (${keys.join(', ')}), which is not stored encrypted: prefer encrypted_headers`) // prettier-ignore
  }
  const sinks = document.sinks.map(({ line, input: given }) => {
    const input = { ...given, initial_backfill: backfills.get(given) }
    const { enrichment = storedUnder('sink', input.name)?.enrichment ?? null } = input // a file that doesn't speak of it leaves it as it is
    const reasons = input.status === 'active' ? [...whyHeld(input, edit.stored), held.get(input.name) ?? []].flat() : []
    if (reasons.length === 0) return { line, input: { ...input, enrichment } }
    for (const why of reasons) findings.notice(line, `the sink "${input.name}" is paused: ${why}`)
    return { line, input: { ...input, enrichment, status: 'paused' as const } }
  })
  await put('sink', sinks)
  for (const { name } of relievedSinks(begun, edit)) {
    if (held.has(name)) continue // told above
    const { line } = sinks.find(({ input }) => input.name === name) ?? {}
    findings.notice(line, `the sink "${name}" stays paused, though what it was paused for is mended: tailrace sinks resume ${name} (or status: active in the file) has it go on`) // prettier-ignore
  }
  // a function that is of another type by now would stop the sinks that have it and aren't in the file
  const isNamed = namedIn(document)
  for (const { line, input } of functions)
    for (const sink of usersOf({ accountId: edit.account.id, name: input.name }, edit.stored.sinks)) {
      const { destination, name } = sink
      const its = Object.fromEntries(FUNCTION_FIELDS.map((field) => [field, sink[field] === input.name ? input.name : null]))
      const unfit = isNamed({ type: 'sink', name }) ? undefined : unfitFunction({ ...its, destination }, [input])
      if (unfit)
        findings.wrong(
          placeOf('function', { line, input }),
          new EngineError('VALIDATION_FAILED', `the sink "${name}" uses this function: ${unfit.join(' ')}`),
        )
    }
  findings.refuse()
}

/** Names what keeps a sink from working, whatever its status: a destination that no version has yet, or functions in Elixir. Empty: nothing does. */
function whyHeld(sink: SinkInput, { functions }: Pick<ResourceLists, 'functions'>): readonly string[] {
  const unsupported = `${unsupportedWords(sink.destination)}; what is committed waits for it, up to its max_backlog_mb (status: disabled if it is not to wait)`
  const inElixir = unportedWords(sink, functions)
  return [...(isUnsupported(sink.destination) ? [unsupported] : []), ...(inElixir === undefined ? [] : [`its ${inElixir}`])]
}

/** Finds the sinks that are paused as before, although what kept them from working is mended. */
function relievedSinks({ stored: before, account }: Edit, { stored }: Edit): readonly Sink[] {
  return ownList(stored, 'sink', account.id).filter((sink) => {
    if (sink.status !== 'paused') return false
    const former = before.sinks.find(({ id }) => id === sink.id)
    return former?.status === 'paused' && whyHeld(former, before).length > 0 && whyHeld(sink, stored).length === 0
  })
}

/** A file names a slot to say which one is read: another name is a mistake, or a move that needs a look at what is missing. */
function refuseRenamed({ slotName, publicationName }: InputOf<'database'>, before: StoredOf<'database'> | undefined): void {
  if (before && (before.slot.name !== slotName || before.slot.publication !== publicationName))
    throw new EngineError(
      'VALIDATION_FAILED',
      `slot and publication of a database can't be renamed by a file (they are "${before.slot.name}" and "${before.slot.publication}")`,
    )
}

function namedIn({
  databases,
  retentions,
  endpoints,
  functions,
  sinks,
}: ConfigDocument): (resource: Pick<ExportedResource, 'type' | 'name'>) => boolean {
  const names = {
    database: new Set(databases.map(({ input }) => input.name)),
    change_retention: new Set(retentions.map(({ input }) => userName(input.name))),
    http_endpoint: new Set(endpoints.map(({ input }) => input.name)),
    function: new Set(functions.map(({ name }) => name)),
    sink: new Set(sinks.map(({ input }) => input.name)),
  }
  return ({ type, name }) => names[type].has(name)
}
