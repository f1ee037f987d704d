/**
 * Waits for tasks: one question for all that are open, again and again, while further ones are enqueued. It asks often when
 * tasks end quickly, and seldom when they don't. A task has all the time it needs: on a large index that can be hours.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { MeilisearchApi, TaskView } from './meilisearch-api.ts'
import type { Failure } from './push.ts'

/** How a task ended. */
export type TaskEnd =
  | Readonly<{ kind: 'succeeded' }>
  /** failed or canceled: none of it was done */
  | Readonly<{ kind: 'failed' | 'canceled'; task: TaskView }>
  /** it has ended, and an operator deleted it before it was seen */
  | Readonly<{ kind: 'gone' }>
  /** nobody answers the question: it may end well */
  | Readonly<{ kind: 'unanswered'; failure: Failure }>
  | Readonly<{ kind: 'aborted' }>

const FIRST_MS = 10
const LONGEST_MS = 250
/** The next question comes when this part of the time without an end has passed once more. */
const PART_OF_WAIT = 4
/** Unanswered questions are no news of the tasks until then. */
const PATIENCE_MS = 2_000
const MAX_ASKED = 200
/** A server that is asked too often may ask for a pause, of so long at most. */
const LONGEST_ASKED_MS = 60_000

type Waiter = { readonly since: number; readonly settle: (end: TaskEnd) => void }

/** Waits for the tasks of one sink. */
export class MeilisearchTasks {
  readonly #api: MeilisearchApi
  readonly #onAnswer: () => void
  readonly #waiters = new Map<number, Waiter[]>()
  readonly #closed = new AbortController()
  #isAsking = false
  /** when the last task ended, or the first was waited for */
  #since = 0

  /** @param onAnswer called at each answer: the server is there and works on what it has */
  constructor(api: MeilisearchApi, onAnswer: () => void) {
    this.#api = api
    this.#onAnswer = onAnswer
  }

  /** tasks that are waited for, and how long the first of them has been */
  get figures(): Readonly<{ tasks: number; oldestTaskMs: number }> {
    const [oldest] = this.#waiters.values()
    return { tasks: this.#waiters.size, oldestTaskMs: oldest?.[0] ? Math.round(performance.now() - oldest[0].since) : 0 }
  }

  wait(uid: number, signal: AbortSignal): Promise<TaskEnd> {
    if (signal.aborted || this.#closed.signal.aborted) return Promise.resolve({ kind: 'aborted' })
    return new Promise((resolve) => {
      const onAbort = () => waiter.settle({ kind: 'aborted' })
      const waiter: Waiter = {
        since: performance.now(),
        settle: (end) => {
          signal.removeEventListener('abort', onAbort)
          this.#leave(uid, waiter)
          resolve(end)
        },
      }
      signal.addEventListener('abort', onAbort, { once: true })
      this.#waiters.set(uid, [...(this.#waiters.get(uid) ?? []), waiter])
      if (!this.#isAsking) void this.#ask()
    })
  }

  close(): void {
    this.#closed.abort()
    this.#endAll({ kind: 'aborted' })
  }

  async #ask(): Promise<void> {
    this.#isAsking = true
    this.#since = performance.now()
    let failingSince: number | undefined
    let pauseMs = 0
    let most = MAX_ASKED
    while (this.#waiters.size > 0) {
      await delay(Math.max(this.#intervalMs(), pauseMs), undefined, { signal: this.#closed.signal }).catch(() => undefined)
      pauseMs = 0
      // they end in this order, more or less
      const uids = [...this.#waiters.keys()].sort((a, b) => a - b).slice(0, most)
      if (uids.length === 0) break
      const asked = performance.now()
      const { tasks, refusal } = await this.#api.tasks({ uids: uids.join(','), limit: uids.length }, this.#closed.signal)
      if (tasks) {
        failingSince = undefined
        most = Math.min(MAX_ASKED, most * 2)
        this.#onAnswer()
        this.#tell(uids, tasks)
        continue
      }
      const { failure, isTooLong = false } = refusal
      if (isTooLong && uids.length > 1) {
        most = Math.ceil(uids.length / 2)
        continue
      }
      failingSince ??= asked
      if (failure.blame === 'throttled') pauseMs = Math.min(failure.retryAfterMs ?? LONGEST_MS * 2, LONGEST_ASKED_MS)
      else if (failure.blame === 'refused' || performance.now() - failingSince >= PATIENCE_MS) this.#endAll({ kind: 'unanswered', failure })
      else pauseMs = LONGEST_MS
    }
    this.#isAsking = false
  }

  #intervalMs(): number {
    return Math.min(LONGEST_MS, Math.max(FIRST_MS, (performance.now() - this.#since) / PART_OF_WAIT))
  }

  #tell(uids: readonly number[], tasks: readonly TaskView[]): void {
    const byUid = new Map(tasks.map((task) => [task.uid, task]))
    for (const uid of uids) {
      const end = endOf(byUid.get(uid))
      if (!end) continue
      this.#since = performance.now()
      for (const waiter of this.#waiters.get(uid) ?? []) waiter.settle(end)
    }
  }

  #endAll(end: TaskEnd): void {
    for (const waiter of [...this.#waiters.values()].flat()) waiter.settle(end)
  }

  #leave(uid: number, waiter: Waiter): void {
    const left = this.#waiters.get(uid)?.filter((one) => one !== waiter) ?? []
    if (left.length > 0) this.#waiters.set(uid, left)
    else this.#waiters.delete(uid)
  }
}

/** @returns undefined: it has not ended */
function endOf(task: TaskView | undefined): TaskEnd | undefined {
  if (!task) return { kind: 'gone' }
  switch (task.status) {
    case 'succeeded':
      return { kind: 'succeeded' }
    case 'failed':
    case 'canceled':
      return { kind: task.status, task }
    default:
      return undefined
  }
}
