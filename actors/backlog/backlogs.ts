/** The backlogs of all sinks of a process: how large they are, what is done when one is full, and what health says of it. */
import { MB, sizeText } from '../../engine/amounts.ts'
import type { Log } from '../../engine/log/log.ts'
import type { Logger } from '../../engine/logger.ts'
import type { ResourceCache } from '../../engine/state/resource-cache.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { BacklogGuard, type BacklogOf, type Relief } from './backlog.ts'
import { BacklogSizes } from './backlog-sizes.ts'
import { DroppedMessages } from './dropped-messages.ts'
import { StreamFigures } from './stream-figures.ts'
import type { SourceActor } from '../source/source-actor.ts'
import type { HealthCheck } from '../../engine/status.ts'

type BacklogsOptions = Readonly<{
  cache: Pick<ResourceCache, 'sinks' | 'sink'>
  log: Log
  /** of the state database */
  query: Query
  logger: Logger
  sourceOf: (databaseId: string) => Pick<SourceActor, 'gate' | 'shedding' | 'state'> | undefined
}>

/** Bounds the backlogs of all sinks of a process, and tells of them. */
export class Backlogs implements AsyncDisposable {
  readonly #options: BacklogsOptions
  readonly #guard: BacklogGuard
  readonly #dropped: DroppedMessages
  readonly figures: StreamFigures

  constructor(options: BacklogsOptions) {
    const { cache, logger, sourceOf } = options
    this.#options = options
    this.#dropped = new DroppedMessages({
      ...options,
      isNeeded: () => cache.sinks.some((sink) => sink.load_shedding_policy === 'discard_on_full'),
      streams: (id) => sourceOf(cache.sink(id)?.databaseId ?? '')?.state === 'streaming',
    })
    const sizes = new BacklogSizes(options)
    this.figures = new StreamFigures({ ...options, sizes })
    this.#guard = new BacklogGuard(
      (share) => sizes.large(cache.sinks, share, (sink) => this.#relief(sink)),
      (err) => logger.warn({ err }, 'the backlogs of the sinks could not be looked at'),
    )
  }

  /** The notices for a sink's health: that its backlog is full, and that the log keeps much for it alone. */
  checks(sink: Sink): readonly HealthCheck[] {
    const held = this.figures.heldBytes(sink.id)
    const isHolding = held >= Math.min(HELD_BYTES, sink.max_backlog_mb * MB * HELD_SHARE)
    const backlog = this.#backlogCheck(sink)
    return [...(backlog ? [backlog] : []), ...(isHolding ? [heldBack(held, sink)] : [])]
  }

  /** Messages of a sink that this process has dropped. */
  dropped(sinkId: string): number {
    return this.#dropped.total(sinkId)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#guard[Symbol.dispose]()
    this.figures[Symbol.dispose]()
    await this.#dropped[Symbol.asyncDispose]()
  }

  #backlogCheck({ id, load_shedding_policy: policy }: Sink): HealthCheck | undefined {
    if (policy === 'discard_on_full') return this.#dropped.check(id)
    const full = this.#guard.full(id)
    return full && fullCheck(full)
  }

  /** Sources that stand by are held too: they are then ready to take over. Who drops says so on record, so only one does. */
  #relief({ id, name, databaseId, load_shedding_policy: policy }: Sink): Relief | undefined {
    const source = this.#options.sourceOf(databaseId)
    if (policy === 'pause_on_full') return source?.gate
    return source?.state === 'streaming' ? this.#dropped.relief(id, name, source.shedding) : undefined
  }
}

/** A sink for which alone the log keeps so many bytes, or this share of its max_backlog_mb, gets a notice in its health. */
const HELD_BYTES = 64 * MB
const HELD_SHARE = 0.1
const WHILE: Readonly<Record<Sink['status'], string>> = {
  active: '',
  paused: ', which is paused',
  disabled: ', which is disabled',
}

function heldBack(bytes: number, { status }: Sink): HealthCheck {
  const message = `${sizeText(bytes)} of the stream stay in the log for this sink alone${WHILE[status]}: no other sink needs them`
  return { name: 'Stream', status: 'notice', error: { code: 'STREAM_HELD', message } }
}

function fullCheck({ what, bytes, maxBytes }: BacklogOf): HealthCheck {
  const sizes = `${sizeText(bytes)} of ${sizeText(maxBytes)}`
  const message =
    what === 'own'
      ? 'the backlog has reached max_backlog_mb: the source reads on when messages are acknowledged'
      : `messages of the stream that the actions of this sink leave out fill the log (${sizes}): the source reads on when the sink has passed them`
  return { name: 'Messages pending delivery', status: 'warning', error: { code: 'BACKLOG_FULL', message } }
}
