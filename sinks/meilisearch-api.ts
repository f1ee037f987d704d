/**
 * The calls that are made to a Meilisearch, and no others: the three writes, which answer with the uid of a task, the tasks
 * themselves, and the index, when a user tests the connection. A call settles with what came of it and never rejects.
 */
import { HttpPool, type HttpAnswer } from '../engine/net/http-pool.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { MeilisearchDestination } from './meilisearch-settings.ts'
import { beginningOf, jsonOf, KEPT_BYTES, UNAVAILABLE } from './http-answers.ts'
import { JsonMembers } from './json-members.ts'
import type { Answer, Blame, Failure } from './push.ts'
import { Verbatim } from './verbatim.ts'

/** What Meilisearch says of something that went wrong, as an answer or as the end of a task. */
type EngineFault = Readonly<{ message: string; code: string; type?: string; link?: string }>
export type TaskView = Readonly<{
  uid: number
  status: 'enqueued' | 'processing' | 'succeeded' | 'failed' | 'canceled'
  error: EngineFault | null
  canceledBy: number | null
  customMetadata?: string
}>

/** A call that brought nothing. */
export type Refusal = Readonly<{
  failure: Failure
  /** Meilisearch's own, if it answered with one */
  code: string | undefined
  /** never: nothing was sent · unknown: it may have been taken in · answered: it was refused · aborted: by the signal */
  phase: 'never' | 'unknown' | 'answered' | 'aborted'
  /** what it answered is more than was to be expected of so many tasks: of fewer it may not be */
  isTooLong?: boolean
}>
export type TakenTask = Readonly<{ uid: number; refusal?: undefined }> | Readonly<{ uid?: undefined; refusal: Refusal }>
export type TaskPage =
  | Readonly<{ tasks: readonly TaskView[]; next: number | null; refusal?: undefined }>
  | Readonly<{ tasks?: undefined; next?: undefined; refusal: Refusal }>

/** What an answer may say of one task, beside what was sent for it: one of them may tell a whole function or document. */
const TASK_BYTES = 16 * 1024
export const JSON_TYPE = 'application/json'
export const NDJSON_TYPE = 'application/x-ndjson'

export class MeilisearchApi {
  readonly verbatim: Verbatim
  readonly #pool: HttpPool
  readonly #base: string
  readonly #headers: readonly string[]
  readonly timeoutMs: number
  #largestBody = 0

  constructor(settings: MeilisearchDestination, { egress, connections }: Readonly<{ egress: Egress; connections: number }>) {
    const { endpoint_url, api_key, timeout_seconds, ca_cert } = settings
    const { origin, pathname } = new URL(endpoint_url)
    this.#pool = new HttpPool({ origin, connections, egress, caCert: ca_cert ?? undefined })
    this.#base = pathname.replace(/(?<!\/)\/+$/, '')
    this.#headers = ['authorization', `Bearer ${api_key}`, 'user-agent', 'Tailrace']
    this.timeoutMs = timeout_seconds * 1000
    this.verbatim = new Verbatim([api_key])
  }

  /** Enqueues a task. @param path behind the index, with its query */
  async write(index: string, path: string, body: Buffer, options: Readonly<{ type: string; signal: AbortSignal }>): Promise<TakenTask> {
    this.#largestBody = Math.max(this.#largestBody, body.length)
    const { answer, refusal } = await this.#call({
      method: 'POST',
      path: `/indexes/${encodeURIComponent(index)}/documents${path}`,
      headers: ['content-type', options.type],
      body,
      signal: options.signal,
    })
    if (refusal) return { refusal }
    const uid = (jsonOf(answer) as { taskUid?: unknown } | undefined)?.taskUid
    if (typeof uid === 'number') return { uid }
    const failure = this.verbatim.answered('refused', answer, 'the answer names no task: is this a Meilisearch?')
    return { refusal: { failure, code: undefined, phase: 'unknown' } }
  }

  /** Tasks that a query chooses, newest first. */
  async tasks(query: Readonly<{ limit: number } & Record<string, string | number>>, signal: AbortSignal): Promise<TaskPage> {
    const text = Object.entries(query).map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    const keepBytes = KEPT_BYTES + query.limit * TASK_BYTES + this.#largestBody
    const { answer, refusal } = await this.#call({ method: 'GET', path: `/tasks?${text.join('&')}`, keepBytes, signal })
    if (refusal) return { refusal }
    if (answer.isCut) {
      const words = `the answer is longer than ${keepBytes} bytes, for ${query.limit} tasks: is this a Meilisearch?`
      const failure = this.verbatim.answered('refused', beginningOf(answer), words)
      return { refusal: { failure, code: undefined, phase: 'answered', isTooLong: true } }
    }
    const page = pageOf(answer.body, query.limit)
    if (page) return page
    const failure = this.verbatim.answered('refused', beginningOf(answer), 'the answer holds no tasks: is this a Meilisearch?')
    return { refusal: { failure, code: undefined, phase: 'answered' } }
  }

  /** @param index undefined: none is known, and it is only tried to connect. @returns undefined: it is there */
  async test(index: string | undefined, signal: AbortSignal): Promise<Answer | undefined> {
    if (index === undefined) {
      const failure = await this.#pool.reach(signal)
      return failure && this.verbatim.unanswered(failure).answer
    }
    const { refusal } = await this.#call({ method: 'GET', path: `/indexes/${encodeURIComponent(index)}`, signal })
    return refusal?.failure.answer
  }

  /** What a task ended with, in its own words. */
  taskFailure(blame: Blame, { uid, error, canceledBy }: TaskView): Failure {
    const message = error?.message ?? `task ${uid} was canceled by task ${canceledBy}`
    const { answer } = this.verbatim.about(blame, 202, message)
    return { blame, answer: { ...answer, ...(error ? { body: this.verbatim.clean(JSON.stringify({ taskUid: uid, error })) } : {}) } }
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  async #call(request: {
    method: string
    path: string
    headers?: readonly string[]
    body?: Buffer
    keepBytes?: number
    signal: AbortSignal
  }): Promise<Readonly<{ answer: HttpAnswer; refusal?: undefined }> | Readonly<{ answer?: undefined; refusal: Refusal }>> {
    const { method, path, headers = [], body = null, keepBytes = KEPT_BYTES, signal } = request
    const { answer, failure } = await this.#pool.request({
      method,
      path: `${this.#base}${path}`,
      headers: [...this.#headers, ...headers],
      body,
      timeoutMs: this.timeoutMs,
      keepBytes,
      signal,
    })
    if (failure) {
      const phase = failure.phase === 'connect' ? 'never' : failure.phase === 'aborted' ? 'aborted' : 'unknown'
      return { refusal: { failure: this.verbatim.unanswered(failure), code: undefined, phase } }
    }
    if (answer.status >= 200 && answer.status <= 299) return { answer }
    const short = beginningOf(answer)
    const fault = jsonOf(short) as Partial<EngineFault> | undefined
    const code = typeof fault?.code === 'string' ? fault.code : undefined
    const message = typeof fault?.message === 'string' ? fault.message : undefined
    return { refusal: { failure: this.verbatim.answered(blameOf(answer.status, code), short, message), code, phase: 'answered' } }
  }
}

/** Reads of each task what is looked at: what else it tells may be long, and of any form. */
function pageOf(body: Buffer, limit: number): Extract<TaskPage, { next: number | null }> | undefined {
  try {
    let tasks: TaskView[] | undefined
    let next: unknown
    const page = JsonMembers.of(body, 0)
    if (!page) return undefined
    for (let name = page.name(); name; name = page.name()) {
      if (page.is(name, 'next')) next = page.scalar()
      else if (page.is(name, 'results')) {
        const results = JsonMembers.list(body, page.at)
        if (!results) return undefined
        tasks = []
        for (let span = results.element(); span && tasks.length < limit; span = results.element()) tasks.push(taskOf(body, span.start))
        page.value()
      } else page.value()
    }
    return tasks && { tasks, next: typeof next === 'number' ? next : null }
  } catch {
    return undefined // no JSON
  }
}

/** @throws RangeError: it is no task */
function taskOf(body: Buffer, at: number): TaskView {
  const { uid, status, canceledBy, customMetadata, error } = membersOf(body, at, ['uid', 'status', 'canceledBy', 'customMetadata'], 'error')
  if (typeof uid !== 'number') throw new RangeError('a task without a uid')
  const told = error === undefined ? undefined : membersOf(body, error, ['message', 'code', 'type', 'link'])
  return {
    uid,
    status: status as TaskView['status'],
    error: told ? { ...(told as Partial<EngineFault>), message: String(told['message'] ?? ''), code: String(told['code'] ?? '') } : null,
    canceledBy: typeof canceledBy === 'number' ? canceledBy : null,
    ...(typeof customMetadata === 'string' && { customMetadata }),
  }
}

type Scalar = string | number | boolean | null

/** Texts and numbers of an object, by name. @param place of which the place is told, where it is an object */
function membersOf<Place extends string = never>(body: Buffer, at: number, names: readonly string[], place?: Place) {
  const found: Record<string, Scalar | undefined> = {}
  let placeAt: number | undefined
  const members = JsonMembers.of(body, at)
  if (!members) throw new RangeError('no object')
  for (let name = members.name(); name; name = members.name()) {
    const known = names.find((one) => members.is(name, one))
    if (known !== undefined) found[known] = members.scalar()
    else {
      const { start } = members.value()
      if (place !== undefined && members.is(name, place) && body[start] === 0x7b) placeAt = start // {
    }
  }
  return { ...found, ...(place !== undefined && { [place]: placeAt }) } as Record<string, Scalar | undefined> &
    Record<Place, number | undefined>
}

/** Whatever is sent, it is not the documents that are wrong: as an answer, or as the end of a task. */
// prettier-ignore
const REFUSED = new Set([
  'index_not_found', 'invalid_index_uid', 'index_primary_key_already_exists', 'invalid_index_primary_key', 'feature_not_enabled',
  'index_primary_key_multiple_candidates_found', 'index_primary_key_no_candidate_found', 'unsupported_media_type',
  'missing_authorization_header', 'invalid_api_key', 'missing_master_key',
])
const FULL = new Set(['no_space_left_on_device', 'database_size_limit_reached', 'too_many_open_files', 'too_many_tasks', 'io_error'])

/** Who is to blame by Meilisearch's code alone; undefined: most likely what was sent. */
export function blameOfCode(code: string): 'refused' | 'unavailable' | undefined {
  if (FULL.has(code)) return 'unavailable'
  return REFUSED.has(code) ? 'refused' : undefined
}

function blameOf(status: number, code: string | undefined): Blame {
  if (status === 429) return 'throttled'
  if (status === 413) return 'tooLarge'
  if (UNAVAILABLE.has(status)) return 'unavailable'
  if (status < 400 || (status > 400 && status < 500)) return 'refused'
  return (code === undefined ? undefined : blameOfCode(code)) ?? 'rejected'
}
