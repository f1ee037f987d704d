/** Acks and nacks on their way: what comes while a call is under way goes with the next one. */
import { TailraceError, type ServiceCalls } from './service-calls.ts'

type Verb = 'ack' | 'nack'
type Gathered = { ids: string[]; sent: Promise<void>; resolve: () => void; reject: (error: unknown) => void }

/** The service takes some 400,000 ids in a call. */
const MAX_IDS = 50_000
/** When all else has stopped, a service that doesn't answer is not waited for any longer. */
const GRACE_MS = 10_000

/** Sends acks and nacks, many in a call. */
export class Settlements {
  readonly #calls: ServiceCalls
  readonly #stopped: AbortSignal
  readonly #next: Record<Verb, Gathered | undefined> = { ack: undefined, nack: undefined }
  readonly #sending: Record<Verb, Promise<void> | undefined> = { ack: undefined, nack: undefined }

  /** @param stopped when it is aborted, a call has so long left */
  constructor(calls: ServiceCalls, stopped: AbortSignal) {
    this.#calls = calls
    this.#stopped = stopped
  }

  /** Sends ids. @returns settles when the service has them on disk. @throws TailraceError it refuses them */
  send(verb: Verb, ids: readonly string[]): Promise<void> {
    const gathered = (this.#next[verb] ??= newGathered())
    for (const id of ids) gathered.ids.push(id)
    this.#sending[verb] ??= this.#drain(verb)
    return gathered.sent
  }

  /** Settles when nothing is under way; it never rejects, for who sent learns of failures. */
  async idle(): Promise<void> {
    while (this.#sending.ack || this.#sending.nack) await Promise.all([this.#sending.ack, this.#sending.nack])
  }

  async #drain(verb: Verb): Promise<void> {
    await undefined // what is said in the same turn goes with the same call
    for (let gathered = this.#take(verb); gathered; gathered = this.#take(verb)) {
      const { ids, resolve, reject } = gathered
      try {
        for (let at = 0; at < ids.length; at += MAX_IDS) await this.#post(verb, ids.slice(at, at + MAX_IDS))
        resolve()
      } catch (error) {
        reject(error)
      }
    }
    this.#sending[verb] = undefined
  }

  async #post(verb: Verb, ids: readonly string[]): Promise<void> {
    const over = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const unanswered = () =>
      new TailraceError(`an ${verb} was not answered within ${GRACE_MS} ms of the stop`, { code: 'SERVICE_UNREACHABLE' })
    const onStop = () => (timer = setTimeout(() => over.abort(unanswered()), GRACE_MS))
    if (this.#stopped.aborted) onStop()
    else this.#stopped.addEventListener('abort', onStop, { once: true })
    try {
      await this.#calls.post(verb, { ack_ids: ids }, { signal: over.signal })
    } finally {
      clearTimeout(timer)
      this.#stopped.removeEventListener('abort', onStop)
    }
  }

  #take(verb: Verb): Gathered | undefined {
    const gathered = this.#next[verb]
    this.#next[verb] = undefined
    return gathered
  }
}

function newGathered(): Gathered {
  let resolve = () => {}
  let reject: Gathered['reject'] = () => {}
  const sent = new Promise<void>((onSent, onFailure) => ([resolve, reject] = [onSent, onFailure]))
  return { ids: [], sent, resolve, reject }
}
