/** Configuration as code for an account of a running service: planned, applied and exported. */
import type { ResourceStore, Resources } from '../../engine/state/resource-store.ts'
import type { Account } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import type { FunctionPool } from '../../transforms/sandbox/pool.ts'
import { changeByConfig, type ConfigOutcome } from './config-apply.ts'
import { readDocument, type ConfigDocument, type StoredResources } from './config-document.ts'
import { exportedResources, exportYaml } from './config-export.ts'
import { refusal } from './config-reader.ts'
import { functionProblems } from './configured-functions.ts'

export type ConfigEditsOptions = Readonly<{
  store: Store
  resources: ResourceStore
  pool: FunctionPool
  /** aborted when the service stops */
  signal: AbortSignal
  /** makes what is stored take effect here */
  reload: () => Promise<void>
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

export class ConfigEdits {
  readonly #options: ConfigEditsOptions

  constructor(options: ConfigEditsOptions) {
    this.#options = options
  }

  /** What `apply` would do. @throws EngineError CONFIG_INVALID */
  plan(account: Account, given: GivenConfig): Promise<ConfigOutcome> {
    return this.#change(account, given, true)
  }

  /** It has taken effect here when this settles. @throws EngineError CONFIG_INVALID: nothing of it was done */
  async apply(account: Account, given: GivenConfig): Promise<ConfigOutcome> {
    const outcome = await this.#change(account, given, false)
    await this.#options.reload()
    return outcome
  }

  /** @returns YAML */
  async export({ id }: Account, { showSensitive }: Readonly<{ showSensitive: boolean }>): Promise<string> {
    const { resources, store } = this.#options
    return exportYaml(exportedResources(await resources.load(store.query), id), { showSensitive })
  }

  async #change(account: Account, given: GivenConfig, isTrial: boolean): Promise<ConfigOutcome> {
    const { store, resources, pool, signal } = this.#options
    const document = await this.#read(given, storedOf(await resources.load(store.query), account))
    return changeByConfig(document, account, { store, resources, pool, signal, isTrial })
  }

  async #read({ yaml, file = 'yaml', variables, files }: GivenConfig, stored: StoredResources): Promise<ConfigDocument> {
    const read = (path: string): string => {
      if (files && Object.hasOwn(files, path)) return files[path] as string
      throw new Error('it is not among the files of the request')
    }
    const { document, functions, problems } = readDocument(yaml, { file, env: variables, stored, ...(files && { read }) })
    if (document) return document
    throw refusal([...problems, ...(await functionProblems(functions, file, this.#options.pool))])
  }
}

function storedOf({ databases, endpoints, sinks }: Resources, account: Account): StoredResources {
  const own = <T extends Readonly<{ accountId: string }>>(those: readonly T[]) => those.filter(({ accountId }) => accountId === account.id)
  return { account, databases: own(databases), endpoints: own(endpoints), sinks: own(sinks) }
}
