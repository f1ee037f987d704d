/** What an edit of the resources means for the actors, as little as possible: nothing restarts that can take it in. Pure. */
import { isDeepStrictEqual as same } from 'node:util'
import type { HttpEndpoint } from '../engine/state/destinations.ts'
import { FUNCTION_FIELDS, type StoredFunction } from '../engine/state/functions.ts'
import type { Database, Sink } from '../engine/state/resources.ts'

export type Known = Readonly<{
  databases: readonly Database[]
  sinks: readonly Sink[]
  endpoints?: readonly HttpEndpoint[]
  functions?: readonly StoredFunction[]
}>

export type ResourceChanges = Readonly<{
  /** ids of sinks that are gone */
  goneSinks: readonly string[]
  newSinks: readonly Sink[]
  /** edited, or their database's description is, which messages carry too, or a function they have, or the HTTP endpoint they send to */
  editedSinks: readonly Sink[]
  /** databases that their sources leave: gone, switched off, or reached in another way from now on */
  endedSources: readonly string[]
  begunSources: readonly Database[]
  /** what goes where may differ */
  rerouted: readonly Database[]
}>

export function changesBetween(before: Known, after: Known): ResourceChanges {
  const oldSinks = new Map(before.sinks.map((sink) => [sink.id, sink]))
  const newSinks = new Map(after.sinks.map((sink) => [sink.id, sink]))
  const oldDatabases = new Map(before.databases.map((database) => [database.id, database]))
  const newDatabases = new Map(after.databases.map((database) => [database.id, database]))
  const goneSinks = before.sinks.filter(({ id }) => !newSinks.has(id))
  const addedSinks = after.sinks.filter(({ id }) => !oldSinks.has(id))
  const changedSinks = after.sinks.filter((sink) => oldSinks.has(sink.id) && !same(sink, oldSinks.get(sink.id)))
  const rerouted = new Set([...goneSinks, ...addedSinks, ...changedSinks].map(({ databaseId }) => databaseId))
  return {
    goneSinks: goneSinks.map(({ id }) => id),
    newSinks: addedSinks,
    editedSinks: after.sinks.filter((sink) => {
      const was = oldSinks.get(sink.id)
      if (!was) return false
      if (!same(sink, was) || !same(oldDatabases.get(sink.databaseId), newDatabases.get(sink.databaseId))) return true
      if (!same(functionsOf(sink, before), functionsOf(sink, after))) return true
      return !same(endpointOf(sink, before), endpointOf(sink, after))
    }),
    endedSources: before.databases.filter((was) => runs(was) && !continues(was, newDatabases.get(was.id))).map(({ id }) => id),
    begunSources: after.databases.filter((now) => runs(now) && !continues(oldDatabases.get(now.id), now)),
    rerouted: after.databases.filter(({ id }) => rerouted.has(id) || !oldDatabases.has(id)),
  }
}

const functionsOf = (sink: Sink, { functions = [] }: Known): readonly StoredFunction[] =>
  functions.filter((fn) => fn.accountId === sink.accountId && FUNCTION_FIELDS.some((field) => sink[field] === fn.name))

const endpointOf = ({ accountId, destination }: Sink, { endpoints = [] }: Known): HttpEndpoint | undefined =>
  destination.type === 'webhook'
    ? endpoints.find((endpoint) => endpoint.accountId === accountId && endpoint.name === destination.http_endpoint)
    : undefined

const runs = ({ slot }: Database): boolean => slot.status === 'active'

/** A running source has no need to know: only how it reaches the server, and its slot, are its own. */
const continues = (was: Database | undefined, now: Database | undefined): boolean =>
  was !== undefined && now !== undefined && runs(was) && runs(now) && same(was.connection, now.connection) && same(was.slot, now.slot)
