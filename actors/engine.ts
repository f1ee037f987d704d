/**
 * The running engine: puts every stored sink and source under the supervisor and carries changes of the resources to
 * the actors as events. What the API asks for is answered from memory.
 *
 * An edit of a sink takes three steps: stored, told to its actor (which restarts nothing), and, when it changes what
 * the sink is to receive, put into a new routing version that takes effect where its mark stands in the source's log. An
 * edit of what decides the partition begins another generation: its topic is read when the former one is delivered.
 */
import { createActor, waitFor, type ActorRefFrom } from 'xstate'
import { StoredGenerations } from '../engine/dispatch/generations.ts'
import { deleteOldTopics } from '../engine/dispatch/old-topics.ts'
import { EngineError } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import type { Logger } from '../engine/logger.ts'
import type { Metrics, SinkMeter, SourceGauges, SourceMeter } from '../engine/metrics.ts'
import { missingNames, namesOf, newNames, refuseMissing } from '../engine/postgres/source-names.ts'
import { qualified, shapeOf } from '../engine/state/generation-shape.ts'
import type { NodeRegistry } from '../engine/state/node-registry.ts'
import type { ResourceCache } from '../engine/state/resource-cache.ts'
import type { ResourceStore, Resources } from '../engine/state/resource-store.ts'
import type { Database, Destination, RoutedSink, Sink, SinkSettings } from '../engine/state/resources.ts'
import type { Store } from '../engine/state/store.ts'
import { saveRoutingVersion, type SavedVersion } from '../engine/wal/routing-versions.ts'
import { BacklogGuard, type BacklogOf } from './backlog.ts'
import { Bell } from './bell.ts'
import { changesBetween, type Known } from './resource-changes.ts'
import { SourceActor } from './source-actor.ts'
import { startSink, type Receive, type Receipt, type RunningSink } from './sink.ts'
import { worst, type ActorStatus, type EntityStatus, type HealthCheck } from './status.ts'
import { supervisorMachine } from './supervisor.ts'

export type EngineOptions = Readonly<{
  store: Store
  resources: ResourceStore
  cache: ResourceCache
  log: Log
  metrics: Metrics
  logger: Logger
  /** this process among those that share the state database: owners are recorded by its id */
  nodes: Pick<NodeRegistry, 'id' | 'live' | 'nameOf'>
}>

export type SinkChanges = Readonly<Partial<Omit<SinkSettings, 'database'>> & { destination?: Destination }>
export type Health = Readonly<{ name: string; status: EntityStatus; checks: readonly HealthCheck[] }>
/** A sink as the API sees it. */
export interface ServedSink {
  receive(request: Receive): Promise<Receipt>
  ack(ids: readonly string[]): Promise<void>
  nack(ids: readonly string[]): Promise<void>
  health(): Health
}
export type Readiness = Readonly<{
  ready: boolean
  waiting: readonly Readonly<{ kind: string; name: string; state: string; code?: string; reason?: string }>[]
}>

/** How often it is looked whether sources have passed what keeps the topics of ended generations. */
const OLD_TOPICS_MS = 2_000
const MB = 1024 * 1024

export class Engine {
  readonly #options: EngineOptions
  readonly #supervisor: ActorRefFrom<typeof supervisorMachine>
  readonly #sinks = new Map<string, RunningSink>()
  readonly #sources = new Map<string, SourceActor>()
  readonly #ended = new AbortController()
  readonly #oldTopics = new Bell()
  #backlogs: BacklogGuard | undefined
  /** the resources that have taken effect here */
  #applied: Known = { databases: [], sinks: [] }
  #applying: Promise<void> = Promise.resolve()
  #nextReload: Promise<void> | undefined

  constructor(options: EngineOptions) {
    this.#options = options
    this.#supervisor = createActor(supervisorMachine, {
      input: { onCrash: (child, err) => options.logger.error({ actor: child.key, err }, 'an actor failed and will be started again') },
    })
  }

  async start(): Promise<void> {
    this.#supervisor.start()
    await this.#apply(this.#options.cache)
    this.#backlogs = new BacklogGuard(
      () => this.#bounded(),
      (err) => this.#options.logger.warn({ err }, 'the backlogs of the sinks could not be looked at'),
    )
    this.#oldTopics.ring()
    void this.#deleteOldTopics()
  }

  /** Sources first, then sinks: what was appended last can still be committed. */
  async stop(): Promise<void> {
    this.#backlogs?.[Symbol.dispose]()
    this.#ended.abort()
    this.#supervisor.send({ type: 'stop' })
    await waitFor(this.#supervisor, (snapshot) => snapshot.status === 'done', { timeout: Infinity })
  }

  sink(id: string): ServedSink | undefined {
    const running = this.#sinks.get(id)
    if (!running) return undefined
    return {
      receive: (request) => running.receive(request),
      ack: (ids) => running.ack(ids),
      nack: (ids) => running.nack(ids),
      health: () => this.#health(id, running),
    }
  }

  actors(): readonly ActorStatus[] {
    return [...this.#sources.values(), ...this.#sinks.values()].map((actor) => actor.status())
  }

  ready(): Readiness {
    const { cache } = this.#options
    const waiting = cache.databases
      .filter(({ slot }) => slot.status === 'active')
      .flatMap(({ id, name }): Readiness['waiting'][number][] => {
        const status = this.#sources.get(id)?.status()
        if (status?.state === 'streaming') return []
        const owner = this.#sources.get(id)?.standby?.owner
        if (owner !== undefined && this.#options.nodes.live.has(owner)) return [] // that node says how it is
        const error = status?.lastError?.error
        return [
          {
            kind: 'database',
            name,
            state: status?.state ?? 'starting',
            ...(error instanceof EngineError ? { code: error.code } : {}),
            ...(error instanceof Error ? { reason: error.message } : {}),
          },
        ]
      })
    return { ready: waiting.length === 0, waiting }
  }

  /** @throws EngineError VALIDATION_FAILED, NOT_FOUND */
  async updateSink(sinkId: string, changes: SinkChanges): Promise<Sink> {
    const { resources, store } = this.#options
    const known = this.#sinkNow(sinkId)
    // asked of the source before the row is locked: it may take its time to answer
    const { connection } = this.#database(known.databaseId)
    refuseMissing(await missingNames(connection, newNames(namesOf({ ...known, ...changes }), known)))
    await store.transaction(async (query) => {
      await query('select from sink where id = $1 for update', [sinkId]) // one edit at a time, of all processes: each begins with what the one before it left
      const { sinks } = await resources.load(query)
      const before = sinks.find(({ id }) => id === sinkId)
      if (!before) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
      const name = changes.name ?? before.name
      if (sinks.some((other) => other.id !== sinkId && other.accountId === before.accountId && other.name === name)) {
        throw new EngineError('VALIDATION_FAILED', `another sink is named "${name}"`, { name: 'is taken' })
      }
      const { id: _id, accountId, databaseId, destination, ...settings } = { ...before, ...changes }
      await resources.renameSink(query, sinkId, name)
      await resources.saveSink(query, { id: accountId, name: '' }, databaseId, { settings, destination })
    })
    await this.reload()
    return this.#sinkNow(sinkId)
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

  /** A source that has given up, or waits, tries again at once: what it stopped at was mended elsewhere. */
  retrySource(databaseId: string): void {
    this.#sources.get(databaseId)?.retry()
  }

  /** @throws EngineError NO_GAP: the source has not stopped at missing changes, or does not run here */
  async acceptGap(databaseId: string): Promise<string> {
    const source = this.#sources.get(databaseId)
    if (!source) throw new EngineError('NO_GAP', 'the source does not run here')
    const accepted = await source.acceptGap()
    this.#options.logger.warn({ database: this.#database(databaseId).name, accepted }, 'a gap was accepted')
    return accepted
  }

  /** One at a time, so that an older reading never replaces a newer one. */
  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#applying.then(work)
    this.#applying = turn.catch(() => undefined)
    return turn
  }

  async #apply({ databases, sinks }: Known): Promise<void> {
    const now: Known = { databases: [...databases], sinks: [...sinks] }
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
  }

  /**
   * Puts what the sinks of a database are to receive into a routing version; the source switches at its mark. Read under
   * the database's lock, so that a process that has read before an edit can't put an older state above a newer one.
   */
  async #saveRouting(databaseId: string): Promise<SavedVersion> {
    const { resources, store } = this.#options
    return store.transaction(async (query) => {
      await query('select from source_database where id = $1 for no key update', [databaseId])
      const { sinks, generations } = await resources.load(query)
      const taking = sinks.filter((sink) => sink.databaseId === databaseId && sink.status !== 'disabled')
      const routes = taking.map((sink) => routed(sink, generations))
      return saveRoutingVersion(query, databaseId, routes)
    })
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
          const meter = this.#options.metrics.sink({ id: now.id, name: now.name }, () => this.#sinkGauges(now.id))
          const running = this.#startSink(now, meter)
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

  #startSink(sink: Sink, meter: SinkMeter): RunningSink {
    const { log, logger, store } = this.#options
    return startSink({
      sink,
      database: this.#database(sink.databaseId),
      generations: new StoredGenerations({
        ...{ sinkId: sink.id, log, query: store.query },
        ackWaitMs: () => this.#sinkNow(sink.id).ack_wait_ms,
        handedOver: (generation) => {
          logger.info({ sink: sink.name, generation }, 'a generation is delivered, the next one follows')
          this.#oldTopics.ring()
        },
      }),
      log,
      query: store.query,
      holder: this.#options.nodes.id,
      onFailure: (err, partition) => logger.warn({ sink: sink.name, partition, err }, 'a partition failed and will be taken over again'),
      observer: {
        delivered: ({ messages, bytes, sinceCommitUs }) => {
          meter.attempted(messages, bytes)
          meter.waited(messages, sinceCommitUs)
        },
        acked: ({ messages, heldMs }) => meter.delivered(messages, heldMs * 1000),
        lapsed: (messages) => logger.debug({ sink: sink.name, messages }, 'visibility timeouts passed without an ack'),
        parked: (messages) => logger.info({ sink: sink.name, messages }, 'blocked messages were parked so that others can go on'),
        discarded: (messages) => logger.warn({ sink: sink.name, messages }, 'messages were discarded: max_retry_count was reached'),
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
          const meter = metrics.source(labels, () => this.#sourceGauges(databaseId))
          const running = this.#startSource(database, meter)
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

  #startSource(database: Database, meter: SourceMeter): SourceActor {
    const { log, store, nodes } = this.#options
    const nameOf = (id: string) => nodes.live.get(id)?.name ?? id
    const logger = this.#options.logger.child({ database: database.name, slot: database.slot.name })
    const source = new SourceActor({
      database,
      log,
      state: store.query,
      holder: this.#options.nodes.id,
      nameOf,
      onStandby: (owner) => {
        const told = (name?: string) => logger.info({ owner }, `standby: the source is held by node ${name ?? owner}`)
        nodes.nameOf(owner).then(told, () => told()) // asked: the list of live nodes may not be read yet
        // what this process stored before it knew that its own run would not write the marks
        const mark = async () => source.mark(await this.#saveRouting(database.id))
        mark().catch((err: unknown) => logger.warn({ err }, 'the routing could not be marked'))
      },
      observer: {
        ingested: (changes, bytes) => meter.ingested(changes, bytes),
        appended: (_messages, _bytes, latencyUs) => meter.ingested(0, 0, latencyUs),
        notice: (notice) => logger.warn(notice),
        relationWarnings: (table, warnings) => logger.warn({ table, warnings }, 'a table can not be followed in every respect'),
      },
    })
    source.watch((state) => {
      const { lastError } = source
      if (state === 'waiting' || state === 'failed') {
        logger[state === 'failed' ? 'error' : 'warn'](
          { state, code: lastError?.code, remedy: lastError?.remedy },
          `the source does not stream: ${lastError?.message ?? ''}`,
        )
      } else logger.info({ state }, 'source')
    })
    return source
  }

  #sourceGauges(databaseId: string): SourceGauges | undefined {
    const source = this.#sources.get(databaseId)
    if (!source) return undefined
    if (source.standby) return { isOwner: false } // the owner's figures say how it is
    const { figures, state } = source
    return {
      isOwner: state === 'streaming',
      slotHealth: state === 'failed' ? 'error' : state === 'waiting' ? 'warn' : 'ok',
      ...(figures ? { bytesInFlight: figures.bytesInFlight, confirmedLagBytes: Number(figures.receivedLsn - figures.confirmedLsn) } : {}),
    }
  }

  /** The sinks whose source waits when their backlog is full. */
  #bounded(): readonly BacklogOf[] {
    const { cache, log } = this.#options
    let sizes: Promise<ReadonlyMap<string, number>> | undefined
    return cache.sinks.flatMap((sink) => {
      const source = this.#sources.get(sink.databaseId)
      if (!source || sink.status === 'disabled' || sink.load_shedding_policy !== 'pause_on_full') return []
      const bytes = async () => ((sizes ??= backlogSizes(log)), (await sizes).get(sink.id) ?? 0)
      return [{ sinkId: sink.id, name: sink.name, maxBytes: sink.max_backlog_mb * MB, gate: source.gate, bytes }]
    })
  }

  #sinkGauges(id: string): ReturnType<Parameters<Metrics['sink']>[1]> {
    const running = this.#sinks.get(id)
    if (!running) return undefined
    const { details, partitions = [] } = running.status()
    const number = (value: unknown): number => (typeof value === 'number' ? value : 0)
    const sum = (name: string) => partitions.reduce((total, figures) => total + number(figures[name]), 0)
    return {
      health: GAUGE_STATUS[this.#health(id, running).status],
      inDelivery: number(details?.['ackPending']),
      inRedelivery: sum('parked'),
      windowBytes: sum('windowBytes'),
      windowLimitBytes: this.#sinkNow(id).max_memory_mb * MB,
      partitions: partitions.map((figures) => ({
        partition: number(figures['partition']),
        lagRecords: number(figures['lag']),
        parkedMessages: number(figures['parked']),
        windowBytes: number(figures['windowBytes']),
        logBytes: number(figures['logBytes']),
      })),
    }
  }

  #health(id: string, running: RunningSink): Health {
    const full = { code: 'BACKLOG_FULL', message: 'the backlog is full: its source reads on when messages are acknowledged' }
    const checks: HealthCheck[] = [...running.health()]
    if (this.#backlogs?.isFull(id)) checks.push({ name: 'Messages pending delivery', status: 'warning', error: full })
    return { name: 'Consumer health', status: worst(checks), checks }
  }

  async #deleteOldTopics(): Promise<void> {
    const { store, log, logger } = this.#options
    const { signal } = this.#ended
    let waiting = false
    while (!signal.aborted) {
      await this.#oldTopics.wait(signal, waiting ? OLD_TOPICS_MS : Infinity)
      if (signal.aborted) return
      try {
        const old = await deleteOldTopics(store.query, log)
        waiting = old.waiting
        for (const topic of old.deleted) logger.info({ topic }, 'the topic of an ended generation is deleted')
      } catch (err) {
        waiting = true
        if (!signal.aborted) logger.warn({ err }, 'topics of ended generations could not be deleted; tried again')
      }
    }
  }

  #sinkNow(id: string): Sink {
    const sink = this.#options.cache.sinks.find((candidate) => candidate.id === id)
    if (!sink) throw new EngineError('NOT_FOUND', 'the sink does not exist any more')
    return sink
  }

  #database(id: string): Database {
    const database = this.#options.cache.database(id)
    if (!database) throw new EngineError('NOT_FOUND', 'the database does not exist any more')
    return database
  }
}

const GAUGE_STATUS: Readonly<Record<EntityStatus, 'ok' | 'warn' | 'error' | 'paused'>> = {
  healthy: 'ok',
  initializing: 'ok',
  warning: 'warn',
  error: 'error',
  paused: 'paused',
}

/** How old may be what a backlog's size is made of. */
const TOPICS_MAX_AGE_MS = 30_000
const STATS_MAX_AGE_MS = 1_000

/** Bytes of all topics of each sink, whatever generation they are of. */
async function backlogSizes(log: Log): Promise<ReadonlyMap<string, number>> {
  const sizes = new Map<string, number>()
  for (const { topic, partitions } of await log.topics(TOPICS_MAX_AGE_MS)) {
    const sinkId = topic.slice(0, topic.lastIndexOf('.'))
    for (let partition = 0; partition < partitions; partition++) {
      const stats = await log.stats(topic, partition, STATS_MAX_AGE_MS).catch(() => undefined) // deleted meanwhile
      sizes.set(sinkId, (sizes.get(sinkId) ?? 0) + (stats?.bytes ?? 0))
    }
  }
  return sizes
}

/** What the source needs to know of a sink. Table names are qualified here, once. */
function routed(sink: Sink, generations: Resources['generations']): RoutedSink {
  const { include_tables: included, exclude_tables: excluded, ...schemas } = sink.source
  const { partitions, grouping, groupColumns } = shapeOf(sink)
  return {
    sinkId: sink.id,
    generation: generations.get(sink.id) ?? 1,
    partitions,
    source: {
      ...schemas,
      ...(included ? { include_tables: included.map(qualified) } : {}),
      ...(excluded ? { exclude_tables: excluded.map(qualified) } : {}),
    },
    groupColumns,
    actions: sink.actions,
    grouping,
    timestampFormat: sink.timestamp_format,
  }
}
