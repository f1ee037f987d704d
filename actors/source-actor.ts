/** The source of one database at work: its machine with the real lock, inspection and run behind it, and how it is. */
import { createActor, type ActorRefFrom } from 'xstate'
import { EngineError } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import { formatLsn, type Lsn } from '../engine/lsn.ts'
import type { Database, RoutedSink, RoutingVersion } from '../engine/state/resources.ts'
import type { KeyWatcher, MarkHandler } from '../engine/wal/change-packer.ts'
import { ReadingGate } from '../engine/wal/gate.ts'
import { emitRoutingMark, saveRoutingVersion } from '../engine/wal/routing-versions.ts'
import { SourceRun, SOURCE_DEFAULTS, type SourceFigures, type SourceObserver, type SourceSettings } from '../engine/wal/run.ts'
import { judgeSlot, readSlotFacts, readSlotLag, type FitSlot, type Query, type SlotLag } from '../engine/wal/slot.ts'
import { sourceClient } from '../engine/wal/source-client.ts'
import { SourceLock } from '../engine/wal/source-lock.ts'
import { SourceStore, type SavedSource } from '../engine/wal/source-store.ts'
import { sourceMachine, type SourceFailure, type SourceWork } from './source.ts'
import type { ActorStatus } from './status.ts'
import type { Running } from './supervised.ts'

export type SourceActorOptions = Readonly<{
  database: Database
  log: Log
  /** queries on the state database */
  state: Query
  /** names this process to others, in the table of terms */
  holder: string
  settings?: Partial<SourceSettings>
  observer?: SourceObserver
  /** held by sinks that can take no more */
  gate?: ReadingGate
  marks?: ReadonlyMap<string, MarkHandler>
  watcher?: KeyWatcher
}>

type Plan = Readonly<{ store: SourceStore; saved: SavedSource; slot: FitSlot }>
export type SourceState = 'locking' | 'inspecting' | 'streaming' | 'waiting' | 'failed' | 'stopping' | 'stopped'

export class SourceActor implements Running {
  readonly gate: ReadingGate
  readonly #options: SourceActorOptions
  readonly #actor: ActorRefFrom<typeof sourceMachine>
  readonly #ended = Promise.withResolvers<void>()
  readonly #listeners = new Set<(state: SourceState) => void>()
  #run: SourceRun | undefined
  #figures: SourceFigures | undefined
  #since = new Date()
  #state: SourceState = 'locking'
  #lockHolder: number | undefined
  #phantoms = 0

  constructor(options: SourceActorOptions) {
    this.#options = options
    this.gate = options.gate ?? new ReadingGate()
    // the machine knows neither lock nor plan: both come from this work and go back to it
    this.#actor = createActor(sourceMachine, { input: { work: this.#work() as unknown as SourceWork } })
    this.#actor.subscribe((snapshot) => {
      const state = (typeof snapshot.value === 'string' ? snapshot.value : Object.keys(snapshot.value)[0]) as SourceState
      if (state !== this.#state) {
        this.#state = state
        this.#since = new Date()
        for (const listener of this.#listeners) listener(state)
      }
      if (state === 'stopped') this.#ended.resolve()
    })
    this.#actor.start()
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

  /** Of the current run, or the last one; undefined before the first. */
  get figures(): SourceFigures | undefined {
    return (this.#figures = this.#run?.figures ?? this.#figures)
  }

  /** Calls back at each change of state. @returns ends the subscription */
  watch(listener: (state: SourceState) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Another try after a failure that a user has mended, or at once instead of waiting. */
  retry(): void {
    this.#actor.send({ type: 'retry' })
  }

  async stop(): Promise<void> {
    this.#actor.send({ type: 'stop' })
    await this.ended
  }

  /**
   * Saves what goes where and writes its mark. While the source doesn't stream, the mark is written when it next does.
   * @throws EngineError SOURCE_UNREACHABLE: the version is saved, and its mark is written with the next start
   */
  async route(sinks: readonly RoutedSink[]): Promise<RoutingVersion> {
    const version = await saveRoutingVersion(this.#options.state, this.#options.database.id, sinks)
    if (version.isNew && this.#run) await emitRoutingMark(this.#run.query, version)
    return version
  }

  /** How far the slot is behind the server's log, in bytes. @throws EngineError SOURCE_UNREACHABLE: it doesn't stream */
  async slotLag(): Promise<SlotLag> {
    if (!this.#run) throw new EngineError('SOURCE_UNREACHABLE', 'the source does not stream')
    return readSlotLag(this.#run.query, this.#options.database.slot.name)
  }

  status(): ActorStatus {
    const { database } = this.#options
    const { lastError } = this
    const figures = this.figures
    return {
      id: `source/${database.id}`,
      kind: 'source',
      name: database.name,
      accountId: database.accountId,
      state: this.#state,
      since: this.#since,
      ...(lastError ? { lastError: { error: lastError.error, at: lastError.at } } : {}),
      details: {
        slot: database.slot.name,
        ...(this.#state === 'locking' && this.#lockHolder !== undefined ? { lockHeldByPid: this.#lockHolder } : {}),
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
        ...(this.#phantoms > 0 ? { phantomMessages: this.#phantoms } : {}),
      },
    }
  }

  #work(): SourceWork<SourceLock, Plan> {
    const { database, state, log, holder } = this.#options
    const { name, publication } = database.slot
    return {
      acquireLock: (signal) =>
        SourceLock.acquire(
          {
            client: sourceClient(database.connection, `tailrace lock ${name}`),
            slot: name,
            onWaiting: (pid) => (this.#lockHolder = pid),
          },
          signal,
        ),
      inspect: async (lock, signal) => {
        this.#lockHolder = undefined
        const store = await SourceStore.takeOver(state, database.id, holder)
        await lock.terminateLeftover(signal)
        const saved = await store.load()
        if (saved.logIdentity !== undefined && saved.logIdentity !== log.identity)
          throw logChanged(database, saved.logIdentity, log.identity)
        return { store, saved, slot: judgeSlot(await readSlotFacts(lock.query, name, publication), name, publication, saved.confirmed) }
      },
      stream: (input, signal) => this.#stream(input, signal),
    }
  }

  async #stream(
    { lock, plan, drain, progressed }: Readonly<{ lock: SourceLock; plan: Plan; drain: AbortSignal; progressed: () => void }>,
    signal: AbortSignal,
  ): Promise<void> {
    const { database, log, settings, observer = {}, marks, watcher } = this.#options
    const run = await SourceRun.open({
      database,
      log,
      lock,
      ...plan,
      gate: this.gate,
      settings: { ...SOURCE_DEFAULTS, ...settings },
      observer: {
        ...observer,
        phantoms: (from, messages) => {
          this.#phantoms += messages
          observer.phantoms?.(from, messages)
        },
      },
      marks,
      watcher,
      progressed,
    })
    this.#run = run
    const cut = () => void run.stop()
    const finish = () => void run.drain()
    signal.addEventListener('abort', cut)
    drain.addEventListener('abort', finish)
    if (signal.aborted) cut()
    else if (drain.aborted) finish()
    const error = await run.ended
    this.#figures = run.figures
    this.#run = undefined
    await run.stop() // until what is open has settled
    signal.removeEventListener('abort', cut)
    drain.removeEventListener('abort', finish)
    if (error) throw error
  }
}

const bytesBetween = (from: Lsn, to: Lsn): number => (to > from ? Number(to - from) : 0)

const logChanged = (database: Database, saved: string, found: string): EngineError =>
  new EngineError(
    'LOG_CHANGED',
    `the source "${database.name}" has been writing to log ${saved}, this is log ${found}: what the former one holds undelivered is not in it. ` +
      `To go on without it, run in the state database: update tailrace.source set log_identity = '${found}' where database_id = '${database.id}'; then backfill the tables`,
    { database: database.name, saved, found },
  )
