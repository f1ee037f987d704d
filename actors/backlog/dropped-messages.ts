/**
 * What full sinks with `discard_on_full` lose, on record: a row for each sink says since when, until when and how many. It is
 * made before the first message is dropped, and every process reads it, so that any of them can say how a sink is.
 */
import { ask } from '../../engine/state/asking.ts'
import type { Logger } from '../../engine/logger.ts'
import type { Shedding } from '../../engine/wal/routing/shedding.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { Relief } from './backlog.ts'
import type { HealthCheck } from '../../engine/status.ts'

const EVERY_MS = 1_000
/** How long health goes on telling of messages that were dropped. */
const TOLD_MS = 24 * 3_600_000

type DroppedMessagesOptions = Readonly<{
  /** of the state database */
  query: Query
  logger: Logger
  /** whether any sink may drop messages: nothing is asked for otherwise */
  isNeeded: () => boolean
  /** this process streams what the sink receives, so that what a former one left open is its to close */
  streams: (sinkId: string) => boolean
}>

type Stretch = Readonly<{ since: Date; until: Date | undefined; messages: number }>
/** A stretch of dropped messages. `ended`: its end is to be put on record; `followed`: another one of the same sink goes on with it. */
type Dropping = { readonly sinkId: string; readonly shedding: Shedding; state: 'on' | 'ended' | 'followed'; saved: number }

/** Puts on record what full sinks lose, and tells health of it. */
export class DroppedMessages implements AsyncDisposable {
  readonly #options: DroppedMessagesOptions
  readonly #reliefs = new WeakMap<Shedding, Map<string, Relief>>()
  /** the stretches of this process, until what was dropped in them is on record */
  readonly #open = new Set<Dropping>()
  readonly #recorded = new Map<string, number>()
  #stretches: ReadonlyMap<string, Stretch> = new Map()
  /** found open at the last look although no process drops: closed at the next */
  #leftOpen: ReadonlySet<string> = new Set()
  #timer: NodeJS.Timeout | undefined
  /** one statement at a time, so that they are written in the order of what they tell */
  #turn: Promise<unknown> = Promise.resolve()

  constructor(options: DroppedMessagesOptions) {
    this.#options = options
    this.#timer = setTimeout(() => this.#again(), EVERY_MS).unref()
  }

  /** Gives the relief of a full sink: the same object for the same sink of the same source. */
  relief(sinkId: string, name: string, shedding: Shedding): Relief {
    const ofSource = this.#reliefs.get(shedding) ?? new Map<string, Relief>()
    this.#reliefs.set(shedding, ofSource)
    const known = ofSource.get(sinkId) ?? { hold: (cause: string) => this.#inTurn(() => this.#begin(sinkId, shedding, name, cause)) }
    ofSource.set(sinkId, known)
    return known
  }

  /** Messages of a sink that this process has dropped since it began. */
  total(sinkId: string): number {
    let total = this.#recorded.get(sinkId) ?? 0
    for (const dropping of this.#open) if (dropping.sinkId === sinkId) total += dropping.shedding.dropped(sinkId) - dropping.saved
    return total
  }

  /** A notice for health: dropping was asked for, so it degrades nothing. */
  check(sinkId: string): HealthCheck | undefined {
    const stretch = this.#stretches.get(sinkId)
    if (!stretch || (stretch.until && Date.now() - stretch.until.getTime() > TOLD_MS)) return undefined
    const { since, until, messages } = stretch
    const from = since.toISOString()
    const message = until
      ? `${messages} messages were dropped from ${from} to ${until.toISOString()}, while the backlog was full`
      : `the backlog is full: ${messages} messages were dropped since ${from}; new ones are dropped until the backlog is below nine tenths of max_backlog_mb`
    return { name: 'Messages pending delivery', status: 'notice', error: { code: 'MESSAGES_DROPPED', message } }
  }

  /** Puts on record what was dropped last. */
  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    await this.#inTurn(() => this.#save()).catch((err: unknown) => this.#options.logger.warn({ err }, NOT_SAVED))
  }

  async #begin(sinkId: string, shedding: Shedding, sink: string, cause: string): Promise<() => void> {
    const { query, logger } = this.#options
    // one that goes on is that of a process that died in it, or ended a moment ago
    await ask(
      query,
      `insert into tailrace.dropped as d (sink_id, since, messages) values ($1, now(), 0)
       on conflict (sink_id) do update set until = null, since = case when d.until is null then d.since else now() end,
         messages = case when d.until is null then d.messages else 0 end`,
      [sinkId],
    )
    const dropping: Dropping = { sinkId, shedding, state: 'on', saved: shedding.dropped(sinkId) }
    for (const other of this.#open) {
      if (other.sinkId !== sinkId) continue
      other.state = 'followed'
      if (other.shedding !== shedding) continue
      dropping.saved = other.saved // the same count goes on
      this.#open.delete(other)
    }
    this.#open.add(dropping)
    shedding.begin(sinkId)
    logger.warn({ sink }, `${cause}: new messages of it are dropped (load_shedding_policy)`)
    return () => {
      shedding.end(sinkId)
      dropping.state = 'ended'
      logger.info({ sink }, 'the sink has room again: new messages of it are kept')
    }
  }

  #again(): void {
    this.#inTurn(() => this.#look())
      .catch((err: unknown) => this.#options.logger.warn({ err }, NOT_SAVED))
      .then(() => {
        this.#timer &&= setTimeout(() => this.#again(), EVERY_MS).unref()
      })
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work)
    this.#turn = turn.catch(() => undefined)
    return turn
  }

  async #look(): Promise<void> {
    const { query, isNeeded, streams } = this.#options
    await this.#save()
    if (!isNeeded()) return
    const columns = { sink_id: 'text', since: 'time', until: 'time?', messages: 'int' } as const
    const rows = rowsOf(columns, await ask(query, 'select sink_id, since, until, messages from tailrace.dropped', []))
    this.#stretches = new Map(rows.map(({ sink_id: sinkId, ...stretch }) => [sinkId, stretch]))
    const held = new Set([...this.#open].map(({ sinkId }) => sinkId))
    const open = [...this.#stretches].filter(([id, { until }]) => !until && !held.has(id) && streams(id)).map(([id]) => id)
    const left = open.filter((id) => this.#leftOpen.has(id))
    if (left.length > 0)
      await ask(query, 'update tailrace.dropped set until = now() where sink_id = any ($1::uuid[]) and until is null', [left])
    this.#leftOpen = new Set(open)
  }

  async #save(): Promise<void> {
    for (const dropping of this.#open) {
      const { sinkId, shedding, state, saved } = dropping
      const dropped = shedding.dropped(sinkId)
      if (dropped > saved || state === 'ended') {
        await ask(
          this.#options.query,
          `update tailrace.dropped set messages = messages + $2, until = case when $3 then now() else until end where sink_id = $1`,
          [sinkId, dropped - saved, state === 'ended'],
        )
        this.#recorded.set(sinkId, (this.#recorded.get(sinkId) ?? 0) + dropped - saved)
        dropping.saved = dropped
      }
      if (state !== 'on') this.#open.delete(dropping)
    }
  }
}

const NOT_SAVED = 'what full sinks have dropped could not be put on record; it will be tried again'
