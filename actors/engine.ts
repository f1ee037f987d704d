/**
 * The running engine: puts every stored sink and source under the supervisor and carries changes of the resources to
 * the actors as events. What the API asks for is answered from memory.
 *
 * An edit of a sink takes three steps: stored, told to its actor (which restarts nothing), and, when it changes what
 * the sink is to receive, put into a new routing version that takes effect where its mark stands in the source's log. An
 * edit of what decides the stream that it reads begins another generation, which is delivered after the former one.
 */
import { createActor, waitFor, type ActorRefFrom } from 'xstate'
import type { FunctionPool } from '../transforms/sandbox/pool.ts'
import {
  messageRecord,
  messageRecords,
  type MessagePage,
  type MessageRecord,
  type MessagesAsked,
  type MessageEdit,
} from '../engine/dispatch/parked/message-records.ts'
import { READ_MEMORY_BYTES, ReadMemory } from '../engine/dispatch/read-memory.ts'
import type { ReplayTarget } from '../engine/dispatch/replay/replay-plan.ts'
import { EngineError } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Metrics } from '../engine/metrics.ts'
import type { NodeRegistry } from '../engine/state/node-registry.ts'
import type { ResourceCache } from '../engine/state/resource-cache.ts'
import type { EndpointInput, ResourceStore, Resources, SinkInput } from '../engine/state/resource-store.ts'
import type { Egress } from '../engine/net/egress.ts'
import type { HttpEndpoint } from '../engine/state/destinations.ts'
import type { Account, Database, Sink } from '../engine/state/resources.ts'
import type { Store } from '../engine/state/store.ts'
import { StoredVersions, type SavedVersion } from '../engine/wal/routing/stored-versions.ts'
import { SOURCE_DEFAULTS, type SourceSettings } from '../engine/wal/source-settings.ts'
import { Backlogs } from './backlog/backlogs.ts'
import { beginSink, type SinkHome } from './begin-sink.ts'
import { beginSource, type SourceHome } from './source/begin-source.ts'
import { sinkGauges, sourceGauges } from './gauges.ts'
import { OldTopicsSweep } from './old-topics-sweep.ts'
import { PublicationWatch } from './source/publication-watch.ts'
import { readinessOf, type Readiness } from './readiness.ts'
import { Replays, type Holder, type Replayed } from './sink/replays.ts'
import { changesBetween, type KnownResources } from './resource-changes.ts'
import { ResourceEdits, type EndpointChanges, type SinkChanges } from './resource-edits.ts'
import { saveRouting } from './routing-of-sinks.ts'
import { StreamTrimming } from './stream-trimming.ts'
import { RecentMessages, type RecentAsked, type RecentMessage } from './recent-messages.ts'
import { shownMessage, type MessageLook, type ShownMessage } from './shown-message.ts'
import { SinkFunctions } from './sink/sink-functions.ts'
import type { SourceActor, SourceOutcome } from './source/source-actor.ts'
import type { EditedMessages, HeldSink, MessageChoice, PulledSink, RunningSink } from './sink/running-sink.ts'
import type { StreamStatus } from './backlog/stream-figures.ts'
import { worst, type ActorStatus, type Health } from '../engine/status.ts'
import { supervisorMachine } from './supervisor.ts'
import { isKeyed } from '../sinks/destination-types.ts'
import { testConnection, testEndpoint } from './push/connection-test.ts'

type EngineOptions = Readonly<{
  store: Store
  resources: ResourceStore
  cache: ResourceCache
  log: Log
  metrics: Metrics
  logger: Logger
  /** what runs functions; whoever made it stops it after the engine */
  functions: FunctionPool
  /** where sinks may send */
  egress: Egress
  /** this process among those that share the state database: owners are recorded by its id */
  nodes: Pick<NodeRegistry, 'id' | 'live' | 'nameOf'>
  /** what sources are set to, where it is not as usual */
  source?: Partial<SourceSettings>
}>

const FORMER_LOOK_MS = 1_000

/** The calls that a process passes to its own engine when another process of the cluster makes them. */
export type LocalEngine = Omit<Engine, 'start' | 'stop' | 'appliedPrint'>
/** The calls that the API makes to an engine, which serves one process or a whole cluster. */
export type EngineVerbs = Omit<LocalEngine, 'reload' | 'among' | 'holdSink' | 'releaseSink' | 'ownersChanged'>

export class Engine {
  readonly #options: EngineOptions
  readonly #supervisor: ActorRefFrom<typeof supervisorMachine>
  readonly #sinks = new Map<string, RunningSink>()
  readonly #sources = new Map<string, SourceActor>()
  readonly #edits: ResourceEdits
  readonly #oldTopics: OldTopicsSweep
  readonly #trimming: StreamTrimming
  readonly #replays: Replays
  readonly #publications: PublicationWatch
  readonly #functions: SinkFunctions
  readonly #recent = new RecentMessages()
  readonly #memory = new ReadMemory(READ_MEMORY_BYTES)
  #backlogs: Backlogs | undefined
  /** the resources that have taken effect here */
  #applied: KnownResources = { databases: [], sinks: [], endpoints: [] }
  #appliedPrint: string | undefined
  #applying: Promise<void> = Promise.resolve()
  #nextReload: Promise<void> | undefined
  /** databases whose sinks keep topics of their own, because a process of a former version lives */
  /** by database */
  readonly #versions = new Map<string, StoredVersions>()
  readonly #amongFormer = new Set<string>()
  #formerTimer: NodeJS.Timeout | undefined
  /** of a sink, the other processes that live */
  #peers: (sinkId: string) => readonly Holder[] = () => []

  constructor(options: EngineOptions) {
    this.#options = options
    this.#functions = new SinkFunctions(options.functions, () => options.cache.functions)
    this.#edits = new ResourceEdits(options.store, options.resources)
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
    this.#publications = new PublicationWatch(() => options.cache, options.logger)
    this.#replays = new Replays({ store: options.store, log: options.log, logger: options.logger })
    this.#supervisor = createActor(supervisorMachine, {
      input: { onCrash: (child, err) => options.logger.error({ actor: child.key, err }, 'an actor failed and will be started again') },
    })
  }

  async start(): Promise<void> {
    this.#supervisor.start()
    await this.#apply(this.#options.cache)
    const { cache, log, store, logger } = this.#options
    this.#backlogs = new Backlogs({ cache, log, query: store.query, logger, sourceOf: (id) => this.#sources.get(id) })
    this.#oldTopics.start()
    this.#trimming.start()
    this.#publications.start()
  }

  /** Sources first, then sinks: what was appended last can still be committed. */
  async stop(): Promise<void> {
    await this.#backlogs?.[Symbol.asyncDispose]()
    clearTimeout(this.#formerTimer)
    this.#amongFormer.clear()
    this.#oldTopics[Symbol.dispose]()
    this.#trimming[Symbol.dispose]()
    this.#publications[Symbol.dispose]()
    this.#supervisor.send({ type: 'stop' })
    await waitFor(this.#supervisor, (snapshot) => snapshot.status === 'done', { timeout: Infinity })
    await this.#functions.close()
  }

  /** @returns undefined: no actor of that pull sink runs here at the moment */
  sink(id: string): PulledSink | undefined {
    return this.#sinks.get(id)?.pulled
  }

  /** How these sinks are; one that does not run is left out. */
  async sinkHealth(ids: readonly string[]): Promise<ReadonlyMap<string, Health>> {
    return new Map(
      ids.flatMap((id) => {
        const running = this.#sinks.get(id)
        return running ? [[id, this.#health(id, running)] as const] : []
      }),
    )
  }

  actors(): readonly ActorStatus[] {
    return [...this.#sources.values(), ...this.#sinks.values()].map((actor) => actor.status())
  }

  /** Each stream with its readers and the bytes that it takes, as this process looked at them some seconds ago. */
  streams(): readonly StreamStatus[] {
    const { cache } = this.#options
    return (this.#backlogs?.streams ?? []).flatMap((stream) => {
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

  /** Each of these settles when it has taken effect here. @throws EngineError VALIDATION_FAILED, NOT_FOUND, RESOURCE_IN_USE */
  async createSink(account: Account, database: Database, input: SinkInput): Promise<Sink> {
    const id = await this.#edits.createSink(account, input, { databaseId: database.id, connection: database.connection })
    await this.reload()
    return this.#sinkNow(id)
  }
  async updateSink(sinkId: string, changes: SinkChanges): Promise<Sink> {
    const known = this.#sinkNow(sinkId)
    const stored = await this.#edits.updateSink(known, changes, this.#database(known.databaseId).connection)
    await (stored ? this.#take(stored) : this.reload())
    return this.#sinkNow(sinkId)
  }
  async deleteSink(sinkId: string): Promise<void> {
    await this.#edits.deleteSink(sinkId)
    await this.reload()
    this.#oldTopics.ring()
  }
  /** Tries what a delivery needs. @returns what is wrong, in the destination's own words; undefined: nothing */
  async testSink(sink: Sink): Promise<string | undefined> {
    const { cache, egress } = this.#options
    return testConnection({ sink, database: this.#database(sink.databaseId), egress, endpoint: cache.endpointOf(sink) })
  }
  /** Those that wait outside the log or were discarded. @throws EngineError STATE_UNAVAILABLE, REQUEST_INVALID */
  messages(sinkId: string, asked: MessagesAsked): Promise<MessagePage> {
    return messageRecords(this.#options.store.query, sinkId, asked)
  }
  /** The newest that were delivered by this process, newest first. */
  async delivered(sinkId: string, limit: number): Promise<readonly MessageRecord[]> {
    return this.#sinks.get(sinkId)?.delivered.list(limit) ?? []
  }
  /** One of either. @throws EngineError STATE_UNAVAILABLE */
  async message(sinkId: string, id: string, { withFunctions }: MessageLook): Promise<ShownMessage | undefined> {
    const found = (await messageRecord(this.#options.store.query, sinkId, id)) ?? this.#sinks.get(sinkId)?.delivered.find(id)
    if (!found) return undefined
    const sink = this.#sinkNow(sinkId)
    const database = this.#database(sink.databaseId)
    return shownMessage(found, sink, database, withFunctions ? (work) => this.#functions.tried(sink, database, work) : undefined)
  }
  /** The last messages that sinks have read here, oldest first; none of sensitive sinks. */
  async recent(asked: RecentAsked): Promise<readonly RecentMessage[]> {
    return this.#recent.of(asked, this.#options.cache.sinks)
  }
  /** What somebody decided of some of them, as far as their owners live here. @throws EngineError STATE_UNAVAILABLE */
  async editMessages(sinkId: string, edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages> {
    return (await this.#sinks.get(sinkId)?.edit(edit, choice)) ?? { known: 0, served: 0, edited: 0 }
  }
  async testEndpoint(endpoint: HttpEndpoint): Promise<string | undefined> {
    return testEndpoint(endpoint, this.#options.egress)
  }
  async createEndpoint(account: Account, input: EndpointInput): Promise<HttpEndpoint> {
    const id = await this.#edits.createEndpoint(account, input)
    await this.reload()
    return this.#endpointNow(id)
  }
  /** Reaches the sinks that send to it before it settles. */
  async updateEndpoint(endpoint: HttpEndpoint, changes: EndpointChanges): Promise<HttpEndpoint> {
    await this.#edits.updateEndpoint(endpoint, changes)
    await this.reload()
    return this.#endpointNow(endpoint.id)
  }
  async deleteEndpoint(endpoint: HttpEndpoint): Promise<void> {
    await this.#edits.deleteEndpoint(endpoint)
    await this.reload()
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

  /** @see RunningSink.hold */
  async holdSink(sinkId: string, by: string): Promise<HeldSink> {
    const running = this.#sinks.get(sinkId)
    if (!running) throw new EngineError('SINK_NOT_RUNNING', 'the sink has no actor on this node')
    return running.hold(by)
  }

  async releaseSink(sinkId: string, by: string): Promise<void> {
    await this.#sinks.get(sinkId)?.release(by)
  }

  /** @see RunningSink.ownersChanged */
  ownersChanged(sinkId?: string): void {
    for (const sink of sinkId === undefined ? this.#sinks.values() : [this.#sinks.get(sinkId)]) sink?.ownersChanged()
  }

  /**
   * Settles when what the state database holds at this moment has taken effect here; callers that come while one waits
   * for its turn share it. What fails is tried again by the next one, and touches nothing else.
   */
  reload(): Promise<void> {
    this.#nextReload ??= this.#inTurn(async () => {
      this.#nextReload = undefined // who comes from here on may have stored something that is not read any more
      const { cache, resources, store } = this.#options
      cache.replace(await resources.load(store.query))
      await this.#apply(cache)
    })
    return this.#nextReload
  }

  /** Settles when what is known to be stored has taken effect here. */
  async #take(stored: Resources): Promise<void> {
    const { cache, resources } = this.#options
    let isNewest = false
    await this.#inTurn(async () => {
      isNewest = resources.isNewest(stored)
      if (!isNewest) return
      cache.replace(stored)
      await this.#apply(cache)
    })
    if (!isNewest) await this.reload()
  }

  /** Names the state of the resources that has taken effect here last; undefined: none has. */
  get appliedPrint(): string | undefined {
    return this.#appliedPrint
  }

  /** A source that has given up, or waits, tries again at once. @returns how it is then, at the latest after `waitMs` */
  async retrySource(databaseId: string, waitMs: number): Promise<SourceOutcome> {
    return (await this.#sources.get(databaseId)?.tryAgain(waitMs)) ?? { state: 'stopped' }
  }

  /** Lets a source that stopped at missing changes go on without them. @returns what it had stopped at
   *  @throws EngineError NO_GAP: the source has not stopped at missing changes, or does not run here */
  async acceptGap(databaseId: string): Promise<string> {
    const source = this.#sources.get(databaseId)
    if (!source) throw new EngineError('NO_GAP', 'the source does not run here')
    const accepted = await source.acceptGap()
    const database = this.#database(databaseId)
    this.#options.logger.warn({ database: database.name, accepted }, 'a gap was accepted')
    // its sinks may go on, and look sooner than by themselves
    for (const sink of this.#options.cache.sinks) if (sink.databaseId === databaseId) this.#sinks.get(sink.id)?.update(sink, database)
    return accepted
  }

  /** One at a time, so that an older reading never replaces a newer one. */
  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#applying.then(work)
    this.#applying = turn.catch(() => undefined)
    return turn
  }

  async #apply({ print, databases, sinks, endpoints, functions }: ResourceCache): Promise<void> {
    if (print === this.#appliedPrint) return
    const now: KnownResources = { databases, sinks, endpoints, functions }
    const changes = changesBetween(this.#applied, now)
    for (const sink of changes.editedSinks) this.#sinks.get(sink.id)?.update(sink, this.#database(sink.databaseId))
    const versions = new Map<string, SavedVersion>()
    for (const { id } of changes.rerouted) versions.set(id, await this.#saveRouting(id))
    for (const sink of changes.newSinks) this.#superviseSink(sink)
    for (const id of changes.endedSources) await this.#dismiss(`source/${id}`)
    for (const database of changes.begunSources) this.#superviseSource(database)
    const marks = [...versions].map(([id, version]) => this.#sources.get(id)?.mark(version))
    for (const id of changes.goneSinks) await this.#dismiss(`sink/${id}`)
    await Promise.all(marks)
    this.#applied = now
    this.#appliedPrint = print
    if (changes.reselected) this.#publications.ring() // it asks each source on a session of its own
  }

  async #saveRouting(databaseId: string): Promise<SavedVersion> {
    const { resources, store } = this.#options
    const versions = this.#versions.get(databaseId) ?? new StoredVersions(databaseId)
    this.#versions.set(databaseId, versions)
    const { version, waits } = await saveRouting(store, resources, { databaseId, versions })
    if (waits) this.#amongFormer.add(databaseId)
    else this.#amongFormer.delete(databaseId)
    this.#awaitFormer()
    return version
  }

  #awaitFormer(): void {
    if (this.#amongFormer.size > 0) this.#formerTimer ??= setTimeout(() => void this.#lookForFormer(), FORMER_LOOK_MS).unref()
  }

  /** Sinks of a database get streams when the last process has gone that knows nothing of them. */
  async #lookForFormer(): Promise<void> {
    this.#formerTimer = undefined
    await this.#inTurn(async () => {
      for (const id of this.#amongFormer) await this.#sources.get(id)?.mark(await this.#saveRouting(id))
    }).catch((err: unknown) => this.#options.logger.warn({ err }, 'the routing could not be saved anew; it will be tried again'))
    this.#awaitFormer()
  }

  async #dismiss(key: string): Promise<void> {
    this.#supervisor.send({ type: 'dismiss', key })
    await waitFor(this.#supervisor, ({ context }) => !context.children.has(key), { timeout: Infinity })
  }

  #superviseSink(sink: Sink): void {
    const key = `sink/${sink.id}`
    this.#supervisor.send({
      type: 'supervise',
      child: {
        key,
        kind: 'sink',
        start: async () => {
          const now = this.#sinkNow(sink.id)
          const meter = this.#options.metrics.sink({ id: now.id, name: now.name }, () => {
            const sinkActor = this.#sinks.get(now.id)
            if (!sinkActor) return undefined
            const health = this.#health(now.id, sinkActor).status
            return sinkGauges(sinkActor, this.#sinkNow(now.id), { health, dropped: this.#backlogs?.dropped(now.id) ?? 0 })
          })
          const running = beginSink(now, this.#database(now.databaseId), meter, this.#sinkHome())
          this.#sinks.set(now.id, running)
          return {
            ended: running.ended.finally(() => {
              this.#sinks.delete(now.id)
              meter[Symbol.dispose]()
            }),
            stop: () => running.stop(),
          }
        },
      },
    })
  }

  #superviseSource(database: Database): void {
    const { metrics } = this.#options
    const { id: databaseId, name: databaseName, slot } = database
    this.#supervisor.send({
      type: 'supervise',
      child: {
        key: `source/${databaseId}`,
        kind: 'source',
        start: async () => {
          const labels = { slotId: slot.id, slotName: slot.name, databaseId, databaseName }
          const meter = metrics.source(labels, () => {
            const source = this.#sources.get(databaseId)
            return source && sourceGauges(source, this.streams().filter((stream) => stream.databaseId === databaseId)) // prettier-ignore
          })
          const running = beginSource(database, meter, this.#sourceHome(databaseId))
          this.#sources.set(databaseId, running)
          return {
            ended: running.ended.finally(() => {
              this.#sources.delete(databaseId)
              meter[Symbol.dispose]()
            }),
            stop: () => running.stop(),
          }
        },
      },
    })
  }

  #sinkHome(): SinkHome {
    const { log, logger, store, nodes, cache, egress, source } = this.#options
    return {
      maxMessageBytes: source?.maxMessageBytes ?? SOURCE_DEFAULTS.maxMessageBytes,
      log,
      logger,
      query: store.query,
      holder: nodes.id,
      cache,
      egress,
      functions: this.#functions,
      recent: this.#recent,
      memory: this.#memory,
      sinkNow: (id) => this.#sinkNow(id),
      delivered: () => this.#oldTopics.ring(),
    }
  }

  #sourceHome(databaseId: string): SourceHome {
    const { log, logger, store, nodes, source: settings } = this.#options
    return {
      log,
      logger,
      query: store.query,
      nodes,
      settings,
      streaming: () => this.#publications.ring(),
      routed: () => {
        for (const sink of this.#options.cache.sinks) if (sink.databaseId === databaseId) this.#sinks.get(sink.id)?.routed()
      },
    }
  }

  #health(id: string, running: RunningSink): Health {
    const sink = this.#sinkNow(id)
    const source = this.#sources.get(sink.databaseId)
    const published = this.#publications.check(id)
    const truncated = isKeyed(sink.destination) && published.error === undefined ? source?.truncationCheck(id) : undefined
    const configuration = this.#functions.check(sink) ?? source?.routingCheck() ?? truncated ?? published
    const unknown = this.#oldTopics.check()
    const checks = [configuration, ...running.health(), ...(this.#backlogs?.checks(sink) ?? []), ...(unknown ? [unknown] : [])]
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
    const sink = this.#options.cache.sinks.find((candidate) => candidate.id === id)
    if (!sink) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
    return sink
  }

  #endpointNow(id: string): HttpEndpoint {
    const endpoint = this.#options.cache.endpoints.find((candidate) => candidate.id === id)
    if (!endpoint) throw new EngineError('NOT_FOUND', 'the HTTP endpoint does not exist any more')
    return endpoint
  }

  #database(id: string): Database {
    const database = this.#options.cache.database(id)
    if (!database) throw new EngineError('NOT_FOUND', 'the database does not exist any more')
    return database
  }
}
