/**
 * One receive that asks several places: first each in turn for what is there, then all at once for what comes. The first
 * that has messages answers the client; what another one has handed out meanwhile goes back at once (docs/rules.md, rule 20).
 * Nothing here knows what a place is: the engine of this process, or another one over the network.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import { backOff } from '../../engine/back-off.ts'

/** Describes a place where messages of a sink may be. */
export type ReceivePlace = Readonly<{
  id: string
  /** Settles soon after its signal is aborted; an error is worth another try. */
  receive: (request: ReceiveRequest) => Promise<Receipt>
}>

/** The answer of a place that has nothing. */
export const EMPTY: Receipt = { body: Buffer.from('{"data":[]}'), count: 0, giveBack: () => undefined }

/** A place that has not answered in this time is no longer waited for alone. */
const HEDGE_MS = 25
/** Places that have nothing answer in this time, or count as out of reach. */
const ANSWER_WITHIN_MS = 1_000
/** A place that failed, or ended its wait early, is asked again after this. */
const AGAIN = { firstMs: 100, maxMs: 2_000 }
/** Waits of other processes end with ours: their answers may take so long to come. */
const GRACE_MS = 250

/** What the places have said so far to one request. */
class Answers {
  readonly #first = Promise.withResolvers<void>()
  /** settles when a place has had messages */
  readonly first = this.#first.promise
  readonly #request: ReceiveRequest
  taken: Receipt | undefined
  /** a place has answered, if only with nothing */
  #hasAnswer = false
  #lastError: unknown
  #closed = false

  constructor(request: ReceiveRequest) {
    this.#request = request
  }

  /** Takes what a place has, unless another was faster. */
  async ask(place: ReceivePlace, request: ReceiveRequest): Promise<void> {
    try {
      const receipt = await place.receive(request)
      this.#hasAnswer = true
      if (receipt.count === 0) return
      if (this.taken || this.#closed || this.#request.signal.aborted) return receipt.giveBack()
      this.taken = receipt
      this.#first.resolve()
    } catch (error) {
      this.failed(error)
    }
  }

  failed(error: unknown): void {
    this.#lastError = error
  }

  /** The client has its answer, or has gone: what comes from now on goes back. */
  close(): void {
    this.#closed = true
  }

  /** @returns undefined: nothing came. @throws what a place threw last, when not one has answered */
  result(): Receipt | undefined {
    if (!this.taken && !this.#hasAnswer && !this.#request.signal.aborted && this.#lastError !== undefined) throw this.#lastError
    return this.taken
  }
}

/**
 * Takes what is there now. The places are asked in turn, so that few of them hand out messages in vain; after a slow one the next is
 * asked all the same.
 * @returns undefined: nothing is there
 * @throws what the last place threw, when not one has answered
 */
export async function takeInTurn(places: readonly ReceivePlace[], request: ReceiveRequest): Promise<Receipt | undefined> {
  if (places.length === 0) return undefined
  const over = new AbortController()
  const signal = AbortSignal.any([request.signal, over.signal])
  const answers = new Answers(request)
  const asks: Promise<void>[] = []
  const wait = (ms: number) => sleep(ms, undefined, { signal }).catch(() => undefined)
  try {
    for (const place of places) {
      const ask = answers.ask(place, { ...request, waitMs: 0, signal })
      asks.push(ask)
      await Promise.race([ask, answers.first, wait(HEDGE_MS)])
      if (answers.taken || request.signal.aborted) break
    }
    if (!answers.taken && !request.signal.aborted) await Promise.race([Promise.all(asks), answers.first, wait(ANSWER_WITHIN_MS)])
  } finally {
    answers.close()
    over.abort()
  }
  return answers.result()
}

type Wait = Readonly<{
  /** where to ask at the moment */
  places: () => Promise<readonly ReceivePlace[]>
  /** Calls back when the places may have changed. @returns ends the subscription */
  watch: (listener: () => void) => () => void
  /** the places are looked at so often even when nothing calls back */
  lookEveryMs: number
}>

/**
 * Waits everywhere at once until a place has messages, the time is over, or the client goes.
 * @returns undefined: nothing came
 * @throws what a place threw last, when not one has answered all the time
 */
export async function waitEverywhere({ places, watch, lookEveryMs }: Wait, request: ReceiveRequest): Promise<Receipt | undefined> {
  const endsAt = performance.now() + request.waitMs
  const leftMs = () => Math.floor(endsAt - performance.now())
  const over = new AbortController()
  const answers = new Answers(request)
  const asked = new Map<string, Readonly<{ end: AbortController; ended: Promise<void> }>>()

  /** One place: asked again until the time is over, for it may only have begun anew. */
  async function waitAt(place: ReceivePlace, signal: AbortSignal): Promise<void> {
    for (let attempt = 1; !signal.aborted; attempt++) {
      const waitMs = leftMs()
      if (waitMs <= 0) return
      await answers.ask(place, { ...request, waitMs, signal })
      if (leftMs() <= 0) return
      await sleep(Math.min(backOff(AGAIN, attempt), leftMs()), undefined, { signal }).catch(() => undefined)
    }
  }

  async function look(): Promise<void> {
    const now = await places().catch((error: unknown) => answers.failed(error))
    if (!now || over.signal.aborted) return
    const wanted = new Set(now.map(({ id }) => id))
    for (const [id, { end }] of asked) {
      if (wanted.has(id)) continue
      end.abort()
      asked.delete(id)
    }
    for (const place of now) {
      if (asked.has(place.id)) continue
      const end = new AbortController()
      asked.set(place.id, { end, ended: waitAt(place, AbortSignal.any([over.signal, request.signal, end.signal])) })
    }
  }

  const unwatch = watch(() => void look())
  const looking = setInterval(() => void look(), lookEveryMs)
  const gone = Promise.withResolvers<void>()
  const onGone = () => gone.resolve()
  request.signal.addEventListener('abort', onGone)
  try {
    await look()
    const timeOver = sleep(Math.max(0, request.waitMs), undefined, { signal: over.signal })
      .then(async () => {
        const waits = Promise.all([...asked.values()].map(({ ended }) => ended))
        await Promise.race([waits, sleep(GRACE_MS, undefined, { signal: over.signal })])
      })
      .catch(() => undefined)
    if (!request.signal.aborted) await Promise.race([answers.first, timeOver, gone.promise])
  } finally {
    request.signal.removeEventListener('abort', onGone)
    clearInterval(looking)
    unwatch()
    answers.close()
    over.abort()
  }
  return answers.result()
}
