/**
 * The calls that are made to an Elasticsearch or OpenSearch, and no others: `_bulk`, and `_search` when a user tests the
 * connection. A bulk request that was taken is answered with 200 whatever became of its items, so each is looked at. A
 * call settles with what came of it and never rejects.
 */
import { HttpPool, type HttpAnswer } from '../engine/net/http-pool.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { ElasticsearchDestination } from './elasticsearch-settings.ts'
import { loginOf } from './elasticsearch-auth.ts'
import { idOf, type BulkOperation } from './elasticsearch-documents.ts'
import { beginningOf, bytesAbout, elementsOf, jsonOf, KEPT_BYTES, UNAVAILABLE } from './http-answers.ts'
import type { Answer, Blame, Failure } from './push.ts'
import { Verbatim } from './verbatim.ts'

type BulkEnd =
  /** of each operation why not; undefined: it is done; of all of them: the server has told so of each */
  | Readonly<{ kind: 'answered'; status: number; failures: readonly (Failure | undefined)[] | undefined }>
  | Readonly<{ kind: 'failed'; failure: Failure }>
  | Readonly<{ kind: 'aborted' }>

/** What Elasticsearch says of something that went wrong; a proxy's or an older one's may be a text. */
type Fault = Readonly<{ type?: unknown; reason?: unknown; caused_by?: Fault; root_cause?: unknown }>
type Item = Readonly<Record<string, Readonly<{ status?: unknown; error?: Fault | string }>>>

/** where an answer says whether any item failed */
const HEAD_BYTES = 128
const ID_FIELD = Buffer.from('"_id":')
const CONFLICT = 'version_conflict_engine_exception'
/** What is read of an answer: a quarter of what it would be. A server that doesn't know this sends all of it. */
const WANTED = 'filter_path=errors,items.*._id,items.*.status,items.*.error'

export class ElasticsearchApi {
  readonly verbatim: Verbatim
  readonly #pool: HttpPool
  readonly #base: string
  readonly #headers: readonly string[]
  readonly #timeoutMs: number
  readonly #isVersioned: boolean

  constructor(settings: ElasticsearchDestination, { egress, connections }: Readonly<{ egress: Egress; connections: number }>) {
    const { endpoint_url, timeout_seconds, ca_cert, versioning } = settings
    const { origin, pathname } = new URL(endpoint_url)
    const { header, secrets } = loginOf(settings)
    this.#pool = new HttpPool({ origin, connections, egress, caCert: ca_cert ?? undefined })
    this.#base = pathname.replace(/(?<!\/)\/+$/, '')
    this.#headers = ['user-agent', 'Tailrace', ...(header === undefined ? [] : ['authorization', header])]
    this.#timeoutMs = timeout_seconds * 1000
    this.#isVersioned = versioning !== 'none'
    this.verbatim = new Verbatim(secrets)
  }

  /** @param operations those of the body, in its order */
  async bulk(index: string, operations: readonly BulkOperation[], body: Buffer, signal: AbortSignal): Promise<BulkEnd> {
    const keepBytes = bytesAbout(operations.length)
    const { answer, failure } = await this.#call(`/${encodeURIComponent(index)}/_bulk?${WANTED}`, {
      type: 'application/x-ndjson',
      body,
      keepBytes,
      signal,
    })
    if (failure === 'aborted') return { kind: 'aborted' }
    if (failure) return { kind: 'failed', failure }
    if (answer.isCut) {
      const words = `the answer is longer than ${keepBytes} bytes, for ${operations.length} documents: is this an Elasticsearch?`
      return { kind: 'failed', failure: this.verbatim.answered('refused', beginningOf(answer), words) }
    }
    if (saysAllDone(answer.body, operations.length)) return { kind: 'answered', status: answer.status, failures: undefined }
    const failures = this.#failures(answer, operations)
    if (failures) return { kind: 'answered', status: answer.status, failures }
    return {
      kind: 'failed',
      failure: this.verbatim.answered('refused', beginningOf(answer), 'the answer tells of no items: is this an Elasticsearch?'),
    }
  }

  /** @param index undefined: none is known, and it is asked who it is, which says whether it knows us. @returns undefined: it is there */
  async test(index: string | undefined, signal: AbortSignal): Promise<Answer | undefined> {
    if (index === undefined) {
      const { failure } = await this.#call('/', { type: 'application/json', signal })
      if (failure === 'aborted') return this.verbatim.about('unavailable', 0, 'no answer in time').answer
      return failure?.answer.status === 403 ? undefined : failure?.answer // a login may do no more than write
    }
    const body = Buffer.from('{"size":0}')
    const { failure } = await this.#call(`/${encodeURIComponent(index)}/_search`, { type: 'application/json', body, signal })
    return failure === 'aborted' ? this.verbatim.about('unavailable', 0, 'no answer in time').answer : failure?.answer
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  async #call(
    path: string,
    { type, body, keepBytes = KEPT_BYTES, signal }: Readonly<{ type: string; body?: Buffer; keepBytes?: number; signal: AbortSignal }>,
  ): Promise<Readonly<{ answer: HttpAnswer; failure?: undefined }> | Readonly<{ answer?: undefined; failure: Failure | 'aborted' }>> {
    const { answer, failure } = await this.#pool.request({
      path: `${this.#base}${path}`,
      headers: [...this.#headers, 'content-type', type],
      ...(body ? { method: 'POST', body } : { method: 'GET' }),
      timeoutMs: this.#timeoutMs,
      keepBytes,
      signal,
    })
    if (failure) return { failure: failure.phase === 'aborted' ? 'aborted' : this.verbatim.unanswered(failure) }
    if (answer.status >= 200 && answer.status <= 299) return { answer }
    const short = beginningOf(answer)
    const fault = (jsonOf(short) as { error?: Fault | string } | undefined)?.error
    return { failure: this.verbatim.answered(blameOf(answer.status), short, fault === undefined ? undefined : wordsOf(fault)) }
  }

  /** @returns undefined: it is no answer to a bulk request */
  #failures(answer: HttpAnswer, operations: readonly BulkOperation[]): readonly (Failure | undefined)[] | undefined {
    const items = elementsOf(answer, 'items', operations.length) as readonly Item[] | 'unreadable' | undefined
    if (!items || items === 'unreadable') return undefined
    // a truncated request is answered for its whole lines only
    return operations.map((operation, n) => this.#failure(operation, items[n]))
  }

  #failure(operation: BulkOperation, item: Item | undefined): Failure | undefined {
    const { kind } = operation
    const said = item?.[kind]
    if (!said) return this.verbatim.about('unavailable', 200, `${kind} of document ${idOf(operation)}: the answer does not tell of it`)
    const { error } = said
    const status = Number(said.status)
    if (error === undefined && ((status >= 200 && status <= 299) || (kind === 'delete' && status === 404))) return undefined
    const type = typeof error === 'object' && typeof error.type === 'string' ? error.type : ''
    // something newer stands there: this change is done with
    if (status === 409 && type === CONFLICT && this.#isVersioned) return undefined
    const words = error === undefined ? `status ${status}` : wordsOf(error)
    const blame = blameOfItem(status, type)
    const { answer } = this.verbatim.about(blame, status, `${kind} of document ${idOf(operation)}: ${words}`)
    const isOfPlace = blame === 'refused' && { isOfPlace: true } // beside others that it took, perhaps: deletes, say
    return { blame, ...isOfPlace, answer: { ...answer, body: this.verbatim.clean(JSON.stringify(item)) } }
  }
}

/** Without reading it all: no item failed, and each is told of. A field's name has no escapes, so it is found in no text. */
function saysAllDone(body: Buffer, items: number): boolean {
  if (!/"errors"\s*:\s*false/.test(body.toString('latin1', 0, HEAD_BYTES))) return false
  let found = 0
  for (let at = body.indexOf(ID_FIELD); at !== -1; at = body.indexOf(ID_FIELD, at + ID_FIELD.length)) found++
  return found === items
}

/** Type, reason, and what caused it, in Elasticsearch's words. */
function wordsOf(fault: Fault | string): string {
  if (typeof fault === 'string') return fault
  const words: string[] = []
  for (let one: Fault | undefined = fault; one && words.length < 4; one = one.caused_by)
    words.push(`${String(one.type ?? 'error')}: ${String(one.reason ?? '')}`)
  return words.join('; caused by ')
}

/** Whatever is sent, it is not the documents that are wrong. */
// prettier-ignore
const REFUSED_TYPES = new Set([
  'index_not_found_exception', 'index_closed_exception', 'invalid_index_name_exception', 'security_exception',
  'cluster_block_exception', // with 429 too, when its disk is full: that lasts, and sending less is no cure
])

/** Who is to blame for the answer to a whole request. */
function blameOf(status: number): Blame {
  if (status === 429) return 'throttled'
  if (status === 413) return 'tooLarge'
  if (UNAVAILABLE.has(status)) return 'unavailable'
  if (status < 400 || (status > 400 && status < 500)) return 'refused'
  return 'rejected'
}

/** The same of one item, beside others that were judged on their own. */
function blameOfItem(status: number, type: string): Blame {
  if (status >= 500 || status === 408) return 'unavailable'
  if (REFUSED_TYPES.has(type)) return 'refused'
  if (status === 429) return 'throttled'
  if (status === 401 || status === 403) return 'refused'
  return 'message'
}
