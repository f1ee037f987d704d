/**
 * The session that pages are read on: read-only, with the pinned settings, its rows straight from the wire. What it reads it reads in a
 * transaction that shows every commit which was streamed before (docs/rules.md, rule 30).
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Client, type QueryConfig, type QueryResult } from 'pg'
import { EngineError } from '../errors.ts'
import type { Connection } from '../postgres/client-config.ts'
import type { Query } from '../postgres/query.ts'
import { sqlstateOf } from '../postgres/sqlstate.ts'
import { CommitGate, COMMITTING_QUERY, SNAPSHOT_COLUMNS, type SnapshotRow } from '../wal/connection/commit-gate.ts'
import { ReplicationWire } from '../wal/connection/replication-wire.ts'
import { sourceClient } from '../wal/connection/source-client.ts'
import { toSourceError } from '../wal/connection/source-error.ts'
import type { Windows } from './windows.ts'

/** A page takes longer only while its server is away. */
const ANSWER_MARGIN_MS = 10_000
const LOCK_MS = 2_000
const VISIBLE_MS = 30_000
const LOOK_MS = [1, 2, 5, 10, 20, 50] as const
const CANCELLED = '57014'
/** What a read brings belongs to one slice, however few rows there is room for: so it is no more than a slice has beside a stream. */
const READ_BYTES = 64 * 1024
/** A page of many rows goes by its index too, and not by sorting the table: the next one would do so again. Nothing runs side by side. */
const BY_INDEX = {
  ...{ enable_seqscan: 'off', enable_bitmapscan: 'off', enable_sort: 'off' },
  ...{ jit: 'off', max_parallel_workers_per_gather: 0 },
}

/** A server that ends sessions or transactions by other clocks ends none of ours; older versions don't know all of them. */
const OPENING = `select pg_catalog.pg_backend_pid() as pid, (
  select pg_catalog.count(pg_catalog.set_config(name, '0', false)) from pg_catalog.pg_settings where name in ('idle_session_timeout', 'transaction_timeout')
) as unlimited`

/**
 * Gets a row as COPY gives it; the bytes are valid during the call, and may be changed.
 * @returns true: it wants more; or a promise that says whether: until then it gets no row
 */
export type OnCopiedRow = (bytes: Uint8Array, view: DataView, start: number, end: number) => true | Promise<boolean>

/** A session of a source for reading pages. One page at a time. */
export class PageSession {
  readonly #client: Client
  readonly #wire: ReplicationWire
  readonly #gate = new CommitGate()
  readonly #statements = new Map<string, string>()
  #onRow: OnCopiedRow | undefined
  #seen: Uint8Array | undefined
  #view = new DataView(new ArrayBuffer(0))
  #waiting = new WaitingRows()
  /** what the server still sends of the query is thrown away */
  #isCut = false
  #pid = 0
  #wasCut = false
  #isClosed = false
  /** of each of its queries */
  readonly timeoutMs: number

  private constructor(connection: Connection, name: string, timeoutMs: number) {
    this.timeoutMs = timeoutMs
    const settings = {
      statement_timeout: timeoutMs,
      lock_timeout: Math.min(LOCK_MS, timeoutMs),
      default_transaction_read_only: 'on',
      idle_in_transaction_session_timeout: 0,
      standard_conforming_strings: 'on', // a user's SQL was checked so, and must not come to mean something else
      ...BY_INDEX,
    }
    const config = sourceClient(connection, name, settings)
    this.#wire = new ReplicationWire(config, (bytes, start, end) => this.#row(bytes, start, end), { readBytes: READ_BYTES })
    const answering = { ...config, connection: this.#wire, query_timeout: timeoutMs + ANSWER_MARGIN_MS }
    this.#client = new Client(answering)
    this.#client.on('error', () => this.close()) // whoever reads is told by the query
    this.#client.on('end', () => this.close())
  }

  /** @throws EngineError of toSourceError */
  static async open(connection: Connection, name: string, timeoutMs: number): Promise<PageSession> {
    const session = new PageSession(connection, name, timeoutMs)
    try {
      await session.#client.connect()
      session.#pid = Number((await session.query(OPENING)).rows[0]?.['pid'])
    } catch (error) {
      session.close()
      throw toSourceError(error, 'connecting')
    }
    return session
  }

  /** Whether rows have arrived that the reader of a query has not got yet. */
  get hasWaiting(): boolean {
    return !this.#waiting.isEmpty
  }

  /** Whether another backfill may read on it: a cancel that comes late must not end what that reads. */
  get isFresh(): boolean {
    return !this.#isClosed && !this.#wasCut
  }

  /** Asks something beside the rows. A statement with parameters comes again with each page: it is prepared once for the session. */
  readonly query: Query = (sql, params) =>
    this.#client.query<Record<string, unknown>>(params ? { name: this.#statementOf(sql), text: sql, values: [...params] } : sql)

  /** Has the server plan a query that may hold a user's SQL, without running it: only a single statement passes. @returns the plan, of EXPLAIN in JSON */
  readonly plan = async (select: string): Promise<unknown> => {
    const statement: QueryConfig & Readonly<{ queryMode: 'extended' }> = { text: `explain (format json) ${select}`, queryMode: 'extended' }
    const { rows } = await this.#client.query<Record<string, unknown>>(statement)
    return rows[0]?.['QUERY PLAN']
  }

  /**
   * Begins a transaction that shows every commit which was streamed up to now. Each of its statements has a snapshot of its own: an
   * older one would see no rows in a table that was rewritten in between.
   */
  async begin(windows: Windows, signal: AbortSignal): Promise<void> {
    const until = performance.now() + VISIBLE_MS
    if (!windows.isPastKnown) {
      const { rows } = await this.#client.query<{ xid: string }>(COMMITTING_QUERY)
      windows.tellPast(rows.map(({ xid }) => Number(xid)))
    }
    for (let looks = 0; ; looks++) {
      const streamed = windows.streamed
      const begun: unknown = await this.#client.query(`begin isolation level read committed read only; select ${SNAPSHOT_COLUMNS}`)
      const [, snapshot] = begun as readonly QueryResult<SnapshotRow>[] // one for each statement
      const hidden = this.#gate.hidden(snapshot?.rows[0] ?? {}, streamed)
      windows.visible(streamed, hidden)
      if (hidden.length === 0) return
      await this.#client.query('rollback')
      if (performance.now() > until)
        throw new EngineError('SOURCE_UNREACHABLE', `transaction ${hidden[0]} was streamed and is not visible after ${VISIBLE_MS} ms`)
      await delay(LOOK_MS[Math.min(looks, LOOK_MS.length - 1)], undefined, { signal })
    }
  }

  /**
   * Reads rows. Where the reader wants no more, the query is cancelled.
   * @param select as COPY takes it; @param cancel cancels what the backend of a pid is doing
   * @returns whether all came
   */
  async copy(select: string, onRow: OnCopiedRow, cancel: (pid: number) => Promise<void>): Promise<boolean> {
    this.#isCut = false
    const waiting = (this.#waiting = new WaitingRows())
    let held: Promise<void> | undefined
    const next = () => {
      const more = waiting.give(onRow)
      if (more === true) held = undefined
      return more
    }
    this.#onRow = (bytes, view, start, end) => {
      if (this.#isCut) return true
      if (held) {
        waiting.add(bytes, start, end)
        return true
      }
      const more = onRow(bytes, view, start, end)
      if (more === true) return true
      held = this.#hold(more, next, cancel)
      held.catch(() => undefined) // awaited below
      return true
    }
    try {
      await this.#client.query(`copy (${select}) to stdout`)
    } catch (error) {
      if (!this.#isCut || sqlstateOf(error) !== CANCELLED) throw error
    } finally {
      await held
      this.#onRow = undefined
    }
    return !this.#isCut
  }

  /**
   * Reads no more until it is said whether more is wanted; if not, the query is cancelled, and what the server still sends is thrown away.
   * @param next gives what has arrived already
   */
  async #hold(more: Promise<boolean>, next: () => true | Promise<boolean>, cancel: (pid: number) => Promise<void>): Promise<void> {
    this.#wire.pause()
    try {
      for (let wanted: true | Promise<boolean> = more; await wanted;) if ((wanted = next()) === true) return
      this.#isCut = true
      this.#wasCut = true
      await cancel(this.#pid)
    } catch (error) {
      this.#isCut = true
      throw error
    } finally {
      this.#wire.resume()
    }
  }

  /** Ends the transaction. */
  async end(): Promise<void> {
    await this.#client.query('rollback')
  }

  close(): void {
    this.#isClosed = true
    this.#wire.destroy()
  }

  /** @returns the name of the prepared statement of a text */
  #statementOf(sql: string): string {
    const name = this.#statements.get(sql) ?? `t${this.#statements.size}`
    this.#statements.set(sql, name)
    return name
  }

  #row(bytes: Buffer, start: number, end: number): void {
    if (this.#seen !== bytes) {
      this.#seen = bytes
      this.#view = new DataView(bytes.buffer as ArrayBuffer, bytes.byteOffset, bytes.length)
    }
    this.#onRow?.(bytes, this.#view, start, end)
  }
}

function copyOf(part: Uint8Array) {
  const bytes = Buffer.from(part)
  return { bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length) }
}

/** Rows that have arrived while their reader wants none. */
class WaitingRows {
  /** the part of a buffer that they came in, copied, and where in the buffer that begins */
  #from: Uint8Array | undefined
  #copy = copyOf(new Uint8Array())
  #base = 0
  #end = 0
  readonly #rows: Readonly<{ copy: ReturnType<typeof copyOf>; start: number; end: number }>[] = []
  #next = 0

  get isEmpty(): boolean {
    return this.#next >= this.#rows.length
  }

  /** @param bytes valid during the call: the rows behind it are in them, too */
  add(bytes: Uint8Array, start: number, end: number): void {
    if (bytes !== this.#from || start < this.#end) {
      this.#from = bytes
      this.#copy = copyOf(bytes.subarray(start))
      this.#base = start
    }
    this.#end = end
    this.#rows.push({ copy: this.#copy, start: start - this.#base, end: end - this.#base })
  }

  /** Gives rows for as long as they are wanted. @returns as its reader does; true: there are no more */
  give(onRow: OnCopiedRow): true | Promise<boolean> {
    for (let row = this.#rows[this.#next]; row; row = this.#rows[this.#next]) {
      this.#next++
      const { copy, start, end } = row
      const more = onRow(copy.bytes, copy.view, start, end)
      if (more !== true) return more
    }
    this.#rows.length = 0
    this.#next = 0
    this.#from = undefined
    return true
  }
}
