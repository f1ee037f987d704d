/** Two runs of a source never append to a log at once, even when the former one gave up on an append that is still open: what may never
 *  settle is waited for within a bound. */
import { EngineError } from '../errors.ts'
import type { Log } from '../log/log.ts'

/** By log and source: an append that its run has left behind. */
const openAppends = new WeakMap<Log, Map<string, Promise<unknown>>>()

/** @param settled of the last append of a run that ends */
export function leaveBehind(log: Log, source: string, settled: Promise<unknown>): void {
  openAppends.set(log, (openAppends.get(log) ?? new Map<string, Promise<unknown>>()).set(source, settled))
}

/** @throws EngineError LOG_APPEND_TIMEOUT */
export async function formerAppend(log: Log, source: string, timeoutMs: number): Promise<void> {
  if (await within(timeoutMs, openAppends.get(log)?.get(source))) return
  throw new EngineError('LOG_APPEND_TIMEOUT', `an append of the former run is still open after ${timeoutMs} ms`)
}

/** @returns whether `promise` settled in time */
export async function within(ms: number, promise: Promise<unknown> | undefined): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), ms)))
  const isOver = await Promise.race([Promise.resolve(promise).then(() => true as const), limit])
  clearTimeout(timer)
  return isOver
}
