/**
 * What a durable commit has promised: up to where messages may be handed out (correctness 20), so that a new owner knows what
 * a former one may have given to clients. An owner that sends needs none, for it has what is out in hand.
 */
import type { Commit, MessageRef } from '../log/log.ts'
import { handOutTarget, quietAt, wantsHandOut, type Reading } from './commit-point.ts'
import { compareRefs, laterRef, START } from './restored.ts'
import type { WindowPack } from './window.ts'

export class HandOutPromise {
  readonly #reading: () => Reading
  readonly #clock: () => number
  readonly #sends: boolean
  #upTo: MessageRef = START
  /** a commit is durable that doesn't tell the exact set of messages in flight: after a crash they are presumed */
  #isGiven: boolean

  constructor(options: Readonly<{ reading: () => Reading; clock: () => number; sends: boolean }>) {
    this.#reading = options.reading
    this.#clock = options.clock
    this.#sends = options.sends
    this.#isGiven = options.sends
  }

  get isGiven(): boolean {
    return this.#isGiven
  }

  /** Whether a message lies below it. */
  covers(ref: MessageRef): boolean {
    return compareRefs(ref, this.#upTo) < 0
  }

  /** The sequence number up to which a pack may be handed out. */
  endIn({ firstSeq, offset, count }: WindowPack): number {
    if (this.#sends) return firstSeq + count
    const upTo = this.#upTo
    return firstSeq + (offset < upTo.offset ? count : offset === upTo.offset ? Math.min(upTo.index, count) : 0)
  }

  /** Whether it should be renewed by a commit. */
  wantsCommit(): boolean {
    if (!this.#isGiven) return true
    return !this.#sends && wantsHandOut(this.#reading(), this.#upTo, this.#clock())
  }

  /** When `wantsCommit` will say so, although nothing changes until then (monotonic ms), or Infinity. */
  wantsCommitAt(): number {
    return this.#sends ? Infinity : quietAt(this.#reading(), this.#upTo)
  }

  /**
   * What the next commit promises; what that no longer covers is not handed out from here on.
   * @param clean nothing is handed out any more, or not yet
   */
  next(clean: boolean): MessageRef {
    const reading = this.#reading()
    const former = laterRef(this.#upTo, reading.formerly)
    const upTo = clean || this.#sends ? former : handOutTarget(reading, former, this.#clock())
    if (compareRefs(upTo, this.#upTo) < 0) this.#upTo = upTo
    return upTo
  }

  /** A commit is durable: its promise holds, unless it tells the exact set of what is in flight, which a hand-out would change. */
  committed({ inFlight, handedOut }: Commit): void {
    if (inFlight) return
    this.#isGiven = true
    this.#upTo = laterRef(this.#upTo, handedOut)
  }
}
