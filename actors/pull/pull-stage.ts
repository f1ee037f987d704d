/**
 * Puts what a pull sink has taken through its functions: what they keep is for the client, what they drop is finished, what
 * fails in them is tried again after a while. Meanwhile no client has it, and it goes back when its partition ends. What they make of
 * it may be much more than it was: what doesn't fit into the answer goes back, too.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { emptyBatch, refsOf, type TakenBatch, type Message } from '../../engine/dispatch/batch.ts'
import type { Failed, FailedMessage } from '../../engine/dispatch/parked/parking.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { attemptOf, failureText, STATE, type FunctionFailure, type FunctionStage, type StageOutcome } from '../../transforms/stage.ts'
import { messageBackOff } from '../../engine/back-off.ts'
import { spanTime } from '../../engine/telemetry/span.ts'
import type { OwnedPartition } from '../partition/owned-partition.ts'
import { troubleOf, type Trouble } from '../../engine/status.ts'

/** Batches and the partitions they are of. */
export type TakenBatches = readonly Readonly<{ batch: TakenBatch; owned: OwnedPartition }>[]

/** When functions can't be run at the moment, they are tried again after this. */
const RETRY_MS = 250
/** An answer has one message, or at most so many bytes. */
export const MAX_ANSWER_BYTES = 16 * 1024 * 1024

/** Puts what was taken for clients through the functions of the sink. */
export class PullStage {
  readonly #host: Readonly<{ sink: Sink; stage: FunctionStage; stopping: boolean }>
  /** the last failure of the filter, and of what comes after it; each until a message passes */
  #filtering: Trouble | undefined
  #delivery: Trouble | undefined

  constructor(host: Readonly<{ sink: Sink; stage: FunctionStage; stopping: boolean }>) {
    this.#host = host
  }

  get failures(): Readonly<{ filtering: Trouble | undefined; delivery: Trouble | undefined }> {
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
    const startedAt = spanTime()
    let outcome: StageOutcome
    try {
      outcome = await this.#host.stage.run(taken.flatMap(({ batch }) => batch.messages))
    } catch (error) {
      returned()
      if (this.#host.stopping) return undefined
      this.#delivery = troubleOf(error)
      await delay(RETRY_MS)
      return undefined
    } finally {
      for (const end of ends) end()
    }
    if (isGivenBack) return undefined
    for (const { batch, owned } of taken) owned.traces?.prepared(batch, startedAt)
    const kept: { batch: TakenBatch; owned: OwnedPartition }[] = []
    let base = 0
    let maxBytes = MAX_ANSWER_BYTES
    for (const { batch, owned } of taken) {
      const rest = this.#settle({ batch, owned, outcome, base, maxBytes, first: kept.length === 0 })
      base += batch.messages.length
      maxBytes -= rest.bytes
      if (rest.messages.length > 0) kept.push({ batch: rest, owned })
    }
    return kept.length > 0 ? kept : undefined
  }

  /** Tells what was dropped and what failed of a batch. @returns what is kept */
  #settle({ batch, owned, outcome, base, maxBytes, first }: Settled): TakenBatch {
    const dropped: Message[] = []
    const left: Message[] = []
    const failures: FailedMessage[] = []
    const rest = emptyBatch(batch.generation, batch.partition, batch.lease)
    for (const [i, message] of batch.messages.entries()) {
      const { view, place } = message
      const state = outcome.stateOf(base + i)
      const payload = state === STATE.kept ? outcome.payloadAt(base + i) : undefined
      const bytes = payload ? payload.end - payload.start : view.bodyEnd(place) - view.bodyStart(place)
      const isFirst = first && rest.messages.length === 0
      if (state === STATE.kept && (isFirst || rest.bytes + bytes <= maxBytes)) {
        rest.messages.push({ ...message, payload, enrichment: outcome.enrichmentOf(base + i) })
        rest.bytes += bytes
      } else if (state === STATE.dropped) dropped.push(message)
      else if (state === STATE.failed) {
        const { offset, index } = message
        const attempts = owned.deliveriesOf(message, batch)
        failures.push({ offset, index, failed: this.#failed(outcome.failureOf(base + i), outcome.logsOf(base + i), attempts) })
      } else left.push(message)
    }
    if (rest.messages.length > 0 && failures.length === 0) this.forget()
    if (dropped.length > 0) void owned.drop(refsOf(dropped), batch)
    if (failures.length > 0) owned.fail(failures, batch)
    if (left.length > 0) owned.release(refsOf(left), batch, batch.lease, true)
    return rest
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
type Settled = Readonly<{ batch: TakenBatch; owned: OwnedPartition; outcome: StageOutcome; base: number; maxBytes: number; first: boolean }>

/** Makes what was taken deliverable again. @param isUnseen no client has had it */
export function giveBack(taken: TakenBatches, isUnseen = false): void {
  for (const { batch, owned } of taken) owned.release(refsOf(batch.messages), batch, batch.lease, isUnseen)
}
