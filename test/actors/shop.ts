/** A shop's items in Postgres, with sinks that read them in a process of its own: what tests of streams share. */
import assert from 'node:assert/strict'
import { Replays } from '../../actors/sink/replays.ts'
import { StreamCopies, type StreamCopiesOptions } from '../../engine/dispatch/stream-copies.ts'
import { isRetryable } from '../../engine/errors.ts'
import { createLogger } from '../../engine/logger.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { applyYaml, databaseEntry, startNode, type EngineNode, type NodeOptions } from './engine-node.ts'
import { sharedLog } from './shared-log.ts'
import { until } from '../waiting.ts'

export const ITEMS = 'source: { include_tables: [item] }'

export const config = (shop: TestDatabase, sinks: readonly string[]) => `account: { name: shop }
databases: [${databaseEntry(shop, { name: shop.name })}]
sinks:
${sinks.map((sink) => `  - { database: ${shop.name}, ${sink.includes('replay_window') ? '' : 'replay_window: 0, '}destination: { type: sequin_stream }, ${sink} }\n`).join('')}`

export type Taken = { ack_id: string; record: { id: number; name: string } }
export const NEVER = new AbortController().signal

/** A node with a database of items, and the sinks that a test asks for. */
export class Shop implements AsyncDisposable {
  node: EngineNode
  readonly state: TestDatabase
  readonly db: TestDatabase
  readonly #stack: AsyncDisposableStack
  readonly #options: NodeOptions

  private constructor(
    stack: AsyncDisposableStack,
    node: EngineNode,
    { state, db }: Readonly<Record<'state' | 'db', TestDatabase>>,
    options: NodeOptions,
  ) {
    this.#stack = stack
    this.#options = options
    this.node = node
    this.state = state
    this.db = db
  }

  /** @param prepare the state database, before the node starts */
  static async open(
    sinks: readonly string[],
    prepare?: (state: TestDatabase) => Promise<unknown>,
    openLog?: NodeOptions['openLog'],
    backfillLimits: NodeOptions['backfillLimits'] = {},
  ): Promise<Shop> {
    await using stack = new AsyncDisposableStack()
    const state = stack.use(await createState())
    const db = stack.use(await createDatabase('create table item (id int primary key, name text); create table other (id int primary key)'))
    await applyYaml(state.connection, config(db, sinks))
    await prepare?.(state)
    const options = { name: 'node', state: state.connection, backfillLimits, ...(openLog && { openLog }) }
    const node = stack.use(await startNode(options))
    for (const { name } of node.cache.sinks) await serving(node, name)
    return new Shop(stack.move(), node, { state, db }, options)
  }

  id(name: string): string {
    return this.node.cache.sinks.find((sink) => sink.name === name)?.id ?? assert.fail(`there is no sink ${name}`)
  }

  insert(from: number, to: number): Promise<unknown> {
    return this.db.query(`insert into item select i, 'n' || i from generate_series($1::int, $2) i`, [from, to])
  }

  /** Another sink with the settings of one that is there. */
  async add(name: string, like: string, over: Partial<Sink> = {}): Promise<void> {
    const sink = this.node.cache.sinks.find((each) => each.id === this.id(like)) ?? assert.fail()
    await this.node.edits.create('sink', { id: sink.accountId, name: 'shop' }, { ...sink, ...over, name })
  }

  /** Another process goes on. @param between what is done while none runs */
  async restart(between?: () => Promise<unknown>, names = this.node.cache.sinks.map(({ name }) => name)): Promise<void> {
    await using log = await sharedLog(this.state.name) // it is the same one
    await this.node.stop()
    await between?.()
    this.node = this.#stack.use(await startNode(this.#options))
    for (const name of names) await serving(this.node, name)
    assert.ok(log)
  }

  /** While this lasts no version is placed, whatever marks the source meets. */
  async withoutPlaces(during: () => Promise<unknown>): Promise<void> {
    const client = await this.state.connect()
    try {
      await client.query(`begin; select from tailrace.term where kind = 'source' for update`)
      await during()
    } finally {
      await client.end()
    }
  }

  /** Settles when the newest generation of a sink has its place. */
  opened(name: string): Promise<true> {
    return until(`the place of ${name}`, async () => {
      const [newest] = await this.state.query<{ open: boolean }>(
        `select g.lsn is not null as open from tailrace.generation g join tailrace.sink s on s.id = g.sink_id where s.name = $1
         order by generation desc limit 1`,
        [name],
      )
      return newest?.open
    })
  }

  /** Until nothing is to come of the sink any more. */
  async nothingMore(name: string): Promise<void> {
    assert.deepEqual(await this.take(name, 1, 300), [], `nothing more of ${name}`)
  }

  /** Receives and acknowledges until `count` messages have come. */
  async take(name: string, count: number, waitMs = 10_000): Promise<number[]> {
    const ids: number[] = []
    const sink = () => this.node.engine.sink(this.id(name)) ?? assert.fail(`${name} does not run`)
    while (ids.length < count) {
      const { body } = await sink().receive({ batchSize: 1000, waitMs, shape: 'flat', signal: new AbortController().signal })
      const { data } = JSON.parse(body.toString()) as { data: { ack_id: string; record: { id: number } }[] }
      if (data.length === 0) break
      await this.ack(name, data)
      ids.push(...data.map(({ record }) => record.id))
    }
    return ids.sort((a, b) => a - b)
  }

  sink(name: string) {
    return this.node.engine.sink(this.id(name)) ?? assert.fail(`${name} does not run`)
  }

  /** As a client does: while the sink moves it is told to try again. */
  async ack(name: string, taken: readonly Pick<Taken, 'ack_id'>[]): Promise<void> {
    await until('acknowledged', async () => {
      try {
        await this.sink(name).ack(taken.map((each) => each.ack_id))
        return true
      } catch (error) {
        if (!isRetryable(error)) throw error
        return undefined
      }
    })
  }

  /** Messages in the order they come; a single one is not acknowledged. */
  async receive(name: string, count: number): Promise<Taken[]> {
    const taken: Taken[] = []
    while (taken.length < count) {
      const { body } = await this.sink(name).receive({ batchSize: count - taken.length, waitMs: 10_000, shape: 'flat', signal: NEVER })
      const { data } = JSON.parse(body.toString()) as { data: Taken[] }
      if (data.length === 0) assert.fail(`only ${taken.length} of ${count} messages of ${name} have come`)
      if (count > 1) await this.ack(name, data)
      taken.push(...data)
    }
    return taken
  }

  /** From here on the node trims nothing and copies nothing. */
  async keepFromCopying(): Promise<void> {
    await this.state.query(
      `insert into tailrace.trim_lease select id, 'the test', now() + interval '1 day' from tailrace.source_database
       on conflict (database_id) do update set holder = excluded.holder, ends_at = excluded.ends_at`,
    )
  }

  /** Copies once, beside the node, what is due. @returns what went wrong */
  async copyOnce(over: Partial<StreamCopiesOptions> = {}, signal = NEVER): Promise<unknown> {
    const { engine, store, log, registry } = this.node
    const logger = createLogger({ level: 'fatal', format: 'json' })
    const replays = new Replays({ store, log, logger })
    const holder = (sinkId: string) => ({
      id: registry.id,
      hold: (by: string) => engine.holdSink(sinkId, by),
      release: (by: string) => engine.releaseSink(sinkId, by),
    })
    let failure: unknown
    const copies = new StreamCopies({
      ...{ query: store.query, transaction: (work) => store.transaction(work), log },
      whileStopped: (sinkId, work) => replays.whileStopped(sinkId, () => [holder(sinkId)], work),
      ...over,
    })
    const trimmed = this.node.cache.databases.map(({ id }) => ({ databaseId: id, isHeldUp: true }))
    try {
      for await (const { error } of copies.run(trimmed, signal)) failure = error ?? failure
    } catch (error) {
      failure = error
    }
    return failure
  }

  /** Settles when what a sink has left has a topic of its own. */
  copied(name: string): Promise<string> {
    return until(`what ${name} has left is copied`, async () => {
      const rows = await this.state.query<{ topic: string }>(
        `select topic from tailrace.generation where sink_id = $1 and topic like 'copy.%'`,
        [this.id(name)],
      )
      return rows[0]?.topic
    })
  }

  async topics(): Promise<string[]> {
    const rows = await this.state.query<{ topic: string }>(
      `select distinct topic from tailrace.generation where drained_at is null and lsn is not null order by topic`,
    )
    return rows.map(({ topic }) => topic)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync()
  }
}

export const serving = (node: EngineNode, name: string) =>
  until(`sink ${name} is served`, async () => {
    const actor = node.engine.actors().find((each) => each.kind === 'sink' && each.name === name)
    return actor?.partitions?.length && actor.partitions.every(({ state }) => state === 'running')
  })

export const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
