/** A sink of the fixture whose second generation takes over where `switchOver` is called, as a source would let it. */
import { Replays, type Holder, type Replayed } from '../../actors/sink/replays.ts'
import { StoredGenerations } from '../../engine/dispatch/generations.ts'
import { isRetryable } from '../../engine/errors.ts'
import type { RegroupedRelation } from '../../engine/dispatch/parked/rekeying.ts'
import type { ReplayTarget } from '../../engine/dispatch/replay/replay-plan.ts'
import { createLogger } from '../../engine/logger.ts'
import { formatLsn } from '../../engine/lsn.ts'
import { shapeOf, type GenerationShape } from '../../engine/state/generation-shape.ts'
import type { Sink } from '../../engine/state/resources.ts'
import type { Store } from '../../engine/state/store.ts'
import { ownTopic } from '../../engine/wal/routing/routing.ts'
import type { Query } from '../../engine/postgres/query.ts'
import type { TestDatabase } from '../services/postgres.ts'
import { acksOf, Fixture, hashOf, SINK, type Element } from './sink-fixture.ts'
import { queryOf, stateDatabase, storeOf } from './sink-state.ts'
import { until } from '../waiting.ts'

/** Of a generation with a topic of its own. */
const formerShape = (sink: Sink): GenerationShape => ({ ...shapeOf(sink.id, sink), stream: undefined })

export const DRAIN_AFTER_MS = 100
const PATIENCE_MS = 20_000

export type Setting = Partial<Sink>

export class Switching implements AsyncDisposable {
  readonly db: TestDatabase
  readonly f: Fixture
  readonly #sink: Sink
  readonly #next: GenerationShape
  readonly #regrouped: RegroupedRelation | undefined

  private constructor(db: TestDatabase, f: Fixture, sink: Sink, next: GenerationShape, regrouped: RegroupedRelation | undefined) {
    this.db = db
    this.f = f
    this.#sink = sink
    this.#next = next
    this.#regrouped = regrouped
  }

  /** @param next the setting of the second generation. @param regrouped with which it begins */
  static async open(setting: Setting, next: Setting = {}, regrouped?: RegroupedRelation): Promise<Switching> {
    const db = await stateDatabase()
    const sink = { ...SINK, ...setting }
    const f = await Fixture.open(setting, { query: queryOf(db), start: false })
    const s = new Switching(db, f, sink, formerShape({ ...sink, ...next }), regrouped)
    await s.#save(1, formerShape(sink), 1n)
    await s.start()
    return s
  }

  generations(query: Query = queryOf(this.db)): StoredGenerations {
    return new StoredGenerations({ sinkId: SINK.id, log: this.f.log, query, ackWaitMs: () => this.#sink.ack_wait_ms })
  }

  start(): Promise<void> {
    return this.f.start({ generations: this.generations(), drainAfterMs: DRAIN_AFTER_MS })
  }

  /** Acknowledges as a client does: while the sink moves it is told to try again, and does. */
  async ack(elements: readonly Element[]): Promise<void> {
    await until('the ack is taken', async () => {
      try {
        await this.f.pulled.ack(acksOf(elements))
        return true
      } catch (error) {
        if (!isRetryable(error)) throw error
        return false
      }
    })
  }

  /** What the source does when it meets the mark of the next generation. */
  async switchOver(from = 1): Promise<void> {
    const { partitions } = (await this.f.log.topics()).find(({ topic }) => topic === ownTopic({ sinkId: SINK.id, generation: from }))!
    await this.f.log.createTopic(ownTopic({ sinkId: SINK.id, generation: from + 1 }), this.#next.partitions)
    await this.#save(from + 1, this.#next, this.f.position.lsn + 1n)
    for (let partition = 0; partition < partitions; partition++) await this.f.close(partition, from)
  }

  /** Appends to the second generation, where the source would. */
  async append(id: number, group: string): Promise<void> {
    await this.f.append([{ id, group }], hashOf(group) % this.#next.partitions, 2)
  }

  /** Sets the sink back, as the engine of its process does. @param store of the state database. @param patienceMs it is tried for so long */
  replay(
    target: ReplayTarget,
    store: Pick<Store, 'query' | 'transaction'> = storeOf(this.db),
    patienceMs = PATIENCE_MS,
  ): Promise<Replayed> {
    const { sink } = this.f
    const holder: Holder = { id: 'this', hold: (by) => sink.hold(by), release: (by) => sink.release(by) }
    const logger = createLogger({ level: 'fatal', format: 'json' })
    return new Replays({ store, log: this.f.log, logger, patienceMs }).replay({ ...SINK, ...this.#sink }, target, () => [holder])
  }

  async untilServed(generation: number): Promise<void> {
    await until(`generation ${generation} is served`, () => this.f.sink.status().details?.['generation'] === generation)
    await this.f.running()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.f[Symbol.asyncDispose]()
    await this.db[Symbol.asyncDispose]()
  }

  async #save(generation: number, shape: GenerationShape, lsn: bigint): Promise<void> {
    const regrouped = generation > 1 && this.#regrouped ? JSON.stringify(this.#regrouped) : null
    await this.db.query(
      'update tailrace.generation set ends_history = 0, ends_lsn = $2, ends_idx = 0 where sink_id = $1 and generation < $3 and ends_lsn is null',
      [SINK.id, formatLsn(lsn), generation],
    )
    await this.db.query(
      'insert into tailrace.generation (sink_id, generation, shape, history, lsn, idx, regrouped) values ($1, $2, $3, 0, $4, 0, $5)',
      [SINK.id, generation, JSON.stringify(shape), formatLsn(lsn), regrouped],
    )
  }
}
