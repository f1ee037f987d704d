/** What the embedded log knows of a partition without asking the disk, and who waits for its next record. */
import type { Weights } from './weights.ts'

export type PartitionState = {
  first: number
  /** of what is on disk */
  next: number
  bytes: number
  /** of the open append: what else writes the counters must not take it back */
  placed: { records: number; bytes: number }
  /** the committed offset of each reader, as it was looked up or written last */
  committed: Map<string, number>
  weights: Weights
  waiting: Set<() => void>
}

export function wake(state: PartitionState): void {
  const waiting = [...state.waiting]
  state.waiting.clear()
  for (const resume of waiting) resume()
}

export function waitFor(state: PartitionState, signal: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const resume = () => {
    signal.removeEventListener('abort', resume)
    state.waiting.delete(resume)
    resolve()
  }
  state.waiting.add(resume)
  signal.addEventListener('abort', resume, { once: true })
  return promise
}
