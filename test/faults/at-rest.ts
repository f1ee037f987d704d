/** Whether a sink that sends has come to rest: what it says of itself when nothing is left to be sent, and nothing stuck. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Service } from './service.ts'

type Info = Readonly<{ nodes: readonly Readonly<{ actors: readonly Actor[] }>[] }>
type Actor = Readonly<{ kind: string; name: string; details: Readonly<{ ackPending?: number; requests?: number }> }>
type Listed = Readonly<{
  data: readonly Readonly<{ id: string; state: string; deliver_count: number; not_visible_until: string | null }>[]
}>

/** What failed last may wait for three minutes. */
const WITHIN_MS = 240_000
/** Listed at once. */
const LISTED = 100

/**
 * Settles when nothing of these sinks is under way or waits without a next try, and nobody has forgotten a message on the way.
 * @param mayBackOff some messages are refused for ever, and tried again and again; else none is left
 */
export async function untilAtRest(service: Service, sinks: readonly string[], { mayBackOff = false } = {}): Promise<void> {
  const deadline = performance.now() + WITHIN_MS
  for (const sink of sinks) {
    let details: Actor['details'] = {}
    let open: Listed['data'] = []
    for (;;) {
      const info = (await service.get('/info')).body as Info
      details = info.nodes.flatMap(({ actors }) => actors).find(({ kind, name }) => kind === 'sink' && name === sink)?.details ?? {}
      open = ((await service.get(`/api/sinks/${sink}/messages?state=open&limit=${LISTED}`)).body as Listed).data
      // behind a message that is refused for ever others of its group have been sent once, and wait
      const areEnded = mayBackOff
        ? open.every(({ not_visible_until }) => not_visible_until !== null)
        : open.length + (details.ackPending ?? 1) === 0
      if (details.requests === 0 && areEnded) break
      if (performance.now() > deadline)
        throw service.failure(`${sink} is not at rest: ${JSON.stringify(details)}\n${JSON.stringify(open.slice(0, 3))}`)
      await sleep(100)
    }
  }
  assert.ok(!service.log().includes('MESSAGES_FORGOTTEN'), 'no end of a delivery was forgotten')
}
