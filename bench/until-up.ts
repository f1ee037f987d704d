/** Waits for a server that is coming up. */
import { setTimeout } from 'node:timers/promises'

/** How long it may take to come up. */
const START_MS = 60_000
const RETRY_MS = 10

/** @param probe a status, or whatever is in the way. Settles with the first 200. */
export async function untilUp(probe: () => Promise<number>): Promise<void> {
  const deadline = performance.now() + START_MS
  for (;;) {
    const status = await probe().catch((error: Error) => error.message)
    if (status === 200) return
    if (performance.now() > deadline) throw new Error(`the service did not come up: ${status}`)
    await setTimeout(RETRY_MS)
  }
}
