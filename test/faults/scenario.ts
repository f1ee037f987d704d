/**
 * A whole run: a source database, the service, several sinks on it with bad clients, and a workload. What happens to
 * them meanwhile is the test's business; at the end everything comes to rest and is judged, exactly.
 */
import assert from 'node:assert/strict'
import { CalmClock } from '../services/calm-clock.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { Consumer, now } from './consumer.ts'
import { Cuts } from './cuts.ts'
import { Oracle } from './oracle.ts'
import { Random } from './random.ts'
import { Service, TOKEN, type SinkOptions } from './service.ts'
import { HttpSinkClient, Passing } from './sink-client.ts'
import { commitsOf, judge, reduced, type Commits } from './verdict.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'
import { until } from '../waiting.ts'

/** Nothing may stand still longer than this while something is to do, of what time the machine has to spare. */
const IDLE_MS = 60_000
const CLIENTS = 3

/**
 * @property atTimes tables without schema that the sink takes only at times: its marks say when; the first sink has none
 * @property actions those that it takes, where not all
 * @property lags nobody waits for it before everything comes to rest: its clients are slow, or it is paused
 */
export type ScenarioSink = SinkOptions &
  Readonly<{ ack_wait_ms: number; atTimes?: readonly string[]; actions?: readonly string[]; lags?: boolean }>

export type ScenarioOptions = Readonly<{
  seed: number
  sinks?: readonly ScenarioSink[]
  /** sinks that the test itself receives from, and what they send to */
  others?: readonly SinkOptions[]
  endpoints?: readonly object[]
  /** of each sink at each process (3) */
  clients?: number
  /** how the service reaches the source, where not directly */
  through?: Partial<Connection>
  /** a source elsewhere than on the common server, empty */
  source?: TestDatabase
  env?: Readonly<Record<string, string>>
  /** statements per second, and rows of one that writes many */
  pace?: number
  batch?: readonly [low: number, high: number]
  /** processes that share state and log, with clients at each; 1 when absent */
  nodes?: number
  /** how long after a kill the next process waits until it serves (0) */
  takeOverMs?: number
}>

type Watched = Readonly<{
  name: string
  ackWaitMs: number
  actions: readonly string[] | undefined
  lags: boolean
  oracle: Oracle
  client: HttpSinkClient
  consumers: readonly Consumer[]
  cuts: Cuts | undefined
  /** those of its clients that receive now */
  receiving: { stop: AbortController; done: Promise<unknown> } | undefined
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
  /** of what is waited for: a machine that is too busy moves partitions and sources to and fro, and delivers little meanwhile */
  readonly clock: CalmClock
  readonly #takeOverMs: number
  readonly #resources: AsyncDisposableStack
  readonly #clients: number
  #watched: readonly Watched[]
  readonly #writing = new AbortController()
  readonly #failed = Promise.withResolvers<never>()
  #writer: Promise<void> | undefined

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
    this.clock = resources.use(new CalmClock())
    this.random = new Random(options.seed ^ 0x5eed)
    this.#takeOverMs = options.takeOverMs ?? 0
    this.#failed.promise.catch(() => {})
    const { pace, batch } = options
    this.workload = new Workload({
      seed: options.seed,
      connect: () => source.connect(),
      taken: () => Math.min(...this.#watched.flatMap(({ oracle, cuts, lags, actions }) => (cuts || lags || actions ? [] : [oracle.came]))),
      ...(pace === undefined ? {} : { pace }),
      ...(batch === undefined ? {} : { batch }),
    })
    this.#clients = options.clients ?? CLIENTS
    this.#watched = (options.sinks ?? SINKS).map((sink) => this.#watch(sink))
  }

  static async create(options: ScenarioOptions): Promise<Scenario> {
    await using resources = new AsyncDisposableStack()
    const source = options.source ?? resources.use(await createDatabase(DDL))
    if (options.source) await source.query(DDL)
    const state = resources.use(await createState())
    const nodes: Service[] = []
    for (let n = 0; n < (options.nodes ?? 1); n++)
      nodes.push(
        resources.use(
          await Service.prepare({
            source: { ...source.connection, ...options.through },
            stateUrl: state.url,
            sinks: [...(options.sinks ?? SINKS).map(({ atTimes: _atTimes, lags: _lags, ...sink }) => sink), ...(options.others ?? [])].map(
              (sink) => ({ tables: CAPTURED, ...sink }),
            ),
            ...(options.endpoints ? { endpoints: options.endpoints } : {}),
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
    for (const watched of this.#watched) this.#receive(watched)
  }

  /** What a sink's clients have under way ends, and they receive again when `during` has. */
  async resting<T>(name: string, during: () => Promise<T>): Promise<T> {
    const { receiving } = this.#sink(name)
    receiving?.stop.abort()
    await receiving?.done
    const result = await during()
    this.#receive(this.#sink(name))
    return result
  }

  /** Another sink has the name now: what the former one gave says nothing of it. */
  begunAnew(sink: ScenarioSink): void {
    const { oracle, cuts } = this.#sink(sink.name)
    assert.deepEqual(oracle.violations, [], `sink ${sink.name}, which is gone`)
    cuts?.beginAnew()
    const anew = { ...this.#watch(sink), cuts }
    this.#watched = this.#watched.map((each) => (each.name === sink.name ? anew : each))
  }

  oracle(name: string): Oracle {
    return this.#sink(name).oracle
  }

  /** Settles when each sink has acked so many messages more, but those that lag, are cut, or take only some actions. */
  async untilMore(messages: number): Promise<void> {
    const waits = this.#watched
      .filter(({ lags, cuts, actions }) => !lags && !actions && !(cuts && cuts.tables.length === CAPTURED.length))
      .map(({ oracle }) => {
        const goal = oracle.acked + messages
        return oracle.untilAcked(() => goal, IDLE_MS, this.clock)
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
      const taken = cuts.edits % 2 === 1
      const tables = taken ? CAPTURED : CAPTURED.filter((table) => !cuts.tables.includes(table.slice(table.indexOf('.') + 1)))
      await this.cut(name, tables, async () => {
        const { status, body } = await service.patch(`/api/sinks/${name}`, { source: { include_tables: tables } })
        assert.equal(status, 200, JSON.stringify(body))
      })
      made++
    }
    return made
  }

  /** An edit of a sink that has tables only at times. @param tables with schema: those that it takes afterwards */
  async cut(name: string, tables: readonly string[], edit: () => Promise<void>): Promise<void> {
    const { cuts } = this.#sink(name)
    assert.ok(cuts)
    await cuts.make(this.source.query, tables, edit)
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
    const isCut = ({ cuts, actions }: Watched) => cuts !== undefined || actions !== undefined
    const [whole, cut] = [this.#watched.filter((watched) => !isCut(watched)), this.#watched.filter(isCut)]
    try {
      await this.#orClientFailure(Promise.all(whole.map((watched) => this.#drain(watched))))
      // how much comes of the others is known by what the first sink had
      await this.#orClientFailure(Promise.all(cut.map((watched) => this.#drain(watched))))
    } catch (error) {
      this.checkSoFar()
      throw error
    }
    for (const { receiving } of this.#watched) receiving?.stop.abort()
    await Promise.all(this.#watched.map(({ receiving }) => receiving?.done))
    this.checkSoFar()
    for (const watched of this.#watched) assert.deepEqual(await this.#judge(watched), [], `sink ${watched.name}`)
    await this.#nothingLeft('at rest', () => 0)
    await Promise.all(this.nodes.map((node) => node.kill()))
    await Promise.all(this.nodes.map((node) => node.startReady()))
    await this.#nothingLeft('after a last SIGKILL', (ackWaitMs) => ackWaitMs + this.#takeOverMs + 500)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#writing.abort()
    for (const { receiving, consumers } of this.#watched) {
      receiving?.stop.abort()
      for (const consumer of consumers) consumer.leave()
    }
    await Promise.allSettled([this.#writer, ...this.#watched.map(({ receiving }) => receiving?.done)])
    await this.#resources.disposeAsync()
  }

  #sink(name: string): Watched {
    return this.#watched.find((each) => each.name === name) ?? assert.fail(`there is no sink ${name}`)
  }

  #watch({ name, ack_wait_ms: ackWaitMs, atTimes, actions, lags = false }: ScenarioSink): Watched {
    const oracle = new Oracle({ ackWaitMs })
    const clients = this.nodes.map(({ origin }) => this.#resources.use(new HttpSinkClient({ origin, sink: name, token: TOKEN })))
    const consumers = Array.from(
      { length: this.#clients },
      (_, n) =>
        new Consumer({
          ...{ name: `${name} ${n}`, oracle, random: this.random.fork(), ackWaitMs, isSlow: lags },
          client: clients[n % clients.length] as HttpSinkClient,
        }),
    )
    const cuts = atTimes && new Cuts(name, atTimes)
    return { ...{ name, ackWaitMs, actions, lags, oracle, consumers, cuts }, client: clients[0] as HttpSinkClient, receiving: undefined }
  }

  #receive(watched: Watched): void {
    const stop = new AbortController()
    const done = Promise.all(watched.consumers.map((consumer) => consumer.run(stop.signal)))
    done.catch(this.#failed.reject)
    const receiving = { ...watched, receiving: { stop, done } }
    this.#watched = this.#watched.map((each) => (each.name === watched.name ? receiving : each))
  }

  async #judge(watched: Watched): Promise<string[]> {
    const { oracle, cuts, actions } = watched
    const tables = await this.workload.tables()
    if (!cuts && !actions) return judge(oracle.messages, this.workload.committed, tables)
    const expected = await this.#expected(watched)
    const always = actions ? [] : tables.filter(({ table }) => !cuts?.tables.includes(table))
    return judge(oracle.messages, [...expected.values()], always, expected)
  }

  /** How much comes of those that don't take all is known by what the first sink had. */
  async #expected({ cuts, actions }: Watched): Promise<Commits> {
    const { oracle } = this.#watched[0] as Watched
    const commits = commitsOf(oracle.messages, this.workload.committed)
    const taken = cuts ? await cuts.expected(this.state.query, commits) : commits
    return actions ? reduced(taken, ({ action }) => actions.includes(action)) : taken
  }

  async #drain(watched: Watched): Promise<void> {
    const { name, oracle, client, cuts, actions } = watched
    const expected =
      cuts || actions ? [...(await this.#expected(watched)).values()].reduce((sum, { changes }) => sum + changes.length, 0) : undefined
    try {
      await oracle.untilAcked(() => (expected ?? this.workload.changes) - oracle.unanswered.length, IDLE_MS, this.clock)
      const unanswered = oracle.unanswered // they may have taken effect, and then the messages never come again
      if (unanswered.length === 0 || oracle.violations.length > 0) return
      await answered(() => client.ack(unanswered))
      oracle.ackAnswered(unanswered, now())
    } catch (error) {
      const missing = await this.#judge(watched)
      throw await this.#standsStill(new Error(`sink ${name}: ${(error as Error).message}\n${missing.join('\n')}`, { cause: error }))
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
        const more = await answered(() => client.receive({ batchSize: 1_000, waitMs }))
        const described = more.map(
          (message) => `${message.action} of ${message.table} ${message.key.join(':')} at ${message.lsn}:${message.idx}`,
        )
        assert.deepEqual(described, [], `sink ${name}, ${when}`)
      }),
    )
  }

  /** A client that met what it may not meet ends the run at once. */
  async #orClientFailure<T>(work: Promise<T>): Promise<T> {
    const wrote = (async () => {
      await this.#writer
      return new Promise<never>(() => {})
    })()
    return Promise.race([work, this.#failed.promise, wrote])
  }
}

/** Asks again while partitions move, as a client does. */
async function answered<T>(ask: () => Promise<T>): Promise<T> {
  let last = ''
  const asked = async () => {
    try {
      return { answer: await ask() }
    } catch (error) {
      if (!(error instanceof Passing)) throw error
      last = error.message
      return undefined
    }
  }
  return (await until(() => `an answer: ${last}`, asked)).answer
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
