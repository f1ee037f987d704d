/** A pull sink on a real embedded log, with what a test needs around it: messages to append, a client, restart and crash. */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { PulledSink, Receipt, ReceiveRequest, SinkOptions } from '../../actors/sink/running-sink.ts'
import type { SinkHost } from '../../actors/sink/sink-host.ts'
import { startSink } from '../../actors/begin-sink.ts'
import type { Discarded, SinkObserver } from '../../actors/partition/sink-observer.ts'
import { splitTokens } from '../../engine/dispatch/ack-id.ts'
import { openEmbeddedLog } from '../../engine/log/embedded.ts'
import type { Generations } from '../../engine/dispatch/generations.ts'
import type { Commit, Log } from '../../engine/log/log.ts'
import { encodeMarker, PackBuilder } from '../../engine/log/pack-builder.ts'
import { ACTION, MESSAGE_FLAG } from '../../engine/log/pack.ts'
import { PART, type Part, type Position } from '../../engine/position.ts'
import { shapeOf } from '../../engine/state/generation-shape.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { hashGroup } from '../../engine/wal/decode/change.ts'
import { ownTopic } from '../../engine/wal/routing/routing.ts'
import type { Query } from '../../engine/postgres/query.ts'
import { sinkMetadata } from '../../engine/message-metadata.ts'
import type { AccountPool } from '../../transforms/sandbox/pool.ts'
import { FunctionStage, type StageFunctions, type StageOptions } from '../../transforms/stage.ts'
import { until } from '../waiting.ts'
import { DATABASE, SINK } from './plain-sink.ts'

export type Message = Readonly<{ id: number; group?: string; part?: Part; pad?: number }>
export type Element = Readonly<{ ack_id: string; record: { id: number; group: string }; action: string; metadata: Record<string, unknown> }>

export { DATABASE, SINK }

/** A state database without parked messages: enough for whatever never parks. */
export function emptyState(): Query {
  let term = 0
  return async (sql) => ({
    rows: sql.includes('insert into tailrace.term')
      ? [{ term: ++term, parked: 0 }]
      : sql.includes('as held')
        ? [{ held: 1, written: [] }]
        : [],
  })
}

/** What makes the stage of a sink with these functions. @param pool none: there are no functions */
export function stageOf(
  functions: StageFunctions,
  pool?: AccountPool,
  more: Pick<StageOptions, 'enricher'> = {},
): SinkOptions['functions'] {
  return (sink, database, former) =>
    new FunctionStage(
      { pool: pool as AccountPool, functions, tail: JSON.stringify(sinkMetadata(sink, database)), deletes: 'transformed', ...more },
      former,
    )
}

/** A sink that never had another shape. */
export function onlyGeneration(sink: Sink): Generations {
  const topic = ownTopic({ sinkId: sink.id, generation: 1 })
  return {
    serve: async () => ({ generation: 1, shape: shapeOf(sink.id, sink), topic, reader: topic, opensAt: undefined }),
    stateOf: async () => 'open',
    span: async () => ({ endsAt: undefined, takes: [], version: 1 }),
  }
}

/** Renders messages as one pack. Group hashes: one number for each name. */
export function packOf(lsn: bigint, messages: readonly Message[], commitTimeUs = Date.now() * 1000): Buffer {
  const builder = new PackBuilder({ history: 0, term: 1, routing: 1 })
  builder.begin(lsn, 1, commitTimeUs)
  for (const [idx, { id, group = `g${id}`, part = PART.row, pad = 0 }] of messages.entries()) {
    const key = JSON.stringify([group])
    builder.bodies.copy(Buffer.from(key))
    const record = { id, group, ...(pad > 0 ? { pad: 'x'.repeat(pad) } : {}) }
    builder.bodies.copy(
      Buffer.from(
        `"record":${JSON.stringify(record)},"changes":null,"action":"insert","metadata":{"commit_lsn":${lsn},"commit_idx":${idx}`,
      ),
    )
    const [action, flags] = part === PART.tombstone ? [ACTION.delete, MESSAGE_FLAG.tombstone] : [ACTION.insert, 0]
    builder.add(idx, part, action, RELATION, flags, hashOf(group), Buffer.byteLength(key), 0)
  }
  return builder.encode()
}
const RELATION = 16_384
/** As of a table with this one key column. */
export const hashOf = (group: string): number => hashGroup(RELATION, Buffer.from(group))

/** What a process can be cut off from: after `cut` nothing of it reaches a disk any more. */
class Process {
  #cut = false
  readonly commits: Commit[] = []
  readonly log: Log
  /** set to hold back commits until it settles */
  gate: Promise<void> | undefined
  /** commits that began */
  begun = 0
  readonly query: Query

  constructor(real: Log, query: Query) {
    this.query = async (sql, params) => {
      if (this.#cut) throw new Error('the process is gone')
      return query(sql, params)
    }
    this.log = new Proxy(real, {
      get: (target, name) => {
        if (name === 'commit') return (...args: Parameters<Log['commit']>) => this.#commit(target, args)
        if (name === 'trim') return async (...args: Parameters<Log['trim']>) => (this.#cut ? undefined : target.trim(...args))
        const value: unknown = Reflect.get(target, name)
        return typeof value === 'function' ? value.bind(target) : value
      },
    })
  }
  cut(): void {
    this.#cut = true
  }
  async #commit(real: Log, args: Parameters<Log['commit']>): Promise<void> {
    this.begun++
    await this.gate
    if (this.#cut) throw new Error('the process is gone')
    await real.commit(...args)
    this.commits.push(args[2])
  }
}

export class Counts implements SinkObserver {
  messages = 0
  acks = 0
  lapses = 0
  returns = 0
  parks = 0
  discards = 0
  forgottenMessages = 0
  #waiting: (() => void)[] = []
  handedOut({ messages }: { messages: number }): void {
    this.messages += messages
    this.#tell()
  }
  acked({ messages }: { messages: number }): void {
    this.acks += messages
    this.#tell()
  }
  lapsed({ messages }: { messages: number }): void {
    this.lapses += messages
    this.#tell()
  }
  returned({ messages }: { messages: number }): void {
    this.returns += messages
    this.#tell()
  }
  parked(messages: number): void {
    this.parks += messages
    this.#tell()
  }
  discarded(messages: number, _why: Discarded): void {
    this.discards += messages
    this.#tell()
  }
  forgotten(messages: number): void {
    this.forgottenMessages += messages
    this.#tell()
  }
  /** Settles once the counts are as asked. */
  async until(condition: (counts: Counts) => boolean): Promise<void> {
    while (!condition(this)) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
  #tell(): void {
    for (const resolve of this.#waiting.splice(0)) resolve()
  }
}

export class Fixture implements AsyncDisposable {
  readonly log: Log
  readonly #folder: string
  readonly #query: Query
  readonly counts = new Counts()
  #settings: Sink
  #lsn = 0n
  #stops: (() => Promise<void>)[] = []
  process!: Process
  sink!: SinkHost

  private constructor(folder: string, log: Log, settings: Sink, query: Query) {
    this.#folder = folder
    this.log = log
    this.#settings = settings
    this.#query = query
  }

  static async open(
    settings: Partial<Sink> = {},
    options: { query?: Query; start?: boolean; reserveBytes?: () => number } = {},
  ): Promise<Fixture> {
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-sink-'))
    const log = await openEmbeddedLog(folder, { reserveBytes: options.reserveBytes ?? (() => 0) })
    const sink = { ...SINK, ...settings }
    await log.createTopic(ownTopic({ sinkId: sink.id, generation: 1 }), sink.partitions)
    const fixture = new Fixture(folder, log, sink, options.query ?? emptyState())
    if (options.start !== false) await fixture.start()
    return fixture
  }

  async start(options: Partial<SinkOptions> = {}): Promise<void> {
    const { query = this.#query, ...others } = options
    this.process = new Process(this.log, query)
    const generations = options.generations ?? onlyGeneration(this.#settings)
    const common = { sink: this.#settings, database: DATABASE, generations, holder: 'test', observer: this.counts, functions: stageOf({}) }
    const sink = startSink({ ...common, log: this.process.log, query: this.process.query, ...others })
    this.sink = sink
    this.#stops.push(() => sink.stop())
    await this.running()
  }

  /** What clients of the sink call. */
  get pulled(): PulledSink {
    return this.sink.transport.pulled ?? assert.fail('the sink sends')
  }

  /** Settles when every partition runs. */
  async running(): Promise<void> {
    const runs = ({ state, partitions = [] }: ReturnType<SinkHost['status']>) =>
      state !== 'choosing' && partitions.length > 0 && partitions.every((p) => p['state'] === 'running')
    await until('every partition runs', () => runs(this.sink.status()))
  }

  /** The process dies: what it has not made durable is lost, it says nothing more, and begins no request any more. */
  crash(): void {
    this.process.cut()
    this.sink.stop().catch(() => undefined) // it can't save anything
  }

  update(settings: Partial<Sink>): void {
    this.#settings = { ...this.#settings, ...settings }
    this.sink.update(this.#settings, DATABASE)
  }

  /** Appends one record. */
  async append(messages: readonly Message[], partition = 0, generation = 1): Promise<void> {
    const lsn = (this.#lsn += 16n)
    const record = { topic: ownTopic({ sinkId: SINK.id, generation }), partition, pack: packOf(lsn, messages) }
    await this.log.append([record], { source: 'test', position: { history: 0, lsn, idx: messages.length, part: PART.row } })
  }

  /** Appends a record that stands there already, as a source does that starts again. */
  async appendAgain(lsn: bigint, messages: readonly Message[]): Promise<void> {
    await this.log.append([{ topic: ownTopic({ sinkId: SINK.id, generation: 1 }), partition: 0, pack: packOf(lsn, messages) }], {
      source: 'test',
      position: this.position,
    })
  }

  /** The marker behind all of a generation's partition. */
  async close(partition = 0, generation = 1): Promise<void> {
    const pack = encodeMarker({ history: 0, term: 1, routing: 2 }, this.position, Date.now() * 1000)
    await this.log.append([{ topic: ownTopic({ sinkId: SINK.id, generation }), partition, pack }], {
      source: 'test',
      position: this.position,
    })
  }

  /** Of the last record that was appended. */
  get position(): Position {
    return { history: 0, lsn: this.#lsn, idx: 1_000, part: PART.row }
  }

  async appendPack(pack: Buffer, partition = 0): Promise<void> {
    await this.log.append([{ topic: ownTopic({ sinkId: SINK.id, generation: 1 }), partition, pack }], {
      source: 'test',
      position: { history: 0, lsn: this.#lsn, idx: 0, part: PART.row },
    })
  }

  receipt(batchSize: number, waitMs = 0, options: Partial<Pick<ReceiveRequest, 'shape' | 'ackToken' | 'signal'>> = {}): Promise<Receipt> {
    return this.pulled.receive({ batchSize, waitMs, shape: 'flat', signal: new AbortController().signal, ...options })
  }

  /** What a client gets, parsed. */
  async receive(batchSize: number, waitMs = 0): Promise<Element[]> {
    return elements(await this.receipt(batchSize, waitMs))
  }

  /** Receives, waiting a while for each, until `count` messages have come. */
  async gather(count: number): Promise<Element[]> {
    const all: Element[] = []
    while (all.length < count) {
      const some = await this.receive(count - all.length, 20_000)
      assert.ok(some.length > 0, `only ${all.length} of ${count} messages came`)
      all.push(...some)
    }
    return all
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const stop of this.#stops) await stop()
    await this.log[Symbol.asyncDispose]()
    await rm(this.#folder, { recursive: true, force: true })
  }
}

export const elements = (receipt: Receipt): Element[] => (JSON.parse(receipt.body.toString()) as { data: Element[] }).data
/** For all messages of an answer, as the API passes it on. */
export const tokenIn = (receipt: Receipt): readonly string[] =>
  splitTokens([(JSON.parse(receipt.body.toString()) as { ack_token: string }).ack_token])
export const idsOf = (messages: readonly Element[]): number[] => messages.map((m) => m.record.id)
export const acksOf = (messages: readonly Element[]): string[] => messages.map((m) => m.ack_id)
