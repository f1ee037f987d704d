/**
 * The calls that are made to an Elasticsearch or OpenSearch, and no others: `_bulk`, `_search` when a user tests the connection, and
 * reads by who compares the index with its source. A bulk request that was taken is answered with 200 whatever became of its items, so each is looked at. A
 * call settles with what came of it and never rejects.
 */
import type { Message } from '../engine/dispatch/batch.ts'
import { isObject } from '../engine/json.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { ElasticsearchDestination } from './elasticsearch-settings.ts'
import { loginOf } from './elasticsearch-auth.ts'
import { idOf, type BulkOperation } from './elasticsearch-documents.ts'
import { bytesAbout, elementsOf, objectIn } from './http-answers.ts'
import { HttpService } from './http-service.ts'
import { endOf, type Ended } from './keyed-documents.ts'
import type { Answer, Blame, Failure } from './push.ts'

type BulkEnd =
  /** @property isAllTold the server has told of each operation, so it has read them @property failures of those that were not done */
  Readonly<{ kind: 'answered'; status: number; isAllTold: boolean; failures: ReadonlyMap<Message, Failure> }> | Ended

/** where an answer says whether any item failed */
const HEAD_BYTES = 128
const ID_FIELD = Buffer.from('"_id":')
const CONFLICT = 'version_conflict_engine_exception'
/** What is read of an answer: a quarter of what it would be. A server that doesn't know this sends all of it. */
const WANTED = 'filter_path=errors,items.*._id,items.*.status,items.*.error'

/** An Elasticsearch as a sink calls it. */
export class ElasticsearchApi extends HttpService {
  readonly #isVersioned: boolean

  constructor(settings: ElasticsearchDestination, from: Readonly<{ egress: Egress; connections: number }>) {
    const { header: authorization, secrets } = loginOf(settings)
    super(settings, {
      ...from,
      name: 'an Elasticsearch',
      authorization,
      secrets,
      faultOf: (answer) => ({ message: reasonIn(objectIn(answer)['error']) }),
    })
    this.#isVersioned = settings.versioning !== 'none'
  }

  /** Sends operations. @param operations those of the body, in its order */
  async bulk(index: string, operations: readonly BulkOperation[], body: Buffer, signal: AbortSignal): Promise<BulkEnd> {
    const path = `/${encodeURIComponent(index)}/_bulk?${WANTED}`
    const keepBytes = bytesAbout(operations.length)
    const { answer, refusal } = await this.call(
      { path, type: 'application/x-ndjson', body, keepBytes, signal },
      `${operations.length} documents`,
    )
    if (refusal) return endOf(refusal)
    const { status } = answer
    if (saysAllDone(answer.body, operations.length)) return { kind: 'answered', status, isAllTold: true, failures: new Map() }
    const items = elementsOf(answer, 'items', operations.length)
    if (!items || items === 'unreadable') return endOf(this.unbelieved(answer, 'has no items'))
    const failures = new Map<Message, Failure>()
    for (const [n, operation] of operations.entries()) {
      const failure = this.#failure(operation, items[n]) // a truncated request is answered for its whole lines only
      if (failure) failures.set(operation.message, failure)
    }
    return { kind: 'answered', status, isAllTold: false, failures }
  }

  /** @param index undefined: none is known, and it is asked who it is, which says whether it knows us. @returns undefined: it is there */
  async test(index: string | undefined, signal: AbortSignal): Promise<Answer | undefined> {
    const type = 'application/json'
    const { refusal } = await (index === undefined
      ? this.call({ method: 'GET', path: '/', type, signal })
      : this.call({ path: `/${encodeURIComponent(index)}/_search`, type, body: Buffer.from('{"size":0}'), signal }))
    if (refusal?.phase === 'aborted') return this.verbatim.about('unavailable', 0, 'no answer in time').answer
    if (index === undefined && refusal?.failure.answer.status === 403) return undefined // a login may do no more than write
    return refusal?.failure.answer
  }

  #failure(operation: BulkOperation, item: unknown): Failure | undefined {
    const { kind } = operation
    const result = isObject(item) ? item[kind] : undefined
    if (!isObject(result))
      return this.verbatim.about('unavailable', 200, `${kind} of document ${idOf(operation)}: the answer has no result for it`)
    const { error } = result
    const status = Number(result['status'])
    if (error === undefined && ((status >= 200 && status <= 299) || (kind === 'delete' && status === 404))) return undefined
    const type = isObject(error) && typeof error['type'] === 'string' ? error['type'] : ''
    // something newer stands there: this change is done with
    if (status === 409 && type === CONFLICT && this.#isVersioned) return undefined
    const blame = blameOfItem(status, type)
    const { answer } = this.verbatim.about(
      blame,
      status,
      `${kind} of document ${idOf(operation)}: ${reasonIn(error) ?? `status ${status}`}`,
    )
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

/** Reads type, reason and what caused it, in Elasticsearch's words; a proxy's error, or an older server's, may be a text. @returns undefined: there is none */
function reasonIn(error: unknown): string | undefined {
  if (error === undefined || typeof error === 'string') return error
  const words: string[] = []
  for (let one: unknown = error; isObject(one) && words.length < 4; one = one['caused_by'])
    words.push(`${String(one['type'] ?? 'error')}: ${String(one['reason'] ?? '')}`)
  return words.join('; caused by ')
}

/** Whatever is sent, it is not the documents that are wrong. */
// prettier-ignore
const REFUSED_TYPES = new Set([
  'index_not_found_exception', 'index_closed_exception', 'invalid_index_name_exception', 'security_exception',
  'cluster_block_exception', // with 429 too, when its disk is full: that lasts, and sending less is no cure
])

/** Says who is to blame for one item, beside others that were judged on their own. */
function blameOfItem(status: number, type: string): Blame {
  if (status >= 500 || status === 408) return 'unavailable'
  if (REFUSED_TYPES.has(type)) return 'refused'
  if (status === 429) return 'throttled'
  if (status === 401 || status === 403) return 'refused'
  return 'message'
}
