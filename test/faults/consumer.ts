/**
 * A client program of a pull sink with bad habits: batches of all sizes, short and long polls, and of what it got it
 * acks most, some late or twice, nacks some and forgets some. It survives what a client has to survive and tells the
 * oracle of every answer and every ack.
 */
import type { Message, Oracle } from './oracle.ts'
import type { Random } from './random.ts'
import { Passing, type SinkClient } from './sink-client.ts'
import { pass } from '../waiting.ts'

export type ConsumerOptions = Readonly<{
  name: string
  client: SinkClient
  oracle: Oracle
  random: Random
  ackWaitMs: number
  /** it takes little at a time, and its time, until it settles down */
  isSlow?: boolean
}>

/** What becomes of a received message. */
const HABITS = { ack: 72, ackSoon: 8, nack: 7, forget: 4, ackLate: 4, ackTwice: 5 }
type Habit = keyof typeof HABITS
const RETRY_AFTER_MS = 25
const SLOW_MS = 200

export class Consumer {
  readonly #options: ConsumerOptions
  readonly #pending = new Set<Promise<void>>()
  #steady = false
  #gone = false
  #failure: unknown

  constructor(options: ConsumerOptions) {
    this.#options = options
  }

  /** From now on it acks everything, again and again until each ack is answered. */
  settleDown(): void {
    this.#steady = true
  }

  /** The run is over: an ack that is still refused is not sent again. */
  leave(): void {
    this.#gone = true
  }

  /** Receives until aborted; settles when nothing of its own is under way.
   *  @throws Error an answer that no client should get */
  async run(signal: AbortSignal): Promise<void> {
    const { random, name, client, oracle, isSlow = false } = this.#options
    while (!signal.aborted && oracle.violations.length === 0 && this.#failure === undefined) {
      const request = { batchSize: random.pick([1, 3, 10, 50, 200, 1000]), waitMs: this.#steady ? 300 : random.pick([0, 50, 300, 1_500]) }
      const requestedAt = now()
      if (isSlow && !this.#steady) Object.assign(request, { batchSize: random.int(1, 5), waitMs: 0 })
      let messages: readonly Message[]
      try {
        messages = await client.receive(request, signal)
      } catch (error) {
        if (signal.aborted) break
        if (!(error instanceof Passing)) throw error
        await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
        continue
      }
      oracle.delivered(messages, { client: name, requestedAt, receivedAt: now() })
      if (isSlow) await this.#pause(SLOW_MS, signal)
      else if (messages.length === 0 && request.waitMs === 0) await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
      const habits = Map.groupBy(messages, () => (this.#steady ? 'ack' : random.weighted(HABITS)))
      // several clients of one program: the next receive need not wait for the acks of this one
      const handling = Promise.all([...habits].map(([habit, some]) => this.#handle(habit, some, signal))).then(() => {})
      const handled = this.#track(handling)
      if (random.chance(0.7)) await handled
      else await pass(random.int(0, 5), 'the next receive overtakes some of the acks')
    }
    await Promise.all(this.#pending)
    if (this.#failure !== undefined) throw this.#failure
  }

  async #handle(habit: Habit, messages: readonly Message[], signal: AbortSignal): Promise<void> {
    const { random, ackWaitMs, oracle, client } = this.#options
    const ids = messages.map((message) => message.ackId)
    switch (habit) {
      case 'ack':
        return this.#ack(ids)
      case 'ackTwice':
        await this.#ack(ids)
        return this.#ack(ids)
      case 'ackSoon':
        await this.#pause(random.int(1, 200), signal)
        return this.#ack(ids)
      case 'ackLate':
        await this.#pause(ackWaitMs + random.int(1, 300), signal)
        return this.#ack(ids)
      case 'forget':
        return
      case 'nack':
        oracle.nackSent(ids)
        try {
          await client.nack(ids)
          oracle.nackEnded(ids, now(), true)
        } catch (error) {
          if (!(error instanceof Passing)) throw error
          oracle.nackEnded(ids, now(), false)
        }
    }
  }

  /** A wild client gives up after a few tries and may get the messages again. */
  async #ack(ids: readonly string[]): Promise<void> {
    const { client, oracle, random } = this.#options
    for (let tries = random.int(1, 5); !this.#gone && (tries > 0 || this.#steady); tries--) {
      oracle.ackSent(ids, now())
      try {
        await client.ack(ids)
        return oracle.ackAnswered(ids, now())
      } catch (error) {
        if (!(error instanceof Passing)) throw error
        await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
      }
    }
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#steady) await pass(ms, 'it works on the messages', signal)
  }

  /** @returns settles with the handling, and never rejects: the failure waits for `run` */
  #track(handling: Promise<void>): Promise<void> {
    const tracked = handling.catch((error: unknown) => void (this.#failure ??= error)).finally(() => this.#pending.delete(tracked))
    this.#pending.add(tracked)
    return tracked
  }
}

/** One clock for requests, answers and (with a tolerance) commit times. */
export const now = (): number => performance.timeOrigin + performance.now()
