/**
 * How many rows of its backfills may join a sink's stream now (docs/rules.md, rule 33). A sink that delivers has few of them before it, so
 * that its changes come as soon as without a backfill (delivery-pace.ts). One that is paused, or from which nothing goes, is filled up to
 * a bound, and the backfill waits there. What is parked does not count.
 *
 * Partitions that are served in this process say themselves how far they are, at each message that is taken; of others it is known
 * by their commits.
 */
import { Bell } from '../../engine/bell.ts'
import type { AddedRows } from '../../engine/backfill/backfill-run.ts'
import { DeliveryPace } from '../../engine/backfill/delivery-pace.ts'
import { readerIn } from '../../engine/dispatch/generations.ts'
import type { Log, TopicName } from '../../engine/log/log.ts'
import { comparePositions, type Position } from '../../engine/position.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { rowsOf } from '../../engine/postgres/rows.ts'
import { ask } from '../../engine/state/asking.ts'

/** A partition that is served in this process. */
export type QueuedPartition = Readonly<{
  partition: number
  /** everything up to there has been read from the log */
  read: Position
  /** everything up to there is finished */
  finished: Position
  /** messages that were read and are not finished, without those that are parked, or that clients seem to have lost */
  unfinished: number
}>

/** A sink, as far as this process delivers its messages. */
export type DeliveringSink = Readonly<{
  isPaused: boolean
  maxBacklogBytes: number
  /** messages that were handed out here, of whatever stream */
  handedOut: number
  /** the partitions of a topic that are served here */
  served: (topic: TopicName) => readonly QueuedPartition[]
  /** Calls back whenever messages were read or taken here. @returns ends it */
  watch: (listener: () => void) => () => void
}>

/** The sources of figures from which a sink's room is worked out. */
export type SinkRoomHome = Readonly<{
  /** the sink as it is now; undefined: it is gone */
  sink: () => DeliveringSink | undefined
  log: Pick<Log, 'committed' | 'stats'>
  /** the state database */
  state: Query
  /** rows that a sink which delivers nothing may have before it */
  maxPending: number
  /** Whether changes are streamed, which come behind the rows. */
  isStreaming: () => boolean
}>

/** A sink of which nothing has gone for so long is filled as a paused one is. */
const QUIET_MS = 5_000
/** Commits of other processes are looked at so often; the time that rows take is known no better. */
const ELSEWHERE_EVERY_MS = 100
const ELSEWHERE_QUEUE_MS = 200
/** How much longer rows may take because of those before them, while changes are streamed, which come behind them too. */
const QUEUE_MS = 10
/** The same while no changes are streamed (docs/rules.md, rule 33). */
const QUIET_QUEUE_MS = 50
/** How often to look for what no event tells, such as that a sink was paused. */
const LOOK_EVERY_MS = 250
const WEIGH_EVERY_MS = 1_000
/** A tenth of a sink's max_backlog_mb may be filled by its backfills. */
const BACKLOG_SHARE = 0.1
const MOST_PART = 10_000

type Part = Readonly<{ rows: number; last: Position }>

/** Says when rows may join the stream of one sink: its backfills share it. */
export class SinkRoom {
  readonly #sinkId: string
  readonly #home: SinkRoomHome
  readonly #waits = new Set<Bell>()
  /** what has joined the stream and is not known to be finished, by partition */
  readonly #parts = new Map<number, Part[]>()
  /** how far partitions have come that other processes serve */
  readonly #committed = new Map<number, Position>()
  #topic: TopicName | undefined
  #partitions = 0
  #generation: number | undefined
  #pace = new DeliveryPace(QUEUE_MS)
  #isElsewhere = false
  #elsewhereAt = -Infinity
  #isBound = false
  /** rows whose mark is written */
  #releasing = 0
  #addedRows = 0
  #addedBytes = 0
  #handedOut = 0
  #goneAt = performance.now()
  #weighedAt = -Infinity
  #weighed = { bytes: 0, addedRows: 0 }

  constructor(sinkId: string, home: SinkRoomHome) {
    this.#sinkId = sinkId
    this.#home = home
  }

  /** Settles when rows may join the stream. @returns how many at once. Rejects when the signal is aborted */
  async room(signal: AbortSignal): Promise<number> {
    let rows = await this.#now()
    if (rows > 0) return rows
    const bell = new Bell()
    this.#waits.add(bell)
    const unwatch = this.#home.sink()?.watch(() => bell.ring())
    try {
      while (rows === 0) {
        this.#pace.felt()
        signal.throwIfAborted()
        await bell.wait(signal, this.#isElsewhere ? ELSEWHERE_EVERY_MS : LOOK_EVERY_MS)
        signal.throwIfAborted()
        rows = await this.#now()
      }
      return rows
    } finally {
      unwatch?.()
      this.#waits.delete(bell)
    }
  }

  /** Whether the sink is filled up to a bound: no more rows may join than was said last. */
  get isBound(): boolean {
    return this.#isBound
  }

  /** Rows will join at a mark that is written now. @returns to be called when they have, or never will; a second call does nothing */
  releasing(rows: number): () => void {
    let left = rows
    this.#releasing += left
    return () => {
      this.#releasing -= left
      left = 0
    }
  }

  /** Rows have joined the stream. */
  added({ topic, partitions, bytes, parts }: AddedRows): void {
    if (topic !== this.#topic) this.#begin(topic, partitions)
    let added = 0
    for (const [partition, part] of parts) {
      const own = this.#parts.get(partition)
      if (own) own.push(part)
      else this.#parts.set(partition, [part])
      added += part.rows
    }
    this.#addedRows += added
    this.#addedBytes += bytes
    this.#pace.added(added, performance.now())
    for (const bell of this.#waits) bell.ring()
  }

  #begin(topic: TopicName, partitions: number): void {
    this.#topic = topic
    this.#partitions = partitions
    this.#generation = undefined
    this.#parts.clear()
    this.#committed.clear()
    this.#pace = new DeliveryPace(QUEUE_MS)
    this.#isElsewhere = false
  }

  /** @returns how many rows may join now */
  async #now(): Promise<number> {
    const sink = this.#home.sink()
    if (!sink) return 0
    this.#pace.queueMs = this.#queueMs
    const waiting = await this.#waiting(sink)
    const now = performance.now()
    const isMoving = this.#pace.look(waiting, now) || sink.handedOut !== this.#handedOut
    this.#handedOut = sink.handedOut
    if (isMoving || waiting === 0) this.#goneAt = now
    const outstanding = waiting + this.#releasing
    this.#isBound = outstanding > 0 && (sink.isPaused || now - this.#goneAt > QUIET_MS)
    return this.#isBound ? this.#untilFull(sink, outstanding) : this.#pace.grant(outstanding)
  }

  /** The bytes of a row's message, on average. */
  get rowBytes(): number {
    return this.#addedRows > 0 ? this.#addedBytes / this.#addedRows : 1
  }

  get #queueMs(): number {
    if (this.#isElsewhere) return ELSEWHERE_QUEUE_MS
    return this.#home.isStreaming() ? QUEUE_MS : QUIET_QUEUE_MS
  }

  async #untilFull({ maxBacklogBytes }: DeliveringSink, outstanding: number): Promise<number> {
    if (this.#addedRows === 0) return 0 // how large rows are is known when the first ones have joined
    const { maxPending } = this.#home
    const now = performance.now()
    if (now - this.#weighedAt > WEIGH_EVERY_MS) {
      this.#weighedAt = now
      const addedRows = this.#addedRows
      const bytes = await this.#unfinishedBytes().catch(() => undefined) // asked again soon
      if (bytes !== undefined) this.#weighed = { bytes, addedRows }
    }
    const bytesOfRow = this.rowBytes
    const bytes = this.#weighed.bytes + (this.#addedRows - this.#weighed.addedRows + this.#releasing) * bytesOfRow
    const rows = Math.max(outstanding, bytes / bytesOfRow)
    const left = Math.min(maxPending - rows, (maxBacklogBytes * BACKLOG_SHARE - bytes) / bytesOfRow)
    return Math.min(MOST_PART, Math.max(0, Math.floor(left)))
  }

  /** Counts the rows that the sink has not got yet. */
  async #waiting({ served }: DeliveringSink): Promise<number> {
    if (this.#topic === undefined) return 0
    const here = new Map(served(this.#topic).map((each) => [each.partition, each]))
    const elsewhere = [...this.#parts.keys()].filter((partition) => !here.has(partition))
    if (this.#isElsewhere !== elsewhere.length > 0) {
      this.#isElsewhere = elsewhere.length > 0
      this.#pace.queueMs = this.#queueMs
      this.#pace.forget()
    }
    if (elsewhere.length > 0) await this.#lookElsewhere(elsewhere)
    let waiting = 0
    for (const [partition, parts] of this.#parts) {
      const own = here.get(partition)
      const finished = own?.finished ?? this.#committed.get(partition)
      if (finished) parts.splice(0, countUpTo(parts, finished))
      const rows = rowsIn(parts)
      if (rows === 0) this.#parts.delete(partition)
      waiting += own ? Math.min(rows, rowsIn(parts.slice(countUpTo(parts, own.read))) + own.unfinished) : rows
    }
    return waiting
  }

  async #lookElsewhere(partitions: readonly number[]): Promise<void> {
    const now = performance.now()
    if (now - this.#elsewhereAt < ELSEWHERE_EVERY_MS) return
    this.#elsewhereAt = now
    const reader = await this.#reader().catch(() => undefined)
    if (!reader) return
    for (const partition of partitions) {
      const commit = await this.#home.log.committed(reader, partition).catch(() => undefined) // asked again soon
      if (commit) this.#committed.set(partition, commit.accepted)
    }
  }

  async #unfinishedBytes(): Promise<number> {
    const reader = await this.#reader()
    if (reader === undefined) return 0
    let sum = 0
    for (let partition = 0; partition < this.#partitions; partition++) {
      const { bytes, finishedBytes } = await this.#home.log.stats(reader, partition, WEIGH_EVERY_MS)
      sum += bytes - finishedBytes
    }
    return sum
  }

  /** The sink as the reader of its stream; undefined: it is not known as one yet. */
  async #reader() {
    const topic = this.#topic
    if (topic === undefined) return undefined
    if (this.#generation === undefined) {
      const sql = 'select max(generation) as generation from tailrace.generation where sink_id = $1::text::uuid and topic = $2'
      const [row] = rowsOf({ generation: 'int?' }, await ask(this.#home.state, sql, [this.#sinkId, topic]))
      this.#generation = row?.generation
    }
    return this.#generation === undefined ? undefined : readerIn(topic, { sinkId: this.#sinkId, generation: this.#generation })
  }
}

/** Counts the first parts that stand up to a position. */
function countUpTo(parts: readonly Part[], position: Position): number {
  let count = 0
  for (const { last } of parts) {
    if (comparePositions(last, position) > 0) break
    count++
  }
  return count
}

const rowsIn = (parts: readonly Part[]): number => parts.reduce((sum, { rows }) => sum + rows, 0)
