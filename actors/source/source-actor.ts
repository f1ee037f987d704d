/** The source of one database at work: its machine with the real lock, inspection and run behind it, and how it is. */
import { Client } from 'pg'
import { createActor, type ActorRefFrom, type StateValueFrom } from 'xstate'
import { EngineError } from '../../engine/errors.ts'
import type { Log } from '../../engine/log/log.ts'
import { acceptMemories, mustFitSource } from '../../engine/wal/memories.ts'
import { formatLsn, parseLsn, type Lsn } from '../../engine/lsn.ts'
import type { Database } from '../../engine/state/resources.ts'
import { ReadingGate } from '../../engine/wal/flow.ts'
import type { SavedVersion } from '../../engine/wal/routing/stored-versions.ts'
import { SourceRun } from '../../engine/wal/run.ts'
import { SOURCE_DEFAULTS, type SourceObserver, type SourceSettings } from '../../engine/wal/source-settings.ts'
import { Shedding } from '../../engine/wal/routing/shedding.ts'
import { moveToPublication } from '../../engine/wal/connection/publication-start.ts'
import { judgeSlot, readSlotFacts, readSlotState, type FitSlot } from '../../engine/wal/connection/slot.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { sourceClient } from '../../engine/wal/connection/source-client.ts'
import { writeOnce, WRITES_LOCALLY } from '../../engine/wal/connection/source-writer.ts'
import { HEARTBEAT } from '../../engine/wal/connection/run-session.ts'
import { toSourceError } from '../../engine/wal/connection/source-error.ts'
import { SourceLock } from '../../engine/wal/connection/source-lock.ts'
import { acceptGap, SourceStore, type SavedSource } from '../../engine/wal/source-store.ts'
import { RoutingMarks } from './routing-marks.ts'
import { SlotWatch } from './slot-watch.ts'
import { sourceMachine, type SourceFailure, type SourceWork, type StreamInput } from './source.ts'
import {
  troubleOf,
  type ActorStatus,
  type DatabaseSight,
  type HealthCheck,
  type SlotState,
  type SourceFigures,
} from '../../engine/status.ts'
import { databaseHealth } from './database-health.ts'
import { SourceSight } from './source-sight.ts'

/** Holds what the source of one database works with. */
export type SourceActorOptions = Readonly<{
  database: Database
  log: Log
  /** queries on the state database */
  state: Query
  /** names this process to others, in the table of terms */
  holder: string
  /** what a holder is called, for people */
  nameOf?: (holder: string) => string
  /** another process has the source, and this one waits for its lock: told once for each owner */
  onStandby?: (owner: string) => void
  settings?: Partial<SourceSettings>
  observer?: SourceObserver
  /** held by sinks that can take no more */
  gate?: ReadingGate
  backfills?: RunBackfills
  /** messages that became durable since this process has the source */
  ingested?: () => number
}>

/** A standby names the owner of its source as it was no longer ago than this. */
const OWNER_EVERY_MS = 1_000
const TRUNCATION_TOLD_MS = 24 * 3_600_000
/** A question outside of a run waits no longer. */
const SESSION_TIMEOUT_MS = 30_000
/** A slot that is moved takes longer: its server reads its log meanwhile. */
const MOVE_TIMEOUT_MS = 1_800_000

/** Reads backfills while a source streams. */
export interface RunBackfills {
  /** The handler of marks, the watcher of keys, and what a run awaits before it confirms. */
  readonly hooks: Pick<Parameters<(typeof SourceRun)['open']>[0], 'marks' | 'watcher' | 'confirming'>
  /** A run is to begin. */
  prepare(): Promise<void>
  /** @param term under which it streams */
  begin(run: SourceRun, term: number): void
  end(): void
  /** The run has made something durable. */
  progressed(): void
}

type Plan = Readonly<{ store: SourceStore; saved: SavedSource; slot: FitSlot }>
/** The state of a source; `opening`: it connects, and does not stream yet. */
export type SourceState = 'locking' | 'inspecting' | 'opening' | 'streaming' | 'waiting' | 'failed' | 'stopping' | 'stopped'

/** Tells how a source is after another try; `code` and `reason` are there when it does not stream. */
export type SourceOutcome = Readonly<{ state: string; code?: string; reason?: string }>

/** The source of one database in this process. It may stand by while another process has the source. */
export class SourceActor {
  readonly gate: ReadingGate
  /** the sinks whose messages are dropped, because they are full */
  readonly shedding = new Shedding()
  readonly #options: SourceActorOptions
  readonly #actor: ActorRefFrom<typeof sourceMachine>
  readonly #ended = Promise.withResolvers<void>()
  readonly #slot = new SlotWatch(() => this.#askSlot())
  readonly #sight: SourceSight
  /** when the last heartbeat of this run came back */
  #heartbeatAt: number | undefined
  readonly #marks: RoutingMarks
  readonly #listeners = new Set<(state: SourceState) => void>()
  readonly #standbyListeners = new Set<() => void>()
  /** of the database, by now */
  #name: string
  #run: SourceRun | undefined
  #figures: SourceFigures | undefined
  #since = new Date()
  #state: SourceState = 'locking'
  #lockHolder: number | undefined
  /** of the last session of this process that had the lock: its server may end it late */
  #ownSession: number | undefined
  /** while another process has the lock: since when the term was looked at, and its holder */
  #standby: { owner: string | undefined; lookedAt: number } | undefined
  #phantoms = 0
  #republishedAt: Date | undefined
  /** when this process met a TRUNCATE of each table, by the sinks that take it */
  readonly #truncated = new Map<string, Map<string, Date>>()

  constructor(options: SourceActorOptions) {
    this.#options = options
    this.#name = options.database.name
    this.gate = options.gate ?? new ReadingGate()
    const { database, state: query, observer } = options
    this.#sight = new SourceSight(database, () => this.#hasSource)
    this.#marks = new RoutingMarks({
      databaseId: database.id,
      state: query,
      source: (sql, params) =>
        this.#run ? this.#run.write(sql, params) : withSession(database, (ask) => writeOnce(database, ask, sql, params)),
      active: () => this.#run?.figures.routingVersion,
      isStreamed: () => this.#run !== undefined || this.standby !== undefined,
      notice: (text) => observer?.notice?.(text),
    })
    this.#actor = createActor(sourceMachine, { input: { work: this.#work() } })
    this.#actor.subscribe((snapshot) => {
      const state = stateOf(snapshot.value)
      if (state !== this.#state) {
        this.#state = state
        this.#since = new Date()
        for (const listener of this.#listeners) listener(state)
        if (state === 'streaming' || state === 'waiting' || state === 'failed') this.look()
      }
      if (state !== 'stopped') return
      this.#slot[Symbol.dispose]()
      this.#sight[Symbol.dispose]()
      this.#marks[Symbol.dispose]()
      this.#ended.resolve()
    })
    this.#actor.start()
    this.#slot.start()
    this.#sight.start()
  }

  /** Resolves when it has stopped. A failure doesn't end it: it waits in `failed` for `retry` or `stop`. */
  get ended(): Promise<void> {
    return this.#ended.promise
  }

  get state(): SourceState {
    return this.#state
  }

  get lastError(): SourceFailure | undefined {
    return this.#actor.getSnapshot().context.lastError
  }

  /** The figures of the current run, or of the last one; undefined before the first. */
  get figures(): SourceFigures | undefined {
    return (this.#figures = this.#run?.figures ?? this.#figures)
  }

  /** Calls back at each change of state. @returns ends the subscription */
  watch(listener: (state: SourceState) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Its database is called otherwise from now on, which it says of itself. */
  rename(name: string): void {
    this.#name = name
  }

  /** Another try after a failure that a user has mended, or at once instead of waiting. */
  retry(): void {
    this.#actor.send({ type: 'retry' })
  }

  /**
   * Tries again as `retry` does. @returns how the source is when it streams, stands by or has stopped again, or after `waitMs`: a
   * source that streams goes on as it is
   */
  async tryAgain(waitMs: number): Promise<SourceOutcome> {
    this.retry()
    const { promise, resolve } = Promise.withResolvers<void>()
    const look = () => {
      if (this.standby || ['streaming', 'waiting', 'failed', 'stopped'].includes(this.#state)) resolve()
    }
    const timer = setTimeout(resolve, waitMs)
    this.#standbyListeners.add(look)
    const unwatch = this.watch(look)
    look()
    await promise
    clearTimeout(timer)
    unwatch()
    this.#standbyListeners.delete(look)
    const stopped = this.#state === 'waiting' || this.#state === 'failed' ? this.lastError : undefined
    return { state: this.standby ? 'standby' : this.#state, ...(stopped && { code: stopped.code, reason: stopped.message }) }
  }

  /**
   * Goes on although changes are missing, because a user who has read what it stopped at says so.
   * @returns the message of the failure that is accepted
   * @throws EngineError NO_GAP: it did not stop at missing changes
   */
  async acceptGap(): Promise<string> {
    const { database, state, log } = this.#options
    const { code, message, error } = this.lastError ?? {}
    const { slotConfirmed: slotAt, durable } = error instanceof EngineError ? error.context : {}
    const isYoung = code === 'PUBLICATION_TOO_YOUNG'
    const isMisfit = code === 'LOG_CHANGED' || code === 'LOG_WENT_BACK' || code === 'STATE_WENT_BACK'
    if (this.#state !== 'failed' || message === undefined || (!isMisfit && typeof slotAt !== 'string' && !isYoung))
      throw new EngineError('NO_GAP', `the source of "${this.#name}" is ${this.#state}: it has not stopped because changes are missing`)
    if (isMisfit) await acceptMemories(state, log, database.id)
    else if (isYoung) {
      const { name, publication } = database.slot
      const move = (query: Query) => moveToPublication(query, name, publication, parseLsn(String(durable)))
      await acceptGap(state, database.id, await withSession(database, move, MOVE_TIMEOUT_MS))
    } else await acceptGap(state, database.id, parseLsn(String(slotAt)))
    this.retry()
    return message
  }

  async stop(): Promise<void> {
    this.#actor.send({ type: 'stop' })
    await this.ended
  }

  /**
   * Writes the mark of a version that was saved, unless one has come back already; from any process: it holds for what commits from
   * then on.
   * @returns false: the source can't be reached now; it is tried again until the mark is written
   */
  mark(saved: SavedVersion): Promise<boolean> {
    return this.#marks.write(saved)
  }

  /** Checks, for the health of sinks, whether a saved version of the routing has not taken effect. */
  routingCheck(): HealthCheck | undefined {
    return this.#marks.check()
  }

  /** Tables that were emptied by TRUNCATE in the last day, for the health of a sink whose destination keeps documents of their rows. */
  truncationCheck(sinkId: string): HealthCheck | undefined {
    const lately = [...(this.#truncated.get(sinkId) ?? [])].filter(([, at]) => Date.now() - at.getTime() < TRUNCATION_TOLD_MS)
    if (lately.length === 0) return undefined
    const tables = lately.map(([table, at]) => `${table} (${at.toISOString()})`).join(', ')
    const message = `TRUNCATE emptied ${tables}, for which Postgres sends no deleted rows. The documents of these rows are still at the destination: delete them there`
    return { name: 'Sink configuration', status: 'notice', error: { code: 'table_truncated', message } }
  }

  /** Asks how the slot stands at its server. @throws EngineError SOURCE_UNREACHABLE, SOURCE_REFUSED, SLOT_MISSING */
  async slotState(): Promise<Omit<SlotState, 'secondsUntilLost'>> {
    const { database } = this.#options
    const { name } = database.slot
    const state = await (this.#run ? readSlotState(this.#run.query, name) : withSession(database, (query) => readSlotState(query, name)))
    if (!state) throw new EngineError('SLOT_MISSING', `there is no replication slot "${name}"`, { slot: name })
    return state
  }

  /** The slot as it stood some seconds ago; nothing while another process has the source. */
  get slot(): Readonly<{ state: SlotState | undefined; error: unknown }> {
    return this.standby ? { state: undefined, error: undefined } : this.#slot
  }

  /** How the database and its slot are; undefined: another process has the source, and says how it is. */
  sight(): DatabaseSight | undefined {
    if (this.standby) return undefined
    const { lastError } = this
    const { state: slot, error: slotError } = this.#slot
    const now = performance.now()
    const health = databaseHealth(this.#options.database, {
      state: this.#state,
      sinceMs: Date.now() - this.#since.getTime(),
      error: lastError,
      slot,
      slotError: slotError === undefined ? undefined : troubleOf(toSourceError(slotError, 'connecting')),
      seen: this.#sight.seen,
      heartbeatMs: this.#heartbeatAt === undefined ? undefined : now - this.#heartbeatAt,
    })
    return { health, slot: slot ?? null }
  }

  /** Asks again how the slot stands, and what the source is set up with, where this process has the source. */
  look(): void {
    this.#slot.ring()
    this.#sight.ring()
  }

  /** Also while it doesn't stream: it is then that a slot grows. */
  #askSlot(): Promise<Omit<SlotState, 'secondsUntilLost'>> | undefined {
    return this.#hasSource ? this.slotState() : undefined
  }

  get #hasSource(): boolean {
    return this.#run !== undefined || this.#state === 'waiting' || this.#state === 'failed'
  }

  /** Set while another process has the source: its holder, as far as it is known. */
  get standby(): Readonly<{ owner: string | undefined }> | undefined {
    return this.#state === 'locking' ? this.#standby : undefined
  }

  status(): ActorStatus {
    const { database, ingested, nameOf = String } = this.#options
    const { state: lag } = this.slot
    const owner = this.standby?.owner
    const { lastError } = this
    const figures = this.figures
    return {
      id: `source/${database.id}`,
      kind: 'source',
      name: this.#name,
      accountId: database.accountId,
      state: this.standby ? 'standby' : this.#state,
      since: this.#since,
      ...(lastError ? { lastError: { error: lastError.error, at: lastError.at } } : {}),
      details: {
        slot: database.slot.name,
        ...(ingested && { ingestedMessages: ingested() }),
        ...(lag && { slotConfirmedBytes: lag.confirmedBytes, slotRetainedBytes: lag.retainedBytes }),
        ...(this.#state === 'locking' && this.#lockHolder !== undefined ? { lockHeldByPid: this.#lockHolder } : {}),
        ...(owner === undefined ? {} : { heldBy: nameOf(owner) }),
        ...(figures
          ? {
              confirmedLsn: formatLsn(figures.confirmedLsn),
              durableLsn: formatLsn(figures.durableLsn),
              receivedLsn: formatLsn(figures.receivedLsn),
              unconfirmedBytes: bytesBetween(figures.confirmedLsn, figures.receivedLsn),
              bytesInFlight: figures.bytesInFlight,
              pausedMs: Math.round(figures.pausedMs),
              pauseCause: figures.pauseCauses.join('; ') || null,
              history: figures.history,
              routingVersion: figures.routingVersion,
              lastCommitAt: figures.lastCommitUs === 0 ? null : new Date(figures.lastCommitUs / 1000).toISOString(),
            }
          : {}),
        ...(this.#republishedAt ? { publicationRemadeAt: this.#republishedAt.toISOString() } : {}),
        ...(this.#phantoms > 0 ? { phantomMessages: this.#phantoms } : {}),
      },
    }
  }

  #work(): SourceWork<SourceLock, Plan> {
    const { database, state, log, holder } = this.#options
    const { name, publication } = database.slot
    return {
      acquireLock: async (signal) => {
        const onWaiting = (pid: number) => {
          if (pid === this.#ownSession) return
          this.#lockHolder = pid
          void this.#lookAtOwner()
          for (const listener of this.#standbyListeners) listener()
        }
        const lock = await SourceLock.acquire(
          { client: sourceClient(database.connection, `tailrace lock ${name}`), slot: name, onWaiting },
          signal,
        )
        this.#ownSession = lock.pid
        return lock
      },
      inspect: async (lock, signal) => {
        this.#lockHolder = undefined
        this.#standby = undefined
        await mustFitSource(state, log, database.id)
        const store = await SourceStore.takeOver(state, database.id, holder)
        await lock.terminateLeftover(signal)
        const saved = await store.load()
        return { store, saved, slot: judgeSlot(await readSlotFacts(lock.query, name, publication), name, publication, saved.confirmed) }
      },
      stream: (input, signal) => this.#stream(input, signal),
    }
  }

  /** Who holds the term: asked seldom, for the lock is tried twice a second. */
  async #lookAtOwner(): Promise<void> {
    const standby = (this.#standby ??= { owner: undefined, lookedAt: -Infinity })
    if (performance.now() - standby.lookedAt < OWNER_EVERY_MS) return
    standby.lookedAt = performance.now()
    const { state, database, onStandby } = this.#options
    const owner = await SourceStore.owner(state, database.id).catch(() => undefined)
    if (owner === undefined || owner === standby.owner) return
    standby.owner = owner
    if (this.#standby !== standby) return
    this.#marks.streams() // of what this process saved before it knew that its own run would not write the marks
    onStandby?.(owner)
  }

  async #stream({ lock, plan, drain, opened, progressed }: StreamInput<SourceLock, Plan>, signal: AbortSignal): Promise<void> {
    const { database, log, settings, observer = {}, backfills } = this.#options
    await backfills?.prepare()
    const run = await SourceRun.open({
      database,
      log,
      lock,
      ...plan,
      gate: this.gate,
      shedding: this.shedding,
      settings: { ...SOURCE_DEFAULTS, ...settings },
      observer: {
        ...observer,
        republished: (exists) => {
          this.#republishedAt = new Date()
          observer.republished?.(exists)
          const { publication } = database.slot
          const what = exists ? 'was dropped and created again' : 'has been dropped'
          observer.notice?.(
            `publication "${publication}" ${what}: changes that its tables get while there is no publication are missing. ${exists ? 'T' : 'Create it again, then t'}ouch the rows of its tables by an UPDATE`,
          )
        },
        phantoms: (from, messages) => {
          this.#phantoms += messages
          observer.phantoms?.(from, messages)
        },
        truncated: (table, sinkIds) => {
          for (const id of sinkIds) this.#truncated.set(id, (this.#truncated.get(id) ?? new Map<string, Date>()).set(table, new Date()))
          observer.truncated?.(table, sinkIds)
        },
      },
      ...backfills?.hooks,
      marks: new Map([...(backfills?.hooks.marks ?? []), [HEARTBEAT, () => (this.#heartbeatAt = performance.now())]]),
      progressed: () => {
        progressed()
        backfills?.progressed()
      },
    })
    this.#run = run
    this.#heartbeatAt = undefined
    opened()
    backfills?.begin(run, plan.store.term)
    this.#marks.streams()
    const cut = () => void run.stop()
    const finish = () => void run.drain()
    signal.addEventListener('abort', cut)
    drain.addEventListener('abort', finish)
    if (signal.aborted) cut()
    else if (drain.aborted) finish()
    const error = await run.ended
    backfills?.end()
    this.#figures = run.figures
    this.#run = undefined
    await run.stop() // until what is open has settled
    signal.removeEventListener('abort', cut)
    drain.removeEventListener('abort', finish)
    if (error) throw error
  }
}

async function withSession<T>(database: Database, work: (query: Query) => Promise<T>, timeoutMs = SESSION_TIMEOUT_MS): Promise<T> {
  const client = new Client({
    ...sourceClient(database.connection, `tailrace ${database.slot.name}`, WRITES_LOCALLY),
    query_timeout: timeoutMs,
  })
  client.on('error', () => undefined) // the query hears of it
  try {
    await client.connect()
    return await work((sql, params) => client.query<Record<string, unknown>>(sql, params && [...params]))
  } finally {
    await client.end().catch(() => undefined)
  }
}

const stateOf = (value: StateValueFrom<typeof sourceMachine>): SourceState =>
  typeof value === 'string' ? value : value.streaming === 'opening' ? 'opening' : 'streaming'

const bytesBetween = (from: Lsn, to: Lsn): number => (to > from ? Number(to - from) : 0)
