/** What a routing function's result comes to for a message, for people who are writing one. Nothing here does I/O. */
import type { Destination } from '../../engine/state/destinations.ts'
import { PUSH_TYPES } from '../../sinks/destination-types.ts'
import type { RouteTrial } from '../../transforms/trial.ts'

/** @param destination of the sink that it is tried for; absent: of none, and a target that is missing may yet come */
export function routeTrial(sinkType: string | null | undefined, destination?: Destination): RouteTrial | undefined {
  const { routing } = PUSH_TYPES.get(sinkType ?? '') ?? {}
  if (!routing) return undefined
  return (said, message) => {
    const { route, reason } = routing.read(said, destination)
    return reason === undefined ? { routing: routing.effective(route, destination, message) } : { reason }
  }
}
