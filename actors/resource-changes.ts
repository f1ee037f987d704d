/**
 * Works out what an edit of the resources means for the actors, which is as little as possible: nothing restarts that can take it
 * in. Pure.
 */
import { isDeepStrictEqual as same } from 'node:util'
import { targetName } from '../engine/state/change-retentions.ts'
import { endpointName } from '../engine/state/destinations.ts'
import { FUNCTION_FIELDS } from '../engine/state/function-kinds.ts'
import type { ResourceLists } from '../engine/state/resource-store.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { isRoutedAlike } from './routing-of-sinks.ts'

type ResourceChanges = Readonly<{
  /** ids of sinks that are gone */
  goneSinks: readonly string[]
  newSinks: readonly Sink[]
  /** edited, or their database's description is, which messages carry too, or a function they have, or the HTTP endpoint they send to */
  editedSinks: readonly Sink[]
  /** databases that their sources leave: gone, switched off, or reached in another way from now on */
  endedSources: readonly string[]
  begunSources: readonly Database[]
  /** databases whose sources go on, and are called otherwise */
  renamedSources: readonly Database[]
  /** what goes where may differ */
  rerouted: readonly Database[]
  /** tables that must be published may be others */
  reselected: boolean
}>

/** Compares the resources that have taken effect with those that are stored now. */
export function changesBetween(before: ResourceLists, after: ResourceLists): ResourceChanges {
  const oldSinks = new Map(before.sinks.map((sink) => [sink.id, sink]))
  const newSinks = new Map(after.sinks.map((sink) => [sink.id, sink]))
  const oldDatabases = new Map(before.databases.map((database) => [database.id, database]))
  const newDatabases = new Map(after.databases.map((database) => [database.id, database]))
  const goneSinks = before.sinks.filter(({ id }) => !newSinks.has(id))
  const addedSinks = after.sinks.filter(({ id }) => !oldSinks.has(id))
  const changedSinks = after.sinks.filter((sink) => oldSinks.has(sink.id) && !same(sink, oldSinks.get(sink.id)))
  const reroutedSinks = changedSinks.filter((sink) => !isRoutedAlike(oldSinks.get(sink.id), sink))
  const rerouted = new Set([...goneSinks, ...addedSinks, ...reroutedSinks].map(({ databaseId }) => databaseId))
  const edited = new Set(changedSinks)
  const databases = new Set(after.databases.filter((now) => !same(now, oldDatabases.get(now.id))).map(({ id }) => id))
  const functions = changedNames(before.functions, after.functions)
  const endpoints = changedNames(before.endpoints, after.endpoints)
  const targets = changedNames(before.databases, after.databases)
  /** A sink is as it was, and what belongs to it is not. */
  const isConcerned = (sink: Sink): boolean => {
    const { accountId, destination } = sink
    if (!oldSinks.has(sink.id)) return false
    if (databases.has(sink.databaseId) || FUNCTION_FIELDS.some((field) => functions.has(keyOf(accountId, sink[field])))) return true
    const target = targetName(destination)
    if (target !== undefined && targets.has(keyOf(accountId, target))) return true
    const endpoint = endpointName(destination)
    return endpoint !== undefined && endpoints.has(keyOf(accountId, endpoint))
  }
  const mayConcern = databases.size + functions.size + endpoints.size > 0
  return {
    goneSinks: goneSinks.map(({ id }) => id),
    newSinks: addedSinks,
    editedSinks: mayConcern ? after.sinks.filter((sink) => edited.has(sink) || isConcerned(sink)) : changedSinks,
    endedSources: before.databases.filter((was) => runs(was) && !continues(was, newDatabases.get(was.id))).map(({ id }) => id),
    begunSources: after.databases.filter((now) => runs(now) && !continues(oldDatabases.get(now.id), now)),
    renamedSources: after.databases.filter((now) => {
      const was = oldDatabases.get(now.id)
      return was?.name !== now.name && continues(was, now)
    }),
    rerouted: after.databases.filter(({ id }) => rerouted.has(id) || !oldDatabases.has(id)),
    reselected: goneSinks.length + addedSinks.length > 0 || reroutedSinks.some((sink) => !same(asked(oldSinks.get(sink.id)), asked(sink))),
  }
}

type Named = Readonly<{ accountId: string; name: string }>
const keyOf = (accountId: string, name: string | null | undefined): string => `${accountId} ${name}`

/** Finds the names, with their accounts, under which there is something else than before. */
function changedNames(before: readonly Named[], after: readonly Named[]): ReadonlySet<string> {
  const changed = new Map(before.map((one) => [keyOf(one.accountId, one.name), one]))
  for (const one of after) {
    const key = keyOf(one.accountId, one.name)
    if (same(one, changed.get(key))) changed.delete(key)
    else changed.set(key, one)
  }
  return new Set(changed.keys())
}

const asked = (sink: Sink | undefined) => (sink?.status === 'disabled' ? undefined : sink?.source)

const runs = ({ slot }: Database): boolean => slot.status === 'active'

/** A running source has no need to know: only how it reaches its servers, and its slot, are its own. */
const continues = (was: Database | undefined, now: Database | undefined): boolean =>
  was !== undefined && now !== undefined && runs(was) && runs(now) && same(reachedBy(was), reachedBy(now))
const reachedBy = ({ connection, primary = null, slot }: Database) => [connection, primary, slot]
