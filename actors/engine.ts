/**
 * The running engine: puts every stored sink and source under the supervisor and carries changes of the resources to
 * the actors as events. What the API asks for is answered from memory.
 *
 * An edit of a sink takes three steps: stored, told to its actor (which restarts nothing), and, when it changes what
 * the sink is to receive, put into a new routing version that takes effect where its mark stands in the source's log. An
 * edit of what decides the stream that it reads begins another generation, which is delivered after the former one.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { createActor, waitFor, type ActorRefFrom } from 'xstate'
import { MB } from '../engine/amounts.ts'
import type { FunctionPool } from '../transforms/sandbox/pool.ts'
import type { FunctionStage } from '../transforms/stage.ts'
import {
  messageRecord,
  messageRecords,
  type MessagePage,
  type MessageRecord,
  type MessagesAsked,
} from '../engine/dispatch/parked/message-records.ts'
import { StoredGenerations } from '../engine/dispatch/generations.ts'
import { READ_MEMORY_BYTES, ReadMemory } from '../engine/dispatch/read-memory.ts'
import type { ReplayTarget } from '../engine/dispatch/replay/replay-plan.ts'
import type { BackfillLimits } from '../engine/backfill/backfill-limits.ts'
import { EngineError } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Metrics } from '../engine/metrics.ts'
import type { NodeRegistry } from '../engine/state/node-registry.ts'
import type { RunningBackfill } from '../engine/state/backfills.ts'
import type { ResourceCache } from '../engine/state/resource-cache.ts'
import { NO_RESOURCES, type ResourceLists, type ResourceStore, type Resources } from '../engine/state/resource-store.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { HttpEndpoint } from '../engine/state/destinations.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { takesTable } from '../engine/state/source-filter.ts'
import type { Store } from '../engine/state/store.ts'
import type { TokenMemory } from '../engine/state/token-memory.ts'
import type { SavedVersion } from '../engine/wal/routing/stored-versions.ts'
import { SOURCE_DEFAULTS, type SourceSettings } from '../engine/wal/source-settings.ts'
import { Backlogs } from './backlog/backlogs.ts'
import { BackfillEdits } from './resources/backfill-edits.ts'
import { beginSink, type SinkHome } from './begin-sink.ts'
import { beginSource, type SourceHome } from './source/begin-source.ts'
import { OldTopicsSweep } from './old-topics-sweep.ts'
import type { DeliveringSink } from './source/sink-room.ts'
import { FailedBackfills } from './source/failed-backfills.ts'
import { PublicationWatch } from './source/publication-watch.ts'
import { readinessOf, type Readiness } from './readiness.ts'
import { Replays, type Holder, type Replayed } from './sink/replays.ts'
import { changesBetween } from './resource-changes.ts'
import { SourceRoutings } from './source-routings.ts'
import { StreamTrimming } from './stream-trimming.ts'
import { RecentMessages, type RecentAsked, type RecentMessage } from './recent-messages.ts'
import { shownMessage, type MessageLook, type ShownMessage } from './shown-message.ts'
import { SinkFunctions } from './sink/sink-functions.ts'
import { verify, type Verified, type VerifyAsked } from './sink/sink-verification.ts'
import { tailOf, type TailAsked, type TailPage } from './sink/sink-tail.ts'
import type { SourceOutcome } from './source/source-actor.ts'
import type { EditedMessages, EditOfMessages, HeldSink, PulledSink } from './sink/running-sink.ts'
import type { SinkHost } from './sink/sink-host.ts'
import {
  worst,
  type ActorStatus,
  type BackfillStatus,
  type DatabaseSight,
  type Health,
  type HealthCheck,
  type StreamStatus,
} from '../engine/status.ts'
import type { Child, Running } from './supervised.ts'
import { MessageTraces } from './tracing/message-traces.ts'
import type { Tracing } from '../engine/telemetry/span.ts'
import { supervisorMachine } from './supervisor.ts'
import { isKeyed } from '../sinks/destination-types.ts'
import { isUnsupported, unsupportedWords } from '../sinks/unsupported-types.ts'
import { testConnection, testEndpoint } from './push/connection-test.ts'

/** Holds what the engine of a process is made of. */
type EngineOptions = Readonly<{
  store: Store
  resources: ResourceStore
  cache: ResourceCache
  log: Log
  metrics: Metrics
  logger: Logger
  /** what runs functions; it is stopped after the engine, by the code that made it */
  functions: FunctionPool
  /** the API tokens, which are read apart from the resources */
  tokens: Pick<TokenMemory, 'load'>
  /** where sinks may send */
  egress: Egress
  /** this process among those that share the state database: owners are recorded by its id */
  nodes: Pick<NodeRegistry, 'id' | 'live' | 'nameOf'>
  /** what sources are set to, where it is not as usual */
  source?: Partial<SourceSettings>
  /** absent: nothing is traced */
  tracing?: Tracing | undefined
  /** what backfills may ask of sources, where it is not as usual */
  backfillLimits?: Partial<BackfillLimits>
}>

const ROUNDS_END_MS = 5_000

/** The calls that a process passes to its own engine when another process of the cluster makes them. */
export type LocalEngine = Omit<Engine, 'start' | 'stop' | 'appliedPrint'>
/** The calls that the API makes to an engine, which serves one process or a whole cluster. */
export type EngineVerbs = Omit<LocalEngine, 'among' | 'holdSink' | 'releaseSink' | 'ownersChanged' | 'loadTokens'>

/** Runs the sources and sinks of this process, and answers what is asked of them. */
export class Engine {
  readonly #options: EngineOptions
  readonly #supervisor: ActorRefFrom<typeof supervisorMachine>
  readonly #sinks = new Map<string, SinkHost>()
  readonly #sources = new Map<string, ReturnType<typeof beginSource>>()
  readonly #oldTopics: OldTopicsSweep
  readonly #trimming: StreamTrimming
  readonly #routings: SourceRoutings
  readonly #replays: Replays
  readonly #backfills: BackfillEdits
  readonly #publications: PublicationWatch
  readonly #failedBackfills: FailedBackfills
  readonly #functions: SinkFunctions
  readonly #recent = new RecentMessages()
  readonly #memory = new ReadMemory(READ_MEMORY_BYTES)
  #backlogs: Backlogs | undefined
  /** the resources that have taken effect here */
  #applied: ResourceLists = NO_RESOURCES
  #appliedPrint: string | undefined
  #appliedBackfills: readonly RunningBackfill[] | undefined
  #applying: Promise<void> = Promise.resolve()
  #nextReload: Promise<void> | undefined
  /** of a sink, the other processes that live */
  #peers: (sinkId: string) => readonly Holder[] = () => []

  constructor(options: EngineOptions) {
    this.#options = options
    this.#functions = new SinkFunctions(options.functions, () => options.cache.functions)
    this.#oldTopics = new OldTopicsSweep({ query: options.store.query, log: options.log, logger: options.logger })
    this.#trimming = new StreamTrimming({
      query: options.store.query,
      log: options.log,
      holder: options.nodes.id,
      logger: options.logger,
      transaction: (work) => options.store.transaction(work),
      whileStopped: (sinkId, work) => this.#replays.whileStopped(sinkId, () => this.#holders(sinkId), work),
      copied: () => this.#oldTopics.ring(),
    })
    this.#routings = new SourceRoutings({
      ...options,
      inTurn: (work) => this.#inTurn(work),
      mark: (databaseId, saved) => this.#sources.get(databaseId)?.mark(saved),
    })
    this.#failedBackfills = new FailedBackfills(options.store.query)
    this.#publications = new PublicationWatch(() => options.cache, options.logger)
    this.#replays = new Replays({ store: options.store, log: options.log, logger: options.logger })
    this.#backfills = new BackfillEdits({ store: options.store, resources: options.resources, takeIn: () => this.reload() })
    this.#supervisor = createActor(supervisorMachine, {
      input: { onCrash: (child, err) => options.logger.error({ actor: child.key, err }, 'an actor failed and will be started again') },
    })
  }

  async start(): Promise<void> {
    this.#supervisor.start()
    await this.#apply({ ...this.#options.cache })
    const { cache, log, store, logger } = this.#options
    this.#backlogs = new Backlogs({ cache, log, query: store.query, logger, sourceOf: (id) => this.#sources.get(id) })
    this.#oldTopics.start()
    this.#trimming.start()
    this.#publications.start()
    this.#failedBackfills.start()
  }

  /** Sources first, then sinks: what was appended last can still be committed. */
  async stop(): Promise<void> {
    await this.#backlogs?.[Symbol.asyncDispose]()
    this.#routings[Symbol.dispose]()
    this.#oldTopics[Symbol.dispose]()
    this.#trimming[Symbol.dispose]()
    this.#publications[Symbol.dispose]()
    this.#failedBackfills[Symbol.dispose]()
    this.#supervisor.send({ type: 'stop' })
    await waitFor(this.#supervisor, (snapshot) => snapshot.status === 'done', { timeout: Infinity })
    await this.#functions.close()
    // what works on the log has to be done with it before it is closed, but nothing of it is worth a stop that lasts
    await Promise.race([Promise.all([this.#oldTopics.ended, this.#trimming.ended]), delay(ROUNDS_END_MS, undefined, { ref: false })])
  }

  /** @returns undefined: no actor of that pull sink runs here at the moment */
  sink(id: string): PulledSink | undefined {
    return this.#sinks.get(id)?.transport.pulled
  }

  /** Tells how these sinks are; one that does not run is left out. */
  async sinkHealth(ids: readonly string[]): Promise<Readonly<Record<string, Health>>> {
    return Object.fromEntries(
      ids.flatMap((id) => {
        const running = this.#sinks.get(id)
        return running ? [[id, this.#health(id, running)]] : []
      }),
    )
  }

  /** Tells how these databases are; one whose source another process has is left out. */
  async databaseSights(ids: readonly string[]): Promise<Readonly<Record<string, DatabaseSight>>> {
    return Object.fromEntries(
      ids.flatMap((id) => {
        const sight = this.#sources.get(id)?.sight()
        return sight ? [[id, sight]] : []
      }),
    )
  }

  /** Looks again at what a database is set up with, and how its slot stands. */
  async lookAtDatabase(id: string): Promise<void> {
    this.#sources.get(id)?.look()
  }

  /** Tells by their ids why active backfills of these sinks stand still, as far as they are read here. */
  async waitingBackfills(sinkIds: readonly string[]): Promise<Readonly<Record<string, string>>> {
    const held = this.#backfillStatuses().filter(({ sinkId, state }) => sinkIds.includes(sinkId) && state !== 'reading')
    return Object.fromEntries(held.map((each) => [each.id, waitsFor(each)]))
  }

  #backfillStatuses(): readonly BackfillStatus[] {
    return [...this.#sources.values()].flatMap((source) => source.backfills.statuses)
  }

  actors(): readonly ActorStatus[] {
    return [...this.#sources.values(), ...this.#sinks.values()]
      .map((actor) => actor.status())
      .concat(this.#backfillStatuses().map((each) => this.#backfillActor(each)))
  }

  /** Each stream with its readers and the bytes that it takes, as this process looked at them some seconds ago. */
  streams(): readonly StreamStatus[] {
    const { cache } = this.#options
    return (this.#backlogs?.figures.streams ?? []).flatMap((stream) => {
      const database = cache.database(stream.databaseId)
      if (!database) return []
      const readers = stream.readers.flatMap((reader) => {
        const sink = cache.sink(reader.sinkId)
        return sink ? [{ ...reader, sink: sink.name, status: sink.status }] : []
      })
      return [{ ...stream, accountId: database.accountId, database: database.name, readers }]
    })
  }

  ready(): Readiness {
    return readinessOf(this.#options.cache.databases, this.#sources, this.#options.nodes)
  }

  /** Tries what a delivery needs. @returns what is wrong, in the destination's own words; undefined: nothing */
  async testSink(sink: Sink): Promise<string | undefined> {
    const { cache, egress } = this.#options
    return testConnection({
      sink,
      database: this.#database(sink.databaseId),
      egress,
      endpoint: cache.endpointOf(sink),
      target: cache.targetOf(sink),
    })
  }
  /** Lists messages that wait outside the log or were discarded. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID */
  messages(sinkId: string, asked: MessagesAsked): Promise<MessagePage> {
    return messageRecords(this.#options.store.query, sinkId, asked)
  }
  /** Lists the newest messages that this process has delivered, newest first. */
  async delivered(sinkId: string, { limit }: Readonly<{ limit: number }>): Promise<readonly MessageRecord[]> {
    return this.#sinks.get(sinkId)?.delivered.list(limit) ?? []
  }
  /** Shows one message that waits, was discarded, or was delivered here. @throws EngineError STATE_UNAVAILABLE */
  async message(sinkId: string, { id, withFunctions }: MessageLook): Promise<ShownMessage | undefined> {
    const found = (await messageRecord(this.#options.store.query, sinkId, id)) ?? this.#sinks.get(sinkId)?.delivered.find(id)
    if (!found) return undefined
    const sink = this.#sinkNow(sinkId)
    const database = this.#database(sink.databaseId)
    return shownMessage(found, sink, database, withFunctions ? (work) => this.#functions.tried(sink, database, work) : undefined)
  }
  /** Looks at what comes to a sink: reads the log beside it. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID, SANDBOX_UNAVAILABLE */
  tail(sinkId: string, asked: TailAsked): Promise<TailPage> {
    const sink = this.#sinkNow(sinkId)
    const database = this.#database(sink.databaseId)
    const { log, store } = this.#options
    const generations = new StoredGenerations({ sinkId, log, query: store.query, ackWaitMs: () => sink.ack_wait_ms })
    const tried = <T>(work: (stage: FunctionStage) => Promise<T>) => this.#functions.tried(sink, database, work)
    return tailOf({ sink, database, log, query: store.query, generations, tried }, asked)
  }
  /** Compares rows with what the destination of a sink has. @throws EngineError VALIDATION_FAILED, BACKFILL_REFUSED, DESTINATION_…, SOURCE_… */
  async verify(sinkId: string, asked: VerifyAsked): Promise<Verified> {
    const sink = this.#sinkNow(sinkId)
    const database = this.#database(sink.databaseId)
    const { log, store, egress, source } = this.#options
    const tried = <T>(work: (stage: FunctionStage) => Promise<T>) => this.#functions.tried(sink, database, work)
    const maxMessageBytes = source?.maxMessageBytes ?? SOURCE_DEFAULTS.maxMessageBytes
    return verify({ sink, database, log, state: store.query, egress, maxMessageBytes, tried }, asked)
  }
  /** The last messages that sinks have read here, oldest first; none of sensitive sinks. */
  async recent(asked: RecentAsked): Promise<readonly RecentMessage[]> {
    return this.#recent.of(asked, this.#options.cache.sinks)
  }
  /**
   * Redelivers, acknowledges or discards messages, as far as the owners of their partitions live here. @throws EngineError
   * STATE_UNAVAILABLE
   */
  async editMessages(sinkId: string, { edit, choice }: EditOfMessages): Promise<EditedMessages> {
    return (await this.#sinks.get(sinkId)?.edit(edit, choice)) ?? { known: 0, served: 0, edited: 0 }
  }
  async testEndpoint(endpoint: HttpEndpoint): Promise<string | undefined> {
    return testEndpoint(endpoint, this.#options.egress)
  }

  /**
   * Sets a sink back: what came since then comes again.
   * @throws EngineError NOT_FOUND, REPLAY_OUT_OF_WINDOW, REPLAY_RUNNING, VALIDATION_FAILED, SINK_NOT_RUNNING, …
   */
  replay(sinkId: string, target: ReplayTarget): Promise<Replayed> {
    return this.#replays.replay(this.#sinkNow(sinkId), target, () => this.#holders(sinkId))
  }

  /** Says which other processes are asked to stop what they serve of a sink. */
  among(peers: (sinkId: string) => readonly Holder[]): void {
    this.#peers = peers
  }

  /** @see SinkHost.hold */
  async holdSink(sinkId: string, by: string): Promise<HeldSink> {
    const running = this.#sinks.get(sinkId)
    if (!running) throw new EngineError('SINK_NOT_RUNNING', 'the sink does not run on this node')
    return running.hold(by)
  }

  async releaseSink(sinkId: string, by: string): Promise<void> {
    await this.#sinks.get(sinkId)?.release(by)
  }

  /** @see SinkHost.ownersChanged */
  ownersChanged(sinkId?: string): void {
    for (const sink of sinkId === undefined ? this.#sinks.values() : [this.#sinks.get(sinkId)]) sink?.ownersChanged()
  }

  /**
   * Settles when what the state database holds at this moment has taken effect here; callers that come while one waits
   * for its turn share it. What fails is tried again by the next one, and touches nothing else.
   * @param stored what that is known to be, unless something was read since; absent: it is read
   */
  async reload(stored?: Resources): Promise<void> {
    const { cache, resources, store } = this.#options
    const take = async (newest: Resources) => {
      cache.replace(newest)
      await this.#apply(newest)
    }
    let isTaken = false
    if (stored)
      await this.#inTurn(async () => {
        isTaken = resources.isNewest(stored)
        if (isTaken) await take(stored)
      })
    if (isTaken) return
    this.#nextReload ??= this.#inTurn(async () => {
      this.#nextReload = undefined // a later caller may have stored something that this reading misses
      await take(await resources.load(store.query))
    })
    await this.#nextReload
  }

  /** Settles when the API tokens that are stored at this moment are those that work here. */
  loadTokens(): Promise<void> {
    return this.#options.tokens.load()
  }

  /** Names the state of the resources that has taken effect here last; undefined: none has. */
  get appliedPrint(): string | undefined {
    return this.#appliedPrint
  }

  /** A source that has given up, or waits, tries again at once. @returns how it is then, at the latest after `wait_ms` */
  async retrySource(databaseId: string, { wait_ms }: Readonly<{ wait_ms: number }>): Promise<SourceOutcome> {
    return (await this.#sources.get(databaseId)?.tryAgain(wait_ms)) ?? { state: 'stopped' }
  }

  /** Lets a source that stopped at missing changes go on without them. @returns what it had stopped at
   *  @throws EngineError NO_GAP: the source has not stopped at missing changes, or does not run here */
  async acceptGap(databaseId: string): Promise<Readonly<{ accepted: string }>> {
    const source = this.#sources.get(databaseId)
    if (!source) throw new EngineError('NO_GAP', 'the source does not run on this node')
    const accepted = await source.acceptGap()
    const database = this.#database(databaseId)
    this.#options.logger.warn({ database: database.name, accepted }, 'a gap was accepted')
    // its sinks may go on, and look sooner than by themselves
    for (const sink of this.#options.cache.sinks) if (sink.databaseId === databaseId) this.#sinks.get(sink.id)?.update(sink, database)
    return { accepted }
  }

  /** One at a time, so that an older reading never replaces a newer one. */
  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#applying.then(work)
    this.#applying = turn.catch(() => undefined)
    return turn
  }

  async #apply(now: Resources): Promise<void> {
    if (now.print === this.#appliedPrint) return
    const changes = changesBetween(this.#applied, now)
    for (const sink of changes.editedSinks) this.#sinks.get(sink.id)?.update(sink, this.#database(sink.databaseId))
    const versions = new Map<string, SavedVersion>()
    for (const { id } of changes.rerouted) versions.set(id, await this.#routings.save(id))
    for (const sink of changes.newSinks) this.#superviseSink(sink)
    for (const id of changes.endedSources) await this.#dismiss(`source/${id}`)
    for (const database of changes.begunSources) this.#superviseSource(database)
    for (const { id, name } of changes.renamedSources) this.#sources.get(id)?.rename(name)
    const marks = [...versions].map(([id, version]) => this.#sources.get(id)?.mark(version))
    for (const id of changes.goneSinks) await this.#dismiss(`sink/${id}`)
    if (changes.goneSinks.length > 0) this.#oldTopics.ring()
    await Promise.all(marks)
    for (const source of this.#sources.values()) source.backfills.look()
    if (now.backfills !== this.#appliedBackfills) this.#failedBackfills.ring()
    this.#applied = now
    this.#appliedPrint = now.print
    this.#appliedBackfills = now.backfills
    if (changes.reselected) this.#publications.ring() // it asks each source on a session of its own
  }

  async #dismiss(key: string): Promise<void> {
    this.#supervisor.send({ type: 'dismiss', key })
    await waitFor(this.#supervisor, ({ context }) => !context.children.has(key), { timeout: Infinity })
  }

  #superviseSink({ id, name }: Sink): void {
    this.#supervise('sink', id, this.#sinks, () => {
      const sink = this.#sinkNow(id)
      const meter = this.#options.metrics.sink({ id, name }, () => {
        const current = this.#sinks.get(id)
        if (!current) return undefined
        const { max_memory_mb: maxMemoryMb } = this.#sinkNow(id)
        const { status: health } = this.#health(id, current)
        return { status: current.status(), health, maxMemoryMb, dropped: this.#backlogs?.dropped(id) ?? 0 }
      })
      const database = this.#database(sink.databaseId)
      return { meter, actor: beginSink(sink, database, meter, { ...this.#sinkHome(), traces: this.#tracesOf(database) }) }
    })
  }

  #superviseSource(database: Database): void {
    const { id: databaseId, slot } = database
    const nameNow = () => this.#options.cache.database(databaseId)?.name ?? database.name
    this.#supervise('source', databaseId, this.#sources, () => {
      const labels = {
        ...{ slotId: slot.id, slotName: slot.name, databaseId },
        get databaseName() {
          return nameNow()
        },
      }
      const meter = this.#options.metrics.source(labels, () => {
        const current = this.#sources.get(databaseId)
        if (!current) return undefined
        const { figures, slot: found, state, standby } = current
        const streams = this.streams().filter((stream) => stream.databaseId === databaseId)
        return { state: standby ? 'standby' : state, figures, slot: found, streams, backfills: current.backfills.statuses }
      })
      const home = { ...this.#sourceHome(databaseId), traces: this.#tracesOf(database) }
      return { meter, actor: beginSource({ ...database, name: nameNow() }, meter, home) }
    })
  }

  /** Keeps an actor alive under its id: another one begins when it has failed. */
  #supervise<T extends Running>(
    kind: Child['kind'],
    id: string,
    actors: Map<string, T>,
    begin: () => Readonly<{ actor: T; meter: Disposable }>,
  ): void {
    const start = async (): Promise<Running> => {
      const { actor, meter } = begin()
      actors.set(id, actor)
      const ended = actor.ended.finally(() => {
        actors.delete(id)
        meter[Symbol.dispose]()
      })
      return { ended, stop: () => actor.stop() }
    }
    this.#supervisor.send({ type: 'supervise', child: { key: `${kind}/${id}`, kind, start } })
  }

  #tracesOf(database: Database): MessageTraces | undefined {
    const { tracing } = this.#options
    return tracing && new MessageTraces(tracing, database)
  }

  #sinkHome(): SinkHome {
    return {
      ...this.#options,
      functions: this.#functions,
      recent: this.#recent,
      memory: this.#memory,
      sinkNow: (id) => this.#sinkNow(id),
      generationEnded: () => this.#oldTopics.ring(),
    }
  }

  #backfillActor({ id, table, sinkId, state, cause, since, lastError, rows, processed, ingested }: BackfillStatus): ActorStatus {
    const sink = this.#options.cache.sink(sinkId)
    return {
      id: `backfill/${id}`,
      kind: 'backfill',
      name: table,
      ...(sink && { accountId: sink.accountId }),
      state,
      since,
      ...(lastError && { lastError }),
      details: { sink: sink?.name ?? null, cause: cause ?? null, rows: rows ?? null, rowsRead: processed, rowsAdded: ingested },
    }
  }

  #sourceHome(databaseId: string): SourceHome {
    return {
      ...this.#options,
      backfills: {
        running: () => this.#runningBackfills(databaseId),
        takes: ({ sinkId, table }) => {
          const sink = this.#options.cache.sink(sinkId)
          return sink === undefined || takesTable(sink.source, table.slice(0, table.indexOf('.')), table)
        },
        ended: async (end) => {
          const sink = this.#options.cache.sink(end.sinkId)
          return sink !== undefined && (await this.#backfills.end(sink, end))
        },
        sink: (id) => this.#deliveringSink(id),
      },
      streaming: () => this.#publications.ring(),
      routed: () => {
        for (const sink of this.#options.cache.sinks) if (sink.databaseId === databaseId) this.#sinks.get(sink.id)?.routed()
      },
    }
  }

  #runningBackfills(databaseId: string): readonly RunningBackfill[] {
    const { sinks, backfills } = this.#options.cache
    const own = new Set(sinks.filter((sink) => sink.databaseId === databaseId && sink.status !== 'disabled').map(({ id }) => id))
    return backfills.filter(({ sinkId }) => own.has(sinkId))
  }

  /** A sink that runs here may be started anew: it is looked up each time. */
  #deliveringSink(id: string): DeliveringSink | undefined {
    const sink = this.#options.cache.sink(id)
    const running = this.#sinks.get(id)
    return (
      sink && {
        isPaused: sink.status === 'paused',
        maxBacklogBytes: sink.max_backlog_mb * MB,
        handedOut: running?.handedOut ?? 0,
        served: (topic) => running?.queueOf(topic) ?? [],
        watch: (listener) => running?.watchQueue(listener) ?? (() => undefined),
      }
    )
  }

  #health(id: string, running: SinkHost): Health {
    const sink = this.#sinkNow(id)
    const source = this.#sources.get(sink.databaseId)
    const published = this.#publications.check(id)
    const truncated = isKeyed(sink.destination) && published.error === undefined ? source?.truncationCheck(id) : undefined
    const configuration = unsupportedCheck(sink) ?? this.#functions.check(sink) ?? source?.routingCheck() ?? truncated ?? published
    const unknown = this.#oldTopics.check()
    const backfills = [...(source?.backfills.checks(id) ?? []), ...this.#failedBackfills.checks(id)]
    const checks = [
      configuration,
      ...running.health(),
      ...(this.#backlogs?.checks(sink) ?? []),
      ...backfills,
      ...(unknown ? [unknown] : []),
    ]
    return { name: 'Consumer health', status: worst(checks), checks }
  }

  /** The processes that may serve partitions of a sink. */
  #holders(sinkId: string): readonly Holder[] {
    const own: Holder = {
      id: this.#options.nodes.id,
      hold: (by) => this.holdSink(sinkId, by),
      release: (by) => this.releaseSink(sinkId, by),
    }
    return [own, ...this.#peers(sinkId)]
  }

  #sinkNow(id: string): Sink {
    return stillThere('sink', this.#options.cache.sink(id))
  }

  #database(id: string): Database {
    return stillThere('database', this.#options.cache.database(id))
  }
}

function unsupportedCheck({ destination }: Sink): HealthCheck | undefined {
  if (!isUnsupported(destination)) return undefined
  return { name: 'Sink configuration', status: 'error', error: { code: 'DESTINATION_UNSUPPORTED', message: unsupportedWords(destination) } }
}

/** @throws EngineError NOT_FOUND */
function stillThere<T>(kind: string, found: T | undefined): T {
  if (!found) throw new EngineError('NOT_FOUND', `the ${kind} does not exist any more`)
  return found
}

function waitsFor({ state, cause = 'it is about to go on' }: BackfillStatus): string {
  if (state === 'queued') return 'it is not its turn yet: others of its database are read'
  return state === 'failing' ? `it failed for now, and is tried again: ${cause}` : cause
}
