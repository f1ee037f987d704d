/** Configuration as code for an account of a running service: planned, applied and exported. */
import { EngineError } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import { ownLists, type ResourceStore, type Resources } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import { secretFields } from '../../engine/state/destinations.ts'
import type { Store } from '../../engine/state/store.ts'
import type { UnstoredDatabases } from '../../engine/wal/connection/unstored-databases.ts'
import { STORED_DESTINATIONS } from '../../sinks/destination-types.ts'
import type { AccountPool, FunctionPool } from '../../transforms/sandbox/pool.ts'
import { applyConfig, type ConfigOutcome } from './config-apply.ts'
import type { ConfigDocument, StoredResources } from './config-document.ts'
import { readGivenConfig } from './given-config.ts'
import { exportedResources, exportYaml } from './config-export.ts'
import { refusal } from './config-reader.ts'
import { functionProblems } from './built-functions.ts'

type ConfigEditsOptions = Readonly<{
  store: Store
  resources: ResourceStore
  pool: FunctionPool
  /** aborted when the service stops */
  signal: AbortSignal
  /** told why a database can't be reached, which is no matter of the client's */
  logger: Pick<Logger, 'warn'>
  /** keeps in mind what is made on servers until it is stored */
  unstored?: UnstoredDatabases
  /** makes what is stored take effect here */
  takeIn: () => Promise<void>
}>

/**
 * @property file how errors name the text @property variables replaced in values; absent: they were, and `${…}` is a text
 * @property files texts that functions name as their `file`
 */
export type GivenConfig = Readonly<{
  yaml: string
  file?: string | undefined
  variables?: Readonly<Record<string, string>> | undefined
  files?: Readonly<Record<string, string>> | undefined
}>

/**
 * Who asks for a configuration to be planned or applied. @property gone aborted when the client no longer waits: what isn't stored by then
 * never is @property mayMove a stored password of a database may be sent to another server without being given again
 * @property refuseTokens throws where the client may not set API tokens and users
 */
type Asker = Readonly<{ gone: AbortSignal; mayMove: boolean; refuseTokens: () => void }>

/** So many requests of one account may wait behind the one that is read or applied. */
const MAX_WAITING = 4

/** Plans, applies and exports the configuration of accounts, for each of them one at a time. */
export class ConfigEdits {
  readonly #options: ConfigEditsOptions
  /** Requests of one account come one after the other, which bounds what each account can have in memory and wait for. */
  readonly #turns = new Map<string, { count: number; last: Promise<unknown> }>()

  constructor(options: ConfigEditsOptions) {
    this.#options = options
  }

  /** Tells what `apply` would do. @throws EngineError CONFIG_INVALID, CONFIG_BUSY */
  plan(account: Account, given: GivenConfig, asker: Asker): Promise<ConfigOutcome> {
    return this.#inTurn(account, () => this.#change(account, given, { isTrial: true, ...asker }))
  }

  /**
   * It has taken effect here when this settles.
   * @throws EngineError CONFIG_INVALID, CONFIG_BUSY: nothing of it was done
   */
  apply(account: Account, given: GivenConfig, asker: Asker): Promise<ConfigOutcome> {
    return this.#inTurn(account, async () => {
      const outcome = await this.#change(account, given, { isTrial: false, ...asker })
      await this.#options.takeIn()
      return outcome
    })
  }

  /** @returns YAML */
  async export({ id }: Account, { showSensitive }: Readonly<{ showSensitive: boolean }>): Promise<string> {
    const { resources, store } = this.#options
    return exportYaml(exportedResources(await resources.load(store.query), id, resources.defaults), { showSensitive })
  }

  async #inTurn<T>({ id }: Account, work: () => Promise<T>): Promise<T> {
    const turn = this.#turns.get(id) ?? { count: 0, last: Promise.resolve() }
    if (turn.count > MAX_WAITING)
      throw new EngineError('CONFIG_BUSY', `${turn.count} configurations of this account are being read or applied; they come one after the other.`) // prettier-ignore
    turn.count++
    this.#turns.set(id, turn)
    const done = turn.last.then(work)
    turn.last = done.catch(() => {})
    try {
      return await done
    } finally {
      if (--turn.count === 0) this.#turns.delete(id)
    }
  }

  async #change(
    account: Account,
    given: GivenConfig,
    { isTrial, gone, mayMove, refuseTokens }: Asker & Readonly<{ isTrial: boolean }>,
  ): Promise<ConfigOutcome> {
    const { store, resources, logger, unstored } = this.#options
    const pool = this.#options.pool.of(account.id)
    const signal = AbortSignal.any([this.#options.signal, gone])
    if (signal.aborted) throw new EngineError('STOPPING', 'the client left before its configuration was read or applied')
    const stored = { ...storedOf(await resources.load(store.query), account), mayMove }
    const document = await this.#read(given, stored, { pool, signal })
    if (document.hasTokens || document.users.length > 0) refuseTokens()
    return applyConfig(document, { store, resources, pool, signal, account, isTrial, logger, unstored })
  }

  async #read(
    given: GivenConfig,
    stored: StoredResources,
    { pool, signal }: Readonly<{ pool: AccountPool; signal: AbortSignal }>,
  ): Promise<ConfigDocument> {
    const { file = 'yaml' } = given
    const { document, functions, problems } = await readGivenConfig({ ...given, file }, stored, signal)
    if (document) return document
    throw refusal([...problems, ...(await functionProblems(functions, file, pool))])
  }
}

/** Gives what has secrets; all else a reading thread would get for nothing. */
function storedOf(resources: Resources, account: Account): StoredResources {
  const { databases, endpoints, sinks } = ownLists(resources, account.id)
  const secretSinks = sinks.filter(({ destination }) => secretFields(STORED_DESTINATIONS, destination.type).length > 0)
  return { account, databases, endpoints, sinks: secretSinks }
}
