/**
 * Puts what a pull sink has taken through its functions: what they keep is for the client, what they drop is finished, what
 * fails in them is tried again after a while. Meanwhile it is nobody's, and goes back when its partition ends. What they make of
 * it may be much more than it was: what doesn't fit into the answer goes back, too.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { refList, type RefList } from '../../engine/dispatch/ack-id.ts'
import { emptyBatch, type Batch, type Payloads } from '../../engine/dispatch/batch.ts'
import type { Failed } from '../../engine/dispatch/parked/parking.ts'
import { EngineError } from '../../engine/errors.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { attemptOf, failureText, STATE, type FunctionFailure, type FunctionStage, type StageOutcome } from '../../transforms/stage.ts'
import { messageBackOff } from '../../engine/back-off.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import type { HealthCheck } from '../../engine/status.ts'

/** Batches and the partitions they are of. */
export type TakenBatches = readonly Readonly<{ batch: Batch; owned: OwnedPartition }>[]
type Trouble = HealthCheck['error']

/** Functions can't be run at the moment: so long before they are tried again. */
const RETRY_MS = 250
/** An answer has one message, or at most so many bytes. */
export const MAX_ANSWER_BYTES = 16 * 1024 * 1024

export class PullStage {
  readonly #host: Readonly<{ sink: Sink; stage: FunctionStage; stopping: boolean }>
  /** the last failure of the filter, and of what comes after it; each until a message passes */
  #filtering: Trouble
  #delivery: Trouble

  constructor(host: Readonly<{ sink: Sink; stage: FunctionStage; stopping: boolean }>) {
    this.#host = host
  }

  get failures(): Readonly<{ filtering: Trouble; delivery: Trouble }> {
    return { filtering: this.#filtering, delivery: this.#delivery }
  }

  /** The sink or a function was edited: what failed before may work now. */
  forget(): void {
    this.#filtering = this.#delivery = undefined
  }

  /** @returns what is to be handed out now; undefined: nothing of it, and all of it is settled or given back */
  async run(taken: TakenBatches): Promise<TakenBatches | undefined> {
    let isGivenBack = false
    const returned = () => {
      if (!isGivenBack) giveBack(taken, true)
      isGivenBack = true
    }
    const ends = taken.map(({ owned }) => owned.borrow(returned))
    let outcome: StageOutcome
    try {
      outcome = await this.#host.stage.run({
        views: taken.flatMap(({ batch }) => batch.views),
        places: taken.flatMap(({ batch }) => batch.places),
      })
    } catch (error) {
      returned()
      if (this.#host.stopping) return undefined
      this.#delivery = {
        code: error instanceof EngineError ? error.code : 'INTERNAL',
        message: error instanceof Error ? error.message : String(error),
      }
      await delay(RETRY_MS)
      return undefined
    } finally {
      for (const end of ends) end()
    }
    if (isGivenBack) return undefined
    const kept: { batch: Batch; owned: OwnedPartition }[] = []
    let base = 0
    let maxBytes = MAX_ANSWER_BYTES
    for (const { batch, owned } of taken) {
      const rest = this.#settle({ batch, owned, outcome, base, maxBytes, first: kept.length === 0 })
      base += batch.views.length
      maxBytes -= rest.bytes
      if (rest.views.length > 0) kept.push({ batch: rest, owned })
    }
    return kept.length > 0 ? kept : undefined
  }

  /** Tells what was dropped and what failed of a batch. @returns what is kept */
  #settle({ batch, owned, outcome, base, maxBytes, first }: Settled): Batch {
    const { generation, partition } = batch
    const origin = owned.names(batch) ? undefined : { generation, partition }
    const dropped = refList()
    const failed = refList()
    const left = refList()
    const failures: Failed[] = []
    const payloads: Payloads = { texts: [], starts: [], ends: [] }
    const enrichments: (Uint8Array | undefined)[] = []
    const rest = emptyBatch(generation, partition, batch.lease)
    for (const [i, view] of batch.views.entries()) {
      const offset = batch.offsets[i] as number
      const index = batch.indexes[i] as number
      const state = outcome.stateOf(base + i)
      const place = batch.places[i] as number
      const payload = state === STATE.kept ? outcome.payloadAt(base + i) : undefined
      const bytes = payload ? payload.end - payload.start : view.bodyEnd(place) - view.bodyStart(place)
      const isFirst = first && rest.views.length === 0
      if (state === STATE.kept && (isFirst || rest.bytes + bytes <= maxBytes)) {
        rest.views.push(view)
        rest.places.push(place)
        rest.offsets.push(offset)
        rest.indexes.push(index)
        if (payload) {
          payloads.texts.push(payload.text)
          payloads.starts.push(payload.start)
          payloads.ends.push(payload.end)
        }
        rest.bytes += bytes
        enrichments.push(outcome.enrichmentOf(base + i))
        continue
      }
      const refs = state === STATE.dropped ? dropped : state === STATE.failed ? failed : left
      refs.offsets.push(offset)
      refs.indexes.push(index)
      if (state === STATE.failed)
        failures.push(this.#failed(outcome.failureOf(base + i), outcome.logsOf(base + i), owned.deliveriesOf(offset, index, origin)))
    }
    if (rest.views.length > 0 && failures.length === 0) this.forget()
    if (dropped.offsets.length > 0) void owned.drop(dropped, origin)
    if (failures.length > 0) owned.fail(failed, failures, origin)
    if (left.offsets.length > 0) putBack(owned, left, batch, true)
    return { ...rest, ...(payloads.texts.length > 0 && { payloads }), ...(enrichments.some((row) => row) && { enrichments }) }
  }

  /** @param attempts this one included */
  #failed(failure: FunctionFailure, logs: readonly string[], attempts: number): Failed {
    const { max_retry_count } = this.#host.sink
    const trouble = { code: failure.code, message: failureText(failure) }
    if (failure.kind === 'filter') this.#filtering = trouble
    else this.#delivery = trouble
    return {
      attempts,
      retryInMs: max_retry_count !== null && attempts >= max_retry_count ? undefined : messageBackOff(attempts, Math.random()),
      error: trouble.message,
      record: attemptOf(failure, logs),
    }
  }
}

/** @property base its first message in the outcome; @property maxBytes what may be kept; @property first nothing is kept before it */
type Settled = Readonly<{ batch: Batch; owned: OwnedPartition; outcome: StageOutcome; base: number; maxBytes: number; first: boolean }>

/** @param isUnseen no client has had it */
export function giveBack(taken: TakenBatches, isUnseen = false): void {
  for (const { batch, owned } of taken) putBack(owned, batch, batch, isUnseen)
}

function putBack(owned: OwnedPartition, refs: RefList, batch: Batch, isUnseen: boolean): void {
  if (owned.names(batch)) owned.release(refs, batch.lease, isUnseen)
  else owned.releaseParked(refs, batch, batch.lease, isUnseen)
}
