/**
 * A service of two accounts. One does what it should not; the other has a sink that gets a row every so often. While an attack goes
 * on, the private memory of the service and its sandboxes is looked at, GET /health is asked all the time, and the rows have to arrive.
 */
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { UsageMeter, childrenOf } from '../../bench/process-usage.ts'
import { CalmClock } from '../services/calm-clock.ts'
import { HttpReceiver } from '../services/http-receiver.ts'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { configFile, Service, SLOT, type ServiceOptions } from './service.ts'
import { pass } from '../waiting.ts'

const MEMORY_MB = 550
const HEALTH_WITHIN_MS = 1_000
/** The machine has other things to do besides; a neighbour who waits for an attack to end waits much longer. */
const ROW_WITHIN_MS = 5_000
const ROW_EVERY_MS = 100
const LOOK_EVERY_MS = 50

/** What one attack came to. */
type Figures = { healthMs: number; rowMs: number; rows: number }

export class HostileService implements AsyncDisposable {
  readonly service: Service
  /** of the account that attacks */
  readonly source: TestDatabase
  readonly #neighbour: TestDatabase
  readonly #receiver: HttpReceiver
  readonly #arrived = new Map<number, () => void>()
  readonly #stack: AsyncDisposableStack
  #rows = 0

  private constructor(
    parts: { service: Service; source: TestDatabase; neighbour: TestDatabase; receiver: HttpReceiver },
    stack: AsyncDisposableStack,
  ) {
    this.service = parts.service
    this.source = parts.source
    this.#neighbour = parts.neighbour
    this.#receiver = parts.receiver
    this.#stack = stack
    this.#receiver.handler = ({ body }) => {
      const { data } = JSON.parse(body.toString()) as { data: { record: { id: number } }[] }
      for (const { record } of data) this.#arrived.get(record.id)?.()
      return {}
    }
  }

  /** @param attacker what the account has that attacks: its API token is the service's, its database `source` has the schema */
  static async start(schema: string, attacker: Omit<ServiceOptions, 'source' | 'stateUrl'>): Promise<HostileService> {
    await using stack = new AsyncDisposableStack()
    const neighbour = stack.use(await createDatabase('create table row (id int primary key)'))
    const source = stack.use(await createDatabase(schema))
    const state = stack.use(await createState())
    const receiver = stack.use(await HttpReceiver.start())
    const service = stack.use(
      await Service.prepare({
        ...{ account: 'neighbour', source: neighbour.connection, stateUrl: state.url, slot: `${SLOT}_neighbour` },
        endpoints: [{ name: 'neighbour', url: receiver.url }],
        sinks: [{ name: 'neighbour', destination: { type: 'webhook', http_endpoint: 'neighbour' } }],
        ...(attacker.env && { env: attacker.env }),
      }),
    )
    await service.startReady()
    await service.stop()
    // an account stays when the next start is given another's file
    await writeFile(join(service.folder, 'config.yaml'), configFile({ ...attacker, source: source.connection, stateUrl: state.url }))
    await service.startReady()
    return new HostileService({ service, source, neighbour, receiver }, stack.move())
  }

  /** Sees to it that an attack comes to nothing: memory, health and the neighbour's rows, while it goes on. */
  async proof(context: TestContext, attack: () => Promise<unknown>): Promise<void> {
    const { pid } = this.service
    const figures: Figures = { healthMs: 0, rowMs: 0, rows: 0 }
    using clock = new CalmClock()
    const stop = new AbortController()
    const memory = new UsageMeter({ service: () => [pid, ...childrenOf(pid)] }, LOOK_EVERY_MS)
    const watching = Promise.all([this.#askHealth(clock, stop.signal, figures), this.#writeRows(clock, stop.signal, figures)])
    watching.catch(() => stop.abort())
    try {
      await Promise.race([attack(), watching])
    } finally {
      stop.abort()
      memory[Symbol.dispose]()
    }
    await watching
    const { peakAnonMb = 0 } = memory.read()['service'] ?? {}
    context.diagnostic(
      `at most ${peakAnonMb.toFixed(0)} MB of private memory; health within ${figures.healthMs} ms; ${figures.rows} rows of the neighbour within ${figures.rowMs} ms`,
    )
    assert.equal(this.service.pid, pid, 'the service has ended')
    assert.ok(peakAnonMb > 0 && peakAnonMb < MEMORY_MB, `${peakAnonMb.toFixed(0)} MB of private memory`)
    assert.ok(figures.healthMs <= HEALTH_WITHIN_MS, `GET /health was answered after ${figures.healthMs} ms`)
    assert.ok(figures.rowMs <= ROW_WITHIN_MS, `a row of the neighbour took ${figures.rowMs} ms`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack[Symbol.asyncDispose]()
  }

  async #askHealth(clock: CalmClock, signal: AbortSignal, figures: Figures): Promise<void> {
    while (!signal.aborted) {
      const at = clock.now()
      const response = await fetch(`${this.service.origin}/health`)
      await response.arrayBuffer()
      assert.equal(response.status, 200)
      figures.healthMs = Math.max(figures.healthMs, clock.since(at))
      await pass(LOOK_EVERY_MS, 'it is asked now and then', signal)
    }
  }

  /** One after the other, each waited for; at least one. */
  async #writeRows(clock: CalmClock, signal: AbortSignal, figures: Figures): Promise<void> {
    do {
      const id = ++this.#rows
      const arrived = new Promise<void>((resolve) => this.#arrived.set(id, resolve))
      const at = clock.now()
      await this.#neighbour.query('insert into row values ($1)', [id])
      await arrived
      this.#arrived.delete(id)
      figures.rowMs = Math.max(figures.rowMs, clock.since(at))
      figures.rows++
      await pass(ROW_EVERY_MS, 'the neighbour writes now and then', signal)
    } while (!signal.aborted)
  }
}
