/**
 * Webhooks: messages are posted to an HTTP endpoint, as `{"data":[…]}` or one by one. An answer of 200 to 299 takes all of
 * them; a batch fails as a whole, unless the sink lets the answer name the messages that failed. Redirects are not
 * followed.
 */
import type { Batch } from '../engine/dispatch/batch.ts'
import { gzip } from 'node:zlib'
import { EngineError } from '../engine/errors.ts'
import { fieldsOf, isObject } from '../engine/json.ts'
import { HttpPool, type HttpAnswer, type HttpResult } from '../engine/net/http-pool.ts'
import { withoutAddress, withoutLogin } from '../engine/state/destinations.ts'
import { WebhookDestination } from './webhook-settings.ts'
import { bodyMemory } from '../engine/body-memory.ts'
import { KeptAnswers } from './kept-answers.ts'
import { dropPayloads, Messages } from './messages.ts'
import { beginningOf, bytesAbout, elementsOf, KEPT_BYTES, UNAVAILABLE } from './http-answers.ts'
import type { Answer, Blame, Outcome, PushOptions, PushType, PushWire } from './push.ts'
import { Verbatim } from './verbatim.ts'
import { webhookRouting } from './webhook-settings.ts'
import { Signer, webhookId } from './webhook-signature.ts'

const HEAD = Buffer.from('{"data":[')
const TAIL = Buffer.from(']}')
const COMMA = 0x2c
/** most that a body holds beside one message */
const MAX_BODY_BYTES = 16 * 1024 * 1024

/** Sinks that post messages to an HTTP endpoint. */
export const webhook: PushType = {
  type: 'webhook',
  settings: WebhookDestination,
  keyed: false,
  routing: webhookRouting,
  refused: ({ destination, batch_size: size }) =>
    !destination['batch'] && size !== 1 ? [['batch_size', 'must be 1 while destination.batch is false']] : [],
  concurrency: 10,
  open: (options) => new Webhook(options),
}

class Webhook implements PushWire {
  readonly maxMessages: number
  readonly maxBytes = MAX_BODY_BYTES
  readonly judgesEach: boolean
  readonly overheadBytes: number
  readonly #settings: WebhookDestination
  readonly #timeoutMs: number
  readonly #pool: HttpPool
  readonly #base: string
  readonly #path: string
  readonly #headers: ReadonlyMap<string, string>
  readonly #flatHeaders: readonly string[]
  readonly #messages: Messages
  readonly #signer: Signer | undefined
  readonly #verbatim: Verbatim
  readonly #kept: KeptAnswers
  readonly #isCompressed: boolean

  /** @throws EngineError NOT_FOUND: there is no such endpoint; VALIDATION_FAILED */
  constructor({ sink, database, endpoint, egress, concurrency, warn }: PushOptions) {
    const settings = sink.destination as WebhookDestination
    if (!endpoint) throw new EngineError('NOT_FOUND', `the HTTP endpoint "${settings.http_endpoint}" does not exist`)
    const lacking = withoutAddress(endpoint)
    if (lacking !== undefined) throw new EngineError('DESTINATION_UNREACHABLE', lacking)
    this.#settings = settings
    this.maxMessages = settings.batch ? sink.batch_size : 1
    this.judgesEach = settings.batch && settings.item_results === true
    this.#timeoutMs = sink.ack_wait_ms
    const { url, headers, encryptedHeaders } = withoutLogin(endpoint)
    const { origin, base } = targetOf(url)
    this.#base = base
    this.#path = pathOf(`${base}${settings.http_endpoint_path ?? ''}`)
    this.#pool = new HttpPool({ origin, connections: concurrency, egress })
    this.#headers = mergedHeaders([
      { 'content-type': 'application/json', 'user-agent': 'Tailrace' },
      { ...headers, ...encryptedHeaders },
    ])
    this.#flatHeaders = [...this.#headers].flat()
    this.#messages = new Messages(sink, database)
    this.overheadBytes = this.#messages.overheadBytes + 1
    const secrets = settings.signing_secrets ?? []
    this.#signer = secrets.length > 0 ? new Signer(secrets) : undefined
    this.#verbatim = new Verbatim([...secrets, ...Object.values(encryptedHeaders).flatMap(formsOf)])
    this.#kept = new KeptAnswers(this.#verbatim)
    const encoding = this.#headers.get('content-encoding')
    this.#isCompressed = isGzip(encoding)
    if (encoding !== undefined && !this.#isCompressed)
      warn(`content-encoding "${encoding.slice(0, 40)}" is sent as a header, but bodies go out as they are; gzip would be applied`)
  }

  send(batch: Batch, signal: AbortSignal): Promise<Outcome> {
    return new Promise((resolve) => this.begin(batch, signal, resolve))
  }

  begin(batch: Batch, signal: AbortSignal, ended: (outcome: Outcome) => void): void {
    const { method: said = 'POST', endpoint_path: path, headers } = batch.route ?? {}
    const method = String(said).toUpperCase()
    const named = isObject(headers) ? mergedHeaders([Object.fromEntries(this.#headers), headers]) : this.#headers
    const made = this.#madeBody(batch)
    const plain = made ?? this.#body(batch)
    const flat = named === this.#headers ? this.#flatHeaders : [...named].flat()
    // what the endpoint or a routing function says of a trace stands
    const plainHeaders = batch.traceHeaders && !named.has('traceparent') ? [...flat, ...batch.traceHeaders] : flat
    const request = {
      method,
      path: typeof path === 'string' ? pathOf(`${this.#base}${path}`) : this.#path,
      headers: this.#signer ? [...plainHeaders, ...this.#signer.headers(webhookId(batch.messages), plain)] : plainHeaders,
      body: method === 'GET' || method === 'HEAD' ? null : plain,
      timeoutMs: this.#timeoutMs,
      keepBytes: this.judgesEach ? bytesAbout(batch.messages.length) : KEPT_BYTES,
      signal,
    }
    let isRead = !made // a body that was put together holds copies
    const answered = (result: HttpResult) => {
      const outcome = this.#outcome(result, batch)
      if (isRead && outcome.kind === 'delivered') dropPayloads(batch.messages)
      ended(outcome)
    }
    const bodyRead = () => {
      if (!made) return bodyMemory.give(plain)
      isRead = true
    }
    const isCompressed = named === this.#headers ? this.#isCompressed : isGzip(named.get('content-encoding'))
    if (!request.body) return this.#pool.begin(request, answered)
    if (!isCompressed) return this.#pool.begin({ ...request, bodySent: bodyRead }, answered)
    gzip(plain, (error, body) => {
      bodyRead()
      if (error) ended({ kind: 'failed', failure: this.#verbatim.undeliverable(error.message) })
      else this.#pool.begin({ ...request, body }, answered)
    })
  }

  #outcome({ answer, failure }: HttpResult, batch: Batch): Outcome {
    if (failure) return failure.phase === 'aborted' ? { kind: 'aborted' } : { kind: 'failed', failure: this.#verbatim.unanswered(failure) }
    if (answer.status < 200 || answer.status > 299)
      return {
        kind: 'failed',
        failure: this.#verbatim.answered(blameOf(answer, batch.messages.length, batch.route !== undefined), beginningOf(answer)),
      }
    return this.judgesEach
      ? this.#results(answer, batch.messages.length)
      : { kind: 'delivered', status: answer.status, answer: this.#kept.keep(answer) }
  }

  async test(signal: AbortSignal): Promise<Answer | undefined> {
    const failure = await this.#pool.reach(signal)
    return failure && this.#verbatim.unanswered(failure).answer
  }

  async close(): Promise<void> {
    await this.#pool.close()
  }

  /** The body of a message that goes alone, as a function made it: sent from where it stands, for it may be large. */
  #madeBody({ messages: [message, ...others] }: Batch): Buffer | undefined {
    const { payload } = message ?? {}
    return payload && others.length === 0 && !this.#settings.batch ? payload.text.subarray(payload.start, payload.end) : undefined
  }

  #body({ messages }: Batch): Buffer {
    const { batch } = this.#settings
    let bytes = batch ? HEAD.length + TAIL.length + messages.length - 1 : 0
    for (const message of messages) bytes += this.#messages.size(message)
    const body = bodyMemory.take(bytes) // written to its end below
    let at = batch ? HEAD.copy(body) : 0
    const first = at
    for (const message of messages) {
      if (at > first) body[at++] = COMMA
      at = this.#messages.write(message, body, at)
    }
    if (batch) TAIL.copy(body, at)
    return body
  }

  /** `{"failures":[{"index":2,"error":"…"}]}`; an answer of another form says that none failed. */
  #results(answer: HttpAnswer, count: number): Outcome {
    const { status } = answer
    const named = answer.isCut ? 'unreadable' : elementsOf(answer, 'failures', count + 1)
    if (named === 'unreadable' || (named && named.length > count)) {
      const words = `the answer to ${count} messages is too long: it may have at most ${bytesAbout(count)} bytes and one failure for each message`
      return { kind: 'failed', failure: this.#verbatim.answered('refused', beginningOf(answer), words) }
    }
    if (!named || named.length === 0) return { kind: 'delivered', status }
    const failures = Array.from({ length: count }, (): ReturnType<Verbatim['about']> | undefined => undefined)
    for (const entry of named) {
      const { index, error } = fieldsOf(entry)
      if (typeof index !== 'number' || !Number.isInteger(index) || index < 0 || index >= count) continue
      const text = typeof error === 'string' ? error : JSON.stringify(error ?? 'failed')
      failures[index] = this.#verbatim.about('message', status, text)
    }
    return { kind: 'each', status, failures }
  }
}

const isGzip = (encoding = ''): boolean => /^\s*gzip\s*$/i.test(encoding)

/** Origin, and the path with its query: a fragment is not sent. */
function targetOf(url: string): { origin: string; base: string } {
  const { origin, pathname, search } = new URL(url)
  // "https://host" has no path of its own in front of one that is appended
  return { origin, base: pathname === '/' && !/^[^:]+:\/\/[^/?#]+\//.test(url) ? search : `${pathname}${search}` }
}

/** The path and query of a request: it begins with a slash and has no fragment. */
const pathOf = (text: string): string => {
  const [path = ''] = text.split('#', 1)
  return path.startsWith('/') ? path : `/${path}`
}

/** Every form in which the value of a secret header may come back: a login is often repeated in clear. */
function formsOf(value: string): string[] {
  const [scheme = '', encoded = ''] = value.split(' ')
  if (scheme.toLowerCase() !== 'basic') return [value, ...value.split(' ')]
  const login = Buffer.from(encoded, 'base64').toString('utf8')
  return [encoded, login, login.slice(login.indexOf(':') + 1)]
}

/** Later ones win, whatever the case of their names. */
function mergedHeaders(layers: readonly Readonly<Record<string, unknown>>[]): ReadonlyMap<string, string> {
  const merged = new Map<string, string>()
  for (const layer of layers) for (const [name, value] of Object.entries(layer)) merged.set(name.toLowerCase(), String(value))
  return merged
}

const REFUSED = new Set([401, 402, 403, 404, 405, 407, 410, 421])

function blameOf({ status }: HttpAnswer, messages: number, isRouted: boolean): Blame {
  if (status === 429) return 'throttled'
  if (status === 413 && messages > 1) return 'tooLarge'
  if (UNAVAILABLE.has(status)) return 'unavailable'
  // a routed path may be missing for one message alone
  if (status < 400 || (REFUSED.has(status) && !(isRouted && (status === 404 || status === 405 || status === 410)))) return 'refused'
  return 'rejected'
}
