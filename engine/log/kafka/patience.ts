/** Trying again while brokers can't be reached or elect a leader, within bounds: for work that may be done twice. */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'

const PATIENCE_MS = 10_000
const FIRST_PAUSE_MS = 20
const MAX_PAUSE_MS = 500

/** @param signal ends the patience: the next failure is the last */
export async function patiently<T>(work: () => Promise<T>, signal?: AbortSignal, limitMs = PATIENCE_MS): Promise<T> {
  const until = performance.now() + limitMs
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS)) {
    try {
      return await work()
    } catch (error) {
      const mayPass = error instanceof EngineError && error.code === 'LOG_UNREACHABLE'
      if (!mayPass || signal?.aborted || performance.now() + pauseMs > until) throw error
      await delay(pauseMs, undefined, { signal }).catch(() => undefined)
    }
  }
}
