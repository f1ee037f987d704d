/** A webhook sink on a real log and a real state database, and the HTTP server it sends to, which does as it is told. */
import { Egress } from '../../../engine/net/egress.ts'
import type { WebhookDestination } from '../../../sinks/webhook-settings.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import type { Query } from '../../../engine/postgres/query.ts'
import type { SinkOptions } from '../../../actors/sink/running-sink.ts'
import { HttpReceiver, jsonOf, type Received, type Reply } from '../../services/http-receiver.ts'
import type { TestDatabase } from '../../services/postgres.ts'
import { endpoint } from '../../sinks/batch.ts'
import { Fixture, type Message } from '../sink-fixture.ts'
import { queryOf, stateDatabase } from '../sink-state.ts'
import { until } from '../../waiting.ts'

export type Delivery = Readonly<{ id: number; group: string; at: number }>
/** What the destination says to a request that brings these messages. */
export type Answer = (ids: readonly number[], request: Received) => Reply | Promise<Reply>

export class PushFixture implements AsyncDisposable {
  readonly f: Fixture
  readonly receiver: HttpReceiver
  readonly db: TestDatabase
  /** ids of each request, in the order they came; and what was taken with 2xx */
  readonly requests: (readonly number[])[] = []
  readonly delivered: Delivery[] = []
  readonly warnings: string[] = []
  answer: Answer
  /** the SQLSTATE with which the state database refuses a statement; undefined: it takes it */
  refuse: (sql: string) => string | undefined = () => undefined
  /** Whether a statement is carried out and its answer lost. */
  lose: (sql: string) => boolean = () => false
  /** of the sink, from the next start on */
  functions: SinkOptions['functions'] | undefined
  #waiting: (() => void)[] = []

  private constructor(f: Fixture, receiver: HttpReceiver, db: TestDatabase, answer: Answer) {
    this.f = f
    this.receiver = receiver
    this.db = db
    this.answer = answer
    receiver.handler = (request) => this.#take(request)
  }

  static async open(
    settings: Partial<Sink> & { batch?: boolean; item_results?: boolean } = {},
    answer: Answer = () => ({}),
    functions?: SinkOptions['functions'],
  ): Promise<PushFixture> {
    const { batch = true, item_results = false, ...sink } = settings
    const db = await stateDatabase()
    const receiver = await HttpReceiver.start()
    const destination: WebhookDestination = { type: 'webhook', http_endpoint: 'hooks', batch, item_results }
    const all = { batch_size: 10, ...sink, destination }
    const query: Query = async (sql, params) => {
      const code = fixture.refuse(sql)
      if (code) throw Object.assign(new Error(`refused: ${code}`), { code })
      const answer = await queryOf(db)(sql, params)
      if (fixture.lose(sql)) throw new Error('the connection was lost')
      return answer
    }
    const f = await Fixture.open(all, { query, start: false })
    const fixture = new PushFixture(f, receiver, db, answer)
    fixture.functions = functions
    await fixture.start()
    return fixture
  }

  /** Starts the sink; again after a crash. */
  async start(): Promise<void> {
    const { url } = this.receiver
    const push = {
      egress: new Egress({ mode: 'private' }),
      endpoint: () => endpoint(url),
      warn: (text: string) => void this.warnings.push(text),
      maxMessageBytes: 64 * 1024 * 1024,
    }
    await this.f.start({ push, ...(this.functions && { functions: this.functions }) })
  }

  append(messages: readonly Message[]): Promise<void> {
    return this.f.append(messages)
  }

  get ids(): number[] {
    return this.delivered.map(({ id }) => id)
  }

  async until(condition: () => boolean): Promise<void> {
    while (!condition()) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
  untilDelivered(count: number): Promise<void> {
    return this.until(() => new Set(this.ids).size >= count)
  }

  /** Rows of the parked store, by position. */
  rows(state: string) {
    return this.db.query<{
      record_offset: string
      record_index: number
      attempts: number
      error: string
      attempt_log: { status: number; message: string; counts: boolean }[]
      next: number | null
    }>(
      `select *, (extract(epoch from next_try_at - inserted_at) * 1000)::float8 as next from tailrace.parked where state = $1 order by record_offset, record_index`,
      [state],
    )
  }
  /** Settles once the parked store has this many rows in this state. */
  async untilRows(state: string, count: number) {
    return until(`${count} messages that are ${state}`, async () => {
      const rows = await this.rows(state)
      return rows.length === count && rows
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.f[Symbol.asyncDispose]()
    await this.receiver[Symbol.asyncDispose]()
    await this.db[Symbol.asyncDispose]()
  }

  async #take(request: Received): Promise<Reply> {
    type Body = { record: { id: number; group: string } }
    const body = jsonOf(request) as Body & { data?: Body[] }
    const records = (body.data ?? [body]).map(({ record }) => record)
    const ids = records.map(({ id }) => id)
    this.requests.push(ids)
    const reply = await this.answer(ids, request)
    if (typeof reply === 'object' && (reply.status ?? 200) < 300) {
      const failures = (reply.body ? (JSON.parse(String(reply.body)) as { failures?: { index: number }[] }).failures : undefined) ?? []
      const failed = new Set(failures.map(({ index }) => index))
      for (const [i, { id, group }] of records.entries()) if (!failed.has(i)) this.delivered.push({ id, group, at: performance.now() })
    }
    for (const wake of this.#waiting.splice(0)) wake()
    return reply
  }
}

/** Messages of so many groups in turn: id i in group i % groups. */
export const inGroups = (count: number, groups: number, from = 0): Message[] =>
  Array.from({ length: count }, (_, i) => ({ id: from + i, group: `g${(from + i) % groups}` }))
