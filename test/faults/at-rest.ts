/** Whether sinks that send have come to rest: nothing of them is under way, and no message waits without a next try. */
import assert from 'node:assert/strict'
import type { Service } from './service.ts'
import { until } from '../waiting.ts'

type Info = Readonly<{ nodes: readonly Readonly<{ actors: readonly Actor[]; partitions: readonly Readonly<{ sink: string }>[] }>[] }>
type Actor = Readonly<{ kind: string; name: string; details: Readonly<{ ackPending?: number; requests?: number; partitions?: number }> }>
type Listed = Readonly<{
  data: readonly Readonly<{ id: string; state: string; deliver_count: number; not_visible_until: string | null }>[]
}>

/** What failed last may wait for three minutes. */
const WITHIN_MS = 240_000
const LISTED = 1_000

/**
 * Settles when they are at rest, and nobody has forgotten a message on the way there.
 * @param mayBackOff some messages are refused for ever: each of them is seen with its next try. Else none is left
 */
export async function untilAtRest(service: Service, sinks: readonly string[], { mayBackOff = false } = {}): Promise<void> {
  for (const sink of sinks) {
    const seen = new Set<string>()
    let last = ''
    const isAtRest = async () => {
      const [info, listed] = [await service.get('/info'), await service.get(`/api/sinks/${sink}/messages?state=open&limit=${LISTED}`)]
      const nodes = info.status === 200 ? (info.body as Info).nodes : []
      const details = nodes.flatMap(({ actors }) => actors).find(({ kind, name }) => kind === 'sink' && name === sink)?.details
      const served = nodes.flatMap(({ partitions }) => partitions).filter((partition) => partition.sink === sink).length
      const open = listed.status === 200 ? (listed.body as Listed).data : undefined
      for (const { id, not_visible_until } of open ?? []) if (not_visible_until !== null) seen.add(id)
      // behind one that is refused others of its group were sent once, and wait: they count as pending
      const isDone = mayBackOff ? open?.every(({ id }) => seen.has(id)) : open?.length === 0 && details?.ackPending === 0
      last = `${JSON.stringify(details)}\n${JSON.stringify(open?.filter(({ id }) => !seen.has(id)).slice(0, 3))}`
      return details?.requests === 0 && served === details.partitions && isDone
    }
    await until(() => `${sink} is at rest: ${last}`, isAtRest, { withinMs: WITHIN_MS, service })
  }
  assert.ok(!service.log().includes('MESSAGES_FORGOTTEN'), 'no end of a delivery was forgotten')
}
