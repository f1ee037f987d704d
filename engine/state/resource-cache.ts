/** The resources as the request path needs them: in memory, so that no request waits for the state database. */
import { storedName, targetName } from './change-retentions.ts'
import type { RunningBackfill } from './backfills.ts'
import { endpointName, type HttpEndpoint } from './destinations.ts'
import type { StoredFunction } from './functions.ts'
import type { Database, Sink } from './resources.ts'
import { listOf, ownList, type Resources, type ResourceType, type StoredOf } from './resource-store.ts'

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

/** The part of the resource cache in which requests look up what an account has. */
export type ResourceLookup = Pick<ResourceCache, 'find' | 'list'>

/** The resources of all accounts as they were loaded last. */
export class ResourceCache implements Resources {
  /** differs whenever any of them does */
  print = ''
  databases: readonly Database[] = []
  sinks: readonly Sink[] = []
  functions: readonly StoredFunction[] = []
  endpoints: readonly HttpEndpoint[] = []
  backfills: readonly RunningBackfill[] = []

  constructor(resources: Resources) {
    this.replace(resources)
  }

  /** Takes in that what is stored has changed. */
  replace(resources: Resources): void {
    Object.assign(this, resources)
  }

  /** Finds a resource of an account. A UUID-shaped text is an id, anything else a name. */
  find<T extends ResourceType>(type: T, accountId: string, idOrName: string): StoredOf<T> | undefined {
    const field = UUID.test(idOrName) ? 'id' : 'name'
    const wanted = field === 'id' ? idOrName.toLowerCase() : type === 'change_retention' ? storedName(idOrName) : idOrName
    return listOf(this, type).find((one) => one.accountId === accountId && one[field] === wanted)
  }

  /** Gives the resources of a type that an account has. */
  list<T extends ResourceType>(type: T, accountId: string): readonly StoredOf<T>[] {
    return ownList(this, type, accountId)
  }

  /** Finds the HTTP endpoint that the destination of a sink names. */
  endpointOf({ accountId, destination }: Sink): HttpEndpoint | undefined {
    const wanted = endpointName(destination)
    return wanted === undefined ? undefined : this.endpoints.find(({ accountId: owner, name }) => owner === accountId && name === wanted)
  }

  /** Finds the database that the destination of a sink names, as that of a change retention does. */
  targetOf({ accountId, destination }: Sink): Database | undefined {
    const wanted = targetName(destination)
    return wanted === undefined ? undefined : this.databases.find(({ accountId: owner, name }) => owner === accountId && name === wanted)
  }

  sink(id: string): Sink | undefined {
    return this.sinks.find((sink) => sink.id === id)
  }

  database(id: string): Database | undefined {
    return this.databases.find((database) => database.id === id)
  }
}
