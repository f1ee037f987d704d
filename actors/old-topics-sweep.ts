/** Deletes topics when nobody reads or keeps them any more: looks when a generation has ended, and again while some stay. */
import { deleteOldTopics } from '../engine/dispatch/old-topics.ts'
import type { Log, TopicName } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Query } from '../engine/postgres/query.ts'
import { MAX_REPLAY_BYTES } from '../engine/dispatch/replay/replay-window.ts'
import { Bell } from '../engine/bell.ts'
import type { HealthCheck } from '../engine/status.ts'

const RETRY_MS = 2_000

export class OldTopicsSweep implements Disposable {
  readonly #query: Query
  readonly #log: Log
  readonly #logger: Logger
  readonly #bell = new Bell()
  readonly #ended = new AbortController()
  #unknown: readonly TopicName[] = []

  /** @param query of the state database */
  constructor({ query, log, logger }: Readonly<{ query: Query; log: Log; logger: Logger }>) {
    this.#query = query
    this.#log = log
    this.#logger = logger
  }

  start(): void {
    this.#bell.ring()
    void this.#run()
  }

  /** A generation has ended. */
  ring(): void {
    this.#bell.ring()
  }

  [Symbol.dispose](): void {
    this.#ended.abort()
  }

  /** Topics in the log that nobody here knows; undefined: there are none. */
  check(): HealthCheck | undefined {
    if (this.#unknown.length === 0) return undefined
    return { name: 'Log', status: 'notice', error: { code: 'TOPICS_UNKNOWN', message: told(this.#unknown) } }
  }

  #tell(unknown: readonly TopicName[]): void {
    if (unknown.some((topic) => !this.#unknown.includes(topic))) this.#logger.warn({ code: 'TOPICS_UNKNOWN' }, told(unknown))
    this.#unknown = unknown
  }

  async #run(): Promise<void> {
    const { signal } = this.#ended
    let againInMs = Infinity
    while (!signal.aborted) {
      await this.#bell.wait(signal, againInMs)
      if (signal.aborted) return
      try {
        const old = await deleteOldTopics(this.#query, this.#log, MAX_REPLAY_BYTES)
        againInMs = old.againInMs ?? Infinity
        this.#tell(old.unknown)
        for (const topic of old.deleted) this.#logger.info({ topic }, 'a topic that nobody reads any more is deleted')
      } catch (err) {
        againInMs = RETRY_MS
        if (!signal.aborted) this.#logger.warn({ err }, 'topics that nobody reads any more could not be deleted; tried again')
      }
    }
  }
}

const told = (topics: readonly TopicName[]): string =>
  `the log holds ${topics.length} topics that this state database does not know and has not made; they are left alone: ${topics.slice(0, 5).join(', ')}${topics.length > 5 ? ', …' : ''}`
