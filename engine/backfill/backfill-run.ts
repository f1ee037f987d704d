/**
 * One backfill while its source streams here: page after page is read between two marks in the write-ahead log.
 *
 *   open window · low mark ──▶ it is met ──▶ what was streamed is visible ──▶ read page ──▶ high mark ──▶ it is met: the page's rows
 *        └ the next page's low mark is written while this page is read ┘                       are added there, but those in the window
 *
 *  B1. A row is read after everything that was streamed before its low mark is visible, and stands in the stream behind every change up
 *      to its high mark; of what changed between both the stream has the newer. So no row comes after a newer change of itself.
 *  B2. A page is forgotten with the run: marks name the run, and another one ignores them and reads again behind the last page
 *      that is durable (docs/rules.md, rule 32).
 *  B3. At most MAX_OPEN pages are between being read and being durable.
 */
import { randomUUID } from 'node:crypto'
import { EngineError } from '../errors.ts'
import type { Lsn } from '../lsn.ts'
import type { Position } from '../position.ts'
import type { Query } from '../postgres/query.ts'
import { sqlstateOf } from '../postgres/sqlstate.ts'
import type { DurablePage, RunningBackfill } from '../state/backfills.ts'
import type { Database } from '../state/resources.ts'
import type { Mark, OwnStream } from '../wal/change-packer.ts'
import { toSourceError } from '../wal/connection/source-error.ts'
import type { Relation } from '../wal/decode/relation.ts'
import { PageRows } from './page-rows.ts'
import { PageSession } from './page-session.ts'
import { describeSource, pageQuery, rowsQuery, type SourceTable } from './source-table.ts'
import { Window, type Windows } from './windows.ts'

/** Prefix of the transactional logical message that marks a page of a backfill. */
export const BACKFILL_MARK = 'tailrace:backfill'

const FIRST_ROWS = 1_000
const MOST_ROWS = 40_000
/** Rows of a page are rendered to about so much: it is held until its mark comes, and is added to the stream at once. */
const PAGE_BYTES = 2 * 1024 * 1024
/** A page takes about so long to read, if the backfill's queries may. */
const PAGE_MS = 100
const MAX_OPEN = 3
/** Keys that are read again at once. */
const AGAIN_ROWS = 500

/** What a backfill needs of the source that streams here. */
export type StreamingSource = Readonly<{
  database: Database
  /** on a session that waits for no standby when it commits: marks are written there */
  query: Query
  windows: Windows
  /** settles when everything up to a place is durable in the log; rejects when the run ends */
  durable: (position: Position) => Promise<void>
  /** ends with the run */
  signal: AbortSignal
  maxMessageBytes: number
}>

/** What a backfill tells and asks of whoever keeps it. */
export type BackfillKeeper = Readonly<{
  /** Settles when the next page may be read. */
  room: (signal: AbortSignal) => Promise<void>
  /** A page is durable. @returns false: the backfill has ended, or is another owner's */
  durable: (page: Omit<DurablePage, 'lsn'> & Readonly<{ lsn: Lsn }>) => Promise<boolean>
  /** About how many rows there are. */
  counted: (rows: number) => Promise<void>
}>

type RunOptions = Readonly<{
  source: StreamingSource
  keeper: BackfillKeeper
  /** the last page that is durable; undefined: none is */
  from: DurablePage | undefined
}>

/** A page whose low mark has been met. */
type BegunPage = Readonly<{ window: Window; stream: OwnStream }>
/** The rows of a page. @property isLast there are none behind it */
type ReadPage = Readonly<{ rows: PageRows; isLast: boolean }>

/** Reads one backfill to its end, or until its run ends. */
export class BackfillRun {
  readonly #backfill: RunningBackfill
  readonly #sinkId: string
  readonly #source: StreamingSource
  readonly #keeper: BackfillKeeper
  /** marks that were written and have not come back, by id */
  readonly #marks = new Map<string, (mark: Mark) => void>()
  readonly #session: PageSession
  /** the last mark is written */
  #written: Promise<unknown> = Promise.resolve()
  /** rows of the next page */
  #limit = FIRST_ROWS
  /** where the next page begins */
  #after: readonly string[] | null
  /** keys of rows that have to be read again; until that is durable no page is saved */
  readonly #again = new Set<string>()
  #againOpen = 0
  #processed: number
  #ingested: number
  /** the last page that was released is saved: one after the other */
  #saved: Promise<void> = Promise.resolve()

  private constructor(backfill: RunningBackfill, sinkId: string, session: PageSession, { source, keeper, from }: RunOptions) {
    this.#backfill = backfill
    this.#sinkId = sinkId
    this.#session = session
    this.#source = source
    this.#keeper = keeper
    this.#after = from?.after ?? null
    this.#processed = from?.processed ?? 0
    this.#ingested = from?.ingested ?? 0
  }

  /** Connects. @throws EngineError of toSourceError */
  static async open(backfill: RunningBackfill, sinkId: string, options: RunOptions): Promise<BackfillRun> {
    const { connection, slot } = options.source.database
    const session = await PageSession.open(connection, `tailrace backfill ${slot.name}`, backfill.maxTimeoutMs)
    return new BackfillRun(backfill, sinkId, session, options)
  }

  /** Whether a mark is of this run of this backfill: then what it was written for is done, at its place. */
  met(id: string, mark: Mark): boolean {
    const meet = this.#marks.get(id)
    this.#marks.delete(id)
    meet?.(mark)
    return meet !== undefined
  }

  /**
   * Reads on behind the last page that is durable.
   * @returns 'done': the table is read to its end, and all of it is durable; 'waiting': the sink has no stream of its own yet
   * @throws EngineError BACKFILL_REFUSED; others: another run goes on behind the last page that is durable
   */
  async run(): Promise<'done' | 'waiting'> {
    const { signal } = this.#source
    const cut = () => this.#session.close()
    signal.addEventListener('abort', cut)
    try {
      return await this.#readAll()
    } catch (error) {
      throw signal.aborted ? new EngineError('STOPPING', 'the run of the backfill has ended') : toSourceError(error, 'streaming')
    } finally {
      signal.removeEventListener('abort', cut)
      this.#session.close()
    }
  }

  async #readAll(): Promise<'done' | 'waiting'> {
    const { windows, signal } = this.#source
    let table = await this.#inTransaction(() => this.#describe())
    await this.#keeper.counted(table.rows)
    const open: Promise<void>[] = []
    let begun = this.#begin(table.relation)
    try {
      for (let isRead = false; ;) {
        await this.#keeper.room(signal)
        const page = await begun
        if (!page) return 'waiting'
        await this.#session.begin(windows, signal)
        table = await this.#describeAgain(table)
        begun = this.#begin(table.relation) // of the next page: while this one is read
        begun.catch(() => undefined)
        const keys = [...this.#again].slice(0, AGAIN_ROWS)
        const { rows, isLast }: ReadPage =
          keys.length > 0 || isRead ? await this.#readKeys(table, page, keys) : await this.#readPage(table, page)
        await this.#session.end()
        isRead ||= isLast
        const saved = this.#release(page, rows, { after: isRead ? null : this.#after, keys, before: this.#saved })
        saved.catch(() => undefined) // awaited below
        open.push((this.#saved = saved))
        if (isRead) await Promise.all(open.splice(0))
        else if (open.length >= MAX_OPEN) await open.shift()
        if (isRead && this.#again.size === 0) return 'done'
      }
    } finally {
      begun.then(
        (page) => page && windows.close(page.window),
        () => undefined,
      )
    }
  }

  /** Opens a page: its window begins where its low mark stands. @returns undefined: the sink has no stream of its own there */
  async #begin(relation: Relation): Promise<BegunPage | undefined> {
    return this.#mark((mark) => {
      const stream = mark.ownStream(this.#sinkId, relation)
      if (!stream) return undefined
      const window = new Window(relation.oid, stream.actions)
      this.#source.windows.open(window)
      return { window, stream }
    })
  }

  /** The rows of a page that nothing newer replaces are added where its high mark stands; settles when they are durable, and that is saved. */
  async #release(
    { window, stream }: BegunPage,
    rows: PageRows,
    { after, keys, before }: Readonly<{ after: readonly string[] | null; keys: readonly string[]; before: Promise<void> }>,
  ): Promise<void> {
    const { windows } = this.#source
    const released = await this.#mark((mark) => {
      windows.close(window)
      const now = mark.ownStream(this.#sinkId, rows.relation)
      if (window.isVoid || now?.target.topic !== stream.target.topic) return undefined
      let idx = 0
      for (let n = 0; n < rows.count; n++) {
        const key = rows.key(n)
        const what = window.of(key)
        if (what === 'again') this.#again.add(key)
        else if (what === undefined) mark.add(rows.row(n, idx++))
      }
      for (const key of window.moved()) this.#again.add(key)
      return { position: mark.position, added: idx }
    }).finally(() => windows.close(window))
    if (!released) throw interrupted('the table was emptied, or the sink reads another stream')
    const { position, added } = released
    if (keys.length === 0) this.#processed += rows.count
    this.#ingested += added
    const counts = { processed: this.#processed, ingested: this.#ingested }
    await Promise.all([this.#source.durable(position), before])
    this.#againOpen -= keys.length
    if (this.#again.size > 0 || this.#againOpen > 0) return // what has to be read again is not durable yet
    const { history, lsn } = position
    if (!(await this.#keeper.durable({ after, history, lsn, ...counts }))) throw interrupted('it has ended, or another process reads it')
  }

  async #readPage(table: SourceTable, { stream }: BegunPage): Promise<ReadPage> {
    for (;;) {
      const limit = this.#limit
      const startedAt = performance.now()
      const rows = this.#rowsOf(table, stream)
      let last: readonly string[] | undefined
      const columns = table.order.map(({ index }) => index)
      try {
        const isWhole = await this.#session.copy(
          pageQuery(table, this.#after, limit),
          (bytes, view, place) => {
            const { row } = rows.add(bytes, view, place)
            const isEnough = rows.count === limit || rows.bytes >= PAGE_BYTES
            if (isEnough) last = columns.map((column) => row.text(column) ?? '')
            return !isEnough || rows.count === limit
          },
          (pid) => this.#cancel(pid),
        )
        this.#adapt(rows, performance.now() - startedAt)
        if (last) this.#after = last
        return { rows, isLast: isWhole && rows.count < limit }
      } catch (error) {
        if (sqlstateOf(error) !== TIMED_OUT || limit === 1) throw error
        this.#limit = Math.max(1, Math.floor(limit / 4)) // the low mark still stands: the same page again, smaller
        await this.#session.end()
        await this.#session.begin(this.#source.windows, this.#source.signal)
      }
    }
  }

  async #readKeys(table: SourceTable, { stream }: BegunPage, keys: readonly string[]): Promise<ReadPage> {
    this.#againOpen += keys.length
    for (const key of keys) this.#again.delete(key)
    const rows = this.#rowsOf(table, stream)
    const values = keys.map((key) => JSON.parse(Buffer.from(key, 'latin1').toString('utf8')) as readonly string[])
    const add = (...row: Parameters<PageRows['add']>) => rows.add(...row) !== undefined
    if (values.length > 0) await this.#session.copy(rowsQuery(table, values), add, (pid) => this.#cancel(pid))
    return { rows, isLast: false }
  }

  #rowsOf({ relation }: SourceTable, stream: OwnStream): PageRows {
    return new PageRows({ backfill: this.#backfill.id, relation, stream, maxMessageBytes: this.#source.maxMessageBytes })
  }

  /** The next page takes about PAGE_MS to read, and has about PAGE_BYTES. */
  #adapt(rows: PageRows, tookMs: number): void {
    const wantedMs = Math.min(PAGE_MS, this.#backfill.maxTimeoutMs / 4)
    const byTime = tookMs > wantedMs ? this.#limit / 2 : tookMs < wantedMs / 2 ? this.#limit * 2 : this.#limit
    const byBytes = rows.count > 0 ? (PAGE_BYTES * rows.count) / rows.bytes : Infinity
    this.#limit = Math.max(1, Math.floor(Math.min(byTime, byBytes, MOST_ROWS)))
  }

  /** Writes a mark. @returns what `meet` gives where the mark stands in the stream */
  async #mark<T>(meet: (mark: Mark) => T): Promise<T> {
    const { query, database, signal } = this.#source
    const id = randomUUID()
    const met = Promise.withResolvers<T>()
    const end = () => met.reject(interrupted('the run has ended'))
    signal.addEventListener('abort', end)
    this.#marks.set(id, (mark) => met.resolve(meet(mark)))
    try {
      const content = JSON.stringify({ database: database.id, mark: id })
      const write = () => query('select pg_catalog.pg_logical_emit_message(true, $1, $2)', [BACKFILL_MARK, content])
      this.#written = this.#written.then(write) // one after the other: pages stand in the stream in their order
      this.#written.catch(met.reject)
      return await met.promise
    } finally {
      signal.removeEventListener('abort', end)
      this.#marks.delete(id)
    }
  }

  /** The table may be another one than when the page before was read, of the same key: rows are read as it is now. */
  async #describeAgain(before: SourceTable): Promise<SourceTable> {
    const now = await this.#describe()
    if (now.print === before.print) return before
    if (now.relation.oid !== before.relation.oid) throw interrupted('the table is another one of its name')
    if (JSON.stringify(now.order) !== JSON.stringify(before.order)) throw interrupted('the table has another key')
    return now
  }

  #describe(): Promise<SourceTable> {
    return describeSource(this.#session.query, this.#source.database.slot.publication, this.#backfill)
  }

  async #inTransaction<T>(work: () => Promise<T>): Promise<T> {
    await this.#session.begin(this.#source.windows, this.#source.signal)
    const result = await work()
    await this.#session.end()
    return result
  }

  async #cancel(pid: number): Promise<void> {
    await this.#source.query('select pg_catalog.pg_cancel_backend($1)', [pid])
  }
}

const TIMED_OUT = '57014'

const interrupted = (why: string) => new EngineError('BACKFILL_INTERRUPTED', `the page of a backfill is read again: ${why}`)
