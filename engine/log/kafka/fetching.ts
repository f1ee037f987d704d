/**
 * Fetches of one partition over a connection of their own, for the broker holds a fetch back until there is something. What
 * passes by itself (another leader, brokers that are away for a while, records that were trimmed) is waited out in here.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../../errors.ts'
import type { Brokers } from './brokers.ts'
import type { KafkaConnection } from './connection.ts'
import { kafkaCode, toLogError } from './failure.ts'
import type { FetchedMessage } from './kafkajs.ts'
import { Link } from './link.ts'
import { patiently } from './patience.ts'
import { backOff } from '../../back-off.ts'

type FetchingOptions = Readonly<{
  connection: KafkaConnection
  /** to find the partition's leader */
  brokers: Brokers
  /** as Kafka knows it */
  topic: string
  partition: number
  /** @returns first offset kept and the next one */
  bounds: () => Promise<Readonly<{ first: number; next: number }>>
}>

/** The broker answers an idle partition so often. */
const MAX_WAIT_MS = 10_000
const PAUSE = { firstMs: 50, maxMs: 1_000 }
/** A partition that can't be read for so long is a failure to be told; until then it is waited out. */
const PATIENCE_MS = 30_000
/** A topic that is unknown for so long has been deleted: brokers that start know their topics a little late. */
const UNKNOWN_PATIENCE_MS = 2_000
const READ_UNCOMMITTED = 0

/** Fetches messages at or above an offset once: those of one batch at least, none when there are none. */
export async function fetchOnce(brokers: Brokers, topic: string, partition: number, offset: number): Promise<readonly FetchedMessage[]> {
  const asked = request(topic, partition, offset, 1, 0)
  const { responses } = await patiently(() => brokers.leader(topic, partition, (broker) => broker.fetch(asked)))
  return wanted(responses[0]?.partitions[0]?.messages ?? [], offset)
}

/** @property next the offset after what was fetched */
type Answer = Readonly<{ messages: readonly FetchedMessage[]; next: number }>

/** Fetches from one partition, whichever broker leads it. */
export class Fetching {
  readonly #options: FetchingOptions
  readonly #closed = new AbortController()
  #link: Link | undefined

  constructor(options: FetchingOptions) {
    this.#options = options
  }

  close(): void {
    this.#closed.abort()
    this.#link?.close()
  }

  /**
   * Waits until there is something at or above an offset. One is open at a time.
   * @returns undefined: closed, or the topic is gone
   * @throws EngineError LOG_UNREACHABLE, LOG_REFUSED, LOG_TRUNCATED
   */
  async fetch(from: number, maxBytes: number): Promise<Answer | undefined> {
    let offset = from
    let failures = 0
    let failingSince: number | undefined
    while (!this.#closed.signal.aborted) {
      try {
        const answer = await this.#fetch(offset, maxBytes)
        if (answer.messages.length > 0 || answer.next > offset) return answer
        failingSince = undefined
        failures = 0
      } catch (error) {
        if (this.#closed.signal.aborted) return undefined
        const { brokers, topic } = this.#options
        if (kafkaCode(error) === 'OFFSET_OUT_OF_RANGE') {
          offset = await this.#inRange(offset)
          continue
        }
        failingSince ??= performance.now()
        const failingMs = performance.now() - failingSince
        const isUnknown = error instanceof EngineError && error.code === 'LOG_TOPIC_UNKNOWN'
        if (isUnknown && failingMs > UNKNOWN_PATIENCE_MS) return undefined
        const passes = isUnknown || (error instanceof EngineError && error.code === 'LOG_UNREACHABLE' && failingMs < PATIENCE_MS)
        if (!passes) throw toLogError(error)
        brokers.forget(topic)
        await delay(backOff(PAUSE, ++failures), undefined, { signal: this.#closed.signal }).catch(() => undefined)
      }
    }
    return undefined
  }

  async #fetch(offset: number, maxBytes: number): Promise<Answer> {
    const { topic, partition } = this.#options
    const link = await this.#usableLink()
    try {
      const { responses } = await link.call((broker) => broker.fetch(request(topic, partition, offset, maxBytes, MAX_WAIT_MS)), MAX_WAIT_MS)
      const all = wanted(responses[0]?.partitions[0]?.messages ?? [], offset)
      const last = all.at(-1)
      return { messages: all.filter((message) => !message.isControlRecord), next: last ? Number(last.offset) + 1 : offset }
    } catch (error) {
      link.close() // another broker may lead the partition now
      throw error
    }
  }

  async #usableLink(): Promise<Link> {
    if (this.#link?.usable) return this.#link
    this.#link?.close()
    const { connection, brokers, topic, partition } = this.#options
    const link = await Link.open(connection, await brokers.leaderAddress(topic, partition), this.#closed.signal)
    this.#link = link
    if (this.#closed.signal.aborted) link.close()
    return link
  }

  /** Records below were trimmed: on with the first one kept. Above the end: the partition has lost what was there. */
  async #inRange(offset: number): Promise<number> {
    const { topic, partition, bounds } = this.#options
    const { first, next } = await bounds()
    if (offset < first) return first
    if (offset <= next) return offset
    throw new EngineError(
      'LOG_TRUNCATED',
      `partition ${partition} of topic ${topic} ends at offset ${next}, below offset ${offset} that was already read`,
      {
        topic,
        partition,
        next,
        offset,
      },
    )
  }
}

const request = (topic: string, partition: number, offset: number, maxBytes: number, maxWaitTime: number) => ({
  isolationLevel: READ_UNCOMMITTED,
  maxWaitTime,
  minBytes: 1,
  maxBytes,
  topics: [{ topic, partitions: [{ partition, fetchOffset: String(offset), maxBytes }] }],
})

/** A batch comes whole, also when the offset asked for lies inside it. */
const wanted = (messages: readonly FetchedMessage[], from: number) => messages.filter(({ offset }) => Number(offset) >= from)
