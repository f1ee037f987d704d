/**
 * The backfills of one source: while it streams here, those that are active are read, some side by side and the others after them. What
 * fails for now is tried again behind its last durable page, with pauses that grow; what can't succeed is failed, and stops no other.
 *
 *   queued ─its turn─▶ reading ─read to its end─▶ completed
 *     ▲                  │ ├─ it can't be read: failed
 *     └──── waiting ◀────┘ its sink takes no more for now, its source is left alone for now, it has no stream yet, or it failed for now
 *
 *  Only `reading` has a turn: a backfill that waits holds up no other one. Of those that queue the next is one of the sink that reads
 *  the fewest. Those that begin together are first looked at together: of tables that are empty nothing else is done.
 *
 *  A backfill whose end could not be put on record, or that goes on being named as active, is tried again with pauses that grow, however
 *  often anything else changes meanwhile.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { backOff } from '../../engine/back-off.ts'
import { BackfillRun, type BackfillKeeper, type RunEnd, type StreamingSource } from '../../engine/backfill/backfill-run.ts'
import type { BackfillLimits } from '../../engine/backfill/backfill-limits.ts'
import { emptyTables } from '../../engine/backfill/empty-tables.ts'
import { BACKFILL_MARK, Marks } from '../../engine/backfill/marks.ts'
import { MovedRows } from '../../engine/backfill/moved-rows.ts'
import { PageSessions } from '../../engine/backfill/page-sessions.ts'
import { TABLES_AT_ONCE } from '../../engine/backfill/source-table.ts'
import { StreamFirst } from '../../engine/backfill/stream-first.ts'
import { Windows } from '../../engine/backfill/windows.ts'
import { Bell } from '../../engine/bell.ts'
import { EngineError, errorText } from '../../engine/errors.ts'
import type { Logger } from '../../engine/logger.ts'
import type { SourceMeter } from '../../engine/meters.ts'
import type { Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import {
  backfillOf,
  lastPage,
  saveDurablePage,
  saveEmpty,
  saveInitialCount,
  type Backfill,
  type BackfillEnd,
  type DurablePage,
  type RunningBackfill,
} from '../../engine/state/backfills.ts'
import { followedBackfills, movedSince, saveMovedRows } from '../../engine/state/moved-rows.ts'
import type { Database } from '../../engine/state/resources.ts'
import type { BackfillStatus, HealthCheck } from '../../engine/status.ts'
import type { Mark, MarkHandler } from '../../engine/wal/change-packer.ts'
import { historyAt } from '../../engine/wal/history.ts'
import type { SourceRun } from '../../engine/wal/run.ts'
import { incarnationsOf } from '../../engine/wal/source-store.ts'
import { SinkRoom, type DeliveringSink, type SinkRoomHome } from './sink-room.ts'
import { SourceStrain } from './source-strain.ts'

/** The functions and settings that the backfills of a source are built with. */
export type BackfillHome = Readonly<{
  /** those of its sinks that have not ended, as they are now */
  running: () => readonly RunningBackfill[]
  /** Whether its sink takes the table, as the sink is now. */
  takes: (of: RunningBackfill) => boolean
  /** Puts on record how one ended. @returns false: it was not active any more */
  ended: (end: BackfillEnd) => Promise<boolean>
  /** A sink, as far as this process delivers its messages; undefined: it is gone. */
  sink: (sinkId: string) => DeliveringSink | undefined
  log: SinkRoomHome['log']
  /** the state database */
  state: Query
  logger: Logger
  meter: Pick<SourceMeter, 'backfilled'>
  maxMessageBytes: number
  limits: BackfillLimits
}>

/** A backfill that its sink has held up for this long gives up its turn to those that queue, and waits for the sink. */
const HELD_UP_MS = 1_000
/** So many small tables are read in the place of one other table: to begin and to end takes longer than to read them. */
const SMALL_FOR_ONE = 4
const PAUSES = { firstMs: 500, maxMs: 60_000 } as const
/** A source that is left alone is looked at again after this. */
const STRAINED_MS = 1_000
/** A backfill that is held up for so long is told of in the health of its sink. */
const TOLD_AFTER_MS = 30_000
/** Where rows a second are bounded, they come so often. */
const STEADY_PARTS = 10

const WAITS = {
  stream: 'its sink has no stream of its own yet',
  sink: 'its sink takes no more for now: it is paused, or delivers less than is there; it goes on when messages are delivered',
} as const

/** One backfill that is active. */
type Job = {
  readonly of: RunningBackfill
  readonly stop: AbortController
  /** rung when it may be worth another look */
  readonly changed: Bell
  state: BackfillStatus['state']
  /** why it waits */
  cause: string | undefined
  since: Date
  lastError: Readonly<{ error: unknown; at: Date }> | undefined
  rows: number | undefined
  processed: number
  ingested: number
  /** ms since the epoch */
  insertedAt: number
  /** it was said that it begins */
  isTold: boolean
  /** its table has little to read */
  isSmall: boolean
}
type Turn = Readonly<{ job: Job; begin: () => void }>

/** Reads the backfills of one source for as long as it streams here. */
export class SourceBackfills {
  readonly #database: Database
  readonly #home: BackfillHome
  readonly #windows = new Windows()
  readonly #moved: MovedRows
  /** those that are followed though they have failed */
  readonly #failed = new Set<string>()
  #marks: Marks | undefined
  #sessions: PageSessions | undefined
  /** by id */
  readonly #jobs = new Map<string, Job>()
  readonly #reading = new Set<Job>()
  readonly #queue: Turn[] = []
  /** by sink */
  readonly #rooms = new Map<string, SinkRoom>()
  readonly #durable = new Set<() => void>()
  #run: SourceRun | undefined
  #term = 0
  #ended = new AbortController()
  #strain: SourceStrain | undefined
  readonly #streamFirst = new StreamFirst()
  #toldStrain: string | undefined
  /** where rows a second are bounded: when the next ones are due (monotonic ms) */
  #dueAt = 0

  constructor(database: Database, home: BackfillHome) {
    this.#database = database
    this.#home = home
    this.#moved = new MovedRows(this.#windows, (moved) => saveMovedRows(home.state, moved))
  }

  /** The handler of backfill marks, the watcher of keys, and what a run of the source awaits before it confirms. */
  get hooks(): Readonly<{ marks: ReadonlyMap<string, MarkHandler>; watcher: Windows; confirming: () => Promise<void> }> {
    const marks = new Map([[BACKFILL_MARK, (mark: Mark) => this.#marks?.met(mark)]])
    return { marks, watcher: this.#windows, confirming: () => this.#moved.save() }
  }

  /** A run of the source is to begin: it sees each change that may move a row of a backfill. */
  async prepare(): Promise<void> {
    this.#moved.begin()
    this.#failed.clear()
    for (const { id, sinkId, table } of await followedBackfills(this.#home.state, this.#database.id))
      this.#moved.follow({ id, sinkId }, table)
  }

  /** The source streams here, by this run. @param term under which it does */
  begin(run: SourceRun, term: number): void {
    const { id, slot, connection } = this.#database
    const { maxStandbyLagBytes } = this.#home.limits
    this.#run = run
    this.#term = term
    this.#ended = new AbortController()
    this.#marks = new Marks(id, run.write)
    this.#sessions = new PageSessions(connection, `tailrace backfill ${slot.name}`)
    this.#strain = new SourceStrain({ query: run.query, slot: slot.name, maxStandbyLagBytes })
    this.#rooms.clear()
    this.#windows.begin()
    this.look()
  }

  /** The run has ended. */
  end(): void {
    this.#ended.abort()
    this.#sessions?.[Symbol.dispose]()
    this.#run = undefined
  }

  /** The run has made something durable. */
  progressed(): void {
    for (const look of this.#durable) look()
  }

  /** Backfills have begun or changed, or streams of sinks have. */
  look(): void {
    for (const { changed } of this.#jobs.values()) changed.ring()
    this.#lookForOthers()
    this.#forgetOver().catch((err: unknown) => this.#home.logger.debug({ err }, 'which backfills are over is found out later'))
  }

  /** Stops what is not active any more, and begins what has become active. */
  #lookForOthers(): void {
    const run = this.#run
    if (!run) return
    const active = this.#home.running().filter(({ state }) => state === 'active')
    const ids = new Set(active.map(({ id }) => id))
    for (const [id, { stop }] of this.#jobs) if (!ids.has(id)) stop.abort()
    const others = active.filter(({ id }) => !this.#jobs.has(id)).map(jobOf)
    for (const job of others) this.#jobs.set(job.of.id, job)
    for (const jobs of Map.groupBy(others, ({ of }) => of.sinkId).values())
      for (let from = 0; from < jobs.length; from += TABLES_AT_ONCE) void this.#tendAll(jobs.slice(from, from + TABLES_AT_ONCE), run)
  }

  /** Rows of backfills that are over are followed no more. Those that have failed may go on. */
  async #forgetOver(): Promise<void> {
    const running = new Set(this.#home.running().map(({ id }) => id))
    for (const id of running) this.#failed.delete(id)
    const isNew = (id: string) => !running.has(id) && !this.#failed.has(id)
    if (!this.#moved.followed.some(isNew)) return
    const stay = new Set((await followedBackfills(this.#home.state, this.#database.id)).map(({ id }) => id))
    for (const id of this.#moved.followed.filter(isNew)) {
      if (stay.has(id)) this.#failed.add(id)
      else this.#moved.forget(id)
    }
  }

  /** Those that are active, as they are now. */
  get statuses(): readonly BackfillStatus[] {
    return [...this.#jobs.values()].map(statusOf)
  }

  /** Health checks of a sink: one for each reason that has held up its backfills for long. */
  checks(sinkId: string): readonly HealthCheck[] {
    const isHeld = ({ of, state, cause, since }: Job) =>
      of.sinkId === sinkId && state !== 'reading' && cause !== undefined && Date.now() - since.getTime() > TOLD_AFTER_MS
    const held = [...this.#jobs.values()].filter(isHeld)
    return [...Map.groupBy(held, ({ state, cause }) => `${state} ${cause}`).values()].flatMap(([first, ...others]): HealthCheck[] => {
      if (!first) return []
      const more = others.length > 0 ? `, as ${others.length} more do` : ''
      const message = `the backfill of ${first.of.table} waits since ${first.since.toISOString()}${more}: ${first.cause}`
      return [{ name: 'Backfill', status: first.state === 'failing' ? 'warning' : 'notice', error: { code: 'BACKFILL_WAITS', message } }]
    })
  }

  /** Reads backfills of a sink that begin together. */
  async #tendAll(jobs: readonly Job[], run: SourceRun): Promise<void> {
    const { signal } = this.#ended
    const wholes = jobs.filter(({ of }) => of.sortColumn === null && of.condition === null)
    try {
      for (let looks = 1, isKnown = false; !isKnown && !signal.aborted; looks++) {
        const left = wholes.filter(({ stop }) => !stop.signal.aborted)
        const [first, second] = left
        isKnown = !first || !second || (await this.#endEmpty(left, run, signal))
        if (isKnown || !first) break
        for (const job of left) enter(job, 'waiting', WAITS.stream)
        await first.changed.wait(signal, backOff(PAUSES, looks))
      }
    } catch (err) {
      // what is wrong is said by the one that it is wrong with
      if (!signal.aborted) this.#home.logger.debug({ err }, 'which tables are empty is found out one by one')
    }
    for (const job of jobs) void this.#tend(job, run)
  }

  /** Ends those of many backfills of a sink whose tables are empty. @returns false: the sink has no stream of its own yet */
  async #endEmpty(jobs: readonly Job[], run: SourceRun, signal: AbortSignal): Promise<boolean> {
    const wanted = jobs.filter(({ of }) => this.#home.takes(of))
    const [first] = wanted
    const sessions = this.#sessions
    if (!first || !sessions) return true
    await this.#mayRead(signal)
    const leave = await this.#turn(first, signal)
    const found = await this.#emptyOf(wanted, run, { sessions, signal }).finally(leave)
    if (!found) return false
    for (const job of wanted) job.isSmall = found.small.includes(job.of.id)
    const saved = await saveEmpty(this.#home.state, this.#owner, found)
    this.#home.meter.backfilled({ pages: saved.size })
    await Promise.all(wanted.filter(({ of }) => saved.has(of.id)).map((job) => this.#home.ended(endOf(job, 'completed'))))
    if (saved.size > 0) this.#home.logger.info({ sink: first.of.sinkId, tables: saved.size }, 'backfills of empty tables are completed')
    return true
  }

  async #emptyOf(jobs: readonly Job[], run: SourceRun, { sessions, signal }: Readonly<{ sessions: PageSessions; signal: AbortSignal }>) {
    const session = await sessions.take(Math.min(...jobs.map(({ of }) => of.maxTimeoutMs)))
    const close = () => session.close()
    signal.addEventListener('abort', close)
    try {
      return await emptyTables(
        this.#sourceOf(run, signal),
        session,
        jobs.map(({ of }) => of),
      )
    } catch (error) {
      close()
      throw error
    } finally {
      signal.removeEventListener('abort', close)
      sessions.give(session)
    }
  }

  /** Reads a backfill to its end, or until it is to stop. */
  async #tend(job: Job, run: SourceRun): Promise<void> {
    const { id } = job.of
    const signal = AbortSignal.any([job.stop.signal, this.#ended.signal])
    let isOver = false
    for (let failures = 0, looks = 0; !signal.aborted && !isOver;) {
      const before = job.ingested
      try {
        const end = await this.#inTurn(job, run, signal)
        if (end === 'done') {
          this.#moved.forget(id) // no page is read any more, whatever becomes of its record
          isOver = await this.#completed(job)
        } else failures = 0
        if (end === 'done' && !isOver) await pause(++failures, signal)
        if (end === 'waiting') {
          enter(job, 'waiting', WAITS.stream)
          await job.changed.wait(signal, backOff(PAUSES, ++looks)) // it is told when the streams have changed
        }
      } catch (error) {
        if (signal.aborted) break
        if (job.ingested > before) failures = 0
        isOver = await this.#couldNot(job, error)
        if (!isOver) await pause(++failures, signal)
      }
    }
    if (job.isTold && !isOver && job.stop.signal.aborted)
      this.#say(job, 'a backfill reads no more for now: it was paused or has ended, or its sink is off')
    this.#jobs.delete(id)
    this.#lookForOthers()
  }

  /** It was read to its end. @returns whether that is on record */
  async #completed(job: Job): Promise<boolean> {
    if (!(await this.#ends(job, endOf(job, 'completed')))) return false
    this.#say(job, 'a backfill is completed', { added: job.ingested, seconds: Math.round((Date.now() - job.insertedAt) / 100) / 10 })
    return true
  }

  /** Puts the end of a backfill on record. @returns whether it is not active any more, as far as this process knows */
  async #ends({ of }: Job, end: BackfillEnd): Promise<boolean> {
    const isRecorded = await this.#home.ended(end)
    return isRecorded && !this.#home.running().some(({ id, state }) => id === of.id && state === 'active')
  }

  /** It could not be read. @returns whether that is its end */
  async #couldNot(job: Job, error: unknown): Promise<boolean> {
    const { id, table } = job.of
    job.lastError = { error, at: new Date() }
    enter(job, 'failing', errorText(error))
    if (error instanceof EngineError && error.code === 'BACKFILL_REFUSED') {
      const { code, message } = error
      try {
        if (!(await this.#ends(job, { ...endOf(job, 'failed'), error: { code, message } }))) return false
        this.#home.logger.error({ backfill: id, table, code, rows: job.processed }, `a backfill has failed: ${loggable(error)}`)
        return true
      } catch (err) {
        this.#home.logger.warn({ backfill: id, err }, 'the end of a backfill could not be put on record; it is tried again')
        return false
      }
    }
    // what was begun anew on purpose, and what has ended meanwhile, is no failure
    const isPlain = error instanceof EngineError && error.code === 'BACKFILL_INTERRUPTED'
    const text = 'a backfill goes on behind its last durable page'
    this.#home.logger[isPlain ? 'info' : 'warn']({ backfill: id, table, err: error }, text)
    return false
  }

  /** Waits until it may be read, and for its turn, and reads it for as long as it may. */
  async #inTurn(job: Job, run: SourceRun, signal: AbortSignal): Promise<RunEnd> {
    const room = this.#roomOf(job.of.sinkId)
    await this.#mayRead(signal, job)
    const waits = setTimeout(() => enter(job, 'waiting', WAITS.sink), HELD_UP_MS)
    await room.room(signal).finally(() => clearTimeout(waits))
    const leave = await this.#turn(job, signal)
    try {
      enter(job, 'reading')
      return await this.#readOnce(job, run, { room, signal })
    } finally {
      leave()
    }
  }

  /** @returns ends its turn */
  async #turn(job: Job, signal: AbortSignal): Promise<() => void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const turn: Turn = { job, begin: resolve }
    const gone = () => {
      const at = this.#queue.indexOf(turn)
      if (at >= 0) this.#queue.splice(at, 1)
      reject(new EngineError('STOPPING', 'the backfill is to stop'))
    }
    enter(job, 'queued')
    this.#queue.push(turn)
    signal.addEventListener('abort', gone)
    this.#admit()
    await promise.finally(() => signal.removeEventListener('abort', gone))
    return () => {
      this.#reading.delete(job)
      this.#admit()
    }
  }

  #admit(): void {
    const readers = (sinkId: string) => [...this.#reading].filter(({ of }) => of.sinkId === sinkId).length
    for (;;) {
      const counts = this.#queue.map(({ job }) => readers(job.of.sinkId))
      const at = counts.indexOf(Math.min(...counts))
      const next = this.#queue[at]
      const reading = next ? [...this.#reading, next.job] : []
      if (!next || reading.reduce((sum, job) => sum + shareOf(job), 0) > this.#home.limits.atOnce) return
      this.#queue.splice(at, 1)
      this.#reading.add(next.job)
      next.begin()
    }
  }

  async #readOnce(job: Job, run: SourceRun, { room, signal }: Readonly<{ room: SinkRoom; signal: AbortSignal }>): Promise<RunEnd> {
    const backfill = job.of
    const sessions = this.#sessions
    const { state, takes, meter, limits } = this.#home
    if (!takes(backfill))
      throw new EngineError('BACKFILL_REFUSED', `the sink does not take ${backfill.table} any more`, { table: backfill.table })
    const stored = await backfillOf(state, backfill.sinkId, backfill.id)
    if (stored?.state !== 'active' || !sessions) return 'waiting' // it has ended, which is told soon
    const from = await this.#lastPage(stored)
    job.rows = stored.rowsInitial
    job.insertedAt = stored.insertedAt.getTime()
    job.processed = from?.processed ?? 0
    job.ingested = from?.ingested ?? 0
    if (!job.isTold) this.#say(job, from ? 'a backfill goes on' : 'a backfill begins')
    job.isTold = true
    const owner = this.#owner
    const most = Math.max(1, Math.ceil(limits.rowsPerSecond / STEADY_PARTS))
    const keeper: BackfillKeeper = {
      mayRead: (end) => this.#mayRead(end),
      read: (rows) => {
        meter.backfilled({ read: rows })
        this.#dueAt = Math.max(this.#dueAt, performance.now()) + (rows * 1_000) / limits.rowsPerSecond
      },
      room: async (end) => {
        const rows = Math.min(most, await room.room(end))
        return this.#isStreaming ? Math.min(rows, await this.#besideStream(room.rowBytes, end)) : rows
      },
      isBound: () => room.isBound || this.#isStreaming,
      isBesideStream: () => this.#isStreaming,
      took: (ms) => this.#streamFirst.took(ms, performance.now()),
      releasing: (rows) => room.releasing(rows),
      added: (added) => room.added(added),
      durable: async (page) => {
        const isSaved = await saveDurablePage(state, owner, backfill.id, page)
        if (isSaved) {
          meter.backfilled({ added: page.ingested - job.ingested, pages: 1 })
          job.processed = page.processed
          job.ingested = page.ingested
        }
        return isSaved
      },
      moved: async (since) => {
        await this.#moved.save()
        return movedSince(state, backfill.id, since)
      },
      counted: (rows) => {
        job.rows = rows
        return saveInitialCount(state, backfill.id, rows)
      },
      warned: (what) => this.#home.logger.warn({ backfill: backfill.id, table: backfill.table }, what),
    }
    if (from?.after === null) return 'done'
    const session = await sessions.take(backfill.maxTimeoutMs)
    try {
      return await new BackfillRun(backfill, session, { source: this.#sourceOf(run, signal), keeper, from }).run()
    } finally {
      sessions.give(session)
    }
  }

  #sourceOf(run: SourceRun, signal: AbortSignal): StreamingSource {
    return {
      database: this.#database,
      query: run.query,
      windows: this.#windows,
      moved: this.#moved,
      marks: this.#marks ?? new Marks(this.#database.id, run.write),
      durable: (position) => this.#untilDurable(run, position, signal),
      signal,
      maxMessageBytes: this.#home.maxMessageBytes,
    }
  }

  get #owner() {
    return { databaseId: this.#database.id, term: this.#term }
  }

  /** The last page whose place is of the past that the server has: what was read above a switch of timelines is read again. */
  async #lastPage({ pages }: Backfill): Promise<DurablePage | undefined> {
    const incarnations = await incarnationsOf(this.#home.state, this.#database.id)
    return lastPage(pages, (history, lsn) => historyAt(incarnations, lsn) === history)
  }

  /** Settles when the source may be read, and rows are due. */
  async #mayRead(signal: AbortSignal, job?: Job): Promise<void> {
    for (let cause = await this.#strained(); cause !== undefined; cause = await this.#strained()) {
      if (this.#toldStrain === undefined) this.#home.logger.warn(`backfills wait: ${cause}`)
      this.#toldStrain = cause
      if (job) enter(job, 'waiting', cause)
      await delay(STRAINED_MS, undefined, { signal })
    }
    if (this.#toldStrain !== undefined) this.#home.logger.info('backfills go on: the source may be read again')
    this.#toldStrain = undefined
    const waitMs = this.#dueAt - performance.now()
    if (waitMs > 0) await delay(waitMs, undefined, { signal })
  }

  get #isStreaming(): boolean {
    return this.#streamFirst.isStreaming(this.#run?.streamed ?? 0, performance.now())
  }

  /** Leaves the source to its stream for a while. @returns how many rows may be read then */
  async #besideStream(rowBytes: number, signal: AbortSignal): Promise<number> {
    const waitMs = this.#streamFirst.waitMs(performance.now())
    if (waitMs > 0) await delay(waitMs, undefined, { signal })
    return this.#streamFirst.rows(rowBytes)
  }

  /** @returns why the source is to be left alone; undefined: it is not */
  async #strained(): Promise<string | undefined> {
    await this.#strain?.look()
    return this.#strain?.cause
  }

  #roomOf(sinkId: string): SinkRoom {
    const { sink, log, state, limits } = this.#home
    const { maxPending } = limits
    const home = { sink: () => sink(sinkId), log, state, maxPending, isStreaming: () => this.#isStreaming }
    const room = this.#rooms.get(sinkId) ?? new SinkRoom(sinkId, home)
    this.#rooms.set(sinkId, room)
    return room
  }

  #say({ of, processed }: Job, text: string, more: Readonly<Record<string, number>> = {}): void {
    const { id, table } = of
    this.#home.logger.info({ backfill: id, sink: of.sinkId, table, rows: processed, ...more }, text)
  }

  async #untilDurable(run: SourceRun, { lsn }: Position, signal: AbortSignal): Promise<void> {
    const durable = Promise.withResolvers<void>()
    const look = () => {
      if (signal.aborted) durable.reject(new EngineError('STOPPING', 'the run of the source has ended'))
      else if (run.figures.durableLsn > lsn) durable.resolve()
    }
    this.#durable.add(look)
    signal.addEventListener('abort', look)
    look()
    try {
      await durable.promise
    } finally {
      this.#durable.delete(look)
      signal.removeEventListener('abort', look)
    }
  }
}

/** How much of the room for backfills side by side a backfill takes; one that is not small takes 1. */
const shareOf = ({ isSmall }: Job): number => (isSmall ? 1 / SMALL_FOR_ONE : 1)

function jobOf(of: RunningBackfill): Job {
  return {
    ...{ of, stop: new AbortController(), changed: new Bell(), state: 'queued', cause: undefined, since: new Date() },
    ...{ lastError: undefined, rows: undefined, processed: 0, ingested: 0, insertedAt: 0, isTold: false, isSmall: false },
  }
}

function statusOf({ of: { id, table, sinkId }, state, cause, since, lastError, rows, processed, ingested }: Job): BackfillStatus {
  return { id, table, sinkId, state, cause, since, lastError, rows, processed, ingested }
}

const endOf = ({ of: { id, sinkId } }: Job, state: BackfillEnd['state']): BackfillEnd => ({ id, sinkId, state })

/** Waits after so many failures in a row, whatever changes meanwhile. */
const pause = (failures: number, signal: AbortSignal): Promise<void> =>
  delay(backOff(PAUSES, failures), undefined, { signal }).catch(() => undefined)

/** Why a backfill failed, for the log: what Postgres says may have values of rows in it. */
const loggable = ({ message, context: { sqlstate } }: EngineError): string =>
  sqlstate === undefined ? message : `PostgreSQL refuses to read it (${sqlstate}); the backfill itself has its words`

function enter(job: Job, state: BackfillStatus['state'], cause?: string): void {
  const isHeld = (of: BackfillStatus['state']) => of === 'waiting' || of === 'failing'
  if (job.state !== state && !(isHeld(job.state) && isHeld(state))) job.since = new Date()
  job.state = state
  job.cause = cause
}
