/** Trying again while brokers can't be reached or elect a leader, within bounds: for work that may be done twice. */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'
import { backOff } from '../../back-off.ts'

const PATIENCE_MS = 10_000
const PAUSE = { firstMs: 20, maxMs: 500 }

/** Tries work again while it fails in a way that can pass. @param signal ends the patience: the next failure is the last */
export async function patiently<T>(work: () => Promise<T>, signal?: AbortSignal, limitMs = PATIENCE_MS): Promise<T> {
  const until = performance.now() + limitMs
  for (let attempt = 1; ; attempt++) {
    const pauseMs = backOff(PAUSE, attempt)
    try {
      return await work()
    } catch (error) {
      const mayPass = error instanceof EngineError && error.code === 'LOG_UNREACHABLE'
      if (!mayPass || signal?.aborted || performance.now() + pauseMs > until) throw error
      await delay(pauseMs, undefined, { signal }).catch(() => undefined)
    }
  }
}
