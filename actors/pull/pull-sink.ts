/**
 * A pull sink at work: what the API calls. Requests take their messages straight from the partitions; the machines
 * (actors/sink/sink-machine.ts, actors/partition/sink-partition.ts) decide which partitions there are, and restart them.
 *
 *  I1. While the sink is not active nothing is handed out; acks and nacks count all the same.
 *  I2. Waiting receives are served in the order they came, and woken by a message, a nack, a lapse or an ack that frees
 *      a group: never by polling.
 *  I3. What a receive took and could not give to its client goes back at once.
 *  I4. An ack_id of an ended generation means the parked message that has it, whoever delivers that now.
 *  I5. Where the sink has functions, what was taken goes through them before it is handed out. What they drop is finished,
 *      what fails in them is parked and tried again after a while; meanwhile it is nobody's, and goes back if anything ends.
 */
import type { Batch } from '../../engine/dispatch/batch.ts'
import type { DeliveredMessages } from '../../engine/dispatch/delivered-messages.ts'
import { findParked, type OwnedRefs } from '../../engine/dispatch/parked/parked-store.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { EMPTY_ANSWER, PullAnswers } from '../../sinks/pull.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { giveBack, MAX_ANSWER_BYTES, PullStage, type TakenBatches } from './pull-stage.ts'
import type { HeldSink, PulledSink, Receipt, ReceiveRequest, RunningSink, SinkOptions } from '../sink/running-sink.ts'
import { SinkHost } from '../sink/sink-host.ts'
import type { ActorStatus, HealthCheck } from '../../engine/status.ts'
import { Waiters } from './waiters.ts'

/** A receive that could wait is held so long by a sink that is off, so that a client in a loop doesn't spin. */
const OFF_HOLD_MS = 1_000
/** So long a receive that doesn't wait looks for a message that passes the filter. */
const SEARCH_MS = 1_000
const EMPTY: Receipt = { body: EMPTY_ANSWER, count: 0, giveBack: () => undefined }

export function startPullSink(options: SinkOptions): RunningSink {
  return new PullSink(options)
}

class PullSink implements RunningSink, PulledSink {
  readonly pulled = this
  readonly ended: Promise<void>
  readonly #options: SinkOptions
  readonly #host: SinkHost<OwnedPartition>
  readonly #waiters = new Waiters<Receipt>()
  readonly #takers = new Waiters<TakenBatches>()
  readonly #clock: () => number
  #answers: PullAnswers
  /** the partition that is asked first next time */
  #turn = 0
  #everDelivered = false
  readonly #stage: PullStage

  constructor(options: SinkOptions) {
    const { sink, database, clock = () => performance.now() } = options
    this.#options = options
    this.#clock = clock
    this.#answers = new PullAnswers(sink, database)
    this.#host = new SinkHost(options, {
      keyed: false,
      sends: false,
      settings: ({ ack_wait_ms, max_retry_count }) => ({
        ackWaitMs: ack_wait_ms,
        maxDeliveries: max_retry_count === null ? null : Math.min(max_retry_count, 0xffff),
      }),
      begin: (owned) => owned,
      deliverable: () => this.#serve(),
    })
    this.#stage = new PullStage(this.#host)
    this.ended = this.#host.ended
    this.#host.start()
  }

  async receive({ batchSize, waitMs, signal, isCounted, ...form }: ReceiveRequest): Promise<Receipt> {
    if (this.#host.stopping) throw new EngineError('STOPPING', 'the sink is stopping')
    if (signal.aborted) return EMPTY
    const { max_waiting } = this.#host.sink
    const max = isCounted ? undefined : max_waiting
    const heldMs = this.#host.status === 'active' ? waitMs : Math.min(waitMs, OFF_HOLD_MS)
    if (!this.#host.stage.isIdle) return this.#receiveStaged({ batchSize, waitMs: heldMs, signal, max, form })
    const take = () => this.#take(batchSize, form)
    const taken = take()
    if (taken || waitMs === 0) return taken ?? EMPTY
    using places = new DisposableStack()
    places.use(this.#waiters.enter(max))
    return (await this.#waiters.wait({ waitMs: heldMs, signal, take })) ?? EMPTY
  }

  async ack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#host.mustServe()
    const ends: Promise<void>[] = []
    const { refs: named, others } = this.#answers.named(ackIds, generation)
    for (const [partition, refs] of named) {
      const owned = this.#host.live.find((p) => p.partition === partition)
      if (owned) ends.push(owned.finish(refs))
      else if (partition < shape.partitions) ends.push(Promise.reject(notServed(partition)))
    }
    if (generation > 1 && others.length > 0) ends.push(this.#ackOlder(others, generation))
    // all of them, so that what could be acked is, before the first failure is told
    const failed = (await Promise.allSettled(ends)).find((end) => end.status === 'rejected')
    if (failed) throw failed.reason
  }

  async nack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#host.mustServe()
    const { refs: named, others } = this.#answers.named(ackIds, generation)
    let away: number | undefined // its owner is another process, or not there yet
    for (const [partition, refs] of named) {
      const owned = this.#host.live.find((p) => p.partition === partition)
      if (owned) owned.release(refs)
      else if (partition < shape.partitions) away = partition
    }
    const older = generation > 1 && others.length > 0 ? await this.#older(others, generation) : []
    for (const { owner, origin, refs } of older) {
      const owned = this.#host.live.find((p) => p.names(owner))
      if (owned) owned.releaseParked(refs, origin)
      else away = owner.partition
    }
    if (away !== undefined) throw notServed(away)
  }

  edit(...edit: Parameters<RunningSink['edit']>): ReturnType<RunningSink['edit']> {
    return this.#host.edit(...edit)
  }

  routed(): void {
    this.#host.routed()
  }

  ownersChanged(): void {
    this.#host.ownersChanged()
  }

  update(sink: Sink, database: Database): void {
    this.#answers = new PullAnswers(sink, database)
    this.#stage.forget()
    this.#host.update(sink, database)
  }

  get delivered(): DeliveredMessages {
    return this.#host.delivered
  }

  health(): readonly HealthCheck[] {
    const { delivery, filtering } = this.#stage.failures
    const healthy = this.#everDelivered ? 'healthy' : 'waiting'
    return [
      ...(filtering ? [{ name: 'Message filtering', status: 'error', error: filtering } as const] : []),
      ...this.#host.health({ name: 'Message delivery', ...(delivery ? { status: 'error', error: delivery } : { status: healthy }) }),
    ]
  }

  status(): ActorStatus {
    return this.#host.report({ waiting: this.#waiters.count + this.#takers.count })
  }

  hold(by: string): Promise<HeldSink> {
    return this.#host.hold(by)
  }

  release(by: string): Promise<void> {
    return this.#host.release(by)
  }

  async stop(): Promise<void> {
    const stopped = this.#host.stop()
    this.#waiters.endAll()
    this.#takers.endAll()
    await stopped
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #take(max: number, form: AnswerForm): Receipt | undefined {
    const taken = this.#takeAny(max)
    return taken && this.#receipt(taken, form)
  }

  #receipt(taken: TakenBatches, { shape, ackToken }: AnswerForm): Receipt {
    this.#everDelivered = true
    const answers = this.#answers
    const body = answers.encode(
      taken.map(({ batch }) => batch),
      shape,
      ackToken,
    )
    return {
      body,
      count: taken.reduce((sum, { batch }) => sum + batch.views.length, 0),
      giveBack: () => giveBack(taken),
      written: () => answers.reuse(body),
    }
  }

  /** Takes from all partitions, another one first each time. */
  #takeAny(max: number): TakenBatches | undefined {
    if (!this.#host.isActive) return undefined
    const { live } = this.#host
    const batches: { batch: Batch; owned: OwnedPartition }[] = []
    const overhead = this.#answers.overheadBytes
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
    return batches.length === 0 ? undefined : batches
  }

  // ── through functions ───────────────────────────────────────────────────────────────────────────

  /** What the functions keep of what may be handed out; when they keep nothing, what comes next. */
  async #receiveStaged({ batchSize, waitMs, signal, max, form }: StagedReceive): Promise<Receipt> {
    const until = this.#clock() + waitMs
    const search = this.#clock() + Math.max(waitMs, SEARCH_MS)
    using places = new DisposableStack()
    let isEntered = false
    while (!signal.aborted && !this.#host.stopping && this.#clock() < search) {
      const take = () => this.#takeAny(batchSize)
      let taken = take()
      if (!taken) {
        const left = until - this.#clock()
        if (left <= 0) break
        if (!isEntered) places.use(this.#takers.enter(max))
        isEntered = true
        taken = await this.#takers.wait({ waitMs: left, signal, take })
        if (!taken) break
      }
      const kept = await this.#stage.run(taken)
      if (!kept) continue
      if (!signal.aborted) return this.#receipt(kept, form)
      giveBack(kept)
    }
    return EMPTY
  }

  /** An owner that has moved on since it was looked up is not here any more: the ack is to be sent again. */
  async #ackOlder(ackIds: readonly string[], generation: number): Promise<void> {
    for (const { owner, origin, refs } of await this.#older(ackIds, generation)) {
      const owned = this.#host.live.find((p) => p.names(owner))
      if (!owned) throw notServed(owner.partition)
      await owned.finishParked(refs, origin)
    }
  }

  async #older(ackIds: readonly string[], generation: number): Promise<readonly OwnedRefs[]> {
    const refs = this.#answers.namedBefore(ackIds, generation)
    return refs.offsets.length === 0 ? [] : findParked(this.#options.query, this.#host.sink.id, refs)
  }

  #serve(): void {
    if (this.#waiters.count > 0) this.#waiters.serve()
    if (this.#takers.count > 0) this.#takers.serve()
  }
}

const notServed = (partition: number) => new EngineError('STOPPING', `partition ${partition} is not served at the moment`, { partition })

type AnswerForm = Pick<ReceiveRequest, 'shape' | 'ackToken'>
type StagedReceive = Pick<ReceiveRequest, 'batchSize' | 'waitMs' | 'signal'> & Readonly<{ max: number | undefined; form: AnswerForm }>
