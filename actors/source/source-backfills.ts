/**
 * The backfills of one source: while it streams here, those that are active are read, some side by side and the others after them. What
 * fails for now is tried again behind its last durable page, with pauses that grow; what can't succeed is failed, and stops no other.
 */
import { backOff } from '../../engine/back-off.ts'
import { Bell } from '../../engine/bell.ts'
import { BackfillRun, BACKFILL_MARK, type BackfillKeeper, type StreamingSource } from '../../engine/backfill/backfill-run.ts'
import { Windows } from '../../engine/backfill/windows.ts'
import { EngineError } from '../../engine/errors.ts'
import { fieldsOf } from '../../engine/json.ts'
import type { Logger } from '../../engine/logger.ts'
import { parseLsn } from '../../engine/lsn.ts'
import type { Query } from '../../engine/postgres/query.ts'
import {
  backfillOf,
  saveDurablePage,
  saveInitialCount,
  type Backfill,
  type DurablePage,
  type RunningBackfill,
} from '../../engine/state/backfills.ts'
import type { Database } from '../../engine/state/resources.ts'
import type { Mark, MarkHandler } from '../../engine/wal/change-packer.ts'
import type { Position } from '../../engine/position.ts'
import { historyAt } from '../../engine/wal/history.ts'
import { incarnationsOf } from '../../engine/wal/source-store.ts'
import type { SourceRun } from '../../engine/wal/run.ts'

/** A backfill of a sink. */
export type SinkBackfill = Readonly<{ sinkId: string; backfill: RunningBackfill }>
/** How a backfill ended. */
export type BackfillEnd = Readonly<{ state: 'completed' | 'failed'; error?: Backfill['error'] }>

/** What the backfills of a source are given. */
export type BackfillHome = Readonly<{
  /** those of its sinks that have not ended, as they are now */
  running: () => readonly SinkBackfill[]
  /** Whether its sink takes the table, as the sink is now. */
  takes: (of: SinkBackfill) => boolean
  /** Puts on record how one ended. */
  ended: (of: SinkBackfill, end: BackfillEnd) => Promise<void>
  /** Settles when another page of a sink may be read. */
  room: (sinkId: string, signal: AbortSignal) => Promise<void>
  /** the state database */
  state: Query
  logger: Logger
  maxMessageBytes: number
  /** side by side */
  atOnce: number
}>

const PAUSES = { firstMs: 500, maxMs: 60_000 } as const

/** Reads the backfills of one source for as long as it streams here. */
export class SourceBackfills {
  readonly #database: Database
  readonly #home: BackfillHome
  readonly #windows = new Windows()
  readonly #runs = new Set<BackfillRun>()
  /** by id */
  readonly #reading = new Map<string, AbortController>()
  readonly #changed = new Set<Bell>()
  #run: SourceRun | undefined
  #term = 0
  #ended = new AbortController()
  readonly #durable = new Set<() => void>()

  constructor(database: Database, home: BackfillHome) {
    this.#database = database
    this.#home = home
  }

  /** What a run of the source works with. */
  get hooks(): Readonly<{ marks: ReadonlyMap<string, MarkHandler>; watcher: Windows }> {
    return { marks: new Map([[BACKFILL_MARK, (mark: Mark) => this.#met(mark)]]), watcher: this.#windows }
  }

  /** The source streams here, by this run. @param term under which it does */
  begin(run: SourceRun, term: number): void {
    this.#run = run
    this.#term = term
    this.#ended = new AbortController()
    this.look()
  }

  /** The run has ended. */
  end(): void {
    this.#ended.abort()
    this.#run = undefined
  }

  /** The run has made something durable. */
  progressed(): void {
    for (const look of this.#durable) look()
  }

  /** Backfills have begun or changed, or streams of sinks have. */
  look(): void {
    const run = this.#run
    if (!run) return
    const active = this.#home.running().filter(({ backfill }) => backfill.state === 'active')
    const ids = new Set(active.map(({ backfill }) => backfill.id))
    for (const [id, reading] of this.#reading) if (!ids.has(id)) reading.abort()
    for (const bell of this.#changed) bell.ring()
    for (const of of active) {
      if (this.#reading.size >= this.#home.atOnce) return
      if (!this.#reading.has(of.backfill.id)) void this.#read(of, run)
    }
  }

  #met({ content, ...mark }: Mark): void {
    const { database, mark: id } = fieldsOf(parsed(content))
    if (database !== this.#database.id || typeof id !== 'string') return
    for (const run of this.#runs) if (run.met(id, { content, ...mark })) return
  }

  async #read(of: SinkBackfill, run: SourceRun): Promise<void> {
    const { id } = of.backfill
    const reading = new AbortController()
    this.#reading.set(id, reading)
    const signal = AbortSignal.any([reading.signal, this.#ended.signal])
    const changed = new Bell()
    this.#changed.add(changed)
    try {
      for (let failures = 0, looks = 0; !signal.aborted;) {
        try {
          if ((await this.#readOnce(of, run, signal)) === 'done') break
          failures = 0
          await changed.wait(signal, backOff(PAUSES, ++looks)) // it is told when the streams have changed
        } catch (error) {
          if (signal.aborted) break
          if (error instanceof EngineError && error.code === 'BACKFILL_REFUSED' && (await this.#failed(of, error))) break
          this.#home.logger.warn({ backfill: id, table: of.backfill.table, err: error }, 'a backfill goes on behind its last durable page')
          await changed.wait(signal, backOff(PAUSES, ++failures))
        }
      }
    } finally {
      this.#changed.delete(changed)
      this.#reading.delete(id)
      this.look()
    }
  }

  /** @returns whether that is on record */
  async #failed(of: SinkBackfill, { code, message }: EngineError): Promise<boolean> {
    try {
      await this.#home.ended(of, { state: 'failed', error: { code, message } })
      return true
    } catch (err) {
      this.#home.logger.warn({ backfill: of.backfill.id, err }, 'the end of a backfill could not be put on record; it is tried again')
      return false
    }
  }

  async #readOnce(of: SinkBackfill, run: SourceRun, signal: AbortSignal): Promise<'done' | 'waiting'> {
    const { sinkId, backfill } = of
    const { state, room, ended, takes, maxMessageBytes } = this.#home
    if (!takes(of))
      throw new EngineError('BACKFILL_REFUSED', `the sink does not take ${backfill.table} any more`, { table: backfill.table })
    const from = await this.#lastPage(of)
    const source: StreamingSource = {
      database: this.#database,
      query: run.query,
      windows: this.#windows,
      durable: (position) => this.#untilDurable(run, position, signal),
      signal,
      maxMessageBytes,
    }
    const owner = { databaseId: this.#database.id, term: this.#term }
    const keeper: BackfillKeeper = {
      room: (end) => room(sinkId, end),
      durable: (page) => saveDurablePage(state, owner, backfill.id, page),
      counted: (rows) => saveInitialCount(state, backfill.id, rows),
      warned: (what) => this.#home.logger.warn({ backfill: backfill.id, table: backfill.table }, what),
    }
    if (from?.after !== null || from === undefined) {
      const reading = await BackfillRun.open(backfill, sinkId, { source, keeper, from })
      this.#runs.add(reading)
      try {
        if ((await reading.run()) === 'waiting') return 'waiting'
      } finally {
        this.#runs.delete(reading)
      }
    }
    await ended(of, { state: 'completed' })
    return 'done'
  }

  /** The last page whose place is of the past that the server has: what was read above a switch of timelines is read again. */
  async #lastPage({ sinkId, backfill }: SinkBackfill): Promise<DurablePage | undefined> {
    const { state } = this.#home
    const pages = (await backfillOf(state, sinkId, backfill.id))?.pages ?? []
    const incarnations = await incarnationsOf(state, this.#database.id)
    return pages.findLast(({ history, lsn }) => historyAt(incarnations, parseLsn(lsn)) === history)
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

function parsed(content: Buffer): unknown {
  try {
    return JSON.parse(content.toString('utf8'))
  } catch {
    return undefined // anybody may write a message of this prefix
  }
}
