/** Deletes topics that no sink reads or keeps any more: looks when a generation has ended, and again while some stay. */
import { deleteOldTopics } from '../engine/dispatch/old-topics.ts'
import type { Log, TopicName } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Query } from '../engine/postgres/query.ts'
import { MAX_REPLAY_BYTES } from '../engine/dispatch/replay/replay-window.ts'
import { Rounds } from '../engine/bell.ts'
import type { HealthCheck } from '../engine/status.ts'

const RETRY_MS = 2_000
/** All generations are looked at in each round. */
const REST_MS = 1_000

/** Deletes topics that nobody reads any more, now and then, and soon after a ring says that a generation has ended. */
export class OldTopicsSweep extends Rounds {
  protected override readonly restMs = REST_MS
  readonly #query: Query
  readonly #log: Log
  readonly #logger: Logger
  #unknown: readonly TopicName[] = []

  /** @param query of the state database */
  constructor({ query, log, logger }: Readonly<{ query: Query; log: Log; logger: Logger }>) {
    super()
    this.#query = query
    this.#log = log
    this.#logger = logger
  }

  /** Says which topics of the log are unknown to this state database; undefined: none is. */
  check(): HealthCheck | undefined {
    if (this.#unknown.length === 0) return undefined
    return { name: 'Log', status: 'notice', error: { code: 'TOPICS_UNKNOWN', message: textOf(this.#unknown) } }
  }

  #tell(unknown: readonly TopicName[]): void {
    if (unknown.some((topic) => !this.#unknown.includes(topic))) this.#logger.warn({ code: 'TOPICS_UNKNOWN' }, textOf(unknown))
    this.#unknown = unknown
  }

  protected override async round(): Promise<number> {
    const { unknown, deleted, againInMs = Infinity } = await deleteOldTopics(this.#query, this.#log, MAX_REPLAY_BYTES)
    this.#tell(unknown)
    for (const topic of deleted) this.#logger.info({ topic }, 'a topic that nobody reads any more is deleted')
    return againInMs
  }

  protected override failed(err: unknown): number {
    this.#logger.warn({ err }, 'topics that nobody reads any more could not be deleted; tried again')
    return RETRY_MS
  }
}

const textOf = (topics: readonly TopicName[]): string =>
  `the log holds ${topics.length} topics that this state database does not know and did not create; they are not deleted: ${topics.slice(0, 5).join(', ')}${topics.length > 5 ? ', …' : ''}`
