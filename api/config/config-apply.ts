/**
 * Makes a configuration document so: publications and slots first, then everything in one transaction. Nothing is ever
 * deleted; when a part fails nothing of it stays, and a slot or publication that was made for it is dropped again. All that
 * fails is told at once. A plan does the same without making anything, and its transaction is undone.
 *
 * A database that is known already doesn't stop the start because its server is down, or refuses what it took before: its
 * source says so, while the others go on and what the log holds is delivered. What the file says anew has to work.
 */
import { endpointName } from '../../engine/state/destinations.ts'
import { setTimeout as pause } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { EngineError } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import { isOfConnecting, provision, type Provisioned } from '../../engine/postgres/provision.ts'
import { missingNames, namesOf, newNames, reasonOf, refuseMissing, type SourceName } from '../../engine/state/source-names.ts'
import { accountLock, type DatabaseInput, type ResourceStore, type SinkInput } from '../../engine/state/resource-store.ts'
import { FUNCTION_FIELDS, refuseMissingFunctions, type FunctionInput, type StoredFunction } from '../../engine/state/functions.ts'
import type { Account, SinkSettings } from '../../engine/state/resources.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { isKeyed } from '../../sinks/destination-types.ts'
import { ELIXIR, isUnported, looksLikeElixir, unported } from '../../transforms/elixir.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import type { StateQuery, Store } from '../../engine/state/store.ts'
import { hashToken } from '../../engine/state/tokens.ts'
import { changesOf, type ResourceChange } from './config-changes.ts'
import { exportedResources, type ExportedResource } from './config-export.ts'
import { builtFunction, writtenOf } from './configured-functions.ts'
import type { ConfigDocument } from './config-document.ts'
import { MAX_AWAIT_MS, type ConfiguredDatabase } from './configured-databases.ts'
import { keysIn } from '../sinks/secret-form.ts'
import { ON_EXAMPLE, rehearse } from '../functions/function-rehearsal.ts'
import { refusal, type Problem } from './config-reader.ts'

/**
 * @returns what should be known but stops nothing: databases that are away, names of stored sinks that their source no
 * longer has
 * @throws EngineError CONFIG_INVALID: file, line and reason of everything that fails; STOPPING when aborted
 */
export async function applyConfig(
  document: ConfigDocument,
  store: Store,
  resources: ResourceStore,
  signal: AbortSignal,
  pool?: Sandboxes,
): Promise<readonly string[]> {
  const application = new Application(document, resources)
  await applied(application, { store, resources, signal, pool }, () => store.transaction((query) => application.write(query)))
  return application.notices
}

/** @property actions what is made on the servers of databases, in words @property resources those that the document has, as they are then */
export type ConfigOutcome = Readonly<{
  changes: readonly ResourceChange[]
  actions: readonly string[]
  notices: readonly string[]
  resources: readonly ExportedResource[]
}>
type ApplyHome = Readonly<{ store: Store; resources: ResourceStore; signal: AbortSignal; pool: Sandboxes | undefined }>

/** What would be stored, and isn't. */
class Undone extends Error {
  readonly outcome: ConfigOutcome
  constructor(outcome: ConfigOutcome) {
    super('only a trial')
    this.outcome = outcome
  }
}

/**
 * The same for an account that is there, and what it changes.
 * @param place `isTrial`: nothing is made or stored, and what would be is told
 * @throws EngineError CONFIG_INVALID, STOPPING
 */
export async function changeByConfig(
  document: ConfigDocument,
  account: Account,
  { isTrial, logger, ...place }: ApplyHome & Readonly<{ isTrial: boolean; logger: Pick<Logger, 'warn'> }>,
): Promise<ConfigOutcome> {
  const { store, resources } = place
  const application = new Application(document, resources, { account, isTrial, logger })
  const isNamed = namedIn(document)
  return applied(application, place, () =>
    store
      .transaction(async (query) => {
        const before = exportedResources(await resources.load(query), account.id)
        await application.write(query)
        const after = exportedResources(await resources.load(query), account.id)
        const outcome = {
          changes: [...application.tokenChanges, ...changesOf(before, after, isNamed)],
          actions: application.actions,
          notices: application.notices,
          resources: after.filter(isNamed),
        }
        if (isTrial) throw new Undone(outcome)
        return outcome
      }, accountLock(account.id))
      .catch((error: unknown) => {
        if (error instanceof Undone) return error.outcome
        throw error
      }),
  )
}

/** @throws EngineError CONFIG_INVALID, STOPPING: then nothing of it stays */
async function applied<T>(application: Application, { store, resources, signal, pool }: ApplyHome, write: () => Promise<T>): Promise<T> {
  const { account } = application
  try {
    await application.provision(await resources.connections(store.query, account), signal)
    await application.checkNames(store.query)
    if (pool) await application.compile(pool, await storedCode(store.query, account))
    return await write()
  } catch (error) {
    const left = await application.undo()
    if (left.length === 0) throw error
    const text = error instanceof Error ? error.message : String(error)
    throw new EngineError('CONFIG_INVALID', `${text}; what was made for it could not be dropped: ${left.join('; ')}`, {}, { cause: error })
  }
}

/** What builds functions, and runs them once. */
type Sandboxes = Pick<AccountPool, 'check' | 'test' | 'forget'>

function namedIn({
  databases,
  endpoints,
  functions,
  sinks,
}: ConfigDocument): (resource: Pick<ExportedResource, 'type' | 'name'>) => boolean {
  const names = {
    database: new Set(databases.map(({ input }) => input.name)),
    http_endpoint: new Set(endpoints.map(({ input }) => input.name)),
    function: new Set(functions.map(({ name }) => name)),
    sink: new Set(sinks.map(({ input }) => input.settings.name)),
  }
  return ({ type, name }) => names[type].has(name)
}

/** By name. */
async function storedCode(query: StateQuery, account: string): Promise<ReadonlyMap<string, string>> {
  const { rows } = await query<{ name: string; code: string }>(
    'select f.name, f.code from function f join account a on a.id = f.account_id where a.name = $1',
    [account],
  )
  return new Map(rows.map(({ name, code }) => [name, code]))
}

/**
 * @property account that it is for; absent: the document's own, made if need be
 * @property logger told why servers can't be reached; absent: whoever gave the document may know that
 */
type Ways = Readonly<{ account?: Account; isTrial?: boolean; logger?: Pick<Logger, 'warn'> }>

class Application {
  readonly notices: string[]
  /** made on the servers of databases, in words */
  readonly actions: string[] = []
  readonly tokenChanges: ResourceChange[] = []
  readonly #ways: Ways
  readonly #document: ConfigDocument
  readonly #resources: ResourceStore
  readonly #problems: Problem[] = []
  #functions: readonly Readonly<{ line: number; input: FunctionInput }>[] = []
  readonly #made: Provisioned[] = []
  /** names of databases whose server can't be asked */
  readonly #away = new Set<string>()
  /** how the other databases are reached, by their names */
  #connections: ReadonlyMap<string, Connection | undefined> = new Map()
  #cause: unknown

  constructor(document: ConfigDocument, resources: ResourceStore, ways: Ways = {}) {
    this.#document = document
    this.#resources = resources
    this.#ways = ways
    this.notices = [...document.notices]
  }

  /** its name */
  get account(): string {
    return this.#ways.account?.name ?? this.#document.account
  }

  async provision(known: Awaited<ReturnType<ResourceStore['connections']>>, signal: AbortSignal): Promise<void> {
    this.#connections = known
    const latest = performance.now() + MAX_AWAIT_MS
    for (const database of this.#document.databases) {
      const { name, connection } = database.input
      try {
        signal.throwIfAborted()
        const made = await provisioned(database, { latest, isKnown: known.has(name), isTrial: this.#ways.isTrial ?? false, signal })
        this.#made.push(made)
        const { publicationName, slotName } = database.input
        if (made.publicationCreated) this.actions.push(`create the publication "${publicationName}" in the database "${name}"`)
        if (made.slotCreated) this.actions.push(`create the slot "${slotName}" in the database "${name}"`)
      } catch (error) {
        if (signal.aborted) throw new EngineError('STOPPING', 'stopped while the configuration was applied', {}, { cause: error })
        const code = error instanceof EngineError ? error.code : undefined
        if (code !== 'SLOT_MISSING') this.#away.add(name)
        const isAsBefore = isDeepStrictEqual(known.get(name), connection)
        const told = isAsBefore ? error : this.#withoutNetwork(error, database)
        const isItsOwn = code === 'SOURCE_UNREACHABLE' || code === 'SLOT_MISSING' || isAsBefore
        if (known.has(name) && isItsOwn) this.#notice(database.line, `${textOf(told)}; all else goes on without its source "${name}"`)
        else this.#wrong(database.line, told)
      }
    }
  }

  /** Who has a token may name any address: the answer doesn't tell what is there, and the log does. */
  #withoutNetwork(error: unknown, { input: { name, connection } }: ConfiguredDatabase): unknown {
    const { logger } = this.#ways
    if (!logger || !isOfConnecting(error)) return error
    const { hostname, port, database } = connection
    logger.warn({ err: error, account: this.account, database: name }, 'a database of a configuration could not be reached')
    return new EngineError(
      'SOURCE_UNREACHABLE',
      `the database ${database} at ${hostname}:${port} could not be reached, or let us not in; the log of the service says why`,
    )
  }

  /**
   * Built once, so that what is stored can be run. A file of the original still starts: its Elixir is stored, and pauses whoever has it.
   * @param known code that is stored, by name: what is new is run on an example, too
   */
  async compile(pool: Sandboxes, known: ReadonlyMap<string, string>): Promise<void> {
    const compiled: { line: number; input: FunctionInput }[] = []
    for (const fn of this.#document.functions) {
      const { line } = fn
      const written = writtenOf(fn)
      if (written.type !== 'path' && written.type !== 'enrichment' && looksLikeElixir(written.code))
        compiled.push({ line, input: unported(written) })
      else {
        const input = await builtFunction(fn, this.#document.file, pool)
        if (!('compiled' in input)) this.#problems.push(input)
        else {
          compiled.push({ line, input })
          if (known.get(written.name) === written.code) continue
          for (const warning of await rehearse(input, ON_EXAMPLE, pool))
            this.#notice(line, `the function "${written.name}" fails ${warning}; it is taken all the same`)
        }
      }
    }
    this.#functions = compiled
  }

  /** A new name that the source doesn't have is a mistake; one that a stored sink had already may have gone since. */
  async checkNames(query: StateQuery): Promise<void> {
    const { databases, sinks } = this.#document
    const { rows } = await query<{ name: string; settings: Pick<SinkSettings, 'source' | 'tables'> }>(
      'select s.name, s.settings from sink s join account a on a.id = s.account_id where a.name = $1',
      [this.account],
    )
    const stored = new Map(rows.map(({ name, settings }) => [name, settings]))
    const missing = new Map<SinkInput, SourceName[]>()
    for (const [name, its] of Map.groupBy(sinks, ({ database }) => database)) {
      const connection = databases.find((one) => one.input.name === name)?.input.connection ?? this.#connections.get(name)
      if (!connection || this.#away.has(name)) continue // told when the sink is written, or told above
      const names = its.flatMap(({ input }) => namesOf(input.settings, isKeyed(input.destination)).map((one) => ({ ...one, input })))
      for (const { input, ...one } of await missingNames(connection, names)) missing.set(input, [...(missing.get(input) ?? []), one])
    }
    for (const { line, input } of sinks) {
      const its = missing.get(input) ?? []
      await this.#at(line, async () => refuseMissing(newNames(its, stored.get(input.settings.name))))
      for (const one of its) this.#notice(line, `the sink "${input.settings.name}" ${reasonOf(one)}`)
    }
  }

  /** @throws EngineError CONFIG_INVALID: of all there is to tell; so nothing is written */
  async write(query: StateQuery): Promise<void> {
    const { tokens, databases, endpoints, sinks } = this.#document
    const account = this.#ways.account ?? (await this.#resources.saveAccount(query, this.account))
    for (const { line, name, token } of tokens) await this.#at(line, () => this.#writeToken(query, account, name, token))
    for (const { line, input } of databases) await this.#at(line, () => this.#writeDatabase(query, account, input))
    for (const { line, input } of this.#functions)
      await this.#at(line, async () => void (await this.#resources.saveFunction(query, account, input)))
    for (const { line, input } of endpoints)
      await this.#at(line, async () => {
        await this.#resources.saveEndpoint(query, account, input)
        const keys = keysIn(input.url)
        if (keys.length > 0) this.#notice(line, `the HTTP endpoint "${input.name}" has what looks like a key in its URL (${keys.join(', ')}), which is not stored encrypted: prefer encrypted_headers`) // prettier-ignore
      })
    for (const { line, database, input } of sinks)
      await this.#at(line, () => this.#writeSink(query, account, database, this.#startable(line, input)))
    await this.#checkUsers(query, account)
    if (this.#problems.length > 0) throw refusal(this.#problems, this.#cause)
  }

  /** A function that is of another type by now would stop the sinks that have it and aren't in the file. */
  async #checkUsers(query: StateQuery, account: Account): Promise<void> {
    const { rows } = await query<{ name: string; settings: SinkSettings; destination: SinkInput['destination'] }>(
      'select name, settings, destination from sink where account_id = $1 and name <> all ($2)',
      [account.id, this.#document.sinks.map(({ input }) => input.settings.name)],
    )
    for (const { line, input } of this.#functions)
      for (const { name, settings, destination } of rows) {
        const its = FUNCTION_FIELDS.filter((field) => settings[field] === input.name).map((field) => [field, input.name])
        await this.#at(line, async () => {
          try {
            refuseMissingFunctions(Object.fromEntries(its), destination, [input])
          } catch (error) {
            throw new EngineError('VALIDATION_FAILED', `the sink "${name}" has it: ${textOf(error)}`, {}, { cause: error })
          }
        })
      }
  }

  #startable(line: number, input: SinkInput): SinkInput {
    const { settings } = input
    const names = FUNCTION_FIELDS.map((field) => settings[field])
    const held = this.#functions.find(({ input: fn }) => isUnported(fn) && names.includes(fn.name))
    if (!held || settings.status !== 'active') return input
    this.#notice(line, `the sink "${settings.name}" is paused: its function "${held.input.name}" ${ELIXIR}`)
    return { ...input, settings: { ...settings, status: 'paused' } }
  }

  async #writeToken(query: StateQuery, account: Account, name: string, token: string): Promise<void> {
    const { rows } = await query("select from api_token where hash = decode($1, 'hex') and (account_id, name) <> ($2, $3)", [
      hashToken(token),
      account.id,
      name,
    ])
    if (rows[0]) throw new EngineError('VALIDATION_FAILED', 'this token is already in use under another name or account')
    const known = await query<{ hash: string }>(`select encode(hash, 'hex') as hash from api_token where account_id = $1 and name = $2`, [
      account.id,
      name,
    ])
    const [stored] = known.rows
    if (stored?.hash === hashToken(token)) return
    const old = stored ? { name } : null
    this.tokenChanges.push({ resource_type: 'api_token', action: stored ? 'update' : 'create', name, old, new: { name } })
    await this.#resources.saveToken(query, account, name, token)
  }

  async #writeDatabase(query: StateQuery, account: Account, input: DatabaseInput): Promise<void> {
    const { rows } = await query<{ slot_name: string; publication_name: string }>(
      'select slot_name, publication_name from source_database where account_id = $1 and name = $2',
      [account.id, input.name],
    )
    const [stored] = rows
    if (stored && (stored.slot_name !== input.slotName || stored.publication_name !== input.publicationName))
      throw new EngineError(
        'VALIDATION_FAILED',
        `slot and publication of a database can't be renamed (they are "${stored.slot_name}" and "${stored.publication_name}")`,
      )
    await this.#resources.saveDatabase(query, account, input)
  }

  async #writeSink(query: StateQuery, account: Account, database: string, input: SinkInput): Promise<void> {
    const { rows } = await query<{ id: string }>('select id from source_database where account_id = $1 and name = $2', [
      account.id,
      database,
    ])
    if (!rows[0]) throw new EngineError('NOT_FOUND', `the database "${database}" is not known`)
    const kept = await query<{ database_id: string; type: string; enrichment: string | null }>(
      `select database_id, destination ->> 'type' as type, settings ->> 'enrichment' as enrichment from sink where account_id = $1 and name = $2`,
      [account.id, input.settings.name],
    )
    if (kept.rows[0] && kept.rows[0].database_id !== rows[0].id)
      throw new EngineError('VALIDATION_FAILED', 'the database of a sink cannot change')
    const functions = await query<Pick<StoredFunction, 'name' | 'type' | 'sinkType'>>(
      'select name, type, sink_type as "sinkType" from function where account_id = $1',
      [account.id],
    )
    const { destination } = input
    if (kept.rows[0] && kept.rows[0].type !== destination.type)
      throw new EngineError('VALIDATION_FAILED', `the type of a destination cannot change (it is "${kept.rows[0].type}")`)
    const endpoint = endpointName(destination)
    if (endpoint !== undefined) {
      const found = await query('select from http_endpoint where account_id = $1 and name = $2', [account.id, endpoint])
      if (!found.rows[0]) throw new EngineError('NOT_FOUND', `the HTTP endpoint "${endpoint}" is not known`)
    }
    // a file that doesn't speak of the enrichment leaves it as it is
    const { enrichment = kept.rows[0]?.enrichment ?? null } = input.settings
    const settings = { ...input.settings, enrichment }
    refuseMissingFunctions(settings, destination, functions.rows)
    await this.#resources.saveSink(query, account, rows[0].id, { settings, destination })
  }

  /** Drops what was made. @returns why some of it is still there */
  async undo(): Promise<readonly string[]> {
    const left: string[] = []
    for (const { undo } of this.#made.toReversed()) await undo().catch((reason: Error) => left.push(reason.message))
    return left
  }

  /** Gathers what is refused; a failure of the state database itself ends it, with what was gathered so far. */
  async #at(line: number, work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      this.#wrong(line, error)
      if (!(error instanceof EngineError) || error.code === 'STATE_UNAVAILABLE') throw refusal(this.#problems, this.#cause)
    }
  }

  #wrong(line: number, error: unknown): void {
    this.#cause ??= error
    const because = error instanceof EngineError ? { because: error.code } : {}
    this.#problems.push({ file: this.#document.file, line, reason: textOf(error), ...because })
  }

  #notice(line: number, text: string): void {
    this.notices.push(`${this.#document.file}:${line}: ${text}`)
  }
}

/** Waits for a server that is still starting, when the file says so. */
async function provisioned(
  { input, createSlot, createPublication, initSql, awaitMs, intervalMs }: ConfiguredDatabase,
  { latest, isKnown, isTrial, signal }: Readonly<{ latest: number; isKnown: boolean; isTrial: boolean; signal: AbortSignal }>,
): Promise<Provisioned> {
  const deadline = Math.min(latest, performance.now() + awaitMs)
  for (;;) {
    try {
      return await provision(input.connection, {
        slot: { name: input.slotName, create: createSlot && !isKnown },
        publication: { name: input.publicationName, create: createPublication, ...(initSql === undefined ? {} : { initSql }) },
        isTrial,
      })
    } catch (error) {
      const mayCome = !isKnown && error instanceof EngineError && error.code === 'SOURCE_UNREACHABLE'
      if (!mayCome || isTrial || performance.now() + intervalMs > deadline) throw error
      await pause(intervalMs, undefined, { signal })
    }
  }
}

const textOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))
