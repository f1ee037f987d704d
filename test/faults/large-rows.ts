/** Rows that are larger than what the parts of the way are made for: the same for both homes of the log. */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import type { Message } from './oracle.ts'
import { freePort } from '../services/free-port.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient } from './sink-client.ts'
import { until } from '../waiting.ts'

const WAIT_MS = 60_000
const MB = 2 ** 20

type Check = { status: string; error?: { code: string; message: string } }

export class LargeRows implements AsyncDisposable {
  readonly source: TestDatabase
  readonly state: TestDatabase
  readonly service: Service
  readonly #client: HttpSinkClient
  readonly #metricsPort: number
  readonly #stack: AsyncDisposableStack

  private constructor(parts: {
    source: TestDatabase
    state: TestDatabase
    service: Service
    metricsPort: number
    stack: AsyncDisposableStack
  }) {
    this.source = parts.source
    this.state = parts.state
    this.service = parts.service
    this.#metricsPort = parts.metricsPort
    this.#stack = parts.stack
    this.#client = parts.stack.use(new HttpSinkClient({ origin: parts.service.origin, sink: 'docs', token: TOKEN }))
  }

  static async open(env: Readonly<Record<string, string>>): Promise<LargeRows> {
    await using stack = new AsyncDisposableStack()
    const source = stack.use(await createDatabase('create table doc (id int primary key, body text)'))
    const state = stack.use(await createState())
    const metricsPort = await freePort()
    const service = stack.use(
      await Service.prepare({
        ...{ source: source.connection, stateUrl: state.url, sinks: [{ name: 'docs', ack_wait_ms: 2_000 }] },
        env: { TAILRACE_METRICS_PORT: String(metricsPort), ...env },
      }),
    )
    await service.startReady()
    return new LargeRows({ source, state, service, metricsPort, stack: stack.move() })
  }

  /** A row that compresses badly. @returns the digest of its text */
  async write(id: number, megabytes: number): Promise<string> {
    const [row] = await this.source.query<{ body: string }>(
      `insert into doc select $1::int, (select string_agg(md5($1::int || '/' || i), '') from generate_series(1, $2::int) i) returning md5(body) as body`,
      [id, Math.ceil((megabytes * MB) / 32)],
    )
    return row?.body ?? ''
  }

  /** Receives and acks the next message. */
  async next(): Promise<Message> {
    const [message] = await this.#client.receive({ batchSize: 1, waitMs: WAIT_MS })
    assert.ok(message, this.service.failure('nothing came').message)
    await this.#client.ack([message.ackId])
    return message
  }

  async check(code: string): Promise<Check | undefined> {
    const { body } = await this.service.get('/api/sinks/docs')
    return (body as { health: { checks: Check[] } }).health.checks.find(({ error }) => error?.code === code)
  }

  async metric(name: string): Promise<number> {
    const text = await (await fetch(`http://127.0.0.1:${this.#metricsPort}/metrics`)).text()
    return Number(new RegExp(`^${name}\\{.*"docs"\\} (\\d+)$`, 'm').exec(text)?.[1])
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync()
  }
}

const digestOf = (text: unknown) => createHash('md5').update(String(text)).digest('hex')

/** A row of many megabytes comes whole, and again after a kill when it was not acked; what was written after it, of another row, may come before it then. */
export async function comesWhole(home: LargeRows, megabytes: number): Promise<void> {
  await home.write(1, 0.001)
  const digest = await home.write(2, megabytes)
  await home.write(3, 0.001)
  assert.equal((await home.next()).record['id'], 1)
  await home.service.kill()
  await home.service.startReady()
  // what might have been with a client when the process died comes after its visibility time
  const [large, small] = [await home.next(), await home.next()].sort((a, b) => Number(a.record['id']) - Number(b.record['id']))
  assert.equal(large?.record['id'], 2)
  assert.equal(String(large.record['body']).length, Math.ceil((megabytes * MB) / 32) * 32)
  assert.equal(digestOf(large.record['body']), digest)
  assert.equal(small?.record['id'], 3)
}

/** A row beyond MAX_MESSAGE_MB is put on record and counted, health tells of it, and what is around it is delivered. */
export async function isDiscarded(home: LargeRows): Promise<void> {
  await home.write(1, 0.001)
  await home.write(2, 3)
  await home.source.query(`update doc set body = body || 'x' where id = 2`)
  await home.write(3, 0.9)
  await home.source.query('delete from doc where id = 2')
  const came = [await home.next(), await home.next(), await home.next()].map(({ record, action }) => [record['id'], action])
  assert.deepEqual(came.sort(), [
    [1, 'insert'],
    [2, 'delete'],
    [3, 'insert'],
  ])
  const rows = await until('both are on record', async () => {
    const found = await home.state.query<{ record_key: string; lsn: string; action: number; error: string; bytes: number }>(
      `select record_key, lsn::text, action, error, octet_length(body) as bytes from tailrace.parked p where state = 'discarded' order by p.lsn`,
    )
    return found.length === 2 ? found : undefined
  })
  for (const { record_key: key, error, bytes } of rows) {
    assert.equal(key, '["2"]')
    assert.match(error, /^the message has 31457\d\d bytes, more than MAX_MESSAGE_MB allows$/)
    assert.ok(bytes < 1_000)
  }
  assert.deepEqual(
    rows.map(({ action }) => action),
    [0, 1],
  )
  const check = await home.check('MESSAGE_TOO_LARGE')
  assert.equal(check?.status, 'warning')
  assert.match(check?.error?.message ?? '', /^2 messages larger than MAX_MESSAGE_MB were discarded, the last one at /)
  assert.equal(await home.metric('tailrace_messages_discarded_count'), 2)
  // the slot goes on: what was discarded holds nothing
  await until('the slot has passed it', async () => {
    const [slot] = await home.source.query<{ passed: boolean }>(
      `select confirmed_flush_lsn > $1::pg_lsn as passed from pg_replication_slots where database = current_database()`,
      [rows[1]?.lsn],
    )
    return slot?.passed
  })
  await home.service.stop()
  await home.service.startReady()
  await home.write(4, 0.001)
  assert.equal((await home.next()).record['id'], 4)
  assert.match((await home.check('MESSAGE_TOO_LARGE'))?.error?.message ?? '', /^2 messages/, 'also to the next process')
}
