/**
 * The calls that are made to a Meilisearch, and no others: the three writes, which answer with the uid of a task, the tasks
 * themselves, the index, when a user tests the connection, and documents, which who compares them with their source reads. A call settles with
 * what came of it and never rejects.
 */
import type { Egress } from '../engine/net/egress.ts'
import type { MeilisearchDestination } from './meilisearch-settings.ts'
import { KEPT_BYTES, objectIn } from './http-answers.ts'
import { HttpService, type Refusal } from './http-service.ts'
import { JsonMembers } from './json-members.ts'
import type { Answer, Blame, Failure } from './push.ts'

type Scalar = string | number | boolean | null
/** What Meilisearch says of something that went wrong, as an answer or as the end of a task. */
type EngineFault = Readonly<{ message: string; code: string; [other: string]: Scalar | undefined }>
const STATUSES = ['enqueued', 'processing', 'succeeded', 'failed', 'canceled'] as const
/** What is looked at of a task. */
export type TaskView = Readonly<{
  uid: number
  status: (typeof STATUSES)[number]
  error: EngineFault | null
  canceledBy: number | null
  customMetadata?: string
}>

/** The task that a write became, or why there is none. */
export type TakenTask = Readonly<{ uid: number; refusal?: undefined }> | Readonly<{ uid?: undefined; refusal: Refusal }>
/** Some tasks, newest first, and where further ones begin; or why they could not be asked for. */
export type TaskPage =
  | Readonly<{ tasks: readonly TaskView[]; next: number | null; refusal?: undefined }>
  | Readonly<{ tasks?: undefined; next?: undefined; refusal: Refusal }>

/** What an answer may say of one task, beside what was sent for it: one of them may tell a whole function or document. */
const TASK_BYTES = 16 * 1024
/** Content type of what a write takes, but for documents. */
export const JSON_TYPE = 'application/json'
/** Content type of documents, one a line. */
export const NDJSON_TYPE = 'application/x-ndjson'

/** A Meilisearch as a sink calls it. */
export class MeilisearchApi extends HttpService {
  #largestBody = 0

  constructor(settings: MeilisearchDestination, from: Readonly<{ egress: Egress; connections: number }>) {
    const { api_key } = settings
    super(settings, {
      ...from,
      name: 'a Meilisearch',
      authorization: `Bearer ${api_key}`,
      secrets: [api_key],
      faultOf: (answer) => {
        const { code, message } = objectIn(answer)
        return {
          ...(typeof code === 'string' && { code, blame: blameOfCode(code) }),
          ...(typeof message === 'string' && { message }),
        }
      },
    })
  }

  /** Enqueues a task. @param path behind the index, with its query */
  async write(
    index: string,
    path: string,
    body: Buffer,
    { type, signal }: Readonly<{ type: string; signal: AbortSignal }>,
  ): Promise<TakenTask> {
    this.#largestBody = Math.max(this.#largestBody, body.length)
    const { answer, refusal } = await this.call({ path: `/indexes/${encodeURIComponent(index)}/documents${path}`, type, body, signal })
    if (refusal) return { refusal }
    const { taskUid: uid } = objectIn(answer)
    return typeof uid === 'number' ? { uid } : { refusal: { ...this.unbelieved(answer, 'has no taskUid'), phase: 'unknown' } }
  }

  /** Tasks that a query chooses, newest first. */
  async tasks(query: Readonly<{ limit: number } & Record<string, string | number>>, signal: AbortSignal): Promise<TaskPage> {
    const text = Object.entries(query).map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    const keepBytes = KEPT_BYTES + query.limit * TASK_BYTES + this.#largestBody
    const path = `/tasks?${text.join('&')}`
    const { answer, refusal } = await this.call({ method: 'GET', path, keepBytes, signal }, `${query.limit} tasks`)
    if (refusal) return { refusal }
    return pageOf(answer.body, query.limit) ?? { refusal: this.unbelieved(answer, 'has no tasks') }
  }

  /** @param index undefined: none is known, and it is only tried to connect. @returns undefined: it is there */
  async test(index: string | undefined, signal: AbortSignal): Promise<Answer | undefined> {
    if (index === undefined) return this.reach(signal)
    const { refusal } = await this.call({ method: 'GET', path: `/indexes/${encodeURIComponent(index)}`, signal })
    return refusal?.failure.answer
  }

  /** What a task ended with, in its own words. */
  taskFailure(blame: Blame, { uid, error, canceledBy }: TaskView): Failure {
    const message = error?.message ?? `task ${uid} was canceled by task ${canceledBy}`
    const { answer } = this.verbatim.about(blame, 202, message)
    return { blame, answer: { ...answer, ...(error && { body: this.verbatim.clean(JSON.stringify({ taskUid: uid, error })) }) } }
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
  const { scalars, objects } = membersOf(body, at, ['uid', 'status', 'canceledBy', 'customMetadata', 'error'])
  const { uid, status, canceledBy, customMetadata } = scalars
  if (typeof uid !== 'number') throw new RangeError('a task without a uid')
  const error = objects['error'] === undefined ? undefined : membersOf(body, objects['error'], ['message', 'code', 'type', 'link']).scalars
  return {
    uid,
    status: STATUSES.find((one) => one === status) ?? 'processing',
    error: error ? { ...error, message: String(error['message'] ?? ''), code: String(error['code'] ?? '') } : null,
    canceledBy: typeof canceledBy === 'number' ? canceledBy : null,
    ...(typeof customMetadata === 'string' && { customMetadata }),
  }
}

type Members = Readonly<{ scalars: Readonly<Record<string, Scalar | undefined>>; objects: Readonly<Record<string, number | undefined>> }>

/** Reads texts and numbers of an object by their names, and where the objects among its members stand. @throws RangeError: it is no object */
function membersOf(body: Buffer, at: number, names: readonly string[]): Members {
  const members = JsonMembers.of(body, at)
  if (!members) throw new RangeError('no object')
  const scalars: Record<string, Scalar | undefined> = {}
  const objects: Record<string, number | undefined> = {}
  for (let name = members.name(); name; name = members.name()) {
    const known = names.find((one) => members.is(name, one))
    const { start, end } = members.value()
    if (known === undefined) continue
    if (body[start] === 0x7b) objects[known] = start // {
    else if (body[start] !== 0x5b) scalars[known] = JSON.parse(body.toString('utf8', start, end)) // no list
  }
  return { scalars, objects }
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
