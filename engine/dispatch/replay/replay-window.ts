/**
 * The replay window of one partition: which points of its log are worth keeping, and from which one on the log is kept.
 * It is told what is read and what is durably finished, decides, and does no I/O.
 *
 *  W1. The log is trimmed up to a point only, and the point is the lowest one that is stored by then.
 *  W2. A record is kept until everything before a later point has been finished for the window's time, or what is kept
 *      outgrows its bound; then the lowest go first, and all of them where the log is short of space.
 *  W3. The window's time is that of its owners, by their monotonic clocks: the next owner's begins at the newest point. While
 *      nobody owns the partition it stands still, and no clock that is set trims anything early (docs/rules.md, rule 36).
 */
import type { Position } from '../../position.ts'
import type { MessageRef } from '../../log/log.ts'
import type { ReplayPoint } from './replay-points.ts'

/** Bounds what is kept of finished messages, in time and in bytes. */
export type WindowBounds = Readonly<{ windowMs: number; maxBytes: number }>
/** Describes a record that was read. */
export type ReadRecord = Readonly<{ offset: number; messages: number; bytes: number; latestUs: number }>

/** A sink keeps at most so many bytes to be replayed, over all its partitions. */
export const MAX_REPLAY_BYTES = 1024 * 1024 * 1024
/** So many points in a window at most, but for what comes in bursts: a record leaves later by this share than it could. */
const POINTS_BY_TIME = 200
const POINTS_BY_BYTES = 32
const LEAST_STEP_MS = 250
const MOST_STEP_MS = 60_000

type Finished = Readonly<{ next: MessageRef; accepted: Position }>

/** Decides what one partition keeps to be replayed. */
export class ReplayWindow {
  /** read and not yet below the durable commit */
  #read: ReadRecord[] = []
  #first = 0
  #points: ReplayPoint[]
  /** of the window's time less the owner's clock, ms */
  readonly #aheadMs: number
  /** of what the durable commit has below it */
  #latestUs: number
  #messages: number
  #bytes: number
  #committed: Finished

  /**
   * @param known what is stored; those above the commit are forgotten: it has gone back
   * @param now monotonic ms
   * @param wallUs of the moment, µs since the epoch
   */
  constructor(known: readonly ReplayPoint[], committed: Finished, now: number, wallUs: number) {
    this.#points = known.filter(({ offset }) => offset <= committed.next.offset)
    const last = this.#points.at(-1)
    this.#aheadMs = (last?.reachedMs ?? 0) - now
    this.#messages = last?.messages ?? 0
    this.#bytes = last?.bytes ?? 0
    // what was finished after the last point is not read again: it was committed before now
    this.#latestUs = last?.offset === committed.next.offset ? last.latestUs : committed.next.offset === 0 ? 0 : wallUs
    this.#committed = committed
  }

  /** Where what is kept begins; undefined: nothing is. */
  get begin(): ReplayPoint | undefined {
    return this.#points[0]
  }
  /** About how many messages before the durable commit are kept. */
  get messages(): number {
    return this.#messages - (this.#points[0]?.messages ?? this.#messages)
  }

  /** A record was read. */
  read(record: ReadRecord): void {
    this.#read.push(record)
  }

  /** A commit is durable. */
  finished(committed: Finished): void {
    this.#committed = committed
    for (let record = this.#read[this.#first]; record && record.offset < committed.next.offset; record = this.#read[++this.#first]) {
      this.#messages += record.messages
      this.#bytes += record.bytes
      if (record.latestUs > this.#latestUs) this.#latestUs = record.latestUs
    }
    if (this.#first < 1024 || this.#first * 2 < this.#read.length) return
    this.#read = this.#read.slice(this.#first)
    this.#first = 0
  }

  /** A point that should be stored now. @param all whatever was finished, however little it is */
  due(now: number, { windowMs, maxBytes }: WindowBounds, all = false): Omit<ReplayPoint, 'neededFrom'> | undefined {
    const { offset } = this.#committed.next
    const last = this.#points.at(-1)
    if (last && offset <= last.offset) return undefined
    const stepMs = Math.max(LEAST_STEP_MS, Math.min(windowMs / POINTS_BY_TIME, MOST_STEP_MS))
    const reachedMs = Math.round(now + this.#aheadMs)
    if (last && !all && reachedMs - last.reachedMs < stepMs && this.#bytes - last.bytes < maxBytes / POINTS_BY_BYTES) return undefined
    const { accepted: position } = this.#committed
    return { offset, position, latestUs: this.#latestUs, messages: this.#messages, bytes: this.#bytes, reachedMs }
  }

  /** Whether time alone changes nothing: all that is finished is noted, and nothing is kept that might go. */
  get rests(): boolean {
    const [first, second] = this.#points
    return first !== undefined && second === undefined && this.#committed.next.offset <= first.offset
  }

  /** A point is stored now. */
  stored(point: ReplayPoint): void {
    this.#points.push(point)
  }

  /**
   * The point that the window should begin at from now on; undefined: it may stay.
   * @param keptBytes of finished records, as the log has them; @param short the log is short of space
   */
  nextBegin(now: number, { windowMs, maxBytes }: WindowBounds, keptBytes: number, short: boolean): ReplayPoint | undefined {
    const [first, ...later] = this.#points
    let begin = first
    for (const point of later) {
      const outgrown = keptBytes - ((begin?.bytes ?? 0) - (first?.bytes ?? 0)) > maxBytes
      if (!short && !outgrown && now + this.#aheadMs - point.reachedMs < windowMs) break
      begin = point
    }
    return begin === first ? undefined : begin
  }

  /** The points below it are not stored any more. */
  begins(point: ReplayPoint): void {
    this.#points = this.#points.filter(({ offset }) => offset >= point.offset)
  }

  /** Nothing is kept from now on. */
  close(): void {
    this.#points = []
  }
}
