/**
 * One run of a source, from START_REPLICATION to its end (docs/rules.md, rule 4: a run is gapless). Chunks become packs, packs
 * become durable by one append at a time, and what is durable is confirmed:
 *
 *   replication ─chunk─▶ chunk queue ─▶ change packer ─▶ packing ─▶ append loop ─durable─▶ durable end ─▶ confirmer
 *        ▲ pause/resume      │ waits: catalogue, routing mark                                                  │
 *        ├──── flow ◀────────┴── bytes in flight, gate of the sinks                                            │
 *        └──────────────────────────────────── status ◀────────────────────────────────────────────────────────┘
 *
 *  R1. Chunks are handled in the order they came; while a wait is open they are copied and held, and reading pauses.
 *  R2. The first failure of any part ends the run: nothing is appended, saved or confirmed after it.
 *  R3. A position is confirmed only at the end of a transaction, or at a keepalive with nothing pending; and only of a past
 *      that is known to be the log's (Landmark, history.ts).
 */
import { setTimeout as delay } from 'node:timers/promises'
import { BusyShare } from '../busy-share.ts'
import { EngineError, errorText } from '../errors.ts'
import type { Log } from '../log/log.ts'
import { formatLsn, type Lsn } from '../lsn.ts'
import type { Database } from '../state/resources.ts'
import { type Append, AppendLoop, formerAppend, leaveBehind } from './append-loop.ts'
import { ChangePacker, type ChangeWatcher, type MarkHandler } from './change-packer.ts'
import { ChunkQueue, type Wait } from './chunk-queue.ts'
import { Confirmer, DurableEnd } from './confirmation.ts'
import { Cursor } from './cursor.ts'
import { decode } from './decode/pgoutput.ts'
import { Definitions } from './definitions.ts'
import { Flow, type ReadingGate } from './flow.ts'
import { acceptRemedy, historyAt, identifySystem } from './history.ts'
import { KnownRelations } from './decode/known-relations.ts'
import type { Chunk } from './decode/chunk.ts'
import { ReplicationConnection } from './connection/replication.ts'
import { Packing } from './packing.ts'
import { RoutingState } from './routing/routing-state.ts'
import { RunSession } from './connection/run-session.ts'
import { prepareRun, type RunStart } from './run-start.ts'
import type { Shedding } from './routing/shedding.ts'
import { type FitSlot, readSlotFacts } from './connection/slot.ts'
import type { Query } from '../postgres/query.ts'
import { sourceClient } from './connection/source-client.ts'
import { toSourceError } from './connection/source-error.ts'
import { REPLICATION_NAME, type SourceLock } from './connection/source-lock.ts'
import type { SourceObserver, SourceSettings } from './source-settings.ts'
import type { SavedSource, SourceStore } from './source-store.ts'
import type { SourceFigures } from '../status.ts'

type SourceRunOptions = Readonly<{
  database: Database
  log: Log
  store: SourceStore
  lock: SourceLock
  saved: SavedSource
  slot: FitSlot
  gate: ReadingGate
  shedding?: Shedding
  settings: SourceSettings
  observer: SourceObserver
  marks?: ReadonlyMap<string, MarkHandler>
  watcher?: ChangeWatcher
  /** settles when what was seen so far may be confirmed: it does not come again */
  confirming?: () => Promise<void>
  /** something became durable or was confirmed */
  progressed?: () => void
}>

const SETTLE_MS = 2000

/** Streams one source into the log, from a connection that is open to its end. */
export class SourceRun {
  /** Queries on an ordinary, pinned session of the source's database. */
  readonly query: Query
  /** Writes marks: to the source's database, or to the primary of a standby; synchronous_commit is local. */
  readonly write: Query
  readonly #options: SourceRunOptions
  readonly #replication: ReplicationConnection
  readonly #session: RunSession
  readonly #end = Promise.withResolvers<EngineError | undefined>()
  #isEnded = false
  readonly #history: number
  readonly #start: RunStart
  readonly #cursor: Cursor
  readonly #routing: RoutingState
  readonly #packing: Packing
  readonly #packer: ChangePacker
  readonly #chunks: ChunkQueue
  readonly #loop: AppendLoop
  readonly #durableEnd: DurableEnd
  readonly #confirmer: Confirmer
  readonly #flow: Flow
  /** decoding and packing, on this process's one thread */
  readonly #decoding: BusyShare
  #receivedLsn: Lsn
  /** of the last transaction that is durable, µs since the epoch */
  #lastCommitUs = 0
  #countedRows = 0
  #countedBytes = 0

  private constructor(options: SourceRunOptions, replication: ReplicationConnection, decoding: BusyShare, start: RunStart) {
    this.#options = options
    this.#replication = replication
    this.#decoding = decoding
    this.#start = start
    const { database, log, store, slot, settings, observer, gate, shedding, marks, watcher } = options
    const { incarnations, versions, undrained, relations, durable, landmark, confirmed } = start
    const fail = (error: unknown) => this.#fail(error)
    this.#session = new RunSession({
      database,
      heartbeatMs: settings.heartbeatMs,
      shutdown: (error) => {
        // it waits for the replication connection, which can't hear of it while reading is paused (docs/rules.md, rule 14)
        if (replication.paused) fail(error)
      },
      publicationOid: slot.publicationOid,
      republished: (oid) => observer.republished?.(oid !== undefined),
      failed: (error) => this.#notice(error),
    })
    this.query = this.#session.query
    this.write = this.#session.write
    this.#history = incarnations.at(-1)?.history ?? 0
    this.#receivedLsn = confirmed
    this.#routing = new RoutingState(versions, undrained)
    observer.routed?.()
    this.#cursor = new Cursor(incarnations, durable, landmark)
    const known = new KnownRelations(relations)
    const head = { history: 0, term: store.term, routing: this.#routing.active.version }
    this.#packing = new Packing({ source: database.id, packBytes: settings.packBytes, head })
    const { query } = this
    this.#packer = new ChangePacker({
      source: database.id,
      maxMessageBytes: settings.maxMessageBytes,
      cursor: this.#cursor,
      routing: this.#routing,
      packing: this.#packing,
      definitions: new Definitions({ store, log, cursor: this.#cursor, routing: this.#routing, known, landmark, query, observer }),
      known,
      shedding,
      marks,
      watcher,
      observer,
    })
    this.#loop = new AppendLoop({
      log,
      packing: this.#packing,
      cursor: this.#cursor,
      decoding,
      durable: (append, number) => this.#durable(append, number),
      failed: fail,
      lingerMs: settings.lingerMs,
      timeoutMs: settings.appendTimeoutMs,
    })
    this.#durableEnd = new DurableEnd(confirmed)
    this.#confirmer = new Confirmer({
      start: confirmed,
      save: async (lsn) => {
        await options.confirming?.()
        await store.saveConfirmed(lsn, log.appendCount(database.id))
        await log.remember(database.id, { term: store.term, history: historyAt(incarnations, lsn), confirmed: lsn })
      },
      send: () => this.#confirmed(),
      failed: fail,
      everyMs: settings.confirmEveryMs,
      idleEveryMs: settings.idleConfirmEveryMs,
      idleBytes: settings.idleConfirmBytes,
    })
    this.#chunks = new ChunkQueue({
      handle: (chunk) => this.#handle(chunk),
      waiting: (cause) => this.#flow.waitFor(cause),
      failed: fail,
      decoding,
    })
    this.#flow = new Flow({
      gate,
      maxBytesInFlight: settings.maxBytesInFlight,
      bytesInFlight: () => this.#bytesInFlight(),
      pause: () => replication.pause(),
      resume: () => replication.resume(),
    })
    this.#flow.waitFor('checking that nobody else moved the slot')
    void replication.ended.then((error) => error && this.#cutOff(error))
  }

  /**
   * Begins to stream from where the last run ended.
   * @throws EngineError SLOT_GAP, SOURCE_WENT_BACK, SOURCE_FENCED, STATE_UNAVAILABLE, and those of ReplicationConnection
   */
  static async open(options: SourceRunOptions): Promise<SourceRun> {
    const { connection, slot } = options.database
    const { walSenderTimeoutMs } = options.settings
    const decoding = new BusyShare(performance.now())
    const replication = new ReplicationConnection({
      client: sourceClient(connection, `${REPLICATION_NAME} ${slot.name}`, { wal_sender_timeout: walSenderTimeoutMs }),
      slot: slot.name,
      publication: slot.publication,
      walSenderTimeoutMs,
      decoding,
    })
    void options.lock.lost.then((error) => replication.stop(error))
    const run = new SourceRun(options, replication, decoding, await prepared(options, replication))
    try {
      const reader = { onMessage: (chunk: Chunk) => run.#chunks.receive(chunk), onKeepalive: (walEnd: Lsn) => run.#keepalive(walEnd) }
      await replication.stream(reader, run.#start.confirmed)
      await run.#session.checkSlotUnmoved(run.#start.confirmed)
      run.#begin()
    } catch (error) {
      run.#fail(error)
    }
    if (!run.#isEnded) return run
    const failed = await run.ended
    await run.#settled()
    throw failed ?? stopping()
  }

  /** The error that ended the run; undefined after a stop. Never rejects. */
  get ended(): Promise<EngineError | undefined> {
    return this.#end.promise
  }

  /** How many messages of changes there have been so far. */
  get streamed(): number {
    return this.#packer.streamed
  }

  get figures(): SourceFigures {
    return {
      confirmedLsn: this.#confirmer.confirmed,
      durableLsn: this.#durableEnd.lsn,
      receivedLsn: this.#receivedLsn,
      bytesInFlight: this.#bytesInFlight(),
      pausedMs: this.#flow.pausedMs,
      pauseCauses: this.#flow.causes,
      lastCommitUs: this.#lastCommitUs,
      history: this.#history,
      routingVersion: this.#routing.active.version,
      decodingPercent: this.#decoding.percent(performance.now()),
      appendingPercent: this.#loop.busyPercent,
    }
  }

  /** Reads no more, makes durable what was read, confirms it, and ends. */
  async drain(): Promise<void> {
    if (!this.#isEnded) {
      this.#chunks.stop() // what still comes is dropped with the run: it is not confirmed
      this.#replication.pause()
      await this.#keep()
      this.#finish(undefined)
    }
    await this.#settled()
  }

  /** Makes durable what was handled, and confirms it. */
  async #keep(): Promise<void> {
    this.#session.stopHeartbeat()
    await this.#loop.drain()
    if (!this.#isEnded) await this.#confirmer.finish()
  }

  /** Ends at once. What was appended and not confirmed is recognised by the next run. */
  async stop(): Promise<void> {
    this.#finish(undefined)
    await this.#settled()
  }

  /** Waits, within bounds, for what is still open after the end. */
  async #settled(): Promise<void> {
    await Promise.race([Promise.all([this.#loop.settled, this.#chunks.settled]), delay(SETTLE_MS, undefined, { ref: false })])
    await Promise.race([this.#session.end(), delay(SETTLE_MS, undefined, { ref: false })])
  }

  #begin(): void {
    if (this.#isEnded) return
    this.#session.beginHeartbeat()
    this.#chunks.resume()
  }

  // ── the stream ───────────────────────────────────────────────────────────────────────────────────

  #handle(chunk: Chunk): Wait | undefined {
    const said = decode(chunk, this.#packer)
    if (said === 'committed') this.#committed()
    if (!this.#packing.isEmpty) {
      this.#loop.wake()
      if (this.#packing.bytes > this.#options.settings.maxBytesInFlight / 4) this.#flow.check()
    }
    return said === 'committed' ? undefined : said
  }

  #committed(): void {
    const end = this.#packer.committedEnd
    if (end > this.#receivedLsn) this.#receivedLsn = end
    if (this.#start.landmark.isAhead) return
    this.#durableEnd.committed(end, this.#packing.isEmpty ? this.#loop.begun : this.#loop.gathering)
    this.#confirmer.advance(this.#durableEnd.lsn, false)
  }

  #keepalive(walEnd: Lsn): void {
    const { landmark } = this.#start
    if (walEnd > this.#receivedLsn) this.#receivedLsn = walEnd
    const isPending = !this.#chunks.isIdle || this.#cursor.isInTransaction || !this.#packing.isEmpty || this.#loop.open !== undefined
    if (this.#isEnded || isPending) return
    landmark.pass(walEnd)
    if (landmark.isAhead) return
    this.#durableEnd.idle(walEnd)
    this.#confirmer.advance(this.#durableEnd.lsn, false)
  }

  #durable(append: Append, number: number): void {
    const { observer, progressed } = this.#options
    this.#durableEnd.durable(number)
    this.#confirmer.advance(this.#durableEnd.lsn, true)
    this.#lastCommitUs = this.#packer.committedUs
    this.#flow.check()
    this.#countIngested()
    observer.appended?.(append, Math.max(0, Date.now() * 1000 - append.oldestCommitUs))
    progressed?.()
  }

  #confirmed(): void {
    const { confirmed } = this.#confirmer
    this.#replication.confirm(confirmed)
    this.#countIngested()
    this.#options.observer.confirmed?.(confirmed)
    this.#options.progressed?.()
  }

  #countIngested(): void {
    const { rows, rowBytes } = this.#packer
    if (rows > this.#countedRows) this.#options.observer.ingested?.(rows - this.#countedRows, rowBytes - this.#countedBytes)
    this.#countedRows = rows
    this.#countedBytes = rowBytes
  }

  #bytesInFlight(): number {
    return this.#packing.bytes + (this.#loop.open?.bytes ?? 0) + this.#chunks.heldBytes
  }

  // ── end ──────────────────────────────────────────────────────────────────────────────────────────

  #notice(error: unknown): void {
    if (!this.#isEnded) this.#options.observer.notice?.(errorText(error))
  }

  /**
   * The replication connection ended. A server that finds no publication for what it decodes has sent all before it, and
   * will send the same again: that is kept, because nothing comes beyond it until a user gives up what follows.
   */
  async #cutOff(error: EngineError): Promise<void> {
    if (error.code !== 'PUBLICATION_MISSING') return this.#fail(error)
    try {
      await Promise.race([this.#chunks.handled(), this.ended])
      if (!this.#isEnded) await this.#keep()
      const { database } = this.#options
      const { name, publication } = database.slot
      const { publicationOid } = this.#isEnded ? {} : await readSlotFacts(this.query, name, publication)
      this.#fail(publicationOid === undefined ? error : tooYoung(database, this.#confirmer.confirmed, error))
    } catch (failure) {
      this.#fail(failure)
    }
  }

  #fail(error: unknown): void {
    this.#finish(error instanceof EngineError ? error : toSourceError(error, 'streaming'))
  }

  #finish(error: EngineError | undefined): void {
    if (this.#isEnded) return
    this.#isEnded = true
    this.#chunks.stop()
    this.#session.stopHeartbeat()
    this.#replication.stop() // first of all: a server that is stopping waits for it
    this.#loop.stop()
    leaveBehind(this.#options.log, this.#options.database.id, this.#loop.settled)
    this.#confirmer.stop()
    this.#flow.end()
    this.#end.resolve(error)
  }
}

/**
 * Connects, and settles from where the run goes on.
 * @throws EngineError also when the connection ends meanwhile, or the lock is lost
 */
async function prepared(options: SourceRunOptions, replication: ReplicationConnection): Promise<RunStart> {
  const { database, log, settings } = options
  const prepare = async () => {
    await replication.connect()
    const system = await identifySystem(replication.query)
    await formerAppend(log, database.id, settings.appendTimeoutMs)
    return prepareRun({ ...options, system })
  }
  const ended = replication.ended.then((error): never => {
    throw error ?? stopping()
  })
  try {
    return await Promise.race([prepare(), ended])
  } catch (error) {
    replication.stop()
    throw toSourceError(error, 'starting', { slot: database.slot.name })
  }
}

const stopping = () => new EngineError('STOPPING', 'the run was stopped while it started')

const tooYoung = ({ name, slot }: Database, durable: Lsn, cause: EngineError): EngineError =>
  new EngineError(
    'PUBLICATION_TOO_YOUNG',
    `publication "${slot.publication}" was created after changes that slot "${slot.name}" has to send next, from LSN ${formatLsn(durable)} on: ` +
      `Postgres can't decode changes that were written while there was no publication. To leave them out and go on where the publication begins, ${acceptRemedy(name)}`,
    { slot: slot.name, publication: slot.publication, durable: formatLsn(durable) },
    { cause },
  )
