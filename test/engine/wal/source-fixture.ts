/** A whole source for tests: a database of its own, a state, an embedded log in a folder of its own, and the actor between them. */
import { randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { SourceActor, type SourceActorOptions, type SourceState } from '../../../actors/source/source-actor.ts'
import { rowOf } from '../../../engine/postgres/rows.ts'
import { openEmbeddedLog } from '../../../engine/log/embedded.ts'
import type { AppendRecord, Log, Progress } from '../../../engine/log/log.ts'
import { ACTION, MESSAGE_FLAG, Pack } from '../../../engine/log/pack.ts'
import type { Lsn } from '../../../engine/lsn.ts'
import type { Position } from '../../../engine/position.ts'
import type { Database, RoutedReader, RoutedStream } from '../../../engine/state/resources.ts'
import type { Connection } from '../../../engine/postgres/client-config.ts'
import { openStore, type Store } from '../../../engine/state/store.ts'
import { routingOf, StoredVersions, type SavedVersion } from '../../../engine/wal/routing/stored-versions.ts'
import type { SourceObserver, SourceSettings } from '../../../engine/wal/source-settings.ts'
import { createDatabase, createState, type TestDatabase } from '../../services/postgres.ts'
import { until } from '../../waiting.ts'

export type Seen = Readonly<{
  topic: string
  partition: number
  position: Position
  action: string
  isTombstone: boolean
  key: string
  group: number
  routing: number
  isMarker: boolean
  json: Readonly<{ record: Record<string, unknown>; changes: unknown; action: string; metadata: Record<string, unknown> }>
}>

const ACTION_NAME = Object.fromEntries(Object.entries(ACTION).map(([name, code]) => [code, name]))

/** A log whose appends a test can hold, refuse, or look at. */
export class WatchedLog implements Log {
  readonly inner: Log
  /** runs before an append reaches the log; throwing refuses it */
  before: ((records: readonly AppendRecord[], progress: Progress) => Promise<void> | void) | undefined
  /** runs when an append is durable, before its caller hears of it */
  after: (() => Promise<void> | void) | undefined
  readonly appends: { records: readonly AppendRecord[]; progress: Progress }[] = []

  constructor(inner: Log) {
    this.inner = inner
  }
  get identity(): string {
    return this.inner.identity
  }
  async append(records: readonly AppendRecord[], progress: Progress): Promise<void> {
    await this.before?.(records, progress)
    await this.inner.append(records, progress)
    this.appends.push({ records, progress })
    await this.after?.()
  }
  createTopic: Log['createTopic'] = (topic, partitions) => this.inner.createTopic(topic, partitions)
  deleteTopic: Log['deleteTopic'] = (topic) => this.inner.deleteTopic(topic)
  topics: Log['topics'] = (maxAgeMs) => this.inner.topics(maxAgeMs)
  beginRun: Log['beginRun'] = (source) => this.inner.beginRun(source)
  progress: Log['progress'] = (source) => this.inner.progress(source)
  forgetProgress: Log['forgetProgress'] = (source) => this.inner.forgetProgress(source)
  remember: Log['remember'] = (source, state) => this.inner.remember(source, state)
  remembered: Log['remembered'] = (source) => this.inner.remembered(source)
  appendCount: Log['appendCount'] = (source) => this.inner.appendCount(source)
  lacks: Log['lacks'] = (source, appends, only) => this.inner.lacks(source, appends, only)
  read: Log['read'] = (topic, partition, from, signal, before) => this.inner.read(topic, partition, from, signal, before)
  headerAt: Log['headerAt'] = (topic, partition, offset) => this.inner.headerAt(topic, partition, offset)
  join: Log['join'] = (reader, partition, from) => this.inner.join(reader, partition, from)
  readers: Log['readers'] = () => this.inner.readers()
  weigh: Log['weigh'] = (topic, partition, from, before, maxAgeMs) => this.inner.weigh(topic, partition, from, before, maxAgeMs)
  neededFrom: Log['neededFrom'] = (topic, partition, offset) => this.inner.neededFrom(topic, partition, offset)
  deleteReader: Log['deleteReader'] = (reader) => this.inner.deleteReader(reader)
  commit: Log['commit'] = (topic, partition, commit) => this.inner.commit(topic, partition, commit)
  committed: Log['committed'] = (topic, partition) => this.inner.committed(topic, partition)
  copy: Log['copy'] = (part, signal) => this.inner.copy(part, signal)
  trim: Log['trim'] = (topic, partition, before) => this.inner.trim(topic, partition, before)
  offsetFor: Log['offsetFor'] = (topic, partition, at) => this.inner.offsetFor(topic, partition, at)
  stats: Log['stats'] = (...asked) => this.inner.stats(...asked)
  isShortOfSpace: Log['isShortOfSpace'] = () => this.inner.isShortOfSpace()
  subscribe: Log['subscribe'] = (topic, listener) => this.inner.subscribe(topic, listener)
  holds: Log['holds'] = (topic) => this.inner.holds(topic)
  async [Symbol.asyncDispose](): Promise<void> {
    await this.inner[Symbol.asyncDispose]()
  }
}

/** A sink with a topic of its own for each generation, named by it. */
export type RoutedSink = Omit<RoutedStream, 'topic'> & Omit<RoutedReader, 'topic'>

export const routedSink = (over: Partial<RoutedSink> = {}): RoutedSink => ({
  sinkId: 'sink',
  generation: 1,
  partitions: 1,
  source: {},
  groupColumns: {},
  actions: ['insert', 'update', 'delete'],
  grouping: true,
  timestampFormat: 'iso8601',
  ...over,
})

export type FixtureOptions = Readonly<{
  ddl?: string
  sinks?: readonly RoutedSink[]
  /** of another server than the shared one */
  server?: string
  /** of the source; the default is that of the server, UTF8 */
  encoding?: string
  createSlot?: boolean
}>

/** Quick confirmations, so that tests needn't wait for them. */
const QUICK: Partial<SourceSettings> = { confirmEveryMs: 10, idleConfirmEveryMs: 50, heartbeatMs: 3_600_000 }

export class SourceFixture implements AsyncDisposable {
  readonly db: TestDatabase
  readonly stateDb: TestDatabase
  readonly state: Store
  readonly slot: string
  readonly id = randomUUID()
  log: WatchedLog
  #folder: string
  /** of the log that was there before the last swap */
  #otherFolder: string | undefined
  readonly #actors: SourceActor[] = []
  /** what was read of each partition so far: the log only grows, and reading it anew each time would starve the source */
  readonly #read = new Map<string, { next: number; seen: Seen[] }>()

  private constructor(db: TestDatabase, stateDb: TestDatabase, state: Store, folder: string, log: Log) {
    this.db = db
    this.stateDb = stateDb
    this.state = state
    this.slot = `s_${db.name}`.slice(0, 60)
    this.#folder = folder
    this.log = new WatchedLog(log)
  }

  static async create({ ddl, sinks = [routedSink()], server, encoding, createSlot = true }: FixtureOptions = {}): Promise<SourceFixture> {
    const db = await createDatabase(ddl, { ...(server === undefined ? {} : { server }), ...(encoding === undefined ? {} : { encoding }) })
    const stateDb = await createState()
    const state = await openStore(stateDb.connection, 4, () => undefined)
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-source-'))
    const fixture = new SourceFixture(db, stateDb, state, folder, await openEmbeddedLog(folder, { reserveBytes: () => 0 }))
    await db.query('create publication pub for all tables with (publish_via_partition_root = true)')
    if (createSlot) await fixture.createSlot()
    const { rows } = await state.query(`insert into tailrace.account (name) values ('test') returning id`)
    await state.query(
      `insert into tailrace.source_database (id, account_id, name, connection, password, slot_name, publication_name)
       values ($1, $2, 'test', '{}', '', $3, 'pub')`,
      [fixture.id, rows[0]?.id, fixture.slot],
    )
    if (sinks.length > 0) await fixture.save(sinks)
    return fixture
  }

  /** Saves what goes where as the next version. */
  async save(sinks: readonly RoutedSink[]): Promise<SavedVersion> {
    const versions = new StoredVersions(this.id)
    return versions.save(this.state.query, routingOf({ sinks }), await versions.newest(this.state.query))
  }

  /** The same, with its mark. @returns whether that is written */
  async route(actor: SourceActor, sinks: readonly RoutedSink[]): Promise<boolean> {
    return actor.mark(await this.save(sinks))
  }

  async createSlot(more = ''): Promise<void> {
    await this.db.query(`select pg_create_logical_replication_slot($1, 'pgoutput'${more})`, [this.slot])
  }

  database(connection: Connection = this.db.connection, slot = this.slot): Database {
    return {
      id: this.id,
      accountId: 'account',
      name: 'test',
      connection,
      poolSize: 2,
      annotations: {},
      slot: { id: 'slot', name: slot, publication: 'pub', status: 'active' },
    }
  }

  /** A new actor, as after a start of the process; the former one must have been stopped or abandoned. */
  start(settings: Partial<SourceSettings> = {}, more: Partial<SourceActorOptions> & { observer?: SourceObserver } = {}): SourceActor {
    const actor = new SourceActor({
      database: this.database(),
      log: this.log,
      state: this.state.query,
      holder: 'test',
      settings: { ...QUICK, ...settings },
      ...more,
    })
    this.#actors.push(actor)
    return actor
  }

  /** Another, empty log, as if the data folder had been lost. */
  async replaceLog(): Promise<void> {
    await this.log[Symbol.asyncDispose]()
    await rm(this.#folder, { recursive: true, force: true })
    this.#folder = await mkdtemp(join(tmpdir(), 'tailrace-source-'))
    this.log = new WatchedLog(await openEmbeddedLog(this.#folder, { reserveBytes: () => 0 }))
    this.#read.clear()
  }

  /** The log makes room for another one, an empty one at first, and comes back at the next call. */
  async swapLog(): Promise<void> {
    await this.log[Symbol.asyncDispose]()
    const folder = this.#otherFolder ?? (await mkdtemp(join(tmpdir(), 'tailrace-source-')))
    this.#otherFolder = this.#folder
    this.#folder = folder
    this.log = new WatchedLog(await openEmbeddedLog(folder, { reserveBytes: () => 0 }))
    this.#read.clear()
  }

  /** Waits until messages for which `enough` holds are in the log. */
  async until(enough: (seen: readonly Seen[]) => boolean, topic = 'sink.1'): Promise<readonly Seen[]> {
    return until(`messages in ${topic}`, async () => {
      const seen = await this.messages(topic)
      return enough(seen) ? seen : undefined
    })
  }

  /** Everything the log holds of a topic, partition by partition. */
  async messages(topic = 'sink.1'): Promise<readonly Seen[]> {
    const seen: Seen[] = []
    const found = (await this.log.topics()).find((t) => t.topic === topic)
    for (let partition = 0; partition < (found?.partitions ?? 0); partition++) {
      const { first, next } = await this.log.stats(topic, partition)
      const key = `${topic}/${partition}`
      const read = this.#read.get(key) ?? { next: first, seen: [] }
      this.#read.set(key, read)
      if (read.next < next) {
        for await (const { offset, pack } of this.log.read(topic, partition, read.next, new AbortController().signal)) {
          read.seen.push(...messagesOf(topic, partition, pack))
          read.next = offset + 1
          if (offset >= next - 1) break
        }
      }
      seen.push(...read.seen)
    }
    return seen
  }

  async slotRow(): Promise<{ confirmed: bigint; restart: bigint; active: boolean }> {
    const [row] = await this.db.query<{ confirmed: string; restart: string; active: boolean }>(
      `select (confirmed_flush_lsn - '0/0')::text as confirmed, (restart_lsn - '0/0')::text as restart, active from pg_replication_slots where slot_name = $1`,
      [this.slot],
    )
    return { confirmed: BigInt(row?.confirmed ?? 0), restart: BigInt(row?.restart ?? 0), active: row?.active ?? false }
  }

  async savedConfirmed(): Promise<bigint> {
    const { rows } = await this.state.query(`select (confirmed_lsn - '0/0')::text as lsn from tailrace.source where database_id = $1`, [
      this.id,
    ])
    return BigInt(rows[0] ? rowOf({ lsn: 'text' }, rows[0]).lsn : 0)
  }

  async walEnd(): Promise<Lsn> {
    const [row] = await this.db.query<{ lsn: string }>(`select (pg_current_wal_flush_lsn() - '0/0')::text as lsn`)
    return BigInt(row?.lsn ?? 0)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#actors.map((actor) => actor.stop()))
    await this.log[Symbol.asyncDispose]()
    await this.state[Symbol.asyncDispose]()
    await this.stateDb[Symbol.asyncDispose]()
    await this.db[Symbol.asyncDispose]()
    for (const folder of [this.#folder, this.#otherFolder]) if (folder) await rm(folder, { recursive: true, force: true })
  }
}

export function messagesOf(topic: string, partition: number, record: Buffer): Seen[] {
  const pack = Pack.decode(record)
  const { routing, isMarker } = pack.header
  return Array.from({ length: pack.count }, (_, i) => ({
    topic,
    partition,
    position: pack.position(i),
    action: ACTION_NAME[pack.action(i)] as string,
    isTombstone: (pack.flags(i) & MESSAGE_FLAG.tombstone) !== 0,
    key: pack.buffer.toString('utf8', pack.keyStart(i), pack.keyEnd(i)),
    group: pack.group(i),
    routing,
    isMarker,
    json: JSON.parse(`{${pack.buffer.toString('utf8', pack.bodyStart(i), pack.bodyEnd(i))}}}`) as Seen['json'],
  }))
}

/** Waits for a state of the actor, and ends with it, however soon the actor leaves it again. */
export async function reaches(actor: SourceActor, state: SourceState): Promise<void> {
  const reached = Promise.withResolvers<void>()
  let isReached = false
  const look = (now: SourceState) => {
    if (now !== state) return
    isReached = true
    reached.resolve()
  }
  const unwatch = actor.watch(look)
  look(actor.state)
  const said = () => `${state}, still ${actor.state}: ${actor.lastError?.message ?? 'no error'}`
  await Promise.race([reached.promise, until(said, () => isReached)]).finally(unwatch)
}
