/** The backlogs of all sinks of a process: how large they are, what is done when one is full, and what health says of it. */
import type { Log } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import type { ResourceCache } from '../../engine/state/resource-cache.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Query } from '../../engine/wal/connection/slot.ts'
import { BacklogGuard, type Relief } from './backlog.ts'
import { BacklogSizes } from './backlog-sizes.ts'
import { DroppedMessages } from './dropped-messages.ts'
import type { SourceActor } from '../source/source-actor.ts'
import type { HealthCheck } from '../status.ts'

export type BacklogsOptions = Readonly<{
  cache: Pick<ResourceCache, 'sinks' | 'sink'>
  log: Log
  /** of the state database */
  query: Query
  logger: Logger
  sourceOf: (databaseId: string) => Pick<SourceActor, 'gate' | 'shedding' | 'state'> | undefined
}>

export class Backlogs implements AsyncDisposable {
  readonly #options: BacklogsOptions
  readonly #guard: BacklogGuard
  readonly #dropped: DroppedMessages

  constructor(options: BacklogsOptions) {
    const { cache, logger, sourceOf } = options
    this.#options = options
    this.#dropped = new DroppedMessages({
      ...options,
      isNeeded: () => cache.sinks.some((sink) => sink.load_shedding_policy === 'discard_on_full'),
      streams: (id) => sourceOf(cache.sink(id)?.databaseId ?? '')?.state === 'streaming',
    })
    const sizes = new BacklogSizes(options)
    this.#guard = new BacklogGuard(
      () => sizes.bounded(cache.sinks, (sink) => this.#relief(sink)),
      (err) => logger.warn({ err }, 'the backlogs of the sinks could not be looked at'),
    )
  }

  /** What health says of a sink's backlog, if anything. */
  checks(sink: Sink): readonly HealthCheck[] {
    if (sink.load_shedding_policy === 'pause_on_full') return this.#guard.isFull(sink.id) ? [FULL] : []
    const dropped = this.#dropped.check(sink.id)
    return dropped ? [dropped] : []
  }

  /** Messages of a sink that this process has dropped. */
  dropped(sinkId: string): number {
    return this.#dropped.total(sinkId)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#guard[Symbol.dispose]()
    await this.#dropped[Symbol.asyncDispose]()
  }

  /** Sources that stand by are held too: they are then ready to take over. Who drops says so on record, so only one does. */
  #relief({ id, name, databaseId, load_shedding_policy: policy }: Sink): Relief | undefined {
    const source = this.#options.sourceOf(databaseId)
    if (policy === 'pause_on_full') return source?.gate
    return source?.state === 'streaming' ? this.#dropped.relief(id, name, source.shedding) : undefined
  }
}

const FULL: HealthCheck = {
  name: 'Messages pending delivery',
  status: 'warning',
  error: { code: 'BACKLOG_FULL', message: 'the backlog is full: its source reads on when messages are acknowledged' },
}
