/**
 * An HTTP server that keeps documents, as a sink calls it: its address and login, and what an answer that is no success means. A call
 * settles with what came of it and never rejects.
 */
import { fieldsOf, parseExact } from '../engine/json.ts'
import type { Egress } from '../engine/net/egress.ts'
import { HttpPool, type HttpAnswer } from '../engine/net/http-pool.ts'
import { beginningOf, KEPT_BYTES, UNAVAILABLE } from './http-answers.ts'
import type { Answer, Blame, Failure, Looked } from './push.ts'
import { Verbatim } from './verbatim.ts'

/** of what is read as a whole; of more a smaller part is asked for */
const READ_BYTES = 64 * 1024 * 1024

/** A call that brought nothing. */
export type Refusal = Readonly<{
  failure: Failure
  /** the server's own, if it answered with one */
  code?: string | undefined
  /** never: nothing was sent · unknown: it may have been taken in · answered: it was refused · aborted: by the signal */
  phase: 'never' | 'unknown' | 'answered' | 'aborted'
  /** the answer is longer than it can be for what was asked: asked for less, the server may say less */
  isTooLong?: boolean
}>
/** What came of a call: an answer of 200 to 299, or why there is none. */
type Called = Readonly<{ answer: HttpAnswer; refusal?: undefined }> | Readonly<{ answer?: undefined; refusal: Refusal }>

/** What a server says went wrong. @property blame where its code tells more than the status of the answer */
type Fault = Readonly<{ message?: string | undefined; code?: string | undefined; blame?: Blame | undefined }>

type Call = Readonly<{
  method?: 'GET' | 'POST'
  /** behind the path of the server's address */
  path: string
  type?: string
  body?: Buffer
  /** how much of the answer is kept; one that is longer is not believed */
  keepBytes?: number
  signal: AbortSignal
}>

/** The settings that all such servers have. */
type ServiceSettings = Readonly<{ endpoint_url: string; timeout_seconds: number; ca_cert?: string | null }>
type ServiceOptions = Readonly<{
  /** for people: the server that is expected to answer */
  name: string
  authorization: string | undefined
  /** texts that must not be kept of answers */
  secrets: readonly string[]
  egress: Egress
  connections: number
  /** Reads what an answer that is no success says went wrong. */
  faultOf: (answer: HttpAnswer) => Fault
}>

/** Calls one server. */
export class HttpService {
  readonly verbatim: Verbatim
  readonly timeoutMs: number
  readonly pool: HttpPool
  readonly #base: string
  readonly #headers: readonly string[]
  readonly #options: ServiceOptions

  constructor({ endpoint_url, timeout_seconds, ca_cert }: ServiceSettings, options: ServiceOptions) {
    const { authorization, secrets, egress, connections } = options
    const { origin, pathname } = new URL(endpoint_url)
    this.pool = new HttpPool({ origin, connections, egress, caCert: ca_cert ?? undefined })
    this.#base = pathname.replace(/(?<!\/)\/+$/, '')
    this.#headers = ['user-agent', 'Tailrace', ...(authorization === undefined ? [] : ['authorization', authorization])]
    this.timeoutMs = timeout_seconds * 1000
    this.verbatim = new Verbatim(secrets)
    this.#options = options
  }

  /** Makes a call. @param about what it asks for, such as "3 documents": told where the answer is too long for that */
  async call({ method = 'POST', path, type, body, keepBytes = KEPT_BYTES, signal }: Call, about = ''): Promise<Called> {
    const { answer, failure } = await this.pool.request({
      method,
      path: `${this.#base}${path}`,
      headers: type === undefined ? this.#headers : [...this.#headers, 'content-type', type],
      body: body ?? null,
      timeoutMs: this.timeoutMs,
      keepBytes,
      signal,
    })
    if (failure) {
      const phase = failure.phase === 'connect' ? 'never' : failure.phase === 'aborted' ? 'aborted' : 'unknown'
      return { refusal: { failure: this.verbatim.unanswered(failure), phase } }
    }
    if (answer.status >= 200 && answer.status <= 299) {
      if (!answer.isCut || about === '') return { answer }
      return { refusal: { ...this.unbelieved(answer, `is longer than ${keepBytes} bytes, for ${about}`), isTooLong: true } }
    }
    const short = beginningOf(answer)
    const { message, code, blame } = this.#options.faultOf(short)
    const byStatus = blameOf(answer.status)
    const failed = this.verbatim.answered(byStatus === 'rejected' ? (blame ?? byStatus) : byStatus, short, message)
    return { refusal: { failure: failed, code, phase: 'answered' } }
  }

  /** Asks for something, and reads the answer as a whole. */
  async ask(path: string, body: object, signal: AbortSignal): Promise<Looked<Readonly<Record<string, unknown>>>> {
    const called = await this.call(
      { path, type: 'application/json', body: Buffer.from(JSON.stringify(body)), keepBytes: READ_BYTES, signal },
      'what was asked for',
    )
    if (called.refusal) {
      if (called.refusal.phase === 'aborted') return { answer: this.verbatim.about('unavailable', 0, 'no answer in time').answer }
      return { answer: called.refusal.failure.answer }
    }
    try {
      return { found: fieldsOf(parseExact(called.answer.body.toString())) }
    } catch {
      return { answer: this.unbelieved(called.answer, 'is no JSON').failure.answer }
    }
  }

  /** Makes a refusal of an answer that no such server gives. @param what of the answer is wrong */
  unbelieved(answer: HttpAnswer, what: string): Refusal {
    const text = `the answer ${what}: is this ${this.#options.name}?`
    return { failure: this.verbatim.answered('refused', beginningOf(answer), text), phase: 'answered' }
  }

  /** Tries to connect, and asks nothing. @returns undefined: it works */
  async reach(signal: AbortSignal): Promise<Answer | undefined> {
    const failure = await this.pool.reach(signal)
    return failure && this.verbatim.unanswered(failure).answer
  }
}

/** Says who is to blame for an answer, by its status alone. */
function blameOf(status: number): Blame {
  if (status === 429) return 'throttled'
  if (status === 413) return 'tooLarge'
  if (UNAVAILABLE.has(status)) return 'unavailable'
  if (status < 400 || (status > 400 && status < 500)) return 'refused'
  return 'rejected'
}
