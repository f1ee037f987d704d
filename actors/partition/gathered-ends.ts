/** Ends of parked messages that wait for a turn with the store go in one: a write each would take longer than their deliveries. */
import { refList, type RefList } from '../../engine/dispatch/ack-id.ts'

export class GatheredEnds {
  readonly #inTurn: (step: () => Promise<void>) => Promise<void>
  readonly #end: (refs: RefList) => Promise<void>
  #waiting: Readonly<{ refs: RefList; ended: Promise<void> }> | undefined

  /** @param inTurn runs a step when those before it have ended */
  constructor(inTurn: (step: () => Promise<void>) => Promise<void>, end: (refs: RefList) => Promise<void>) {
    this.#inTurn = inTurn
    this.#end = end
  }

  /** Settles, or rejects, as the write does that they are part of. */
  add({ offsets, indexes }: RefList): Promise<void> {
    this.#waiting ??= this.#begin()
    const { refs, ended } = this.#waiting
    for (const [i, offset] of offsets.entries()) {
      refs.offsets.push(offset)
      refs.indexes.push(indexes[i] as number)
    }
    return ended
  }

  #begin() {
    const refs = refList()
    const ended = this.#inTurn(() => {
      this.#waiting = undefined
      return this.#end(refs)
    })
    return { refs, ended }
  }
}
