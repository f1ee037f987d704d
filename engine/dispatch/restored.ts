/**
 * What a new owner knows of the messages it reads again: which are finished, which are parked, and which may still be
 * with a client of the former owner. Asked once per pack while the reader is inside that zone, then never again.
 */
import type { Commit, FinishedRange, InFlight, MessageRef } from '../log/log.ts'
import { ORIGIN, type Position } from '../position.ts'
import type { RefList } from './ack-id.ts'
import { nameOf, type ParkedGroupFacts } from './parked/parked-group.ts'

export type Restore = Readonly<{
  /** the last durable commit; none: the partition starts at `begins` */
  commit: Commit | undefined
  /** the first record that may have something for this reader */
  begins?: number
  /** the log's next offset at the take-over: nothing from there on can have been handed out */
  head: number
  /** messages at or above the committed offset that the parked store holds */
  parkedRefs: RefList
  parkedGroups: readonly ParkedGroupFacts[]
  /** where the generation opens: without a commit nothing up to there is accepted (correctness 17) */
  opensAt?: Position | undefined
}>

/** of a message that failed, jitter included */
export const LONGEST_BACK_OFF_MS = 207_000

export const START: MessageRef = { offset: 0, index: 0 }

export const compareRefs = (a: MessageRef, b: MessageRef): number => a.offset - b.offset || a.index - b.index
export const laterRef = (a: MessageRef, b: MessageRef): MessageRef => (compareRefs(a, b) >= 0 ? a : b)

export class Restored {
  readonly next: MessageRef
  readonly filter: Position
  readonly handedOut: MessageRef
  /** messages below may have been handed out by a former owner, so an ack of them counts */
  readonly ackableBelow: MessageRef
  readonly #finished: readonly FinishedRange[]
  readonly #parked = new Map<number, number[]>()
  readonly #inFlight = new Map<number, Map<number, number>>()
  readonly #fromElsewhere = new Map<number | string, number>()
  readonly #wasServed: boolean
  readonly #now: number
  readonly #ackWaitMs: number
  readonly #hiddenBelow: MessageRef
  readonly #hiddenUntil: number
  readonly #presumes: boolean
  /** nobody has anything for longer than its process lives: only back-offs are restored */
  readonly #sends: boolean
  /** the last record that is special in any way */
  readonly #lastOffset: number
  #range = 0

  /** @param now monotonic ms of the take-over. @param ackWaitMs visibility time; undefined: the owner sends */
  constructor(restore: Restore, now: number, ackWaitMs: number | undefined) {
    const { commit } = restore
    this.#sends = ackWaitMs === undefined
    const visibilityMs = ackWaitMs ?? 0
    this.next = commit?.next ?? { offset: restore.begins ?? 0, index: 0 }
    this.filter = commit?.filter ?? restore.opensAt ?? ORIGIN
    this.handedOut = commit?.handedOut ?? START
    this.#finished = commit?.finished ?? []
    const head = { offset: restore.head, index: 0 }
    this.ackableBelow = compareRefs(this.handedOut, head) < 0 ? this.handedOut : head
    // after a clean stop the exact set is known; otherwise everything handed out may still be with a client
    this.#hiddenBelow = commit?.inFlight || this.#sends ? START : this.ackableBelow
    this.#hiddenUntil = now + visibilityMs
    this.#presumes = commit?.inFlight === undefined && !this.#sends
    this.#wasServed = commit !== undefined && commit.term > 0 // a source says where its readers join, and hands nothing out
    this.#now = now
    this.#ackWaitMs = visibilityMs
    for (const { message, invisibleForMs, origin } of this.#sends ? [] : (commit?.inFlight ?? [])) {
      if (origin) {
        this.#fromElsewhere.set(nameOf(message.offset, message.index, origin), now + Math.min(invisibleForMs, visibilityMs))
        continue
      }
      const ofRecord = this.#inFlight.get(message.offset) ?? new Map<number, number>()
      ofRecord.set(message.index, now + Math.min(invisibleForMs, visibilityMs))
      this.#inFlight.set(message.offset, ofRecord)
    }
    for (const [i, offset] of restore.parkedRefs.offsets.entries()) {
      const ofRecord = this.#parked.get(offset) ?? []
      ofRecord.push(restore.parkedRefs.indexes[i] as number)
      this.#parked.set(offset, ofRecord)
    }
    let last = Math.max(this.next.offset, this.ackableBelow.offset, this.#finished[this.#finished.length - 1]?.to.offset ?? 0)
    for (const offset of [...this.#parked.keys(), ...this.#inFlight.keys()]) last = Math.max(last, offset)
    this.#lastOffset = last
  }

  /** Whether anything of this record is special; false for all that follow once it is. */
  concerns(offset: number): boolean {
    return offset <= this.#lastOffset
  }

  /** Finished index ranges of a record; records are asked in ascending order. */
  *finishedIn(offset: number, count: number): Iterable<readonly [number, number]> {
    if (offset < this.next.offset) yield [0, count]
    else if (offset === this.next.offset) yield [0, this.next.index]
    while (this.#range < this.#finished.length && (this.#finished[this.#range] as FinishedRange).to.offset < offset) this.#range++
    for (let r = this.#range; r < this.#finished.length; r++) {
      const { from, to } = this.#finished[r] as FinishedRange
      if (from.offset > offset) break
      yield [from.offset < offset ? 0 : from.index, to.offset > offset ? count : to.index]
    }
    for (const index of this.#parked.get(offset) ?? []) yield [index, index + 1]
    this.#parked.delete(offset)
  }

  /** Whether the parked store had a message at the take-over whose record has not been read yet. */
  isParkedAhead(offset: number, index: number): boolean {
    return this.#parked.get(offset)?.includes(index) === true
  }

  /** Until when an open message stays invisible (monotonic ms), by index; 0: it is visible. */
  invisibleUntil(offset: number, index: number): number {
    const exact = this.#inFlight.get(offset)?.get(index)
    if (exact !== undefined) return exact
    return compareRefs({ offset, index }, this.#hiddenBelow) < 0 ? this.#hiddenUntil : 0
  }

  /** Until when the first message of a parked group stays invisible, and how long a later one of it may be with a client. */
  parkedUntil({ offset, index, origin, hiddenMs = 0, laterHiddenMs = 0 }: ParkedGroupFacts): { first: number; later: number } {
    // a stored time is of the state database's clock: never longer than the longest back-off (correctness 36)
    if (this.#sends) return { first: hiddenMs > 0 ? this.#now + Math.min(hiddenMs, LONGEST_BACK_OFF_MS) : 0, later: 0 }
    if (origin === undefined) {
      const first = this.invisibleUntil(offset, index)
      return { first, later: this.#presumes ? first : 0 }
    }
    const until = (ms: number) => (ms > 0 ? this.#now + Math.min(ms, this.#ackWaitMs) : 0)
    if (!this.#wasServed) return { first: until(hiddenMs), later: until(laterHiddenMs) } // just taken over from an ended generation
    if (this.#presumes) return { first: this.#hiddenUntil, later: this.#hiddenUntil }
    return { first: this.#fromElsewhere.get(nameOf(offset, index, origin)) ?? 0, later: 0 }
  }

  /** Whether the message is known to be with a client, rather than possibly. */
  surelyInFlight(offset: number, index: number): boolean {
    return this.#inFlight.get(offset)?.has(index) === true
  }

  /** The finished ranges that lie beyond what has been read yet: a commit must not forget them. */
  unreadRanges(from: MessageRef): FinishedRange[] {
    return this.#finished.filter((r) => compareRefs(r.to, from) > 0).map((r) => ({ from: laterRef(r.from, from), to: r.to }))
  }

  /**
   * What is with clients and was not read yet, with the time left.
   * @param nextOffset the first record that was not read
   * @returns undefined: it is only presumed, so that a stop can't tell the exact set
   */
  unreadInFlight(nextOffset: number, now: number): InFlight[] | undefined {
    if (compareRefs({ offset: nextOffset, index: 0 }, this.#hiddenBelow) < 0) return undefined
    const held: InFlight[] = []
    for (const [offset, ofRecord] of this.#inFlight) {
      if (offset < nextOffset) continue
      const parked = this.#parked.get(offset) // told by their group
      for (const [index, until] of ofRecord)
        if (!parked?.includes(index)) held.push({ message: { offset, index }, invisibleForMs: Math.max(0, until - now) })
    }
    return held
  }
}
