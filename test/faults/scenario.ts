/**
 * A whole run: a source database, the service, several sinks on it with bad clients, and a workload. What happens to
 * them meanwhile is the test's business; at the end everything comes to rest and is judged, exactly.
 */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { createDatabase, type TestDatabase } from '../services/postgres.ts'
import type { Connection } from '../../engine/state/resources.ts'
import { Consumer, now } from './consumer.ts'
import { Cuts } from './cuts.ts'
import { Oracle } from './oracle.ts'
import { Random } from './random.ts'
import { Service, TOKEN, type SinkOptions } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { commitsOf, judge, type Commits } from './verdict.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'

/** Nothing may stand still longer than this while something is to do. */
const IDLE_MS = 60_000
const CLIENTS = 3

/** `atTimes`: tables without schema that `edit` takes out of the sink and puts back; the first sink has none. */
export type ScenarioSink = SinkOptions & Readonly<{ ack_wait_ms: number; atTimes?: readonly string[] }>

export type ScenarioOptions = Readonly<{
  seed: number
  sinks?: readonly ScenarioSink[]
  /** how the service reaches the source, where not directly */
  through?: Partial<Connection>
  /** a source elsewhere than on the common server, empty */
  source?: TestDatabase
  env?: Readonly<Record<string, string>>
  /** statements per second */
  pace?: number
  /** processes that share state and log, with clients at each; 1 when absent */
  nodes?: number
  /** how long after a kill the next process waits until it serves (0) */
  takeOverMs?: number
}>

type Watched = Readonly<{
  name: string
  ackWaitMs: number
  oracle: Oracle
  client: HttpSinkClient
  consumers: readonly Consumer[]
  cuts: Cuts | undefined
}>

/** One sink that hands a message out again soon and has one partition, one that waits longer and has several. */
export const SINKS: readonly ScenarioSink[] = [
  { name: 'one', ack_wait_ms: 1_000, partitions: 1 },
  { name: 'many', ack_wait_ms: 1_800, partitions: 3 },
]

export class Scenario implements AsyncDisposable {
  /** the first of the nodes, and the only one as a rule */
  readonly service: Service
  readonly nodes: readonly Service[]
  readonly source: TestDatabase
  readonly state: TestDatabase
  readonly workload: Workload
  /** for what the test decides by chance */
  readonly random: Random
  readonly #takeOverMs: number
  readonly #resources: AsyncDisposableStack
  readonly #watched: readonly Watched[]
  readonly #writing = new AbortController()
  readonly #receiving = new AbortController()
  #writer: Promise<void> | undefined
  #clients: Promise<unknown> | undefined

  private constructor(parts: {
    nodes: readonly Service[]
    source: TestDatabase
    state: TestDatabase
    resources: AsyncDisposableStack
    options: ScenarioOptions
  }) {
    const { nodes, source, state, resources, options } = parts
    this.nodes = nodes
    this.service = nodes[0] as Service
    this.source = source
    this.state = state
    this.#resources = resources
    this.random = new Random(options.seed ^ 0x5eed)
    this.#takeOverMs = options.takeOverMs ?? 0
    const { pace } = options
    this.workload = new Workload({
      seed: options.seed,
      connect: () => source.connect(),
      taken: () => Math.min(...this.#watched.flatMap(({ oracle, cuts }) => (cuts ? [] : [oracle.came]))),
      ...(pace === undefined ? {} : { pace }),
    })
    this.#watched = (options.sinks ?? SINKS).map(({ name, ack_wait_ms: ackWaitMs, atTimes }) => {
      const oracle = new Oracle({ ackWaitMs })
      const clients = nodes.map(({ origin }) => resources.use(new HttpSinkClient({ origin, sink: name, token: TOKEN })))
      const client = clients[0] as HttpSinkClient
      const consumers = Array.from(
        { length: CLIENTS },
        (_, n) =>
          new Consumer({
            ...{ name: `${name} ${n}`, oracle, random: this.random.fork(), ackWaitMs },
            client: clients[n % clients.length] as HttpSinkClient,
          }),
      )
      return { name, ackWaitMs, oracle, client, consumers, cuts: atTimes && new Cuts(name, atTimes) }
    })
  }

  static async create(options: ScenarioOptions): Promise<Scenario> {
    await using resources = new AsyncDisposableStack()
    const source = options.source ?? resources.use(await createDatabase(DDL))
    if (options.source) await source.query(DDL)
    const state = resources.use(await createDatabase())
    const nodes: Service[] = []
    for (let n = 0; n < (options.nodes ?? 1); n++)
      nodes.push(
        resources.use(
          await Service.prepare({
            source: { ...source.connection, ...options.through },
            stateUrl: state.url,
            sinks: (options.sinks ?? SINKS).map(({ atTimes: _atTimes, ...sink }) => ({ tables: CAPTURED, ...sink })),
            ...(options.env ? { env: options.env } : {}),
          }),
        ),
      )
    return new Scenario({ nodes, source, state, resources: resources.move(), options })
  }

  /** distinct messages acked so far, over all sinks */
  get acked(): number {
    return this.#watched.reduce((sum, { oracle }) => sum + oracle.acked, 0)
  }

  get redeliveries(): number {
    return this.#watched.reduce((sum, { oracle }) => sum + oracle.redeliveries, 0)
  }

  write(): void {
    this.#writer = this.workload.run(this.#writing.signal)
    this.#writer.catch(() => {}) // told when it is waited for
  }

  receive(): void {
    this.#clients = Promise.all(this.#watched.flatMap(({ consumers }) => consumers.map((consumer) => consumer.run(this.#receiving.signal))))
    this.#clients.catch(() => {})
  }

  /** Settles when each sink has acked so many messages more. */
  async untilMore(messages: number): Promise<void> {
    const waits = this.#watched.map(({ oracle }) => {
      const goal = oracle.acked + messages
      return oracle.untilAcked(() => goal, IDLE_MS)
    })
    try {
      await this.#orClientFailure(Promise.all(waits))
    } catch (error) {
      throw await this.#standsStill(error as Error)
    }
    this.checkSoFar()
  }

  /** @throws AssertionError something is wrong already */
  checkSoFar(): void {
    for (const { name, oracle } of this.#watched) assert.deepEqual(oracle.violations, [], `sink ${name}`)
  }

  /** Takes the tables that the sinks have only at times out of them, or puts them back. @returns how many edits took effect */
  async edit(service: Service): Promise<number> {
    let made = 0
    for (const { name, cuts } of this.#watched) {
      if (!cuts) continue
      await cuts.make(this.source.query, async (taken) => {
        const tables = taken ? CAPTURED : CAPTURED.filter((table) => !cuts.tables.includes(table.slice(table.indexOf('.') + 1)))
        const { status, body } = await service.patch(`/api/sinks/${name}`, { source: { include_tables: tables } })
        assert.equal(status, 200, JSON.stringify(body))
      })
      made++
    }
    return made
  }

  async stopWriting(): Promise<void> {
    this.#writing.abort()
    await this.#writer
  }

  /**
   * Lets everything come to rest and judges it: each sink has delivered each committed change exactly as it was, has
   * nothing more to give, and after one more SIGKILL has nothing within its visibility time either.
   */
  async settle(): Promise<void> {
    await this.stopWriting()
    for (const { consumers } of this.#watched) for (const consumer of consumers) consumer.settleDown()
    const [whole, cut] = [this.#watched.filter(({ cuts }) => !cuts), this.#watched.filter(({ cuts }) => cuts)]
    try {
      await this.#orClientFailure(Promise.all(whole.map((watched) => this.#drain(watched))))
      // how much comes of the others is known by what the first sink had
      await this.#orClientFailure(Promise.all(cut.map((watched) => this.#drain(watched))))
    } catch (error) {
      this.checkSoFar()
      throw error
    }
    this.#receiving.abort()
    await this.#clients
    this.checkSoFar()
    for (const watched of this.#watched) assert.deepEqual(await this.#judge(watched), [], `sink ${watched.name}`)
    await this.#nothingLeft('at rest', () => 0)
    await Promise.all(this.nodes.map((node) => node.kill()))
    await Promise.all(this.nodes.map((node) => node.startReady()))
    await this.#nothingLeft('after a last SIGKILL', (ackWaitMs) => ackWaitMs + this.#takeOverMs + 500)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#writing.abort()
    this.#receiving.abort()
    await Promise.allSettled([this.#writer, this.#clients])
    await this.#resources.disposeAsync()
  }

  async #judge(watched: Watched): Promise<string[]> {
    const { oracle, cuts } = watched
    const tables = await this.workload.tables()
    if (!cuts) return judge(oracle.messages, this.workload.committed, tables)
    const expected = await this.#expected(cuts)
    const always = tables.filter(({ table }) => !cuts.tables.includes(table))
    return judge(oracle.messages, [...expected.values()], always, expected)
  }

  #expected(cuts: Cuts): Promise<Commits> {
    const { oracle } = this.#watched[0] as Watched
    return cuts.expected(this.state.query, commitsOf(oracle.messages, this.workload.committed))
  }

  async #drain(watched: Watched): Promise<void> {
    const { name, oracle, client, cuts } = watched
    const expected = cuts && [...(await this.#expected(cuts)).values()].reduce((sum, { changes }) => sum + changes.length, 0)
    try {
      await oracle.untilAcked(() => (expected ?? this.workload.changes) - oracle.unanswered.length, IDLE_MS)
      const unanswered = oracle.unanswered // they may have taken effect, and then the messages never come again
      if (unanswered.length === 0 || oracle.violations.length > 0) return
      await client.ack(unanswered)
      oracle.ackAnswered(unanswered, now())
    } catch (error) {
      const missing = await this.#judge(watched)
      throw new Error(`sink ${name}: ${(error as Error).message}\n${missing.join('\n')}`, { cause: error })
    }
  }

  /** With what each process says and has logged. */
  async #standsStill(error: Error): Promise<Error> {
    const said: string[] = []
    for (const node of this.nodes) {
      const info = await node.get('/info').catch((reason: Error) => reason.message)
      said.push(`${JSON.stringify(info)}\n${node.failure('stands still').message}`)
    }
    return new Error([error.message, ...said].join('\n'), { cause: error })
  }

  async #nothingLeft(when: string, waitFor: (ackWaitMs: number) => number): Promise<void> {
    await Promise.all(
      this.#watched.map(async ({ name, client, ackWaitMs }) => {
        const waitMs = waitFor(ackWaitMs)
        for (;;) {
          try {
            const more = await client.receive({ batchSize: 1_000, waitMs })
            const described = more.map(
              (message) => `${message.action} of ${message.table} ${message.key.join(':')} at ${message.lsn}:${message.idx}`,
            )
            return assert.deepEqual(described, [], `sink ${name}, ${when}`)
          } catch (error) {
            if (!(error instanceof Passing)) throw error
            await sleep(50)
          }
        }
      }),
    )
  }

  /** A client that met what it may not meet ends the run at once. */
  async #orClientFailure<T>(work: Promise<T>): Promise<T> {
    const failed = (async () => {
      await this.#clients
      return new Promise<never>(() => {})
    })()
    const wrote = (async () => {
      await this.#writer
      return new Promise<never>(() => {})
    })()
    return Promise.race([work, failed, wrote])
  }
}

/** Runs a seed; a failure says how to run it again. */
export async function withSeed(seed: number, file: string, run: () => Promise<void>): Promise<void> {
  try {
    await run()
  } catch (error) {
    const failure = error as Error
    failure.message = `seed ${seed} (run again: TAILRACE_TEST_SEED=${seed} node --test test/faults/${file})\n${failure.message}`
    throw failure
  }
}
