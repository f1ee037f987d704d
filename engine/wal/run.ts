/**
 * One run of a source, from START_REPLICATION to its end (correctness 4: a run is gapless). Chunks become packs, packs
 * become durable by one append at a time, and what is durable is confirmed. The parts decide; this file connects them:
 *
 *   replication ─chunk─▶ change packer ─packs─▶ append loop ─durable─▶ durable end ─▶ confirmer ─status─▶ replication
 *        ▲ pause/resume        │ waits: catalogue, routing mark
 *        └──── flow ◀──────────┴── bytes in flight, gate of the sinks
 *
 *  R1. Chunks are handled in the order they came; while a wait is open they are copied and held, and reading pauses.
 *  R2. The first failure of any part ends the run: nothing is appended, saved or confirmed after it.
 *  R3. A position is confirmed only at the end of a transaction, or at a keepalive with nothing pending; and only of a past
 *      that is known to be the log's (landmark.ts).
 */
import { BusyShare } from '../busy-share.ts'
import { EngineError } from '../errors.ts'
import type { Log } from '../log/log.ts'
import { formatLsn, type Lsn } from '../lsn.ts'
import type { Database } from '../state/resources.ts'
import { AppendLoop, type Append } from './append-loop.ts'
import { ChangePacker, type KeyWatcher, type MarkHandler } from './change-packer.ts'
import { ChunkQueue } from './chunk-queue.ts'
import { Confirmer, DurableEnd } from './confirmation.ts'
import { Cursor } from './cursor.ts'
import { Flow } from './flow.ts'
import type { ReadingGate } from './gate.ts'
import { acceptRemedy, historyAt, identifySystem, type System } from './history.ts'
import { formerAppend, leaveBehind, within } from './open-appends.ts'
import type { Landmark } from './landmark.ts'
import { KnownRelations } from './decode/known-relations.ts'
import type { Chunk } from './decode/chunk.ts'
import type { RelationMessage } from './decode/pgoutput.ts'
import type { Relation } from './decode/relation.ts'
import { RelationDescriber, type Described } from './relation-describer.ts'
import { ReplicationConnection } from './connection/replication.ts'
import { parseRoutingMark } from './routing/routing-mark.ts'
import { RoutingState } from './routing/routing-state.ts'
import { RunSession } from './connection/run-session.ts'
import { makeReady, prepareRun } from './run-start.ts'
import type { Shedding } from './routing/shedding.ts'
import { readSlotFacts, type FitSlot } from './connection/slot.ts'
import type { Query } from '../postgres/query.ts'
import { sourceClient } from './connection/source-client.ts'
import { toSourceError } from './connection/source-error.ts'
import { REPLICATION_NAME, type SourceLock } from './connection/source-lock.ts'
import type { SourceFigures, SourceObserver, SourceSettings } from './source-settings.ts'
import type { SavedSource, SourceStore } from './source-store.ts'

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
  watcher?: KeyWatcher
  /** something became durable or was confirmed */
  progressed?: () => void
}>

const SETTLE_MS = 2000

export class SourceRun {
  readonly #options: SourceRunOptions
  readonly #replication: ReplicationConnection
  readonly #session: RunSession
  readonly #end = Promise.withResolvers<EngineError | undefined>()
  #isEnded = false
  // set by #start, on the replication connection before the first chunk
  #cursor!: Cursor
  #packer!: ChangePacker
  #describer!: RelationDescriber
  #loop!: AppendLoop
  #durableEnd!: DurableEnd
  #confirmer!: Confirmer
  #flow!: Flow
  #routing!: RoutingState
  #landmark!: Landmark
  #history = 0
  #startLsn: Lsn = 0n
  #receivedLsn: Lsn = 0n
  #lastCommitUs = 0
  #committedUs = 0
  /** decoding and packing, on this process's one thread */
  readonly #decoding = new BusyShare(performance.now())
  /** an append is open */
  readonly #appending = new BusyShare(performance.now())
  #toldRows = 0
  #toldBytes = 0
  readonly #chunks = new ChunkQueue({
    handle: (chunk) => this.#handle(chunk),
    waiting: (cause) => this.#flow.waitFor(cause),
    failed: (error) => this.#fail(error),
    decoding: this.#decoding,
  })

  private constructor(options: SourceRunOptions) {
    this.#options = options
    const { connection, slot: named } = options.database
    const { slot } = options
    const { walSenderTimeoutMs } = options.settings
    this.#session = new RunSession({
      database: options.database,
      heartbeatMs: options.settings.heartbeatMs,
      shutdown: (error) => {
        // it waits for the replication connection, which can't hear of it while reading is paused (correctness 14)
        if (this.#replication.paused) this.#fail(error)
      },
      publicationOid: slot.publicationOid,
      republished: (oid) => this.#options.observer.republished?.(oid !== undefined),
      failed: (error) => this.#notice(error),
    })
    this.#replication = new ReplicationConnection({
      client: sourceClient(connection, `${REPLICATION_NAME} ${named.name}`, { wal_sender_timeout: walSenderTimeoutMs }),
      slot: named.name,
      publication: named.publication,
      walSenderTimeoutMs,
      prepare: async (query) => this.#start(await identifySystem(query)),
      confirmed: () => this.#confirmer.confirmed,
      onMessage: (chunk) => this.#receive(chunk),
      onKeepalive: (walEnd) => this.#keepalive(walEnd),
      busy: this.#decoding,
    })
  }

  /**
   * Begins to stream from where the last run ended.
   * @throws EngineError SLOT_GAP, SOURCE_WENT_BACK, SOURCE_FENCED, STATE_UNAVAILABLE, and those of ReplicationConnection.open
   */
  static async open(options: SourceRunOptions): Promise<SourceRun> {
    const run = new SourceRun(options)
    options.lock.lost.then((error) => run.#fail(error)).catch(() => undefined)
    void run.#replication.ended.then((error) => error && run.#cutOff(error))
    try {
      await run.#replication.open()
      await run.#session.checkSlotUnmoved(run.#startLsn)
      run.#begin()
    } catch (error) {
      run.#fail(error)
    }
    if (!run.#isEnded) return run
    const failed = await run.ended
    await run.#settled()
    throw failed ?? new EngineError('STOPPING', 'the run was stopped while it started')
  }

  /** The error that ended the run; undefined after a stop. Never rejects. */
  get ended(): Promise<EngineError | undefined> {
    return this.#end.promise
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
      appendingPercent: this.#appending.percent(performance.now()),
    }
  }

  /** Queries on an ordinary, pinned session of the source's database, for marks: synchronous_commit is local. */
  get query(): Query {
    return this.#session.query
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
    await within(SETTLE_MS, Promise.all([this.#loop?.settled, this.#chunks.settled]))
    await within(SETTLE_MS, this.#session.end())
  }

  // ── start ────────────────────────────────────────────────────────────────────────────────────────

  async #start(system: System): Promise<void> {
    const { database, log, store, saved, slot, settings, observer, gate, shedding, marks, watcher } = this.#options
    await formerAppend(log, database.id, settings.appendTimeoutMs)
    const { incarnations, versions, undrained, relations, durable, landmark, confirmed } = await prepareRun({
      database,
      log,
      store,
      saved,
      slot,
      observer,
      system,
    })
    this.#routing = new RoutingState(versions, undrained)
    observer.routed?.()
    this.#history = incarnations.at(-1)?.history ?? 0
    this.#startLsn = confirmed
    this.#landmark = landmark
    this.#cursor = new Cursor(incarnations, durable, landmark)
    this.#durableEnd = new DurableEnd(confirmed)
    this.#receivedLsn = confirmed
    const known = new KnownRelations(relations)
    this.#describer = new RelationDescriber({
      store,
      log,
      cursor: this.#cursor,
      routing: this.#routing,
      known,
      query: this.query,
      onNotice: (notice) => observer.notice?.(notice),
    })
    this.#packer = new ChangePacker({
      source: database.id,
      term: store.term,
      packBytes: settings.packBytes,
      maxMessageBytes: settings.maxMessageBytes,
      cursor: this.#cursor,
      routing: this.#routing,
      known,
      shedding,
      marks,
      watcher,
      onRelation: (message, met) => this.#describe(message, met),
      onRoutingMark: (content) => this.#switchRouting(content),
      onCommit: (end, commitTimeUs) => this.#committed(end, commitTimeUs),
      onTruncate: (table, sinkIds) => observer.truncated?.(table, sinkIds),
      onNotice: (notice) => observer.notice?.(notice),
    })
    this.#loop = new AppendLoop({
      log,
      gathered: () => this.#packer.packing,
      take: () => this.#take(),
      durable: (append, number) => this.#durable(append, number),
      failed: (error) => this.#fail(error),
      lingerMs: settings.lingerMs,
      timeoutMs: settings.appendTimeoutMs,
    })
    this.#confirmer = new Confirmer({
      start: confirmed,
      save: async (lsn) => {
        await store.saveConfirmed(lsn, log.appendCount(database.id))
        await log.remember(database.id, { term: store.term, history: historyAt(incarnations, lsn), confirmed: lsn })
      },
      send: () => this.#confirmed(),
      failed: (error) => this.#fail(error),
      everyMs: settings.confirmEveryMs,
      idleEveryMs: settings.idleConfirmEveryMs,
      idleBytes: settings.idleConfirmBytes,
    })
    this.#flow = new Flow({
      gate,
      maxBytesInFlight: settings.maxBytesInFlight,
      bytesInFlight: () => this.#bytesInFlight(),
      pause: () => this.#replication.pause(),
      resume: () => this.#replication.resume(),
    })
    this.#flow.waitFor('checking that nobody else moved the slot')
  }

  #begin(): void {
    if (this.#isEnded) return
    this.#session.beginHeartbeat()
    this.#chunks.resume()
  }

  // ── the stream ───────────────────────────────────────────────────────────────────────────────────

  #receive(chunk: Chunk): void {
    if (!this.#isEnded) this.#chunks.receive(chunk)
  }

  #handle(chunk: Chunk): void {
    this.#packer.handle(chunk)
    const { packing } = this.#packer
    if (packing.isEmpty) return
    this.#loop.wake()
    if (packing.bytes > this.#options.settings.maxBytesInFlight / 4) this.#flow.check()
  }

  #committed(end: Lsn, commitTimeUs: number): void {
    if (end > this.#receivedLsn) this.#receivedLsn = end
    this.#committedUs = commitTimeUs
    if (this.#landmark.isAhead) return
    this.#durableEnd.committed(end, this.#packer.packing.isEmpty ? this.#loop.begun : this.#loop.gathering)
    this.#confirmer.advance(this.#durableEnd.lsn, false)
  }

  #keepalive(walEnd: Lsn): void {
    if (walEnd > this.#receivedLsn) this.#receivedLsn = walEnd
    const isPending = !this.#chunks.isIdle || this.#packer.isInTransaction || !this.#packer.packing.isEmpty || this.#loop.open !== undefined
    if (this.#isEnded || isPending) return
    this.#landmark.pass(walEnd)
    if (this.#landmark.isAhead) return
    this.#durableEnd.idle(walEnd)
    this.#confirmer.advance(this.#durableEnd.lsn, false)
  }

  #take(): Append | undefined {
    const from = performance.now()
    const append = this.#packer.take()
    if (!append) return undefined
    const to = performance.now()
    this.#decoding.add(from, to)
    this.#appending.begin(to)
    return append
  }

  #durable(append: Append, number: number): void {
    const { observer, progressed } = this.#options
    this.#appending.end(performance.now())
    this.#durableEnd.durable(number)
    this.#confirmer.advance(this.#durableEnd.lsn, true)
    this.#lastCommitUs = this.#committedUs
    this.#flow.check()
    this.#tellIngested()
    observer.appended?.(append, Math.max(0, Date.now() * 1000 - append.oldestCommitUs))
    progressed?.()
  }

  #confirmed(): void {
    this.#replication.sendStatus()
    this.#tellIngested()
    this.#options.observer.confirmed?.(this.#confirmer.confirmed)
    this.#options.progressed?.()
  }

  #tellIngested(): void {
    const { rows, rowBytes } = this.#packer
    if (rows > this.#toldRows) this.#options.observer.ingested?.(rows - this.#toldRows, rowBytes - this.#toldBytes)
    this.#toldRows = rows
    this.#toldBytes = rowBytes
  }

  #bytesInFlight(): number {
    return this.#packer.packing.bytes + (this.#loop.open?.bytes ?? 0) + this.#chunks.heldBytes
  }

  // ── waits ────────────────────────────────────────────────────────────────────────────────────────

  #describe(message: RelationMessage, met: Relation | undefined): void {
    const described = this.#describer.describe(message, met)
    if (!(described instanceof Promise)) return this.#know(described)
    this.#chunks.wait(`describing table ${message.schema}.${message.table}`, async () => this.#know(await described))
  }

  #know({ relation, left }: Described): void {
    const { message, description } = relation
    this.#packer.setRelation(relation)
    this.#packer.finishSwitch(left)
    if (left.length > 0) this.#options.observer.routed?.()
    if (description.warnings.length > 0)
      this.#options.observer.relationWarnings?.(`${message.schema}.${message.table}`, description.warnings)
  }

  #switchRouting(content: Buffer): void {
    const { store, database } = this.#options
    const number = parseRoutingMark(content, database.id)
    const { position, isDurable } = this.#cursor
    if (number === undefined || number <= this.#routing.active.version) return this.#packer.finishMark([])
    this.#chunks.wait(`saving routing version ${number}`, async () => {
      const found = await store.routingVersion(number)
      if (!found) {
        this.#options.observer.notice?.(`a mark names routing version ${number}, which is not known`)
        return this.#packer.finishMark([])
      }
      if (found.position === undefined && this.#landmark.isAhead) return this.#packer.finishMark([]) // its place would be of another past
      // what the log has was made ready before it was appended, and some topics may be gone again
      const ends = isDurable ? [] : await makeReady(store, this.#options.log, { from: this.#routing.active, to: found.routing, position })
      const stands = await store.placeVersion(number, position, ends)
      const isHere = stands.history === position.history && stands.lsn === position.lsn && stands.idx === position.idx
      this.#packer.finishMark(isHere ? this.#routing.switchTo(found.routing) : []) // elsewhere: an earlier mark counts
      this.#options.observer.routed?.()
    })
  }

  // ── end ──────────────────────────────────────────────────────────────────────────────────────────

  #notice(error: unknown): void {
    if (!this.#isEnded) this.#options.observer.notice?.(error instanceof Error ? error.message : String(error))
  }

  /**
   * The replication connection ended. A server that finds no publication for what it decodes has sent all before it, and
   * will send the same again: that is kept, because nothing comes beyond it until a user gives up what follows.
   */
  async #cutOff(error: EngineError): Promise<void> {
    if (error.code !== 'PUBLICATION_MISSING' || !this.#loop) return this.#fail(error)
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
    if (this.#loop) {
      this.#loop.stop()
      leaveBehind(this.#options.log, this.#options.database.id, this.#loop.settled)
    }
    this.#confirmer?.stop()
    this.#flow?.end()
    this.#chunks.clear()
    this.#end.resolve(error)
  }
}

const tooYoung = ({ name, slot }: Database, durable: Lsn, cause: EngineError): EngineError =>
  new EngineError(
    'PUBLICATION_TOO_YOUNG',
    `publication "${slot.publication}" is younger than changes that slot "${slot.name}" has to send next, from ${formatLsn(durable)} on: ` +
      `Postgres can't decode what was written while there was none. To leave that out and to go on where the publication begins, ${acceptRemedy(name)}`,
    { slot: slot.name, publication: slot.publication, durable: formatLsn(durable) },
    { cause },
  )
