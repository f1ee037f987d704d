/**
 * One backfill while its source streams here. A page is read by one statement, and joins the stream in slices, while it is being read.
 *
 *   low mark is met: the window opens ──▶ what was streamed is visible ──▶ COPY ──slice──▶ high mark is met: the slice's rows are added
 *        └ that of the next page is written while this one is read           └──slice──▶    there, but those in the window
 *
 *  B1. A row is read after everything that was streamed before its low mark is visible, and stands in the stream behind every change up
 *      to its high mark; of what changed between both the stream has the newer. So no row comes after a newer change of itself.
 *  B2. What was read and is not durable is forgotten with the run: marks name the run, and another one ignores them and reads again
 *      behind the last slice that is durable (docs/rules.md, rule 32).
 *  B3. At most MAX_OPEN slices are between being read and being durable, and that of the row that is being read; of great rows fewer.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { EngineError } from '../errors.ts'
import type { TopicName } from '../log/log.ts'
import type { Lsn } from '../lsn.ts'
import { PART, type Position } from '../position.ts'
import type { Query } from '../postgres/query.ts'
import { sqlstateOf } from '../postgres/sqlstate.ts'
import type { DurablePage, RunningBackfill } from '../state/backfills.ts'
import type { FollowedTable } from '../state/moved-rows.ts'
import type { Database } from '../state/resources.ts'
import type { Mark, OwnStream } from '../wal/change-packer.ts'
import { toSourceError } from '../wal/connection/source-error.ts'
import { estimateRows, refuseHeavyPages } from './page-plan.ts'
import { interrupted, type Marks } from './marks.ts'
import type { MovedRows } from './moved-rows.ts'
import { endOf, pageQuery, rowsAtQuery, rowsQuery, type After } from './page-query.ts'
import { PageRows } from './page-rows.ts'
import type { OnCopiedRow, PageSession } from './page-session.ts'
import { describeSource, refusalOf, type SourceTable } from './source-table.ts'
import { MOST_SLICE_BYTES } from './stream-first.ts'
import { type Fate, type RowIdentity, Window, type Windows } from './windows.ts'

const FIRST_ROWS = 1_000
const MOST_ROWS = 1_000_000
/** A page takes about so long to read, if the backfill's queries may: its statement holds a snapshot meanwhile. */
const PAGE_MS = 1_000
const MAX_OPEN = 8
const MAX_OPEN_BYTES = MAX_OPEN * MOST_SLICE_BYTES
/** A reader that may not go on for so long ends its page: the statement would hold its snapshot. */
const HELD_MS = 200
/** One that may not begin a page for so long ends its run: windows would grow, and others may read meanwhile. */
const AWAY_MS = 1_000
/** Keys that are read again at once. */
const AGAIN_ROWS = 500
/** Places of slices are saved so often: another run would read again what was read since. */
const SAVE_EVERY_MS = 100
/** A row that was changed each time is read so often, and not again. */
const MOST_TRIES = 20

/** The source that streams in this process, as a backfill uses it. */
export type StreamingSource = Readonly<{
  database: Database
  query: Query
  windows: Windows
  moved: Pick<MovedRows, 'follow'>
  marks: Pick<Marks, 'write' | 'written'>
  /** settles when everything up to a place is durable in the log; rejects when the run ends */
  durable: (position: Position) => Promise<void>
  /** ends with the run */
  signal: AbortSignal
  maxMessageBytes: number
}>

/** The owner of a backfill: says when it may read, and records how far it has come. */
export type BackfillKeeper = Readonly<{
  /** Settles when more may be read from the source. */
  mayRead: (signal: AbortSignal) => Promise<void>
  /** Rows were read from the source. */
  read: (rows: number) => void
  /** Settles when rows may join the stream. @returns about how many at once; where `isBound` says so, no more */
  room: (signal: AbortSignal) => Promise<number>
  /** Whether no more rows may join at once than `room` has said: the sink is filled up to a bound, or changes are streamed. */
  isBound: () => boolean
  /** Whether changes are streamed: then one slice is durable before the next one is read. */
  isBesideStream: () => boolean
  /** A slice has become durable. @param ms since its mark was asked for */
  took: (ms: number) => void
  /** Rows will join the stream at a mark that is written now. @returns to be called when they have, or never will */
  releasing: (rows: number) => () => void
  /** Rows have joined the stream. */
  added: (rows: AddedRows) => void
  /** A page is durable. @returns false: the backfill has ended, or is another owner's */
  durable: (page: Omit<DurablePage, 'lsn' | 'at'> & Readonly<{ lsn: Lsn }>) => Promise<boolean>
  /** Rows that moved to where pages have been, up to here and since the mark of a page. @returns their keys; 'too many': they are not known */
  moved: (since: string) => Promise<readonly string[] | 'too many'>
  /** About how many rows there are. */
  counted: (rows: number) => Promise<void>
  /** Something is not as it should be, and the backfill goes on. */
  warned: (what: string) => void
}>

/** Rows that have joined a stream at one mark. @property parts by partition: how many, and where the last one stands */
export type AddedRows = Readonly<{
  topic: TopicName
  partitions: number
  bytes: number
  parts: ReadonlyMap<number, Readonly<{ rows: number; last: Position }>>
}>

type RunOptions = Readonly<{
  source: StreamingSource
  keeper: BackfillKeeper
  /** the last page that is durable; undefined: none is */
  from: DurablePage | undefined
}>

/** A page whose low mark has been met. */
type BegunPage = { readonly window: Window; readonly stream: OwnStream; openSlices: number; isRead: boolean }
/** The rows of a slice. @property after the key that it ends with; undefined: nothing can go on behind it. @property again how many keys were read again for it */
type Slice = Readonly<{ rows: PageRows; after?: readonly string[] | undefined; again?: number }>

/** How a run ended that did not fail. */
export type RunEnd = 'done' | 'waiting' | 'held'

/** Where a slice stands in the stream, and what was read and written with it and before. */
type Released = Readonly<{ position: Position; processed: number; ingested: number }>

/** Reads one backfill to its end, or until its run ends. */
export class BackfillRun {
  readonly #backfill: RunningBackfill
  readonly #source: StreamingSource
  readonly #keeper: BackfillKeeper
  /** with the run of the source, or this one */
  readonly #signal: AbortSignal
  readonly #ended = new AbortController()
  /** those that it has open */
  readonly #windows = new Set<Window>()
  readonly #session: PageSession
  /** rows of the next page */
  #limit = FIRST_ROWS
  /** rows of the slice that is being read */
  #granted = Infinity
  /** where the next page begins */
  #after: After
  /** keys of rows that have to be read again; until that is durable no page is saved */
  readonly #again = new Set<string>()
  #againOpen = 0
  /** how often rows were read again that are not durable yet, by their keys or places */
  readonly #tries = new Map<string, number>()
  /** what `#after` means; undefined: there is none yet */
  #orderedBy: string | undefined
  /** where the mark of the last page stands that a former run has read, until it is known which rows have moved since */
  #movedSince: string | undefined
  #follows: FollowedTable | undefined
  #processed: number
  #ingested: number
  /** for slices to come */
  readonly #spare: PageRows[] = []
  /** the last slice that is durable */
  #newest: Released | undefined
  /** slices that are released and not durable, in their order */
  readonly #open: Promise<void>[] = []
  #openBytes = 0
  /** the last slice that is durable and behind which another run could go on, until its place is being saved */
  #unsaved: Readonly<{ at: Released; after: readonly string[] }> | undefined
  /** the last save that was asked for */
  #saved: Promise<void> = Promise.resolve()
  #savedAt = -Infinity
  /** settles when what is to be saved does not wait for its time */
  readonly #ending = Promise.withResolvers<void>()
  /** why the run ends: a slice could not be released, or its place not be saved */
  #failure: Readonly<{ error: unknown }> | undefined

  /** @param session to read on; when the run has failed, it is of no more use */
  constructor(backfill: RunningBackfill, session: PageSession, { source, keeper, from }: RunOptions) {
    this.#backfill = backfill
    this.#session = session
    this.#source = source
    this.#signal = AbortSignal.any([source.signal, this.#ended.signal])
    this.#keeper = keeper
    this.#after = from?.after ?? null
    this.#orderedBy = from?.orderedBy
    this.#movedSince = from?.lsn
    this.#processed = from?.processed ?? 0
    this.#ingested = from?.ingested ?? 0
  }

  /**
   * Reads on behind the last page that is durable.
   * @returns 'done': the table is read to its end, and all of it is durable; 'waiting': the sink has no stream of its own yet;
   *   'held': it may not go on for now, and what was read is durable
   * @throws EngineError BACKFILL_REFUSED; others: another run goes on behind the last page that is durable
   */
  async run(): Promise<RunEnd> {
    const { signal, windows } = this.#source
    const close = () => this.#session.close()
    signal.addEventListener('abort', close)
    try {
      return await this.#readAll()
    } catch (error) {
      close()
      if (signal.aborted) throw new EngineError('STOPPING', 'the run of the backfill has ended')
      throw refusalOf(error, this.#backfill) ?? toSourceError(error, 'connecting')
    } finally {
      signal.removeEventListener('abort', close)
      this.#ended.abort()
      this.#unsaved = undefined
      for (const window of this.#windows) windows.close(window)
    }
  }

  async #readAll(): Promise<RunEnd> {
    const { windows } = this.#source
    await this.#session.begin(windows, this.#signal)
    let table = await this.#describe()
    await refuseHeavyPages(this.#session, table, this.#backfill)
    const rows = this.#processed === 0 ? await this.#estimate(table) : undefined
    await this.#session.end()
    if (rows !== undefined) await this.#keeper.counted(rows)
    if (this.#orderedBy !== table.orderedBy) {
      this.#after = null // what had been read was read in another order, or of another table
      this.#orderedBy = table.orderedBy
      this.#movedSince = undefined
    }
    let begun = this.#begin(table)
    begun.catch(() => undefined) // the run may end before it is waited for
    for (let isRead = false; !isRead || this.#again.size > 0;) {
      // what has to be read again is little, and until it is durable nothing is saved: another run would begin with the same page
      if (this.#again.size === 0 && !(await this.#goesOn(AWAY_MS))) {
        await Promise.all(this.#open)
        this.#ending.resolve()
        await this.#saved
        return 'held'
      }
      const page = await begun
      if (!page) return 'waiting'
      await this.#takeMoved()
      await this.#session.begin(windows, this.#signal)
      table = await this.#describeAgain(table)
      begun = this.#begin(table) // of the next page: while this one is read
      begun.catch(() => undefined)
      const keys = [...this.#again].slice(0, AGAIN_ROWS)
      if (keys.length > 0) await this.#readKeys(table, page, keys)
      else isRead = await this.#readPage(table, page)
      await this.#source.marks.written
      await this.#session.end()
      page.isRead = true
      this.#closeRead(page)
      if (isRead || keys.length > 0) await Promise.all(this.#open)
    }
    this.#ending.resolve()
    await this.#saved
    if (this.#newest) await this.#save(this.#newest, null)
    return 'done'
  }

  /** The first page has begun: what moved before is known, and its window sees the rest. */
  async #takeMoved(): Promise<void> {
    const since = this.#movedSince
    if (since === undefined) return
    const keys = await this.#keeper.moved(since)
    if (keys === 'too many') {
      this.#after = null
      this.#processed = 0
      this.#ingested = 0
    } else for (const key of keys) this.#again.add(Buffer.from(key).toString('latin1')) // as the windows have them
    this.#movedSince = undefined
  }

  /** @returns about how many rows there are; undefined: it takes too long to say, for the condition does. Pages of it need not */
  async #estimate(table: SourceTable): Promise<number | undefined> {
    try {
      return await estimateRows(this.#session, table)
    } catch (error) {
      if (sqlstateOf(error) === TIMED_OUT) return undefined
      throw error
    }
  }

  /** Opens a page: its window begins where its low mark stands. @returns undefined: the sink has no stream of its own there */
  async #begin({ relation, order, identity, identityColumns }: SourceTable): Promise<BegunPage | undefined> {
    const anyMoves = order.some((column) => identityColumns.every(({ index }) => index !== column.index))
    return this.#mark((mark) => {
      const stream = mark.ownStream(this.#backfill.sinkId, relation)
      if (!stream) return undefined
      const window = new Window(relation.oid, stream, identity, anyMoves)
      this.#source.windows.open(window)
      this.#windows.add(window)
      if (order.length > 0 && 'columns' in identity) {
        this.#follows = { relation: relation.oid, columns: identity.columns, anyMoves }
        this.#source.moved.follow(this.#backfill, this.#follows)
      }
      return { window, stream, openSlices: 0, isRead: false }
    })
  }

  #closeRead({ window, isRead, openSlices }: BegunPage): void {
    if (!isRead || openSlices > 0) return
    this.#source.windows.close(window)
    this.#windows.delete(window)
  }

  /** Reads a page, and releases its rows slice by slice. @returns whether nothing stands behind it */
  async #readPage(table: SourceTable, page: BegunPage): Promise<boolean> {
    const limit = this.#limit
    const startedAt = performance.now()
    const columns = table.order.map(({ index }) => index)
    const end = endOf(table, this.#after)
    let rows = this.#rowsOf(table, page.stream)
    let count = 0
    const add: OnCopiedRow = (bytes, view, from, to) => {
      const change = rows.add(bytes, view, from, to)
      count++
      if (rows.bytes < MOST_SLICE_BYTES && rows.count < this.#most && count < limit) return true
      const place = rows.place(rows.count - 1)
      const after = place === undefined ? columns.map((column) => change.row.text(column) ?? '') : [place, end]
      this.#after = after
      this.#release(page, { rows, after })
      rows = this.#rowsOf(table, page.stream)
      return this.#goesOn(HELD_MS)
    }
    try {
      const isWhole = await this.#session.copy(pageQuery(table, this.#after, limit), add, (pid) => this.#cancel(pid))
      this.#limit = nextLimit(limit, count, performance.now() - startedAt, this.#backfill.maxTimeoutMs)
      const isLast = isWhole && count < limit
      if (isLast) this.#release(page, { rows }) // even of no rows: by its mark it is known which ones moved to where pages have been
      return isLast
    } catch (error) {
      if (sqlstateOf(error) !== TIMED_OUT || limit === 1) throw error
      this.#limit = Math.max(1, Math.floor(Math.min(count, limit) / 4)) // what was released stands; the rest is another page
      return false
    }
  }

  /** How many rows the slice may have: what has arrived belongs to it too, unless there is a bound. */
  get #most(): number {
    return this.#session.hasWaiting && !this.#keeper.isBound() ? Infinity : this.#granted
  }

  /** Waits until more may be read. @param withinMs for leave to read; the wait for the log does not count @returns false: not within that time */
  async #goesOn(withinMs: number): Promise<boolean> {
    await this.#hasRoom()
    const late = new AbortController()
    const timer = setTimeout(() => late.abort(), withinMs)
    const signal = AbortSignal.any([this.#signal, late.signal])
    try {
      await this.#keeper.mayRead(signal)
      this.#granted = await this.#keeper.room(signal)
      return true
    } catch (error) {
      if (late.signal.aborted && !this.#signal.aborted) return false
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  /** Settles when one more slice may be open. Beside a stream they don't pile up: where the disk stands still, changes would come behind them all. */
  async #hasRoom(): Promise<void> {
    if (this.#failure) throw this.#failure.error
    const most = this.#keeper.isBesideStream() ? 1 : MAX_OPEN
    while (this.#open.length >= most || this.#openBytes > MAX_OPEN_BYTES) await this.#open[0]
  }

  async #readKeys(table: SourceTable, page: BegunPage, keys: readonly string[]): Promise<void> {
    this.#againOpen += keys.length
    for (const key of keys) this.#again.delete(key)
    const after = this.#after ?? undefined
    let rows = this.#rowsOf(table, page.stream)
    let left = keys.length
    const add: OnCopiedRow = (bytes, view, start, end) => {
      rows.add(bytes, view, start, end)
      if (rows.bytes < MOST_SLICE_BYTES || left <= rows.count) return true
      left -= rows.count
      this.#release(page, { rows, after, again: rows.count })
      rows = this.#rowsOf(table, page.stream)
      return this.#hasRoom().then(() => true)
    }
    await this.#session.copy(againQuery(table, keys), add, (pid) => this.#cancel(pid))
    this.#release(page, { rows, after, again: left })
  }

  /** The rows of a slice join the stream at a mark that is written now; once they are durable, that is saved soon. */
  #release(page: BegunPage, slice: Slice): void {
    page.openSlices++
    const before = this.#open.at(-1)
    this.#keeper.read(slice.rows.count)
    const joined = this.#keeper.releasing(slice.rows.count)
    const releasedAt = performance.now()
    const durable = this.#releaseNow(page, slice, { before, joined }).finally(() => {
      joined()
      page.openSlices--
      this.#closeRead(page)
    })
    const { bytes } = slice.rows
    this.#open.push(durable)
    this.#openBytes += bytes
    const done = () => {
      this.#keeper.took(performance.now() - releasedAt)
      this.#open.splice(this.#open.indexOf(durable), 1)
      this.#openBytes -= bytes
    }
    durable.then(done, (error: unknown) => (this.#failure ??= { error })) // it stays among them, too
  }

  async #releaseNow(
    { window, stream }: BegunPage,
    { rows, after, again = 0 }: Slice,
    { before, joined }: Readonly<{ before: Promise<void> | undefined; joined: () => void }>,
  ): Promise<void> {
    const released = await this.#mark((mark) => {
      const { relation, identity } = rows.of.table
      const now = mark.ownStream(this.#backfill.sinkId, relation)
      if (window.isVoid || now?.target.topic !== stream.target.topic || now.actions !== stream.actions) return undefined
      if (!isSame(window.identity, identity)) return undefined
      const { topic, partitions } = stream.target
      const counts = new Int32Array(partitions)
      const lasts = new Int32Array(partitions)
      const add = (n: number) => {
        const row = rows.row(n, idx++)
        counts[row.partition]!++
        lasts[row.partition] = row.idx
        mark.add(row)
      }
      let idx = 0
      for (let n = 0; n < rows.count; n++) {
        const key = window.isUntouched ? undefined : rows.key(n)
        const what = key === undefined ? undefined : window.of(key)
        if (what === undefined) add(n)
        else if (what !== 'newer' && key !== undefined) {
          const place = 'columns' in window.identity ? undefined : rows.place(n)
          if (this.#mayTry(place ?? key)) this.#again.add(place ?? key)
          else if (this.#isTaken(what, place)) add(n)
        }
      }
      for (const key of window.moved()) if (!this.#again.has(key) && this.#mayTry(key)) this.#again.add(key)
      const { position } = mark
      const lastOf = (partition: number) => ({ ...position, idx: lasts[partition] ?? 0, part: PART.row })
      const parts = new Map([...counts].flatMap((count, p) => (count > 0 ? [[p, { rows: count, last: lastOf(p) }] as const] : [])))
      joined()
      this.#keeper.added({ topic, partitions, bytes: rows.bytes, parts })
      return { position, added: idx }
    })
    if (!released) throw interrupted('the table was emptied or changed, or the sink reads another stream or takes other actions')
    if (again === 0) this.#processed += rows.count
    this.#ingested += released.added
    this.#spare.push(rows)
    const at = { position: released.position, processed: this.#processed, ingested: this.#ingested }
    await Promise.all([this.#source.durable(at.position), before])
    this.#againOpen -= again
    this.#newest = at
    // what has to be read again is not durable yet: another run would leave it out
    if (this.#again.size === 0 && this.#againOpen === 0) this.#tries.clear()
    if (after && this.#again.size === 0 && this.#againOpen === 0) this.#saveSoon(at, after)
  }

  /** One place is saved at a time: then the newest that has become durable meanwhile. A failure ends the run. */
  #saveSoon(at: Released, after: readonly string[]): void {
    const isAsked = this.#unsaved !== undefined
    this.#unsaved = { at, after }
    if (isAsked) return
    this.#saved = this.#saved.then(async () => {
      await Promise.race([
        delay(Math.max(0, this.#savedAt + SAVE_EVERY_MS - performance.now()), undefined, { signal: this.#signal }),
        this.#ending.promise,
      ])
      this.#savedAt = performance.now()
      const newest = this.#unsaved
      this.#unsaved = undefined
      if (newest) await this.#save(newest.at, newest.after)
    })
    this.#saved.catch((error: unknown) => (this.#failure ??= { error }))
  }

  async #save({ position: { history, lsn }, processed, ingested }: Released, after: readonly string[] | null): Promise<void> {
    const [orderedBy, follows] = [this.#orderedBy, this.#follows]
    if (!(await this.#keeper.durable({ after, orderedBy, follows, history, lsn, processed, ingested })))
      throw interrupted('it has ended, or another process reads it')
  }

  /** Whether a row may be read once more. @param name its key or place */
  #mayTry(name: string): boolean {
    const tries = (this.#tries.get(name) ?? 0) + 1
    this.#tries.set(name, tries)
    return tries <= MOST_TRIES
  }

  /** Whether a row that was changed whenever it was read joins the stream as it was read. @param place of one without a key */
  #isTaken(what: Fate, place: string | undefined): boolean {
    const { table } = this.#backfill
    const isTaken = place !== undefined || what === 'unseen' // then the sink has got nothing newer
    if (place !== undefined)
      this.#keeper.warned(
        `rows of ${table} that look alike are changed all the time, and it has no key that tells them apart: one of them is sent as it was read`,
      )
    else if (!isTaken)
      this.#keeper.warned(
        `a row of ${table} is changed all the time, and its changes leave large values alone: it was not read, and these come when they are changed`,
      )
    return isTaken
  }

  #rowsOf(table: SourceTable, stream: OwnStream): PageRows {
    const of = { backfill: this.#backfill.id, table, stream, maxMessageBytes: this.#source.maxMessageBytes }
    return this.#spare.pop()?.begin(of) ?? new PageRows(of)
  }

  #mark<T>(meet: (mark: Mark) => T): Promise<T> {
    return this.#source.marks.write(meet, this.#signal)
  }

  /** The table may be another one than when the page before was read, in the same order: rows are read as it is now. */
  async #describeAgain(before: SourceTable): Promise<SourceTable> {
    const now = await this.#describe()
    if (now.orderedBy !== before.orderedBy) throw interrupted('the table has another key, or is another one of its name')
    return now.print === before.print ? before : now
  }

  #describe(): Promise<SourceTable> {
    return describeSource(this.#session.query, this.#source.database.slot.publication, this.#backfill)
  }

  async #cancel(pid: number): Promise<void> {
    await this.#source.query('select pg_catalog.pg_cancel_backend($1)', [pid])
  }
}

/** The rows of keys as the windows have them, or of places. */
function againQuery(table: SourceTable, keys: readonly string[]): string {
  if (!('columns' in table.identity)) return rowsAtQuery(table, keys)
  return rowsQuery(
    table,
    keys.map((key) => JSON.parse(Buffer.from(key, 'latin1').toString('utf8')) as readonly string[]), // as RowKeys has written it
  )
}

const isSame = (a: RowIdentity, b: RowIdentity) => a === b || JSON.stringify(a) === JSON.stringify(b)

/** How many rows the next page has: it takes about PAGE_MS to read, and its query no longer than a quarter of its limit. */
function nextLimit(limit: number, count: number, tookMs: number, maxTimeoutMs: number): number {
  const wantedMs = Math.min(PAGE_MS, maxTimeoutMs / 4)
  const byTime = (Math.max(1, count) * wantedMs) / Math.max(1, tookMs)
  return Math.max(1, Math.floor(Math.min(byTime, limit * 4, MOST_ROWS)))
}

const TIMED_OUT = '57014'
