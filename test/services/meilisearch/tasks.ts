/**
 * The task queue: uids count from 0 for all indexes, and one batch runs at a time. Neighbouring additions and deletions by
 * id of one index share a batch; edits, creations, deletions of an index and settings run alone. What is enqueued and what has
 * ended is kept in `Disk`, which outlives a kill; a batch that was under way is not, and runs again.
 */
import { Failure, type ErrorBody } from './failure.ts'
import type { Document } from './json.ts'
import { openDetails, perform, poisonOf, voidDetails, type Details, type Index, type Work } from './store.ts'
import { pass } from '../../waiting.ts'

export type Status = 'enqueued' | 'processing' | 'succeeded' | 'failed' | 'canceled'
export type Task = {
  readonly uid: number
  readonly indexUid: string | null
  readonly type: string
  /** undefined: cancels or deletes tasks, done when it is enqueued */
  readonly work: Work | undefined
  readonly customMetadata: string | undefined
  readonly enqueuedAt: string
  status: Status
  batchUid: number | null
  canceledBy: number | null
  details: Details
  error: ErrorBody | null
  startedAt: string | null
  finishedAt: string | null
  duration: string | null
}

/** What a kill leaves. */
export class Disk {
  readonly tasks = new Map<number, Task>()
  readonly indexes = new Map<string, Index>()
  nextUid = 0
  nextBatch = 0
  canEditByFunction = false
}

/** What a batch takes: by itself, and for each document; and what else of a document fails a whole batch. */
export type Manner = Readonly<{ batchMs: number; documentMs: number; poison: (document: Document) => boolean }>

export class TaskQueue {
  readonly #disk: Disk
  readonly #manner: () => Manner
  readonly #changed: () => void
  readonly #stop = new AbortController()
  #wake = Promise.withResolvers<void>()
  #interrupt = new AbortController()
  /** how many batches may run; Infinity: as they come */
  #allowed = Infinity

  constructor(disk: Disk, manner: () => Manner, changed: () => void) {
    this.#disk = disk
    this.#manner = manner
    this.#changed = changed
    for (const task of disk.tasks.values()) if (task.status === 'processing') reset(task)
    void this.#run()
  }

  enqueue(indexUid: string, work: Work, customMetadata?: string): Task {
    const task = this.#add(indexUid, work.type, work, customMetadata, openDetails(work))
    this.#ring()
    return task
  }

  /** Stops tasks that have not ended, also those under way. */
  cancel(uids: ReadonlySet<number>, originalFilter: string): Task {
    const chosen = [...this.#disk.tasks.values()].filter(({ uid, status, work }) => work && uids.has(uid) && isOpen(status))
    const cancelation = this.#done('taskCancelation', { matchedTasks: uids.size, canceledTasks: chosen.length, originalFilter })
    const wasUnderWay = chosen.some(({ status }) => status === 'processing')
    for (const task of chosen) {
      task.status = 'canceled'
      task.canceledBy = cancelation.uid
      task.details = task.work ? voidDetails(task.work) : task.details
      task.startedAt ??= cancelation.startedAt
      task.finishedAt = cancelation.finishedAt
      task.duration ??= 'PT0S'
    }
    if (wasUnderWay) this.#interrupt.abort()
    this.#changed()
    return cancelation
  }

  /** Forgets tasks that have ended. */
  remove(uids: ReadonlySet<number>, originalFilter: string): Task {
    const chosen = [...this.#disk.tasks.values()].filter(({ uid, status }) => uids.has(uid) && !isOpen(status))
    for (const { uid } of chosen) this.#disk.tasks.delete(uid)
    const task = this.#done('taskDeletion', { matchedTasks: uids.size, deletedTasks: chosen.length, originalFilter })
    this.#changed()
    return task
  }

  /** Runs no batch until it is told how many. */
  hold(): void {
    this.#allowed = 0
  }
  release(batches = Infinity): void {
    this.#allowed = batches
    this.#ring()
  }

  stop(): void {
    this.#stop.abort()
    this.#interrupt.abort()
    this.#ring()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #add(indexUid: string | null, type: string, work: Work | undefined, customMetadata: string | undefined, details: Details): Task {
    const task: Task = {
      ...{ uid: this.#disk.nextUid++, indexUid, type, work, customMetadata, details, enqueuedAt: now() },
      ...{ status: 'enqueued', batchUid: null, canceledBy: null, error: null, startedAt: null, finishedAt: null, duration: null },
    }
    this.#disk.tasks.set(task.uid, task)
    return task
  }

  #done(type: string, details: Details): Task {
    const task = this.#add(null, type, undefined, undefined, details)
    const at = now()
    return Object.assign(task, {
      status: 'succeeded',
      batchUid: this.#disk.nextBatch++,
      startedAt: at,
      finishedAt: at,
      duration: 'PT0S',
    } as const)
  }

  #ring(): void {
    this.#wake.resolve()
    this.#wake = Promise.withResolvers()
  }

  async #run(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const batch = this.#allowed > 0 ? this.#next() : []
      if (batch.length === 0) {
        await this.#wake.promise
        continue
      }
      this.#allowed--
      this.#interrupt = new AbortController()
      const startedAt = now()
      const batchUid = this.#disk.nextBatch++
      for (const task of batch) Object.assign(task, { status: 'processing', batchUid, startedAt })
      this.#changed()
      const { batchMs, documentMs } = this.#manner()
      const documents = batch.reduce((sum, { work }) => sum + (work?.type === 'documentAdditionOrUpdate' ? work.documents.length : 1), 0)
      await pass(batchMs + documentMs * documents, 'its pace', this.#interrupt.signal)
      if (this.#stop.signal.aborted) return
      if (this.#interrupt.signal.aborted) for (const task of batch) reset(task)
      else this.#apply(batch, startedAt)
      this.#changed()
    }
  }

  /** The lowest open task, and those that share its batch. */
  #next(): Task[] {
    const open = [...this.#disk.tasks.values()].filter(({ status }) => status === 'enqueued') // in the order of uids
    const [first] = open
    if (!first?.work || !mayShare(first.work)) return first ? [first] : []
    const batch = [first]
    const index = this.#disk.indexes.get(first.indexUid as string)
    let key = keyOf(first.work) ?? index?.primaryKey ?? undefined
    for (const task of open.slice(1)) {
      if (task.indexUid !== first.indexUid) continue
      if (!task.work || !mayShare(task.work)) break
      const own = keyOf(task.work)
      if (own !== undefined && key !== undefined && own !== key) break
      if (!index && first.work.type === 'documentDeletion' && task.work.type !== 'documentDeletion') break
      key ??= own
      batch.push(task)
    }
    return batch
  }

  #apply(batch: readonly Task[], startedAt: string): void {
    const finishedAt = now()
    const duration = `PT${Math.max(0.000001, (Date.parse(finishedAt) - Date.parse(startedAt)) / 1000)}S`
    const { poison: isPoison } = this.#manner()
    const poison = batch.map(({ work }) => work && poisonOf(work, isPoison)).find((text) => text !== undefined)
    for (const task of batch) {
      const { work, indexUid } = task as Task & { work: Work; indexUid: string }
      Object.assign(task, { finishedAt, duration })
      try {
        if (poison !== undefined) throw new Failure('internal', `Index \`${indexUid}\`: internal: ${poison}.`)
        task.details = perform(this.#disk.indexes, indexUid, work, finishedAt)
        task.status = 'succeeded'
      } catch (error) {
        if (!(error instanceof Failure)) throw error
        task.status = 'failed'
        task.error = error.body
        task.details = voidDetails(work)
      }
    }
  }
}

const isOpen = (status: Status) => status === 'enqueued' || status === 'processing'
const mayShare = (work: Work) => work.type === 'documentAdditionOrUpdate' || (work.type === 'documentDeletion' && work.filter === undefined)
const keyOf = (work: Work) => (work.type === 'documentAdditionOrUpdate' ? work.primaryKey : undefined)

function reset(task: Task): void {
  if (task.status === 'processing') Object.assign(task, { status: 'enqueued', batchUid: null, startedAt: null })
}

/** RFC 3339 in UTC with up to nine digits, trailing zeros dropped. */
function now(): string {
  const ns = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6))
  const fraction = (ns % 1_000_000_000n).toString().padStart(9, '0').replace(/0+$/, '')
  const seconds = new Date(Number(ns / 1_000_000n)).toISOString().slice(0, 19)
  return `${seconds}${fraction === '' ? '' : `.${fraction}`}Z`
}
