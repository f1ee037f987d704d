/** Whether every source that is to stream does so, in some process, and what keeps the others. */
import { EngineError } from '../engine/errors.ts'
import type { NodeRegistry } from '../engine/state/node-registry.ts'
import type { Database } from '../engine/state/resources.ts'
import type { SourceActor } from './source/source-actor.ts'

/**
 * Tells whether every source streams, and which ones don't, with the code and words of what stops them.
 * @property disabled databases whose slot is disabled: nothing waits for them
 */
export type Readiness = Readonly<{
  ready: boolean
  waiting: readonly Readonly<{ kind: string; name: string; state: string; code?: string; reason?: string }>[]
  disabled: number
}>

/** Tells whether the sources that are switched on stream, here or in another process that lives. */
export function readinessOf(
  databases: readonly Database[],
  sources: ReadonlyMap<string, Pick<SourceActor, 'status' | 'standby'>>,
  nodes: Pick<NodeRegistry, 'live'>,
): Readiness {
  const active = databases.filter(({ slot }) => slot.status === 'active')
  const waiting = active.flatMap(({ id, name }): Readiness['waiting'][number][] => {
    const status = sources.get(id)?.status()
    if (status?.state === 'streaming') return []
    const owner = sources.get(id)?.standby?.owner
    if (owner !== undefined && nodes.live.has(owner)) return [] // that node says how it is
    const error = status?.lastError?.error
    return [
      {
        kind: 'database',
        name,
        state: status?.state ?? 'starting',
        ...(error instanceof EngineError ? { code: error.code } : {}),
        ...(error instanceof Error ? { reason: error.message } : {}),
      },
    ]
  })
  return { ready: waiting.length === 0, waiting, disabled: databases.length - active.length }
}
