/**
 * Edits of the resources, each in one transaction: what is asked is checked against what is stored at that moment, and
 * against the source database where it names tables. Whoever calls makes it take effect afterwards.
 */
import { EngineError } from '../engine/errors.ts'
import { missingNames, namesOf, newNames, refuseMissing } from '../engine/state/source-names.ts'
import { endpointName, type HttpEndpoint } from '../engine/state/destinations.ts'
import { refuseMissingFunctions } from '../engine/state/functions.ts'
import { accountLock, type EndpointInput, type ResourceStore, type Resources, type SinkInput } from '../engine/state/resource-store.ts'
import type { Account, Sink } from '../engine/state/resources.ts'
import type { Connection } from '../engine/postgres/client-config.ts'
import type { StateQuery, Store } from '../engine/state/store.ts'
import { isKeyed } from '../sinks/destination-types.ts'

export type SinkChanges = Readonly<Partial<Omit<SinkInput['settings'], 'database'>> & { destination?: SinkInput['destination'] }>
export type EndpointChanges = Readonly<Partial<EndpointInput>>

export class ResourceEdits {
  readonly #store: Store
  readonly #resources: ResourceStore

  constructor(store: Store, resources: ResourceStore) {
    this.#store = store
    this.#resources = resources
  }

  /** @returns its id. @throws EngineError VALIDATION_FAILED, NOT_FOUND */
  async createSink(account: Account, input: SinkInput, source: Readonly<{ databaseId: string; connection: Connection }>): Promise<string> {
    refuseMissing(await missingNames(source.connection, namesOf(input.settings, isKeyed(input.destination))))
    return this.#edit(account, async (query, { sinks, databases, endpoints, functions }) => {
      const { name } = input.settings
      if (!databases.some(({ id }) => id === source.databaseId)) throw new EngineError('NOT_FOUND', 'the database does not exist any more')
      if (sinks.some((other) => other.accountId === account.id && other.name === name)) throw taken('sink', name)
      mustHaveEndpoint(account.id, input.destination, endpoints)
      refuseMissingFunctions(
        input.settings,
        input.destination,
        functions.filter((fn) => fn.accountId === account.id),
      )
      return this.#resources.saveSink(query, account, source.databaseId, input)
    })
  }

  /**
   * @param known as it was when the changes were made
   * @returns what is stored now, where that is known without being read
   * @throws EngineError VALIDATION_FAILED, NOT_FOUND
   */
  async updateSink(known: Sink, changes: SinkChanges, connection: Connection): Promise<Resources | undefined> {
    // asked of the source before the row is locked: it may take its time to answer
    refuseMissing(await missingNames(connection, newNames(namesOf({ ...known, ...changes }, isKeyed(known.destination)), known)))
    const account = { id: known.accountId, name: '' }
    const { stored, isRenamed } = await this.#edit(account, async (query, loaded) => {
      const { sinks, endpoints, functions } = loaded
      const before = sinks.find(({ id }) => id === known.id)
      if (!before) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
      const name = changes.name ?? before.name
      if (sinks.some((other) => other.id !== known.id && other.accountId === before.accountId && other.name === name))
        throw taken('sink', name)
      if (changes.destination) mustHaveEndpoint(before.accountId, changes.destination, endpoints)
      const { id: _id, accountId: _account, databaseId, destination, ...settings } = { ...before, ...changes }
      refuseMissingFunctions(
        settings,
        destination,
        functions.filter((fn) => fn.accountId === known.accountId),
      )
      if (name !== before.name) await this.#resources.renameSink(query, known.id, name)
      await this.#resources.saveSink(query, account, databaseId, { settings, destination }, before)
      return { stored: loaded, isRenamed: name !== before.name }
    })
    return isRenamed ? undefined : this.#resources.afterSaved(stored, known.id)
  }

  async deleteSink(id: string): Promise<void> {
    await this.#store.transaction((query) => this.#resources.deleteSink(query, id))
  }

  /** @returns its id. @throws EngineError VALIDATION_FAILED */
  async createEndpoint(account: Account, input: EndpointInput): Promise<string> {
    return this.#edit(account, async (query, { endpoints }) => {
      if (endpoints.some((other) => other.accountId === account.id && other.name === input.name)) throw taken('HTTP endpoint', input.name)
      return this.#resources.saveEndpoint(query, account, input)
    })
  }

  /** @throws EngineError VALIDATION_FAILED, NOT_FOUND */
  async updateEndpoint({ id, accountId }: HttpEndpoint, changes: EndpointChanges): Promise<void> {
    const account = { id: accountId, name: '' }
    await this.#edit(account, async (query, { endpoints }) => {
      const before = endpoints.find((endpoint) => endpoint.id === id)
      if (!before) throw new EngineError('NOT_FOUND', 'the HTTP endpoint does not exist any more')
      const after = { ...before, ...changes }
      if (endpoints.some((other) => other.id !== id && other.accountId === accountId && other.name === after.name))
        throw taken('HTTP endpoint', after.name)
      if (after.name !== before.name) await this.#resources.renameEndpoint(query, before, after.name)
      await this.#resources.saveEndpoint(query, account, after)
    })
  }

  /** @throws EngineError RESOURCE_IN_USE */
  async deleteEndpoint({ id, accountId, name }: HttpEndpoint): Promise<void> {
    await this.#edit({ id: accountId, name: '' }, async (query, { sinks }) => {
      const users = sinks.filter(({ accountId: owner, destination }) => owner === accountId && endpointName(destination) === name)
      if (users.length > 0)
        throw new EngineError(
          'RESOURCE_IN_USE',
          `the HTTP endpoint "${name}" is in use by ${users
            .map((sink) => `"${sink.name}"`)
            .join(', ')
            .slice(0, 500)}`,
        )
      await this.#resources.deleteEndpoint(query, id)
    })
  }

  /** One edit of an account at a time, of all processes: each begins with what the one before it left. */
  #edit<T>(account: Account, work: (query: StateQuery, stored: Resources) => Promise<T>): Promise<T> {
    return this.#store.transaction(async (query) => work(query, await this.#resources.load(query)), accountLock(account.id))
  }
}

function mustHaveEndpoint(accountId: string, destination: SinkInput['destination'], endpoints: readonly HttpEndpoint[]): void {
  const name = endpointName(destination)
  if (name === undefined) return
  if (endpoints.some((endpoint) => endpoint.accountId === accountId && endpoint.name === name)) return
  throw new EngineError('VALIDATION_FAILED', `there is no HTTP endpoint "${name}"`, {
    'destination.http_endpoint': `names "${name}", which does not exist`,
  })
}

const taken = (kind: string, name: string) =>
  new EngineError('VALIDATION_FAILED', `another ${kind} is named "${name}"`, { name: 'is taken' })
