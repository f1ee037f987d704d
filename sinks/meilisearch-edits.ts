/**
 * Edits by function: one task a message, in order. An edit may count something up, so doing it twice is wrong: it is never
 * sent again while it isn't known what became of it the first time.
 *
 *  E1. Each edit carries a name made of its message's position. What is known of a name is kept; before the first edit of an
 *      index the newest edits that Meilisearch has are read, so that those of a process that died are recognised.
 *  E2. An edit whose task is known isn't sent again: its end is waited for. One whose answer was lost is looked for by its
 *      name, once it had time to arrive. Only an edit that is not there, or has failed or was canceled, so that nothing of it
 *      was done, is sent.
 *  E3. Behind an edit that failed nothing of its group is sent: it would come again.
 *  E4. A failure that isn't about edits ends it for all of a batch: what was done is known, and is not done again.
 */
import type { Batch } from '../engine/dispatch/batch.ts'
import { setTimeout as delay } from 'node:timers/promises'
import { MESSAGE_FLAG } from '../engine/log/pack.ts'
import { blameOfCode, JSON_TYPE, type MeilisearchApi, type TakenTask, type TaskPage, type TaskView } from './meilisearch-api.ts'
import type { Refusal } from './http-service.ts'
import { positionName } from './messages.ts'
import type { MeilisearchTasks, TaskEnd } from './meilisearch-tasks.ts'
import type { Failure, Outcome } from './push.ts'

/** What a routing function says of an edit, as it was checked: it is sent as it is. */
type Edit = Readonly<Record<'filter' | 'function' | 'context', unknown>>

type EditOptions = Readonly<{
  api: MeilisearchApi
  tasks: MeilisearchTasks
  /** part of the names of its edits, so that those of two sinks never meet */
  sinkId: string
  grouping: boolean
  warn: (text: string) => void
}>

/** done: nothing is to be sent · a uid: its task · lost: nobody knows whether it was taken in · gone: its end was deleted unseen */
type Known = number | 'done' | 'gone' | Readonly<{ lostAt: number }>

/** Names that are kept of edits that are done. */
const MAX_KNOWN = 10_000
const PAGE = 200
/** Edits of others may lie between. */
const MAX_TASKS = 5 * PAGE
/** Meilisearch learnt to keep names with 1.26. */
const NAMELESS =
  'this Meilisearch is older than 1.26: an edit whose answer is lost can’t be recognised, and waits until it is discarded by hand'
const UNKNOWN = 'whether Meilisearch has done this edit is not known and can’t be looked up: check the document, then discard the message'

/** Sends the edits of one sink, each of them once. */
export class MeilisearchEdits {
  readonly #options: EditOptions
  readonly #known = new Map<string, Known>()
  /** indexes whose newest edits were read */
  readonly #read = new Set<string>()
  #keepsNames = true

  constructor(options: EditOptions) {
    this.#options = options
  }

  async send(batch: Batch, index: string, edit: Edit, signal: AbortSignal): Promise<Outcome> {
    const { messages } = batch
    const body = Buffer.from(JSON.stringify(edit))
    const failures: (Failure | undefined)[] = []
    const blocked = new Map<number, Failure>()
    for (const [i, message] of messages.entries()) {
      const { view, place } = message
      const group = this.#options.grouping ? view.group(place) : i
      let failure = blocked.get(group)
      // the former key of a row is nothing to an edit
      const isVoid = (view.flags(place) & MESSAGE_FLAG.tombstone) !== 0
      if (!failure && !isVoid) {
        const end = await this.#do(`${this.#prefix}${positionName(message)}`, index, body, signal)
        if (end === 'aborted') return i === 0 ? { kind: 'aborted' } : restAborted(failures, messages.length)
        if (end && (messages.length === 1 || isOfAll(end))) return { kind: 'failed', failure: end }
        failure = end
      }
      if (failure) blocked.set(group, failure)
      failures.push(failure)
    }
    return blocked.size === 0 ? { kind: 'delivered', status: 202 } : { kind: 'each', status: 202, failures }
  }

  /** @returns undefined: done */
  async #do(name: string, index: string, body: Buffer, signal: AbortSignal): Promise<Failure | 'aborted' | undefined> {
    const { api, tasks } = this.#options
    const refusal = await this.#learn(name, index, signal)
    if (refusal) return refusal.phase === 'aborted' ? 'aborted' : refusal.failure
    let known = this.#known.get(name)
    if (known === 'done') return undefined
    if (known === 'gone' || typeof known === 'object') return api.verbatim.undeliverable(UNKNOWN)
    if (known === undefined) {
      const taken = await this.#post(name, index, body, signal)
      if (taken.refusal) return taken.refusal.phase === 'aborted' ? 'aborted' : taken.refusal.failure
      known = taken.uid
    }
    return this.#ended(name, known, await tasks.wait(known, signal))
  }

  /** Reads the newest edits where that may tell of this one. @returns why it can't */
  async #learn(name: string, index: string, signal: AbortSignal): Promise<Refusal | undefined> {
    const { api } = this.#options
    const lost = lossOf(this.#known.get(name))
    if (this.#read.has(index) && lost === undefined) return undefined
    if (lost !== undefined) await delay(Math.max(0, lost + api.timeoutMs - performance.now()), undefined, { signal }).catch(() => undefined)
    let from: number | null = null
    let limit = PAGE
    for (let seen = 0; seen < MAX_TASKS;) {
      const at: Record<string, number> = from === null ? {} : { from }
      const { tasks, next, refusal }: TaskPage = await api.tasks({ types: 'documentEdition', indexUids: index, limit, ...at }, signal)
      if (refusal?.isTooLong && limit > 1) {
        limit = Math.ceil(limit / 2)
        continue
      }
      if (refusal) return refusal
      for (const task of tasks) this.#recognise(task)
      if (next === null) break
      from = next
      seen += limit
    }
    this.#read.add(index)
    if (lost !== undefined && lossOf(this.#known.get(name)) !== undefined && this.#keepsNames) this.#known.delete(name) // it never came
    return undefined
  }

  /** Notes what a task tells of an edit. Of edits with one name the newest comes first. */
  #recognise({ uid, status, customMetadata }: TaskView): void {
    if (!customMetadata?.startsWith(this.#prefix)) return
    if (status === 'failed' || status === 'canceled') return // nothing of it was done
    const known = this.#known.get(customMetadata)
    if (known === undefined || typeof known === 'object') this.#note(customMetadata, status === 'succeeded' ? 'done' : uid)
  }

  async #post(name: string, index: string, body: Buffer, signal: AbortSignal): Promise<TakenTask> {
    const { api, warn } = this.#options
    const write = (query: string) => api.write(index, `/edit${query}`, body, { type: JSON_TYPE, signal })
    this.#note(name, { lostAt: performance.now() }) // until it is answered
    let taken = await write(this.#keepsNames ? `?customMetadata=${encodeURIComponent(name)}` : '')
    if (taken.refusal?.code === 'bad_request' && this.#keepsNames) {
      const plain = await write('')
      if (plain.refusal?.code !== 'bad_request') {
        this.#keepsNames = false // it was the name that it refused
        warn(NAMELESS)
        taken = plain
      }
    }
    const { uid, refusal } = taken
    if (refusal?.phase === 'never' || refusal?.phase === 'answered') this.#known.delete(name)
    else this.#note(name, uid ?? { lostAt: performance.now() })
    return taken
  }

  #ended(name: string, uid: number, end: TaskEnd): Failure | 'aborted' | undefined {
    const { api } = this.#options
    switch (end.kind) {
      case 'succeeded':
        this.#note(name, 'done')
        return undefined
      case 'aborted':
        return 'aborted'
      case 'unanswered':
        return end.failure // its uid is known
      case 'gone':
        this.#note(name, 'gone')
        return api.verbatim.about('message', 404, `task ${uid} was deleted before its end was seen: ${UNKNOWN}`)
      case 'canceled':
        this.#known.delete(name)
        return api.taskFailure('unavailable', end.task)
      case 'failed':
        this.#known.delete(name)
        return api.taskFailure(blameOfCode(end.task.error?.code ?? '') ?? 'rejected', end.task)
    }
  }

  get #prefix(): string {
    return `tailrace:${this.#options.sinkId}:`
  }

  #note(name: string, known: Known): void {
    this.#known.delete(name)
    this.#known.set(name, known)
    if (this.#known.size <= MAX_KNOWN) return
    for (const [oldest, what] of this.#known) {
      if (what !== 'done') continue
      this.#known.delete(oldest)
      return
    }
  }
}

const lossOf = (known: Known | undefined): number | undefined => (typeof known === 'object' ? known.lostAt : undefined)

/** No other edit would fare better now. */
const isOfAll = ({ blame }: Failure) => blame !== 'rejected' && blame !== 'message'

/** What was done must not be done again, though the rest was given up. */
function restAborted(failures: readonly (Failure | undefined)[], count: number): Outcome {
  const rest: Failure = { blame: 'unavailable', answer: { code: 'STOPPING', message: 'the edit was given up before it was sent' } }
  return { kind: 'each', status: 202, failures: [...failures, ...Array.from({ length: count - failures.length }, () => rest)] }
}
