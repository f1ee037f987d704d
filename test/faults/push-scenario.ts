/**
 * A whole run of a sink that sends: a source database, the service, a workload, and an HTTP server that gets the messages
 * and misbehaves as the test lets it. At the end each committed change must have come as it was, and of each row what
 * came last must be its newest change: then whoever applied what came as it came has the table.
 */
import assert from 'node:assert/strict'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import { HttpReceiver, type Received, type Reply } from '../services/http-receiver.ts'
import { groupOf } from './journal.ts'
import { parseExact } from './json.ts'
import { untilAtRest } from './at-rest.ts'
import { NetProxy } from './net-proxy.ts'
import { comparePlaces, type Message } from './oracle.ts'
import { Random } from './random.ts'
import { Service, type SinkOptions } from './service.ts'
import { messageOf, type Wire } from './sink-client.ts'
import { judge } from './verdict.ts'
import { CAPTURED, DDL } from './workload-tables.ts'
import { Workload } from './workload.ts'
import { until } from '../waiting.ts'

/**
 * What the server does with a request that brings these messages; `lost`: it takes them, and its answer never arrives; `refuseItems`: it
 * takes all but those at these places, and says so.
 */
export type Whim = 'take' | 'lost' | Readonly<{ refuse: Reply }> | Readonly<{ refuseItems: readonly number[] }>

export class PushScenario implements AsyncDisposable {
  readonly service: Service
  readonly source: TestDatabase
  readonly receiver: HttpReceiver
  /** between the service and the server */
  readonly proxy: NetProxy
  readonly workload: Workload
  readonly random: Random
  /** distinct messages that were taken */
  readonly messages = new Map<string, Message>()
  duplicates = 0
  whim: (messages: readonly Message[]) => Whim = () => 'take'
  readonly #last = new Map<string, Message>()
  readonly #resources: AsyncDisposableStack
  readonly #writing = new AbortController()
  #writer: Promise<void> | undefined
  #wake: () => void = () => undefined

  private constructor(
    parts: Pick<PushScenario, 'service' | 'source' | 'receiver' | 'proxy'> & {
      seed: number
      pace: number | undefined
      resources: AsyncDisposableStack
    },
  ) {
    const { service, source, receiver, proxy, seed, pace, resources } = parts
    this.service = service
    this.source = source
    this.receiver = receiver
    this.proxy = proxy
    this.#resources = resources
    this.random = new Random(seed ^ 0x9054)
    const taken = () => this.messages.size
    this.workload = new Workload({ seed, connect: () => source.connect(), taken, ...(pace === undefined ? {} : { pace }) })
    receiver.handler = (request) => this.#take(request)
  }

  static async create(options: { seed: number; sink?: Partial<SinkOptions>; pace?: number }): Promise<PushScenario> {
    await using resources = new AsyncDisposableStack()
    const source = resources.use(await createDatabase(DDL))
    const { url: stateUrl } = resources.use(await createState())
    const receiver = resources.use(await HttpReceiver.start())
    const proxy = resources.use(await NetProxy.start({ host: '127.0.0.1', port: receiver.port }))
    const service = resources.use(
      await Service.prepare({
        source: source.connection,
        stateUrl,
        sinks: [
          {
            ...{ name: 'hooks', tables: CAPTURED, batch_size: 20, ack_wait_ms: 1_500, partitions: 2 },
            destination: { type: 'webhook', http_endpoint: 'hooks' },
            ...options.sink,
          },
        ],
        endpoints: [{ name: 'hooks', url: `http://127.0.0.1:${proxy.port}/in` }],
      }),
    )
    const { seed, pace } = options
    return new PushScenario({ service, source, receiver, proxy, seed, pace, resources: resources.move() })
  }

  write(): void {
    this.#writer = this.workload.run(this.#writing.signal)
    this.#writer.catch(() => {}) // told when it is waited for
  }

  async stopWriting(): Promise<void> {
    this.#writing.abort()
    await this.#writer
  }

  /** Settles when so many distinct messages more were taken. @throws Error none came for a while */
  async untilMore(count: number): Promise<void> {
    const goal = this.messages.size + count
    await this.#until(() => this.messages.size >= goal)
  }

  /** Lets everything come to rest and judges it. */
  async settle(): Promise<void> {
    await this.stopWriting()
    await this.#until(() => this.messages.size >= this.workload.changes)
    assert.deepEqual(judge([...this.messages.values()], this.workload.committed, await this.workload.tables()), [])
    const newest = new Map<string, Message>()
    for (const message of this.messages.values()) {
      const known = newest.get(nameOf(message))
      if (!known || comparePlaces(message, known) > 0) newest.set(nameOf(message), message)
    }
    const areLast = () => [...newest].every(([name, message]) => this.#last.get(name)?.idempotencyKey === message.idempotencyKey)
    await this.#until(areLast) // duplicates may still be under way, in order
    await untilAtRest(this.service, ['hooks'])
    await this.#until(areLast)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#writing.abort()
    await Promise.allSettled([this.#writer])
    await this.#resources.disposeAsync()
  }

  #take(request: Received): Reply {
    const { data } = parseExact(request.body.toString()) as { data: Wire[] }
    const messages = data.map((wire) => messageOf(wire))
    const whim = this.whim(messages)
    if (typeof whim === 'object' && 'refuse' in whim) return whim.refuse
    const refused = typeof whim === 'object' ? whim.refuseItems : []
    for (const [i, message] of messages.entries()) {
      if (refused.includes(i)) continue
      const known = this.messages.get(message.idempotencyKey)
      if (known) this.duplicates++
      else this.messages.set(message.idempotencyKey, message)
      this.#last.set(nameOf(message), message)
    }
    this.#wake()
    if (whim === 'lost') return 'reset'
    return refused.length === 0 ? {} : { body: JSON.stringify({ failures: refused.map((index) => ({ index, error: 'not this one' })) }) }
  }

  async #until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      const { promise, resolve } = Promise.withResolvers<void>()
      let isMore = false
      this.#wake = () => {
        isMore = true
        resolve()
      }
      await Promise.race([
        promise,
        until(
          () => this.#lacking(),
          () => isMore || condition(),
          { service: this.service },
        ),
      ])
    }
  }

  async #lacking(): Promise<string> {
    const info = await this.service.get('/info').catch((reason: Error) => reason.message)
    const missing = judge([...this.messages.values()], this.workload.committed, await this.workload.tables())
    return `more than ${this.messages.size} of ${this.workload.changes} messages\n${missing.slice(0, 5).join('\n')}\n${JSON.stringify(info)}`
  }
}

const nameOf = (message: Message): string => groupOf(message.table, message.key)
