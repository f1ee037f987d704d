/**
 * Says from which record on a partition needs the log: from the committed offset, less what its replay window keeps. The window
 * decides (engine/dispatch/replay/replay-window.ts); where it begins is stored before that, so a replay that goes
 * back to a point that is stored finds everything from there on. A topic that is read by this generation alone is trimmed here; of a
 * stream the line is stored, and what is below the lines of all its readers is trimmed by engine/dispatch/stream-trim.ts.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { PartitionKey } from '../../engine/dispatch/fenced-write.ts'
import { ReplayPoints } from '../../engine/dispatch/replay/replay-points.ts'
import { ReplayWindow, type ReadRecord, type WindowBounds } from '../../engine/dispatch/replay/replay-window.ts'
import { EngineError } from '../../engine/errors.ts'
import { NOTHING_NEEDED, storeLine } from '../../engine/dispatch/stream-trim.ts'
import type { Commit, Log, PartitionStats, ReaderName, TopicName } from '../../engine/log/log.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { Bell } from '../../engine/bell.ts'

type TrimmingOptions = Readonly<{
  log: Log
  topic: TopicName
  reader: ReaderName
  /** the first record that may have something for this reader */
  begins: number
  /** what is stored of a stream: everything from there on is needed */
  line: number
  query: Query
  key: PartitionKey
  term: number
  /** of the take-over */
  committed: Commit
  /** some are stored */
  hasPoints: boolean
  bounds: () => WindowBounds
  /** behind all that is this reader's own, when it has left and finished all of it; undefined: it reads on */
  leftAt: () => number | undefined
  /** monotonic milliseconds */
  clock: () => number
}>

/** Trims are gathered: each is a write of its own. */
const TRIM_EVERY_MS = 250
/** Lines of a stream are looked at so often. */
const LINE_EVERY_MS = 1_000
/** How old the figures of the log may be; how often time alone may move the window. */
const LOOK_EVERY_MS = 1_000

/** Lets go of what a partition has delivered, but for its replay window. */
export class Trimming {
  readonly #options: TrimmingOptions
  readonly #points: ReplayPoints
  readonly #window: ReplayWindow
  readonly #bell = new Bell()
  #committed: Commit
  #stats: PartitionStats = { first: 0, next: 0, bytes: 0, finishedBytes: 0, committed: 0 }
  /** everything from there on is needed */
  #line: number
  /** that is stored, or below is trimmed */
  #stored: number
  /** one at a time */
  #noted: Promise<void> = Promise.resolve()
  /** nothing is kept, and that is stored */
  #isOff: boolean

  private constructor(options: TrimmingOptions, points: ReplayPoints, window: ReplayWindow) {
    this.#options = options
    this.#points = points
    this.#window = window
    this.#committed = options.committed
    this.#isOff = !options.hasPoints
    this.#line = window.begin?.neededFrom ?? options.begins
    this.#stored = options.line
  }

  static async begin(options: TrimmingOptions): Promise<Trimming> {
    const { query, key, term, committed, hasPoints, clock } = options
    const points = new ReplayPoints(query, { key, term })
    const known = hasPoints ? await points.load() : []
    return new Trimming(options, points, new ReplayWindow(known, committed, clock(), Date.now() * 1000))
  }

  /** The figures of the log, as they were when it was last asked. */
  get stats(): PartitionStats {
    return this.#stats
  }
  /** About how many finished messages are kept. */
  get keptMessages(): number {
    return this.#window.messages
  }

  read(record: ReadRecord): void {
    this.#window.read(record)
    this.#bell.ring()
  }

  /** The settings have changed. */
  update(): void {
    this.#bell.ring()
  }

  /** A commit is durable. */
  committed(commit: Commit): void {
    this.#committed = commit
    this.#window.finished(commit)
    this.#bell.ring()
  }

  async run(signal: AbortSignal): Promise<void> {
    const { log, topic, reader, key } = this.#options
    while (!signal.aborted) {
      let rests = false
      this.#stats = await log.stats(reader, key.partition, LOOK_EVERY_MS, this.#line)
      try {
        const kept = await this.#keptFrom()
        const line = this.#keepsNothing(kept) ? NOTHING_NEEDED : kept
        // the points that begin the window may have been stored by an owner that came no further
        if (line > this.#stored) await this.#keepFrom(line)
        this.#stored = Math.max(this.#stored, line)
        this.#line = Math.max(this.#line, line)
        // the log has nothing for it, time alone changes nothing, and a new record rings the bell
        rests = this.#stats.bytes === 0 && (this.#isOff || this.#window.rests)
      } catch (error) {
        if (!(error instanceof EngineError) || error.code !== 'STATE_UNAVAILABLE') throw error // it is done when the database answers again
      }
      await delay(topic === reader ? TRIM_EVERY_MS : LINE_EVERY_MS, undefined, { signal }).catch(() => undefined)
      await this.#bell.wait(signal, rests ? Infinity : LOOK_EVERY_MS)
    }
  }

  /** Notes how far everything is finished: the owner ends, and what it knows of records is lost with it. */
  async noteAll(): Promise<void> {
    if (this.#options.bounds().windowMs > 0) await this.#note(true)
  }

  #keepFrom(line: number): Promise<void> {
    const { log, topic, reader, query, key, term } = this.#options
    return topic === reader ? log.trim(topic, key.partition, line) : storeLine(query, { key, term }, line)
  }

  /** The first record that is needed. */
  async #keptFrom(): Promise<number> {
    const { log, bounds, clock } = this.#options
    const { windowMs, maxBytes } = bounds()
    if (windowMs === 0) {
      const { offset } = this.#committed.next
      if (!this.#isOff) await this.#points.drop()
      this.#isOff = true
      this.#window.close()
      return this.#neededFrom(offset) ?? this.#line
    }
    this.#isOff = false
    const short = await log.isShortOfSpace()
    await this.#note(short)
    const point = this.#window.nextBegin(clock(), { windowMs, maxBytes }, this.#stats.finishedBytes, short)
    if (point) {
      await this.#points.drop(point.offset)
      this.#window.begins(point)
    }
    return this.#window.begin?.neededFrom ?? this.#line
  }

  /** Whether this reader will need no record of the stream any more, not even after a crash. */
  #keepsNothing(line: number): boolean {
    const { topic, reader, leftAt } = this.#options
    const left = leftAt()
    return topic !== reader && left !== undefined && this.#committed.next.offset >= left && line >= left
  }

  /** @returns undefined: that is known when the record there has been read */
  #neededFrom(offset: number): number | undefined {
    const { log, topic, key } = this.#options
    return log.neededFrom(topic, key.partition, offset)
  }

  #note(all: boolean): Promise<void> {
    const { bounds, clock } = this.#options
    const noted = this.#noted.then(async () => {
      const due = this.#window.due(clock(), bounds(), all)
      const neededFrom = due && this.#neededFrom(due.offset)
      if (!due || neededFrom === undefined) return
      const point = { ...due, neededFrom }
      await this.#points.add(point)
      this.#window.stored(point)
    })
    this.#noted = noted.catch(() => undefined)
    return noted
  }
}
