/**
 * Requests that failed while nothing tells yet whose fault that was, the message's or the destination's. They are held until another
 * request succeeds, which says that it was theirs, or until the sink decides.
 */
import type { Failure } from '../../sinks/push.ts'
import type { DestinationState } from './destination-state.ts'
import type { SendBatch } from './send-batch.ts'

type Suspect = Readonly<{ batch: SendBatch; failure: Failure; /** by the clock of the destination's state */ at: number }>

/** At most so many suspects are held while the destination is down; beyond that probes begin with the lowest again. */
const MAX_HELD = 2_000

/** Holds requests that failed until it is known whose fault that was. */
export class Suspects {
  readonly #destination: DestinationState
  /** in the order they failed; `isRecovering`: the destination may have been down then */
  #held: (Suspect & { isRecovering: boolean })[] = []

  constructor(destination: DestinationState) {
    this.#destination = destination
  }

  get count(): number {
    return this.#held.length
  }

  /** No success has come since any of them failed. */
  get areOpen(): boolean {
    const { lastSuccessAt } = this.#destination
    return this.#held.every(({ at }) => at >= lastSuccessAt)
  }

  hold(suspect: Suspect): void {
    this.#held.push({ ...suspect, isRecovering: this.#destination.isRecovering })
  }

  /** The destination is down: it was perhaps its fault. @returns whether more are held than may be */
  doubt(): boolean {
    for (const suspect of this.#held) suspect.isRecovering = true
    return this.#held.length > MAX_HELD
  }

  /**
   * Takes out the suspects that others have succeeded after: `again` what failed while the destination may have been down, `guilty`
   * the rest.
   */
  takeCleared(): Readonly<{ again: readonly Suspect[]; guilty: readonly Suspect[] }> | undefined {
    if (this.#held.length === 0) return undefined
    const { lastSuccessAt } = this.#destination
    const cleared = this.#held.filter(({ at }) => lastSuccessAt > at)
    if (cleared.length === 0) return undefined
    this.#held = this.#held.filter(({ at }) => lastSuccessAt <= at)
    return { again: cleared.filter(({ isRecovering }) => isRecovering), guilty: cleared.filter(({ isRecovering }) => !isRecovering) }
  }

  takeAll(): readonly Suspect[] {
    return this.#held.splice(0)
  }
}
