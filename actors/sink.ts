/**
 * A pull sink at work: what the API calls. Requests take their messages straight from the partitions; the machines
 * (sink-machine.ts, sink-partition.ts) decide which partitions there are, and restart them.
 *
 *  I1. While the sink is not active nothing is handed out; acks and nacks count all the same.
 *  I2. Waiting receives are served in the order they came, and woken by a message, a nack, a lapse or an ack that frees
 *      a group: never by polling.
 *  I3. What a receive took and could not give to its client goes back at once.
 *  I4. An ack_id of an ended generation means the parked message that has it, whoever delivers that now.
 */
import { createActor, type ActorRefFrom } from 'xstate'
import { AckPending } from '../engine/dispatch/ack-pending.ts'
import type { Batch } from '../engine/dispatch/batch.ts'
import type { DispatchSettings } from '../engine/dispatch/dispatcher.ts'
import type { Generations, ServedGeneration } from '../engine/dispatch/generations.ts'
import { findParked, type OwnedRefs } from '../engine/dispatch/parked-store.ts'
import { EngineError } from '../engine/errors.ts'
import type { Log } from '../engine/log/log.ts'
import type { Database, Sink } from '../engine/state/resources.ts'
import { topicOf } from '../engine/wal/routing.ts'
import type { Query } from '../engine/wal/slot.ts'
import { EMPTY_ANSWER, pull } from '../sinks/pull.ts'
import type { PullWire, Shape } from '../sinks/sink.ts'
import { identity } from '../transforms/stage.ts'
import { OwnedPartition } from './owned-partition.ts'
import { sinkMachine, type Served, type SinkStatus } from './sink-machine.ts'
import type { SinkObserver } from './sink-observer.ts'
import type { PartitionWork } from './sink-partition.ts'
import type { ActorStatus, Figures, HealthCheck } from './status.ts'
import { Waiters } from './waiters.ts'

export interface Receipt {
  /** the whole answer, `{"data":[…]}` */
  readonly body: Buffer
  readonly count: number
  /** The answer could not be written: its messages are deliverable again at once. */
  giveBack(): void
}

export type Receive = Readonly<{
  batchSize: number
  /** 0: answers at once with what is there */
  waitMs: number
  shape: Shape
  /** aborted when the client has gone: the wait ends and nothing is taken */
  signal: AbortSignal
  /** its client is counted elsewhere among those that wait */
  isCounted?: boolean
}>

export interface RunningSink {
  /** settles when the sink has stopped; rejects when it can't run */
  readonly ended: Promise<void>
  /** @throws EngineError TOO_MANY_WAITING, STOPPING */
  receive(request: Receive): Promise<Receipt>
  /** Settles when the acknowledgement is durable; unknown ids are ignored. @throws EngineError ACK_NOT_DURABLE, STOPPING */
  ack(ackIds: readonly string[]): Promise<void>
  nack(ackIds: readonly string[]): Promise<void>
  /** An edit: holds for what is handed out from now on. */
  update(sink: Sink, database: Database): void
  health(): readonly HealthCheck[]
  status(): ActorStatus
  /** Answers those who wait with nothing, writes down what is in flight, then settles. */
  stop(): Promise<void>
}

export type SinkOptions = Readonly<{
  sink: Sink
  database: Database
  generations: Generations
  log: Log
  /** the state database */
  query: Query
  /** names this process there */
  holder: string
  observer: SinkObserver
  /** a partition failed and will be tried again */
  onFailure?: (error: unknown, partition: number) => void
  /** what keeps an ended generation from being drained is parked after this */
  drainAfterMs?: number
  /** monotonic milliseconds */
  clock?: () => number
}>

/** An answer has one message, or at most so many bytes. */
const MAX_ANSWER_BYTES = 16 * 1024 * 1024
/** A receive that could wait is held so long by a sink that is off, so that a client in a loop doesn't spin. */
const OFF_HOLD_MS = 1_000
const MB = 1024 * 1024
const EMPTY: Receipt = { body: EMPTY_ANSWER, count: 0, giveBack: () => undefined }

/** Starts serving a sink. */
export function startSink(options: SinkOptions): RunningSink {
  return new PullSink(options)
}

class PullSink implements RunningSink {
  readonly ended: Promise<void>
  readonly #options: SinkOptions
  readonly #actor: ActorRefFrom<typeof sinkMachine>
  readonly #waiters = new Waiters<Receipt>()
  readonly #pending: AckPending
  #sink: Sink
  #served: ServedGeneration | undefined
  #wire: PullWire
  #status: SinkStatus
  /** the partitions that hand out, and the one that is asked first next time */
  #live: OwnedPartition[] = []
  #turn = 0
  #stopping = false
  #since = new Date()
  #state = ''
  #lastError: ActorStatus['lastError']
  #everDelivered = false
  /** why it is not known which partitions are served here */
  #groupTrouble: unknown

  constructor(options: SinkOptions) {
    const { sink, database } = options
    this.#options = options
    this.#sink = sink
    this.#status = sink.status
    this.#wire = pull.open(sink, database)
    this.#pending = new AckPending(sink.max_ack_pending)
    const work = {
      choose: async () => (this.#served = await options.generations.serve()),
      isDrained: ({ generation }: Served) => options.generations.isDrained(generation),
      subscribe: ({ generation }: Served, listener: Parameters<Log['subscribe']>[1]) =>
        options.log.subscribe(topicOf({ sinkId: sink.id, generation }), {
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
      if (snapshot.context.lastError) this.#lastError = snapshot.context.lastError
      if (snapshot.status !== 'done') return
      if (state === 'failed') ended.reject(snapshot.context.lastError?.error)
      else ended.resolve()
    })
    this.#actor.start()
  }

  async receive({ batchSize, waitMs, shape, signal, isCounted }: Receive): Promise<Receipt> {
    if (this.#stopping) throw new EngineError('STOPPING', 'the sink is stopping')
    if (signal.aborted) return EMPTY
    const take = () => this.#take(batchSize, shape)
    const taken = take()
    if (taken || waitMs === 0) return taken ?? EMPTY
    const heldMs = this.#status === 'active' ? waitMs : Math.min(waitMs, OFF_HOLD_MS)
    return (await this.#waiters.wait({ waitMs: heldMs, max: isCounted ? undefined : this.#sink.max_waiting, signal, take })) ?? EMPTY
  }

  async ack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#mustServe()
    const ends: Promise<void>[] = []
    let named = 0
    for (const [partition, refs] of this.#wire.named(ackIds, generation)) {
      named += refs.offsets.length
      const owned = this.#live.find((p) => p.partition === partition)
      if (owned) ends.push(owned.finish(refs))
      else if (partition < shape.partitions) ends.push(Promise.reject(notServed(partition)))
    }
    if (generation > 1 && named < ackIds.length) ends.push(this.#ackOlder(ackIds, generation))
    // all of them, so that what could be acked is, before the first failure is told
    const failed = (await Promise.allSettled(ends)).find((end) => end.status === 'rejected')
    if (failed) throw failed.reason
  }

  async nack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#mustServe()
    let named = 0
    let away: number | undefined // its owner is another process, or not there yet
    for (const [partition, refs] of this.#wire.named(ackIds, generation)) {
      named += refs.offsets.length
      const owned = this.#live.find((p) => p.partition === partition)
      if (owned) owned.release(refs)
      else if (partition < shape.partitions) away = partition
    }
    const older = generation > 1 && named < ackIds.length ? await this.#older(ackIds, generation) : []
    for (const { owner, origin, refs } of older) {
      const owned = this.#live.find((p) => p.names(owner))
      if (owned) owned.releaseParked(refs, origin)
      else away = owner.partition
    }
    if (away !== undefined) throw notServed(away)
  }

  update(sink: Sink, database: Database): void {
    this.#sink = sink
    this.#wire = pull.open(sink, database)
    this.#share()
    for (const partition of this.#live) partition.update()
    if (sink.status !== this.#status) this.#actor.send({ type: 'status', status: sink.status })
    this.#serve()
  }

  health(): readonly HealthCheck[] {
    const partitions = [...this.#actor.getSnapshot().context.partitions.values()].map((actor) => actor.getSnapshot())
    const failed =
      partitions.find((p) => p.matches('waiting'))?.context.lastError?.error ??
      (this.#state === 'failed' || this.#state === 'waiting' ? this.#lastError?.error : undefined) ??
      this.#groupTrouble
    const trouble = this.#live.map((p) => p.trouble).find((t) => t !== undefined)
    const ready = this.#state === 'serving' && partitions.every((p) => p.matches('running'))
    const off = this.#status !== 'active'
    return [
      failed === undefined
        ? { name: 'Message ingestion', status: ready ? 'healthy' : 'initializing' }
        : { name: 'Message ingestion', status: 'error', error: told(failed) },
      trouble
        ? { name: 'Messages pending delivery', status: 'warning', error: trouble }
        : { name: 'Messages pending delivery', status: 'healthy' },
      { name: 'Message delivery', status: off ? 'paused' : this.#everDelivered ? 'healthy' : 'waiting' },
    ]
  }

  status(): ActorStatus {
    const { partitions } = this.#actor.getSnapshot().context
    const rows = [...partitions].map(([partition, actor]): Figures => {
      const owned = this.#live.find((p) => p.partition === partition)
      return { state: String(actor.getSnapshot().value), ...(owned?.figures() ?? { partition }) }
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
        waiting: this.#waiters.count,
        ackPending: this.#pending.count,
      },
      partitions: rows,
    }
  }

  async stop(): Promise<void> {
    this.#stopping = true
    this.#waiters.endAll()
    this.#actor.send({ type: 'stop' })
    await this.ended.catch(() => undefined)
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  /** Takes from all partitions, another one first each time. */
  #take(max: number, shape: Shape): Receipt | undefined {
    if (this.#status !== 'active' || this.#stopping) return undefined
    const live = this.#live
    const batches: { batch: Batch; owned: OwnedPartition }[] = []
    const overhead = this.#wire.overheadBytes
    let left = max
    let bytes = MAX_ANSWER_BYTES
    for (let i = 0; i < live.length && left > 0; i++) {
      const owned = live[(this.#turn + i) % live.length] as OwnedPartition
      for (const batch of owned.take(left, { max: bytes, overhead, first: batches.length === 0 })) {
        batches.push({ batch, owned })
        left -= batch.views.length
        bytes -= batch.bytes + batch.views.length * overhead
      }
    }
    this.#turn = live.length > 0 ? (this.#turn + 1) % live.length : 0
    if (batches.length === 0) return undefined
    this.#everDelivered = true
    return {
      body: this.#wire.encode(
        batches.map(({ batch }) => batch),
        shape,
      ),
      count: max - left,
      giveBack: () => {
        for (const { batch, owned } of batches) {
          if (owned.names(batch)) owned.release(batch, batch.lease)
          else owned.releaseParked(batch, batch, batch.lease)
        }
      },
    }
  }

  /** @throws EngineError STOPPING: no generation is served yet */
  #mustServe(): ServedGeneration {
    if (!this.#served) throw new EngineError('STOPPING', 'the sink is starting')
    return this.#served
  }

  /** An owner that has moved on since it was looked up is not here any more: the ack is to be sent again. */
  async #ackOlder(ackIds: readonly string[], generation: number): Promise<void> {
    for (const { owner, origin, refs } of await this.#older(ackIds, generation)) {
      const owned = this.#live.find((p) => p.names(owner))
      if (!owned) throw notServed(owner.partition)
      await owned.finishParked(refs, origin)
    }
  }

  async #older(ackIds: readonly string[], generation: number): Promise<readonly OwnedRefs[]> {
    const refs = this.#wire.namedBefore(ackIds, generation)
    return refs.offsets.length === 0 ? [] : findParked(this.#options.query, this.#sink.id, refs)
  }

  #serve(): void {
    if (this.#waiters.count > 0) this.#waiters.serve()
  }

  /** What may be out at once belongs to the sink: other processes that serve partitions of it have their part. */
  #share(): void {
    const { max_ack_pending } = this.#sink
    const partitions = this.#served?.shape.partitions ?? 1
    this.#pending.max = Math.ceil((max_ack_pending * Math.min(this.#live.length, partitions)) / partitions)
  }

  #setStatus(status: SinkStatus): void {
    this.#status = status
    this.#since = new Date()
    this.#serve()
  }

  #settings(): DispatchSettings {
    const { ack_wait_ms, max_retry_count, max_memory_mb } = this.#sink
    const partitions = this.#served?.shape.partitions ?? 1
    return {
      ackWaitMs: ack_wait_ms,
      maxDeliveries: max_retry_count === null ? null : Math.min(max_retry_count, 0xffff),
      windowBytes: Math.floor((max_memory_mb * MB) / partitions),
    }
  }

  #partition({ generation, shape: { grouping }, opensAt }: ServedGeneration, partition: number): PartitionWork {
    const { log, query, holder, observer, onFailure, drainAfterMs, clock = () => performance.now() } = this.#options
    const { id: sinkId } = this.#sink
    return {
      takeOver: () =>
        OwnedPartition.takeOver({
          ...{ log, query, holder, observer, clock, grouping, opensAt, ...(drainAfterMs === undefined ? {} : { drainAfterMs }) },
          topic: topicOf({ sinkId, generation }),
          key: { sinkId, generation, partition },
          keyed: pull.keyed,
          pending: this.#pending,
          stage: identity,
          settings: () => this.#settings(),
          deliverable: () => this.#serve(),
          drained: () => this.#actor.send({ type: 'drained', generation, partition }),
        }),
      live: (owned) => {
        this.#live = [...this.#live, owned as OwnedPartition].sort((a, b) => a.partition - b.partition)
        this.#share()
        this.#serve()
      },
      gone: (owned) => {
        this.#live = this.#live.filter((p) => p !== owned)
        this.#share()
      },
      failed: (error) => {
        this.#lastError = { error, at: new Date() }
        onFailure?.(error, partition)
      },
    }
  }
}

const notServed = (partition: number) => new EngineError('STOPPING', `partition ${partition} is not served at the moment`, { partition })

const told = (error: unknown) => ({
  code: error instanceof EngineError ? error.code : 'INTERNAL',
  message: error instanceof Error ? error.message : String(error),
})
