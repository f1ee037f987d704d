/**
 * What every sink at work has, whichever way its messages go: the machine that says which generation and which partitions
 * are served here, the partitions that live, and how all of that is. What a sink does with its partitions is its own.
 */
import { createActor, waitFor, type ActorRefFrom } from 'xstate'
import { readOlderAckIds, sinkTag } from '../../engine/dispatch/ack-id.ts'
import { AckPending, shareOf } from '../../engine/dispatch/ack-pending.ts'
import { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import type { DispatchSettings } from '../../engine/dispatch/dispatcher.ts'
import type { ServedGeneration } from '../../engine/dispatch/generations.ts'
import type { Origin } from '../../engine/dispatch/parked/parked-group.ts'
import { MAX_REPLAY_BYTES, type WindowBounds } from '../../engine/dispatch/replay/replay-window.ts'
import { ReadMemory } from '../../engine/dispatch/read-memory.ts'
import { termKey } from '../../engine/dispatch/fenced-write.ts'
import { findParked, type Chosen, type Discards } from '../../engine/dispatch/parked/parked-store.ts'
import { EngineError, isFenced } from '../../engine/errors.ts'
import type { Log } from '../../engine/log/log.ts'
import { ask } from '../../engine/state/asking.ts'
import { replayWindowMs, type Database, type Sink } from '../../engine/state/resources.ts'
import type { FunctionStage } from '../../transforms/stage.ts'
import { OwnedPartition } from '../partition/owned-partition.ts'
import { ReadyShare } from './ready-share.ts'
import type { MessageEdit } from '../../engine/dispatch/parked/message-records.ts'
import type { EditedMessages, HeldSink, MessageChoice, SinkOptions } from './running-sink.ts'
import { sinkMachine, type Served, type SinkStatus } from './sink-machine.ts'
import type { Owned, PartitionWork } from '../partition/sink-partition.ts'
import type { ActorStatus, Figures, HealthCheck } from '../../engine/status.ts'

/** A partition as its sink has it: the owned one, or what wraps it. */
export interface HostedPartition extends Owned {
  readonly partition: number
  readonly trouble: HealthCheck['error'] | undefined
  /** given up in the last day */
  readonly discarded: Discards | undefined
  /** messages lie ready and wait for their destination */
  readonly isReady: boolean
  /** Whether a message's names are of this partition. */
  names(origin: Origin): boolean
  /** The settings have changed. */
  update(): void
  /** What somebody decided of parked messages. @returns how many it held for */
  edit(edit: MessageEdit, chosen: Chosen | 'discarded'): Promise<number>
  figures(): Figures
}

type HostHooks<P extends HostedPartition> = Readonly<{
  /** keeps one document for each key: tombstones are delivered */
  keyed: boolean
  /** it sends, rather than being asked */
  sends: boolean
  /** what of the settings is the sink's own way; the window is the host's */
  settings: (sink: Sink) => Omit<DispatchSettings, 'windowBytes'>
  /** what is put in front of an owned partition */
  begin: (owned: OwnedPartition) => P
  /** something may be deliverable that wasn't: a message, a partition, a status */
  deliverable: () => void
}>

const MB = 1024 * 1024
/** Each partition that is being taken over is waited for so long, before a replay and after it. */
const TAKEN_OVER_WITHIN_MS = 2_000
/** A sink that is starting, or changes its generation, is waited for so long before it is held. */
const REST_WITHIN_MS = 12_000
/** After a notice that owners have changed, or a look that failed. */
const LOOK_AFTER_MS = 1_000

export class SinkHost<P extends HostedPartition> {
  /** settles when the sink has stopped; rejects when it can't run */
  readonly ended: Promise<void>
  /** delivered and unacknowledged, over all partitions here */
  readonly pending: AckPending
  /** of a sink that sends: messages under way, over all partitions here */
  readonly underWay: AckPending
  readonly delivered: DeliveredMessages
  readonly #options: SinkOptions
  readonly #hooks: HostHooks<P>
  readonly #actor: ActorRefFrom<typeof sinkMachine>
  #sink: Sink
  #stage: FunctionStage
  #served: ServedGeneration | undefined
  #status: SinkStatus
  #live: readonly P[] = []
  #stopping = false
  /** the replay it is held for */
  #heldBy: string | undefined
  #since = new Date()
  #state = ''
  #lastError: ActorStatus['lastError']
  #looking: NodeJS.Timeout | undefined
  /** why it is not known which partitions are served here */
  #groupTrouble: unknown
  readonly #readyShare = new ReadyShare(() => this.isActive && this.#live.some((p) => p.isReady))

  constructor(options: SinkOptions, hooks: HostHooks<P>) {
    const { sink, database, functions } = options
    const { sends } = hooks
    this.#options = options
    this.#hooks = hooks
    this.#sink = sink
    this.#stage = functions(sink, database)
    this.#status = sink.status
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
    this.ended.catch(() => undefined) // the supervisor watches it; nobody may
    this.#actor.subscribe((snapshot) => {
      const state = typeof snapshot.value === 'string' ? snapshot.value : (Object.keys(snapshot.value)[0] as string)
      if (state !== this.#state) this.#since = new Date()
      this.#state = state
      if (state === 'resuming') this.#heldBy = undefined // also when nobody has released it in time
      if (snapshot.context.lastError) this.#lastError = snapshot.context.lastError
      if (snapshot.status !== 'done') return
      this.#readyShare[Symbol.dispose]()
      if (state === 'failed') ended.reject(snapshot.context.lastError?.error)
      else ended.resolve()
    })
  }

  /** Begins; not within the constructor, so that whoever has the hooks knows its host by then. */
  start(): void {
    this.#actor.start()
  }

  get sink(): Sink {
    return this.#sink
  }
  /** its functions, as they are now */
  get stage(): FunctionStage {
    return this.#stage
  }
  get status(): SinkStatus {
    return this.#status
  }
  /** Messages may be handed out. */
  get isActive(): boolean {
    return this.#status === 'active' && !this.#stopping
  }
  get stopping(): boolean {
    return this.#stopping
  }
  /** the partitions that hand out, by their number */
  get live(): readonly P[] {
    return this.#live
  }

  /** @throws EngineError STOPPING: no generation is served yet */
  mustServe(): ServedGeneration {
    if (!this.#served) throw new EngineError('STOPPING', 'the sink is starting')
    return this.#served
  }

  update(sink: Sink, database: Database): void {
    this.#sink = sink
    this.delivered.isSensitive = sink.sensitive
    this.#stage = this.#options.functions(sink, database, this.#stage)
    this.#share()
    for (const partition of this.#live) partition.update()
    if (sink.status !== this.#status) this.#actor.send({ type: 'status', status: sink.status })
    this.#actor.send({ type: 'look' })
    this.#deliverable()
  }

  routed(): void {
    if (this.#state === 'idle') this.#actor.send({ type: 'look' })
  }

  /** Soon, and once for many: while partitions are spread anew there is a notice for each of them. */
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
    const held = new Map(this.#live.map((hosted) => [keyOf(hosted.partition), hosted]))
    const { rows } = await ask(this.#options.query, `select key, term from tailrace.term where kind = 'partition' and key = any ($1)`, [
      [...held.keys()],
    ])
    for (const { key, term } of rows) {
      const hosted = held.get(String(key))
      if (!hosted || !this.#live.includes(hosted) || Number(term) <= Number(hosted.figures()['term'])) continue
      const { partition } = hosted
      const error = new EngineError('PARTITION_FENCED', `another process has taken over partition ${partition}`, {
        partition,
        term: Number(term),
      })
      this.#actor.getSnapshot().context.partitions.get(partition)?.send({ type: 'fenced', error })
    }
  }

  /** @throws EngineError STATE_UNAVAILABLE */
  async edit(edit: MessageEdit, choice: MessageChoice): Promise<EditedMessages> {
    const sum = (counts: readonly number[]) => counts.reduce((all, count) => all + count, 0)
    if (typeof choice === 'string')
      return { known: 0, served: 0, edited: sum(await Promise.all(this.#live.map((partition) => partition.edit(edit, choice)))) }
    const named = readOlderAckIds(choice, sinkTag(this.#sink.id), Infinity)
    const owned = await findParked(this.#options.query, this.#sink.id, named, ['open', 'discarded'])
    const known = sum(owned.map(({ refs }) => refs.offsets.length))
    const here = owned.flatMap(({ owner, origin, refs }) => {
      const partition = this.#live.find((p) => p.names(owner))
      return partition ? [{ partition, origin: partition.names(origin) ? undefined : origin, refs }] : []
    })
    const edits = here.map(({ partition, origin, refs: { offsets, indexes } }) => {
      const refs = offsets.map((offset, i) => ({ offset, index: indexes[i] as number, origin }))
      return partition.edit(edit, refs)
    })
    return { known, served: sum(here.map(({ refs }) => refs.offsets.length)), edited: sum(await Promise.all(edits)) }
  }

  /** @param delivery how what the sink does with its messages is. @param failing what is to be said of those that failed */
  health(delivery: HealthCheck, failing?: HealthCheck['error']): readonly HealthCheck[] {
    const partitions = [...this.#actor.getSnapshot().context.partitions.values()].map((actor) => actor.getSnapshot())
    const failed =
      partitions.find((p) => p.matches('waiting'))?.context.lastError?.error ??
      (this.#state === 'failed' || this.#state === 'waiting' ? this.#lastError?.error : undefined) ??
      this.#groupTrouble
    const trouble = this.#live.map((p) => p.trouble).find((t) => t !== undefined) ?? failing
    const ready =
      this.#state === 'idle' ? this.#status === 'disabled' : this.#state === 'serving' && partitions.every((p) => p.matches('running'))
    return [
      failed === undefined
        ? { name: 'Message ingestion', status: ready ? 'healthy' : 'initializing' }
        : { name: 'Message ingestion', status: 'error', error: told(failed) },
      trouble
        ? { name: 'Messages pending delivery', status: 'warning', error: trouble }
        : { name: 'Messages pending delivery', status: 'healthy' },
      ...this.#discards(),
      this.#status === 'active' ? delivery : { name: delivery.name, status: 'paused' },
    ]
  }

  /** A notice: giving up was asked for, by max_retry_count or by hand. */
  #discards(): readonly HealthCheck[] {
    const some = this.#live.flatMap(({ discarded }) => discarded ?? [])
    if (some.length === 0) return []
    const messages = some.reduce((sum, each) => sum + each.messages, 0)
    const lastAt = new Date(Math.max(...some.map((each) => each.lastAt.getTime()))).toISOString()
    const message = `${messages === 1 ? 'a message was' : `${messages} messages were`} given up in the last day, the last one at ${lastAt}`
    return [{ name: 'Messages pending delivery', status: 'notice', error: { code: 'MESSAGES_DISCARDED', message } }]
  }

  report(details: Figures): ActorStatus {
    const { partitions } = this.#actor.getSnapshot().context
    const rows = [...partitions].map(([partition, actor]): Figures => {
      const hosted = this.#live.find((p) => p.partition === partition)
      return { state: String(actor.getSnapshot().value), ...(hosted?.figures() ?? { partition }) }
    })
    return {
      id: `sink/${this.#sink.id}`,
      kind: 'sink',
      name: this.#sink.name,
      accountId: this.#sink.accountId,
      state: this.#state === 'serving' ? this.#status : this.#state,
      since: this.#since,
      ...(this.#lastError ? { lastError: this.#lastError } : {}),
      details: {
        generation: this.#served?.generation ?? 0,
        partitions: this.#served?.shape.partitions ?? 0,
        ackPending: this.pending.count,
        keptMessages: rows.reduce((sum, { keptMessages }) => sum + Number(keptMessages ?? 0), 0),
        readyPercent: Math.round(this.#readyShare.percent),
        ...details,
      },
      partitions: rows,
    }
  }

  /** @see RunningSink.hold */
  async hold(by: string): Promise<HeldSink> {
    if (this.#heldBy !== undefined) throw new EngineError('REPLAY_RUNNING', `sink ${this.#sink.name} is held for another replay`)
    this.#heldBy = by
    try {
      await this.#until((state) => state === 'serving')
      await this.#takenOver()
      const stopped = this.#live.map((hosted) => ({ partition: hosted.partition, term: Number(hosted.figures()['term']) }))
      this.#actor.send({ type: 'hold' })
      await this.#until((state) => state !== 'holding')
      if (this.#state !== 'held')
        throw new EngineError('SINK_NOT_RUNNING', `a partition of sink ${this.#sink.name} has not stopped in time`)
      return { generation: this.mustServe().generation, partitions: stopped }
    } catch (error) {
      void this.release(by)
      throw error
    }
  }

  /** @see RunningSink.release */
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

  /** Settles when every partition has stopped. */
  async stop(): Promise<void> {
    this.#stopping = true
    this.#actor.send({ type: 'stop' })
    await this.ended.catch(() => undefined)
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** What may be out at once belongs to the sink: processes that serve other partitions of it have the shares of those. */
  #share(): void {
    const { max_ack_pending } = this.#sink
    const partitions = this.#served?.shape.partitions ?? 1
    const counted = this.#hooks.sends ? this.underWay : this.pending // whoever sends knows what it has under way
    counted.max = this.#live.reduce((sum, { partition }) => sum + shareOf(max_ack_pending, partitions, partition), 0)
  }

  /** @throws EngineError SINK_NOT_RUNNING: it is not so in time */
  async #until(isSo: (state: string) => boolean): Promise<void> {
    const ended = () => this.#actor.getSnapshot().status !== 'active'
    await waitFor(this.#actor, () => ended() || isSo(this.#state), { timeout: REST_WITHIN_MS }).catch(() => undefined)
    if (!isSo(this.#state)) throw new EngineError('SINK_NOT_RUNNING', `sink ${this.#sink.name} is ${this.#state} at the moment`)
  }

  #deliverable(): void {
    this.#readyShare.ring()
    this.#hooks.deliverable()
  }

  #setStatus(status: SinkStatus): void {
    this.#status = status
    this.#since = new Date()
    this.#deliverable()
  }

  #settings(): DispatchSettings {
    const partitions = this.#served?.shape.partitions ?? 1
    return { ...this.#hooks.settings(this.#sink), windowBytes: Math.floor((this.#sink.max_memory_mb * MB) / partitions) }
  }

  /** As it bounds each partition: all have the same share of what a sink may keep. */
  #replay(): WindowBounds {
    const partitions = this.#served?.shape.partitions ?? 1
    return { windowMs: replayWindowMs(this.#sink.replay_window), maxBytes: Math.floor(MAX_REPLAY_BYTES / partitions) }
  }

  #partition(
    { generation, shape: { grouping, splitsKeyChanges = false }, topic, reader, opensAt }: ServedGeneration,
    partition: number,
  ): PartitionWork<P> {
    const {
      log,
      query,
      holder,
      observer,
      onFailure,
      drainAfterMs,
      memory = new ReadMemory(),
      clock = () => performance.now(),
    } = this.#options
    const { keyed, sends, begin } = this.#hooks
    const deliverable = () => this.#deliverable()
    const { id: sinkId } = this.#sink
    return {
      takeOver: async () =>
        begin(
          await OwnedPartition.takeOver({
            log,
            query,
            holder,
            observer,
            clock,
            grouping,
            opensAt,
            ...(drainAfterMs === undefined ? {} : { drainAfterMs }),
            topic,
            reader,
            key: { sinkId, generation, partition },
            span: () => this.#options.generations.span(generation),
            keyed,
            splitsKeyChanges,
            sends,
            pending: this.pending,
            memory,
            delivered: this.delivered,
            drops: (pack) => {
              this.#options.read?.(this.#sink, pack)
              return this.#stage.isFiltering ? this.#stage.drops(pack) : undefined
            },
            settings: () => this.#settings(),
            replay: () => this.#replay(),
            deliverable,
            drained: () => this.#actor.send({ type: 'drained', generation, partition }),
          }),
        ),
      live: (hosted) => {
        this.#live = [...this.#live, hosted].sort((a, b) => a.partition - b.partition)
        this.#share()
        deliverable()
      },
      gone: (hosted) => {
        this.#live = this.#live.filter((p) => p !== hosted)
        this.#share()
      },
      failed: (error) => {
        if (!isFenced(error)) this.#lastError = { error, at: new Date() } // partitions move
        this.#actor.send({ type: 'look' })
        onFailure?.(error, partition)
      },
    }
  }
}

const told = (error: unknown) => ({
  code: error instanceof EngineError ? error.code : 'INTERNAL',
  message: error instanceof Error ? error.message : String(error),
})
