/**
 * Backfills of one table into several sinks at once, while it is written at random and the service is killed: at the end each sink holds
 * the table, and no row came behind a newer one on the way.
 */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { HttpReceiver, jsonOf } from '../services/http-receiver.ts'
import { kafkaBrokers } from '../services/kafka.ts'
import { Meilisearch } from '../services/meilisearch.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { ItemWriters, ITEM_DDL } from './item-writers.ts'
import type { Row } from './json.ts'
import { differences, Mirror, type Told } from './mirror.ts'
import { Random } from './random.ts'
import { Service, TOKEN, type SinkOptions } from './service.ts'
import { HttpSinkClient, messageOf, Passing, type Wire } from './sink-client.ts'
import { LONG } from './size.ts'
import { pass, until } from '../waiting.ts'

/** What a sink of the scenario holds, and what is wrong with it so far. */
export type Held = Readonly<{
  name: string
  options: SinkOptions
  /** what it has brought, as a copy of the table */
  rows: () => Promise<ReadonlyMap<string, Row>> | ReadonlyMap<string, Row>
  violations: readonly string[]
  reads: () => number
  /** what came back, of the rows that went (Mirror.revived); undefined: a sink that keeps no history can't say */
  revived?: Mirror['revived']
}>

const ROWS = LONG ? 200_000 : 4_000
const KILLS = LONG ? 21 : 2
/** So often a service is killed while it starts, which costs another start. */
const KILLED_AGAIN = LONG ? 0.2 : 0
/** So many rows are changed while they are backfilled, and more. */
const CHANGED = ROWS / 10
const PER_SECOND = LONG ? 400 : 300
const WITHIN_MS = 600_000

export const TABLE = 'public.item'

/** The stage for one run: a source with rows, receivers, and a service that is not started yet. */
export class BackfillScenario implements AsyncDisposable {
  readonly service: Service
  readonly source: TestDatabase
  readonly state: TestDatabase
  readonly writers: ItemWriters
  readonly random: Random
  readonly #sinks: readonly Held[]
  readonly #resources: AsyncDisposableStack
  readonly #over = new AbortController()

  private constructor(
    parts: Pick<BackfillScenario, 'service' | 'source' | 'state' | 'writers' | 'random'> & { sinks: readonly Held[] },
    resources: AsyncDisposableStack,
  ) {
    this.service = parts.service
    this.source = parts.source
    this.state = parts.state
    this.writers = parts.writers
    this.random = parts.random
    this.#sinks = parts.sinks
    this.#resources = resources
  }

  /** @param open the sinks that take part, with what they need */
  static async create(
    seed: number,
    open: (resources: AsyncDisposableStack, over: AbortSignal) => Promise<readonly (Held & Partial<Readonly<{ url: string }>>)[]>,
    env: Readonly<Record<string, string>> = {},
  ): Promise<BackfillScenario> {
    await using resources = new AsyncDisposableStack()
    const random = new Random(seed ^ 0xbacf)
    const source = resources.use(await createDatabase(ITEM_DDL))
    const state = resources.use(await createState())
    const writers = new ItemWriters({ db: source, random: random.fork(), rows: ROWS, perSecond: PER_SECOND })
    await writers.fill()
    const over = new AbortController()
    const sinks = await open(resources, over.signal)
    const service = resources.use(
      await Service.prepare({
        source: source.connection,
        stateUrl: state.url,
        sinks: sinks.map(({ options }) => ({ tables: [TABLE], ...options })),
        endpoints: sinks.flatMap(({ name, url }) => (url === undefined ? [] : [{ name, url }])),
        env,
      }),
    )
    return new BackfillScenario({ service, source, state, writers, random, sinks }, resources.move())
  }

  /** Backfills all sinks again and again until the service has been killed often enough, lets it end, and judges. */
  async run(): Promise<string> {
    const { service, writers, random } = this
    await service.startReady()
    const receiving = this.#receive()
    receiving.catch(() => {}) // told at the end
    let beside = 0 // rows that were changed while a backfill was under way
    let [cuts, kills] = [0, 0]
    for (; cuts < KILLS && kills < KILLS * 3; kills++) {
      if (!(await this.#isUnderWay())) await this.#backfill()
      const before = writers.soFar()
      await this.#someRows()
      await service.kill()
      this.checkSoFar()
      if (await this.#isUnderWay()) {
        cuts++
        beside += writers.soFar() - before
      }
      service.start()
      if (random.chance(KILLED_AGAIN)) {
        await pass(random.int(10, 1_200), 'anywhere in a start')
        await service.kill()
        service.start()
      }
      await service.untilReady()
    }
    assert.equal(cuts, KILLS, 'too few kills met a backfill')
    while (beside < CHANGED || (await this.#isUnderWay())) {
      if (!(await this.#isUnderWay())) await this.#backfill()
      const before = writers.soFar()
      await until('all backfills are completed', async () => !(await this.#isUnderWay()), { withinMs: WITHIN_MS, service })
      beside += writers.soFar() - before
    }
    const wanted = writers.soFar() + ROWS / 50
    await until('the rows go on being changed', () => writers.soFar() >= wanted)
    await this.#holdAll()
    this.#over.abort()
    await receiving
    this.checkSoFar()
    for (const { name, revived } of this.#sinks) assert.deepEqual(revived?.(writers.gone) ?? [], [], name)
    const reads = this.#sinks.map(({ name, reads }) => `${name} ${reads()}`).join(', ')
    return `${beside} of ${ROWS} rows changed beside backfills, ${writers.soFar()} in all; ${cuts} of ${kills} kills met a backfill, ${service.starts} starts; rows read: ${reads}`
  }

  /** @throws AssertionError something is wrong already */
  checkSoFar(): void {
    for (const { name, violations } of this.#sinks) assert.deepEqual(violations, [], name)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort()
    await this.writers.end().catch(() => {})
    await this.#resources.disposeAsync()
  }

  /** Begins backfills of all sinks. What those before have brought is judged first: another one would mend it. */
  async #backfill(): Promise<void> {
    if (this.writers.soFar() > 0) await this.#holdAll()
    this.writers.begin()
    for (const { name } of this.#sinks) {
      const { status, body } = await this.service.post(`/api/sinks/${name}/backfills`, { table: TABLE })
      assert.ok(status < 300, JSON.stringify(body))
    }
  }

  /** While nothing is written, each sink comes to hold the table. */
  async #holdAll(): Promise<void> {
    const { service, writers } = this
    await writers.end()
    const table = await writers.table()
    for (const { name, rows, violations, reads } of this.#sinks) {
      let found: string[] = []
      const isSame = async () => {
        const before = reads()
        await pass(500, 'messages come: to compare all rows takes the time that taking them needs')
        return reads() === before && (found = differences(await rows(), table)).length === 0
      }
      await until(() => `${name} holds the table:\n${found.join('\n')}\n${violations.join('\n')}`, isSame, { withinMs: WITHIN_MS, service })
    }
  }

  /** Settles somewhere in the midst of the backfills: so that each kill may meet the same ones. */
  async #someRows(): Promise<void> {
    const { random, state } = this
    const processed = async () => {
      const [row] = await state.query<{ rows: number }>('select sum(rows_processed_count)::float8 as rows from tailrace.backfill')
      return row?.rows ?? 0
    }
    const wanted = (await processed()) + random.int(0, Math.floor((ROWS * this.#sinks.length) / (KILLS + 1)))
    const isThere = async () => (await processed()) >= wanted || !(await this.#isUnderWay())
    await until('rows are durable', isThere, { withinMs: WITHIN_MS, service: this.service })
    await pass(random.int(0, 100), 'anywhere between two saves')
  }

  async #isUnderWay(): Promise<boolean> {
    const failed = await this.state.query(`select error from tailrace.backfill where state = 'failed'`)
    assert.deepEqual(failed, [])
    return (await this.state.query(`select from tailrace.backfill where state = 'active'`)).length > 0
  }

  /** The clients of pull sinks. */
  async #receive(): Promise<void> {
    const pulled = this.#sinks.filter((sink): sink is Held & Pulled => 'take' in sink)
    await Promise.all(pulled.map((sink) => receiveAll(sink, this.service, this.#over.signal)))
  }
}

/** Variables of a service whose log is in Kafka. */
export async function kafkaLog(): Promise<Readonly<Record<string, string>>> {
  const brokers = (await kafkaBrokers()).join(',')
  const vaultKey = Buffer.alloc(32, 7).toString('base64')
  const prefix = `backfills${randomBytes(4).toString('hex')}.`
  return { KAFKA_BROKERS: brokers, KAFKA_TOPIC_PREFIX: prefix, KAFKA_SESSION_TIMEOUT_MS: '4000', VAULT_KEY: vaultKey }
}

type Pulled = Readonly<{ take: (message: Told) => void; clients: number }>

/** A sink that is pulled from, by a program that acknowledges all it gets. */
export function pullSink(name: string, partitions: number, over: object = {}): Held & Pulled {
  const mirror = new Mirror()
  return {
    ...{ name, options: { name, partitions, ack_wait_ms: 5_000, ...over }, clients: 2 },
    ...{ rows: () => mirror.rows(), violations: mirror.violations, reads: () => mirror.reads, take: (message) => mirror.take(message) },
    revived: (gone) => mirror.revived(gone),
  }
}

/** A sink that posts to a receiver, which breaks off now and then. A change of a key comes as a delete and an insert. */
export async function webhookSink(
  name: string,
  random: Random,
  resources: AsyncDisposableStack,
): Promise<Held & Readonly<{ url: string }>> {
  const mirror = new Mirror()
  const receiver = resources.use(
    await HttpReceiver.start((request) => {
      if (random.chance(0.02)) return 'reset'
      const { data } = jsonOf(request) as { data: Wire[] }
      for (const wire of data) mirror.take(told(wire))
      return random.chance(0.02) ? 'reset' : {}
    }),
  )
  const options = {
    name,
    partitions: 2,
    batch_size: 500,
    key_changes: 'delete_insert',
    destination: { type: 'webhook', http_endpoint: name },
  }
  const held = { name, options, url: receiver.url, rows: () => mirror.rows(), violations: mirror.violations, reads: () => mirror.reads }
  return { ...held, revived: (gone) => mirror.revived(gone) }
}

/** A sink that keeps documents in a Meilisearch. */
export async function meilisearchSink(name: string, resources: AsyncDisposableStack): Promise<Held> {
  const server = resources.use(await Meilisearch.start({ masterKey: 'a-master-key', pace: { batchMs: 5, documentMs: 0 } }))
  const destination = {
    ...{ type: 'meilisearch', endpoint_url: server.url, api_key: 'a-master-key', batch_size: 1_000, index_name: name, primary_key: 'id' },
  }
  const rows = () => new Map([...server.documents(name)].map(([id, { record }]) => [String(id), record as Row]))
  return { name, options: { name, partitions: 2, destination }, rows, violations: [], reads: () => server.documents(name).size }
}

const told = (wire: Wire): Told => {
  const { action, key, lsn, idx, record, changes } = messageOf(wire)
  return { action, key: String(key[0]), lsn, idx, record, changes }
}

/** Takes all there is of a sink, until it is over. */
export async function receiveAll(
  { name, take, clients }: Pulled & Readonly<{ name: string }>,
  { origin }: Service,
  over: AbortSignal,
): Promise<void> {
  await using client = new HttpSinkClient({ origin, sink: name, token: TOKEN })
  const receive = async () => {
    while (!over.aborted) {
      try {
        const messages = await client.receive({ batchSize: 1_000, waitMs: 500 }, over)
        for (const { action, key, lsn, idx, record, changes } of messages) take({ action, key: String(key[0]), lsn, idx, record, changes })
        if (messages.length > 0) await client.ack(messages.map(({ ackId }) => ackId))
      } catch (error) {
        if (over.aborted) return
        if (!(error instanceof Passing)) throw error
        await pass(25, 'it tries again, as a client does')
      }
    }
  }
  await Promise.all(Array.from({ length: clients }, receive))
}
