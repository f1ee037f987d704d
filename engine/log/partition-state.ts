/** What the embedded log knows of a partition without asking the disk, and who waits for its next record. */

export type PartitionState = {
  first: number
  /** of what is on disk */
  next: number
  bytes: number
  /** of the open append: what else writes the counters must not take it back */
  placed: { records: number; bytes: number }
  /** the committed offset; undefined: not looked up yet */
  committed: number | undefined
  /** what the records kept below an offset take, weighed once as the committed offset moves on */
  weighed: { below: number; bytes: number }
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
