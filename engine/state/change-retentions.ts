/**
 * Change retentions: what is committed to a table is kept as rows of another one. The engine knows each as a sink, whose destination
 * is that table; users know it by a name of its own, which a sink may have, too.
 */
import type { Destination } from './destinations.ts'
import type { Sink } from './resources.ts'

/** The type of the destination of a change retention. */
export const RETENTION_TYPE = 'change_retention'

/** No sink of a user has a name with a slash. */
const PREFIX = 'change_retention/'

/** Tells whether a sink is a change retention. */
export const isRetention = ({ destination }: Readonly<{ destination: Destination }>): boolean => destination.type === RETENTION_TYPE

/** Gives the name under which a change retention is stored among the sinks. */
export const storedName = (name: string): string => `${PREFIX}${name}`

/** Gives the name by which a user knows a sink or a change retention. */
export const userName = (name: string): string => (name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name)

/** Gives the name of the database that a destination writes to; undefined: it writes to none. */
export const targetName = (destination: Destination): string | undefined =>
  destination.type === RETENTION_TYPE && typeof destination['destination_database'] === 'string'
    ? destination['destination_database']
    : undefined

const SPLIT = new WeakMap<readonly Sink[], Readonly<{ sinks: readonly Sink[]; retentions: readonly Sink[] }>>()

/** Tells sinks and change retentions apart; of the same list it is done once. */
export function splitSinks(all: readonly Sink[]): Readonly<{ sinks: readonly Sink[]; retentions: readonly Sink[] }> {
  let split = SPLIT.get(all)
  if (!split) {
    const retentions = all.filter(isRetention)
    split = { sinks: retentions.length === 0 ? all : all.filter((sink) => !isRetention(sink)), retentions }
    SPLIT.set(all, split)
  }
  return split
}
