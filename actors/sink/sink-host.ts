/**
 * A sink at work: the machine that says which generation and which partitions are served here, the partitions that live, and
 * how all of that is. How messages leave them is its transport's.
 */
import { createActor, waitFor, type ActorRefFrom } from 'xstate'
import { readOlderAckIds, sinkTag } from '../../engine/dispatch/ack-id.ts'
import { AckPending, shareOf } from '../../engine/dispatch/ack-pending.ts'
import { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import type { ServedGeneration } from '../../engine/dispatch/generations.ts'
import { finishedUpTo } from '../../engine/dispatch/commits.ts'
import { countHeldFor } from '../../engine/dispatch/dispatcher.ts'
import { termKey, type PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import { findParked } from '../../engine/dispatch/parked/parked-store.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import type { Log, TopicName } from '../../engine/log/log.ts'
import { ask } from '../../engine/state/asking.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import type { FunctionStage } from '../../transforms/stage.ts'
import { hasReady } from '../../engine/dispatch/take.ts'
import type { QueuedPartition } from '../source/sink-room.ts'
import { parkedNames } from '../../engine/dispatch/parked/parked-groups.ts'
import { OwnedPartition } from '../partition/owned-partition.ts'
import { figuresOf, partitionTrouble } from '../partition/partition-report.ts'
import type { PartitionSink, SinkSurroundings } from '../partition/partition-sink.ts'
import { ReadyShare } from './ready-share.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import type { EditedMessages, HeldSink, MessageChoice, SinkOptions } from './running-sink.ts'
import type { Transport } from './transport.ts'
import { sinkMachine, type Served, type SinkStatus } from './sink-machine.ts'
import type { PartitionWork } from '../partition/sink-partition.ts'
import { troubleOf, type ActorStatus, type HealthCheck, type PartitionStatus, type SinkActorStatus } from '../../engine/status.ts'

/** Each partition that is being taken over is waited for so long, before a replay and after it. */
const TAKEN_OVER_WITHIN_MS = 2_000
/** A sink that is starting, or changes its generation, is waited for so long before it is held. */
const REST_WITHIN_MS = 12_000
/** A client that has held messages for this long is most likely gone: they come again when their ack wait is over, and a stop does not wait for them. */
const LOST_AFTER_MS = 5_000
/** After a notice that owners have changed, or a look that failed. */
const LOOK_AFTER_MS = 1_000

/** Runs one sink in this process. */
export class SinkHost implements PartitionSink {
  /** settles when the sink has stopped; rejects when it can't run */
  readonly ended: Promise<void>
  readonly transport: Transport
  /** delivered and unacknowledged, over all partitions here */
  readonly pending: AckPending
  /** of a sink that sends: messages under way, over all partitions here */
  readonly underWay: AckPending
  /** the newest messages that were delivered here */
  readonly delivered: DeliveredMessages
  /** monotonic milliseconds */
  readonly clock: () => number
  readonly surroundings: SinkSurroundings
  readonly #functions: SinkOptions['functions']
  readonly #onFailure: SinkOptions['onFailure']
  readonly #actor: ActorRefFrom<typeof sinkMachine>
  #sink: Sink
  #stage: FunctionStage
  #served: ServedGeneration | undefined
  #status: SinkStatus
  #live: readonly OwnedPartition[] = []
  #stopping = false
  /** the replay it is held for */
  #heldBy: string | undefined
  #since = new Date()
  #state = ''
  #lastError: ActorStatus['lastError']
  #looking: NodeJS.Timeout | undefined
  /** why it is not known which partitions are served here */
  #groupTrouble: unknown
  readonly #counts: SinkOptions['counts']
  readonly #watching = new Set<() => void>()
  readonly #readyShare = new ReadyShare(() => this.isActive && this.#live.some(({ dispatcher }) => hasReady(dispatcher)))

  /** @param transportOf makes its transport, which may look at the host later only */
  constructor(options: SinkOptions, transportOf: (host: SinkHost) => Transport) {
    const { sink, database, functions, onFailure, clock = () => performance.now() } = options
    this.surroundings = options
    this.#functions = functions
    this.#onFailure = onFailure
    this.#counts = options.counts
    this.#sink = sink
    this.#stage = functions(sink, database)
    this.#status = sink.status
    this.clock = clock
    this.transport = transportOf(this)
    const { sends } = this.transport
    this.pending = new AckPending(sends ? Infinity : sink.max_ack_pending)
    this.underWay = new AckPending(sink.max_ack_pending)
    this.delivered = new DeliveredMessages(sink.id, sends ? 'delivered' : 'acknowledged', sink.sensitive)
    const work = {
      choose: async () => (this.#served = await options.generations.serve()),
      stateOf: (served: Served) => options.generations.stateOf(served),
      subscribe: (served: Served, listener: Parameters<Log['subscribe']>[1]) =>
        options.log.subscribe((served as ServedGeneration).reader, {
          ...listener,
          trouble: (error) => (this.#groupTrouble = error),
        }),
      partition: (served: Served, partition: number) => this.#partition(served as ServedGeneration, partition),
      status: (status: SinkStatus) => this.#setStatus(status),
    }
    this.#actor = createActor(sinkMachine, { input: { work, status: sink.status } })
    const ended = Promise.withResolvers<void>()
    this.ended = ended.promise
    this.ended.catch(() => undefined) // the supervisor watches it, if there is one
    this.#actor.subscribe((snapshot) => {
      const [state = ''] = typeof snapshot.value === 'string' ? [snapshot.value] : Object.keys(snapshot.value)
      if (state !== this.#state) this.#since = new Date()
      this.#state = state
      if (state === 'resuming') this.#heldBy = undefined // also when it was not released in time
      if (snapshot.context.lastError) this.#lastError = snapshot.context.lastError
      if (snapshot.status !== 'done') return
      this.#readyShare[Symbol.dispose]()
      if (state === 'failed') ended.reject(snapshot.context.lastError?.error)
      else ended.resolve()
    })
    this.#actor.start()
  }

  get sink(): Sink {
    return this.#sink
  }
  /** its functions, as they are now */
  get stage(): FunctionStage {
    return this.#stage
  }
  /** Messages may be handed out. */
  get isActive(): boolean {
    return this.#status === 'active' && !this.#stopping
  }
  get stopping(): boolean {
    return this.#stopping
  }
  /** the partitions that hand out, by their number */
  get live(): readonly OwnedPartition[] {
    return this.#live
  }

  /** Messages of a partition were read or taken. */
  queueChanged(): void {
    for (const listener of this.#watching) listener()
  }

  /** Calls back whenever messages were read or taken here. @returns ends it */
  watchQueue(listener: () => void): () => void {
    this.#watching.add(listener)
    return () => this.#watching.delete(listener)
  }

  /** messages that were handed out by the partitions that are served here now */
  get handedOut(): number {
    return this.#live.reduce((sum, { handedOut }) => sum + handedOut, 0)
  }

  /** How far the partitions of a topic are that are served here. */
  queueOf(topic: TopicName): readonly QueuedPartition[] {
    return this.#live
      .filter(({ served }) => served.topic === topic)
      .map(({ partition, dispatcher }) => ({
        partition,
        read: dispatcher.accepted,
        finished: finishedUpTo(dispatcher),
        unfinished: dispatcher.window.open - countHeldFor(dispatcher, LOST_AFTER_MS),
      }))
  }

  /** Something may be deliverable that wasn't: a message, a partition, a status. */
  deliverable(): void {
    this.#readyShare.ring()
    this.transport.deliverable()
  }

  /** The last pack of the generation was met in a partition and nothing before it is unfinished: recorded. */
  drained({ generation, partition }: PartitionKey): void {
    this.#actor.send({ type: 'drained', generation, partition })
  }

  /** @throws EngineError STOPPING: no generation is served yet */
  mustServe(): ServedGeneration {
    if (!this.#served) throw new EngineError('STOPPING', 'the sink is starting')
    return this.#served
  }

  /** An edit: holds for what is handed out from now on. */
  update(sink: Sink, database: Database): void {
    this.#sink = sink
    this.transport.update(sink, database)
    this.delivered.isSensitive = sink.sensitive
    this.#stage = this.#functions(sink, database, this.#stage)
    this.#share()
    for (const partition of this.#live) partition.update()
    if (sink.status !== this.#status) this.#actor.send({ type: 'status', status: sink.status })
    this.#actor.send({ type: 'look' })
    this.deliverable()
  }

  /** The source has met a mark: a sink that waits for its first one may begin. */
  routed(): void {
    if (this.#state === 'idle') this.#actor.send({ type: 'look' })
  }

  /**
   * Partitions may have other owners, as the state database has it. It is looked at soon, and once for many: while partitions are
   * spread anew there is a notice for each of them.
   */
  ownersChanged(): void {
    if (this.#looking) return
    this.#looking = setTimeout(() => {
      this.#looking = undefined
      if (!this.#stopping) this.#findFenced().catch(() => this.ownersChanged())
    }, LOOK_AFTER_MS).unref()
  }

  /**
   * A process that was slow to take over may do so when the partition is no longer given to it: it stands as the owner then, acks are
   * sent to it, and it serves nothing. Who has the partition takes it over once more.
   */
  async #findFenced(): Promise<void> {
    if (!this.#served || this.#live.length === 0) return
    const { generation } = this.#served
    const keyOf = (partition: number) => termKey({ sinkId: this.#sink.id, generation, partition })
    const held = new Map(this.#live.map((owned) => [keyOf(owned.partition), owned]))
    const sql = `select key, term from tailrace.term where kind = 'partition' and key = any ($1)`
    for (const { key, term } of rowsOf({ key: 'text', term: 'int' }, await ask(this.surroundings.query, sql, [[...held.keys()]]))) {
      const owned = held.get(key)
      if (!owned || !this.#live.includes(owned) || term <= owned.store.term) continue
      const { partition } = owned
      const error = new EngineError('PARTITION_FENCED', `another process has taken over partition ${partition}`, { partition, term })
      this.#actor.getSnapshot().context.partitions.get(partition)?.send({ type: 'fenced', error })
    }
  }

  /** Carries out what was decided by hand of messages that wait outside the log, or were given up. @throws EngineError STATE_UNAVAILABLE */
  async edit(edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages> {
    const sum = (counts: readonly number[]) => counts.reduce((all, count) => all + count, 0)
    if (typeof choice === 'string')
      return { known: 0, served: 0, edited: sum(await Promise.all(this.#live.map((partition) => partition.parked.edit(edit, choice)))) }
    const named = readOlderAckIds(choice, sinkTag(this.#sink.id), Infinity)
    const owned = await findParked(this.surroundings.query, this.#sink.id, named, ['open', 'discarded'])
    const known = sum(owned.map(({ refs }) => refs.offsets.length))
    const here = owned.flatMap(({ owner, origin, refs }) => {
      const partition = this.#live.find((p) => p.names(owner))
      return partition ? [{ partition, origin: partition.names(origin) ? undefined : origin, refs }] : []
    })
    const edits = here.map(({ partition, origin, refs }) => partition.parked.edit(edit, parkedNames(refs, origin)))
    return { known, served: sum(here.map(({ refs }) => refs.offsets.length)), edited: sum(await Promise.all(edits)) }
  }

  health(): readonly HealthCheck[] {
    const partitions = [...this.#actor.getSnapshot().context.partitions.values()].map((actor) => actor.getSnapshot())
    const failed =
      partitions.find((p) => p.matches('waiting'))?.context.lastError?.error ??
      (this.#state === 'failed' || this.#state === 'waiting' ? this.#lastError?.error : undefined) ??
      this.#groupTrouble
    const { filtering, delivery, failing, accounting } = this.transport.health()
    const trouble = this.#live.map(partitionTrouble).find((t) => t !== undefined) ?? failing
    const ready =
      this.#state === 'idle' ? this.#status === 'disabled' : this.#state === 'serving' && partitions.every((p) => p.matches('running'))
    return [
      ...(filtering ? [{ name: 'Message filtering', status: 'error', error: filtering } as const] : []),
      failed === undefined
        ? { name: 'Message ingestion', status: ready ? 'healthy' : 'initializing' }
        : { name: 'Message ingestion', status: 'error', error: troubleOf(failed) },
      trouble
        ? { name: 'Messages pending delivery', status: 'warning', error: trouble }
        : { name: 'Messages pending delivery', status: 'healthy' },
      ...this.#discards(),
      { name: 'Message delivery', ...(this.#status === 'active' ? delivery : { status: 'paused' }) },
      ...(accounting ? [{ name: 'Messages under way', status: 'warning', error: accounting } as const] : []),
    ]
  }

  /** A notice: giving up was asked for, by max_retry_count or by hand. */
  #discards(): readonly HealthCheck[] {
    const some = this.#live.flatMap(({ discarded }) => discarded.others ?? [])
    if (some.length === 0) return []
    const messages = some.reduce((sum, each) => sum + each.messages, 0)
    const lastAt = new Date(Math.max(...some.map((each) => each.lastAt.getTime()))).toISOString()
    const message = `${messages === 1 ? 'a message was' : `${messages} messages were`} discarded in the last day, the last one at ${lastAt}`
    return [{ name: 'Messages pending delivery', status: 'notice', error: { code: 'MESSAGES_DISCARDED', message } }]
  }

  status(): SinkActorStatus {
    const { partitions } = this.#actor.getSnapshot().context
    const rows = [...partitions].map(([partition, actor]): PartitionStatus => {
      const owned = this.#live.find((p) => p.partition === partition)
      return { state: String(actor.getSnapshot().value), ...(owned ? figuresOf(owned) : { partition }) }
    })
    const lastError = this.transport.lastError ?? this.#lastError
    const sumOf = (figure: 'keptMessages' | 'unfinished' | 'parked') => rows.reduce((sum, row) => sum + (row[figure] ?? 0), 0)
    const counts = this.#counts?.()
    return {
      id: `sink/${this.#sink.id}`,
      kind: 'sink',
      name: this.#sink.name,
      accountId: this.#sink.accountId,
      state: this.#state === 'serving' ? this.#status : this.#state,
      since: this.#since,
      ...(lastError ? { lastError } : {}),
      details: {
        generation: this.#served?.generation ?? 0,
        partitions: this.#served?.shape.partitions ?? 0,
        ackPending: this.pending.count,
        keptMessages: sumOf('keptMessages'),
        unfinished: sumOf('unfinished'),
        parked: sumOf('parked'),
        oldestMs: rows.reduce((oldest, { oldestMs }) => Math.max(oldest, oldestMs ?? 0), 0),
        ...(counts && { handedOut: counts.attempts, delivered: counts.successes, failed: counts.failures }),
        readyPercent: Math.round(this.#readyShare.percent),
        ...this.transport.figures(),
      },
      partitions: rows,
    }
  }

  /**
   * Stops every partition that is served here, cleanly, for a replay; they stay assigned, and begin again when they are
   * released, or after ten seconds.
   * @param by names the replay
   * @throws EngineError REPLAY_RUNNING: it is held already; SINK_NOT_RUNNING: it does not come to rest
   */
  async hold(by: string): Promise<HeldSink> {
    if (this.#heldBy !== undefined) throw new EngineError('REPLAY_RUNNING', `another replay of sink "${this.#sink.name}" is running`)
    this.#heldBy = by
    try {
      await this.#until((state) => state === 'serving')
      await this.#takenOver()
      const stopped = this.#live.map(({ partition, store }) => ({ partition, term: store.term }))
      this.#actor.send({ type: 'hold' })
      await this.#until((state) => state !== 'holding')
      if (this.#state !== 'held')
        throw new EngineError('SINK_NOT_RUNNING', `a partition of sink "${this.#sink.name}" did not stop in time for the replay`)
      return { generation: this.mustServe().generation, partitions: stopped }
    } catch (error) {
      void this.release(by)
      throw error
    }
  }

  /** Settles when they are at work again, or that takes long. */
  async release(by: string): Promise<void> {
    if (this.#heldBy !== by) return
    this.#heldBy = undefined
    this.#actor.send({ type: 'resume' })
    await this.#until((state) => state !== 'resuming' && state !== 'parting' && state !== 'choosing').catch(() => undefined)
    await this.#takenOver()
  }

  /** Settles when no partition is being taken over, or that takes long. */
  async #takenOver(): Promise<void> {
    for (const actor of this.#actor.getSnapshot().context.partitions.values())
      await waitFor(actor, (partition) => !partition.matches('takingOver'), { timeout: TAKEN_OVER_WITHIN_MS }).catch(() => undefined)
  }

  /** Answers those who wait with nothing, writes down what is in flight, then settles. */
  async stop(): Promise<void> {
    this.#stopping = true
    this.#actor.send({ type: 'stop' })
    this.transport.stopping?.()
    await this.ended.catch(() => undefined)
    await this.transport.close?.()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /**
   * Sets how many messages may be out at once in this process: the bound is the sink's, and processes that serve other partitions
   * have the shares of those.
   */
  #share(): void {
    const { max_ack_pending } = this.#sink
    const partitions = this.#served?.shape.partitions ?? 1
    const counted = this.transport.sends ? this.underWay : this.pending // a sender knows what it has under way
    counted.max = this.#live.reduce((sum, { partition }) => sum + shareOf(max_ack_pending, partitions, partition), 0)
  }

  /** @throws EngineError SINK_NOT_RUNNING: it is not so in time */
  async #until(isSo: (state: string) => boolean): Promise<void> {
    const ended = () => this.#actor.getSnapshot().status !== 'active'
    await waitFor(this.#actor, () => ended() || isSo(this.#state), { timeout: REST_WITHIN_MS }).catch(() => undefined)
    if (!isSo(this.#state)) throw new EngineError('SINK_NOT_RUNNING', `sink "${this.#sink.name}" is ${this.#state} at the moment`)
  }

  #setStatus(status: SinkStatus): void {
    this.#status = status
    this.#since = new Date()
    this.deliverable()
  }

  #partition(served: ServedGeneration, partition: number): PartitionWork<OwnedPartition> {
    return {
      takeOver: (signal) => OwnedPartition.takeOver(this, served, partition, signal),
      live: (owned) => {
        this.#live = [...this.#live, owned].sort((a, b) => a.partition - b.partition)
        this.#share()
        this.deliverable()
      },
      gone: (owned) => {
        this.#live = this.#live.filter((p) => p !== owned)
        this.#share()
      },
      failed: (error) => {
        if (!isFenced(error)) this.#lastError = { error, at: new Date() } // partitions move
        this.#actor.send({ type: 'look' })
        this.#onFailure?.(error, partition)
      },
    }
  }
}
