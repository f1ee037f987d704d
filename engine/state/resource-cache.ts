/** The resources as the request path needs them: in memory, so that no request waits for the state database. */
import { endpointName, type HttpEndpoint } from './destinations.ts'
import type { StoredFunction } from './functions.ts'
import type { Account, Database, Sink } from './resources.ts'
import type { Resources } from './resource-store.ts'

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

/** The part of the resource cache in which requests look up accounts, databases, sinks and endpoints. */
export type ResourceLookup = Pick<
  ResourceCache,
  'findAccount' | 'findSink' | 'listSinks' | 'findDatabase' | 'findEndpoint' | 'listEndpoints'
>

export class ResourceCache {
  #resources: Resources

  constructor(resources: Resources) {
    this.#resources = resources
  }

  /** What is stored has changed. */
  replace(resources: Resources): void {
    this.#resources = resources
  }

  /** differs whenever any of them does */
  get print(): string {
    return this.#resources.print
  }
  get databases(): readonly Database[] {
    return this.#resources.databases
  }
  get sinks(): readonly Sink[] {
    return this.#resources.sinks
  }

  get functions(): readonly StoredFunction[] {
    return this.#resources.functions
  }
  get endpoints(): readonly HttpEndpoint[] {
    return this.#resources.endpoints
  }

  /** @param tokenHash sha256 of the token, lower-case hexadecimal */
  findAccount(tokenHash: string): Account | undefined {
    return this.#resources.tokens.get(tokenHash)
  }

  /** A UUID-shaped text is an id, anything else a name. */
  findSink(accountId: string, idOrName: string): Sink | undefined {
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const wanted = field === 'id' ? idOrName.toLowerCase() : idOrName
    return this.sinks.find((sink) => sink.accountId === accountId && sink[field] === wanted)
  }

  listSinks(accountId: string): readonly Sink[] {
    return this.sinks.filter((sink) => sink.accountId === accountId)
  }

  /** The same of a database. */
  findDatabase(accountId: string, idOrName: string): Database | undefined {
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const wanted = field === 'id' ? idOrName.toLowerCase() : idOrName
    return this.databases.find((database) => database.accountId === accountId && database[field] === wanted)
  }

  /** The same of an HTTP endpoint. */
  findEndpoint(accountId: string, idOrName: string): HttpEndpoint | undefined {
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const wanted = field === 'id' ? idOrName.toLowerCase() : idOrName
    return this.endpoints.find((endpoint) => endpoint.accountId === accountId && endpoint[field] === wanted)
  }

  listEndpoints(accountId: string): readonly HttpEndpoint[] {
    return this.endpoints.filter((endpoint) => endpoint.accountId === accountId)
  }

  /** The one that a sink's destination names. */
  endpointOf({ accountId, destination }: Sink): HttpEndpoint | undefined {
    const wanted = endpointName(destination)
    return wanted === undefined ? undefined : this.endpoints.find(({ accountId: owner, name }) => owner === accountId && name === wanted)
  }

  sink(id: string): Sink | undefined {
    return this.sinks.find((sink) => sink.id === id)
  }

  database(id: string): Database | undefined {
    return this.databases.find((database) => database.id === id)
  }
}
