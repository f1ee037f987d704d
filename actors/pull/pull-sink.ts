/**
 * A pull sink at work: what the API calls. Requests take their messages straight from the partitions; the machines
 * (actors/sink/sink-machine.ts, actors/partition/sink-partition.ts) decide which partitions there are, and restart them.
 *
 *  I1. While the sink is not active nothing is handed out; acks and nacks count all the same.
 *  I2. Waiting receives are served in the order they came, and woken by a message, a nack, a lapse or an ack that frees
 *      a group: never by polling.
 *  I3. What a receive took and could not give to its client goes back at once.
 *  I4. An ack_id of an ended generation means the parked message that has it, whichever partition delivers that now.
 *  I5. Where the sink has functions, what was taken goes through them before it is handed out. What they drop is finished,
 *      what fails in them is parked and tried again after a while; meanwhile no client has it, and it goes back if anything ends.
 */
import type { TakenBatch } from '../../engine/dispatch/batch.ts'
import type { HandOutSettings } from '../partition/partition-sink.ts'
import { findParked, type OwnedRefs } from '../../engine/dispatch/parked/parked-store.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Database, Sink } from '../../engine/state/resources.ts'
import { dropPayloads } from '../../sinks/messages.ts'
import { EMPTY_ANSWER, PullAnswers } from '../../sinks/pull.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { giveBack, MAX_ANSWER_BYTES, PullStage, type TakenBatches } from './pull-stage.ts'
import { OFF_HOLD_MS, type PulledSink, type Receipt, type ReceiveRequest, type SinkOptions } from '../sink/running-sink.ts'
import type { SinkHost } from '../sink/sink-host.ts'
import type { Figures } from '../../engine/status.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { Transport, TransportHealth } from '../sink/transport.ts'
import { Waiters } from './waiters.ts'

/** A receive that doesn't wait looks so long for a message that the filter function keeps. */
const SEARCH_MS = 1_000
const EMPTY: Receipt = { body: EMPTY_ANSWER, count: 0, giveBack: () => undefined }

/** Hands out the messages of a sink to clients that ask. */
export class PullSink implements Transport, PulledSink {
  readonly keyed = false
  readonly sends = false
  readonly pulled = this
  readonly #host: SinkHost
  readonly #query: Query
  readonly #waiters = new Waiters<TakenBatches>()
  #answers: PullAnswers
  /** the partition that is asked first next time */
  #turn = 0
  #everDelivered = false
  readonly #stage: PullStage

  constructor(host: SinkHost, { sink, database, query }: SinkOptions) {
    this.#host = host
    this.#query = query
    this.#answers = new PullAnswers(sink, database)
    this.#stage = new PullStage(host)
  }

  settings({ ack_wait_ms, max_retry_count }: Sink): HandOutSettings {
    return { ackWaitMs: ack_wait_ms, maxDeliveries: max_retry_count === null ? null : Math.min(max_retry_count, 0xffff) }
  }

  async receive({ batchSize, waitMs, signal, isCounted, ...form }: ReceiveRequest): Promise<Receipt> {
    if (this.#host.stopping) throw new EngineError('STOPPING', 'the sink is stopping')
    if (signal.aborted) return EMPTY
    const host = this.#host
    const heldMs = host.isActive ? waitMs : Math.min(waitMs, OFF_HOLD_MS)
    const until = host.clock() + heldMs
    const searchUntil = until - heldMs + Math.max(heldMs, SEARCH_MS)
    const take = () => this.#take(batchSize)
    let place: Disposable | undefined
    try {
      do {
        let taken = take()
        if (!taken && host.clock() < until) {
          place ??= this.#waiters.enter(isCounted ? undefined : host.sink.max_waiting)
          taken = await this.#waiters.wait({ waitMs: until - host.clock(), signal, take })
        }
        if (!taken) break
        if (host.stage.isIdle) return this.#receipt(taken, form)
        const kept = await this.#stage.run(taken)
        if (kept && !signal.aborted) return this.#receipt(kept, form)
        if (kept) giveBack(kept)
      } while (!signal.aborted && !host.stopping && host.clock() < searchUntil)
      return EMPTY
    } finally {
      place?.[Symbol.dispose]()
    }
  }

  async ack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#host.mustServe()
    const ends: Promise<void>[] = []
    const { refs: named, others } = this.#answers.named(ackIds, generation)
    for (const [partition, refs] of named) {
      const owned = this.#host.live.find((p) => p.partition === partition)
      if (owned) ends.push(owned.finish(refs, { generation, partition }))
      else if (partition < shape.partitions) ends.push(Promise.reject(notServed(partition)))
    }
    if (generation > 1 && others.length > 0) ends.push(this.#ackOlder(others, generation))
    // all of them, so that what can be acked is, before the first failure is thrown
    const failed = (await Promise.allSettled(ends)).find((end) => end.status === 'rejected')
    if (failed) throw failed.reason
  }

  async nack(ackIds: readonly string[]): Promise<void> {
    const { generation, shape } = this.#host.mustServe()
    const { refs: named, others } = this.#answers.named(ackIds, generation)
    let away: number | undefined // its owner is another process, or not there yet
    for (const [partition, refs] of named) {
      const owned = this.#host.live.find((p) => p.partition === partition)
      if (owned) owned.release(refs, { generation, partition })
      else if (partition < shape.partitions) away = partition
    }
    const older = generation > 1 && others.length > 0 ? await this.#older(others, generation) : []
    for (const { owner, origin, refs } of older) {
      const owned = this.#host.live.find((p) => p.names(owner))
      if (owned) owned.release(refs, origin)
      else away = owner.partition
    }
    if (away !== undefined) throw notServed(away)
  }

  update(sink: Sink, database: Database): void {
    this.#answers = new PullAnswers(sink, database)
    this.#stage.forget()
  }

  deliverable(): void {
    if (this.#waiters.count > 0) this.#waiters.serve()
  }

  health(): TransportHealth {
    const { delivery: error, filtering } = this.#stage.failures
    if (error) return { filtering, delivery: { status: 'error', error } }
    return { filtering, delivery: { status: this.#everDelivered ? 'healthy' : 'waiting' } }
  }

  figures(): Figures {
    return { waiting: this.#waiters.count }
  }

  stopping(): void {
    this.#waiters.endAll()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  #receipt(taken: TakenBatches, { shape, ackToken }: AnswerForm): Receipt {
    this.#everDelivered = true
    const answers = this.#answers
    const body = answers.encode(
      taken.map(({ batch }) => batch),
      shape,
      ackToken,
    )
    for (const { batch } of taken) dropPayloads(batch.messages) // the answer holds copies
    return {
      body,
      count: taken.reduce((sum, { batch }) => sum + batch.messages.length, 0),
      giveBack: () => giveBack(taken),
      written: () => answers.reuse(body),
    }
  }

  /** Takes from all partitions, another one first each time. */
  #take(max: number): TakenBatches | undefined {
    if (!this.#host.isActive) return undefined
    const { live } = this.#host
    const batches: { batch: TakenBatch; owned: OwnedPartition }[] = []
    const overhead = this.#answers.overheadBytes
    let left = max
    let bytes = MAX_ANSWER_BYTES
    const turn = live.length > 0 ? this.#turn++ % live.length : 0
    for (const owned of turn === 0 ? live : [...live.slice(turn), ...live.slice(0, turn)]) {
      if (left <= 0) break
      for (const batch of owned.take(left, { max: bytes, overhead, first: batches.length === 0 })) {
        batches.push({ batch, owned })
        left -= batch.messages.length
        bytes -= batch.bytes + batch.messages.length * overhead
      }
    }
    return batches.length === 0 ? undefined : batches
  }

  /** An owner that has moved on since it was looked up is not here any more: the ack is to be sent again. */
  async #ackOlder(ackIds: readonly string[], generation: number): Promise<void> {
    for (const { owner, origin, refs } of await this.#older(ackIds, generation)) {
      const owned = this.#host.live.find((p) => p.names(owner))
      if (!owned) throw notServed(owner.partition)
      await owned.finish(refs, origin)
    }
  }

  async #older(ackIds: readonly string[], generation: number): Promise<readonly OwnedRefs[]> {
    const refs = this.#answers.namedBefore(ackIds, generation)
    return refs.offsets.length === 0 ? [] : findParked(this.#query, this.#host.sink.id, refs)
  }
}

const notServed = (partition: number) => new EngineError('STOPPING', `partition ${partition} is not served at the moment`, { partition })

type AnswerForm = Pick<ReceiveRequest, 'shape' | 'ackToken'>
