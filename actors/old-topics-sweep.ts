/** Deletes topics of ended generations when nothing keeps them any more: looks when one has ended, and again while some stay. */
import { deleteOldTopics } from '../engine/dispatch/old-topics.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Query } from '../engine/wal/connection/slot.ts'
import { MAX_REPLAY_BYTES } from '../engine/dispatch/replay/replay-window.ts'
import { Bell } from './bell.ts'

const RETRY_MS = 2_000

export class OldTopicsSweep implements Disposable {
  readonly #query: Query
  readonly #log: Log
  readonly #logger: Logger
  readonly #bell = new Bell()
  readonly #ended = new AbortController()

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

  async #run(): Promise<void> {
    const { signal } = this.#ended
    let againInMs = Infinity
    while (!signal.aborted) {
      await this.#bell.wait(signal, againInMs)
      if (signal.aborted) return
      try {
        const old = await deleteOldTopics(this.#query, this.#log, MAX_REPLAY_BYTES)
        againInMs = old.againInMs ?? Infinity
        for (const topic of old.deleted) this.#logger.info({ topic }, 'the topic of an ended generation is deleted')
      } catch (err) {
        againInMs = RETRY_MS
        if (!signal.aborted) this.#logger.warn({ err }, 'topics of ended generations could not be deleted; tried again')
      }
    }
  }
}
