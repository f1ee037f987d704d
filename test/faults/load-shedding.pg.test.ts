/** A full sink that says `discard_on_full`: it loses new messages, says so, and nobody else notices. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createDatabase, createState, type TestDatabase } from '../services/postgres.ts'
import type { Message } from './oracle.ts'
import { freePort } from '../services/free-port.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient } from './sink-client.ts'
import { gather, until } from '../waiting.ts'

const ROWS = 20
const WAIT_MS = 30_000
/** Visibility time of sinks whose process is killed: what may have been with a client is invisible for so long. */
const AFTER_KILL_MS = 1_500

type Check = { name: string; status: string; error?: { code: string; message: string } }

class Stage implements AsyncDisposable {
  readonly source: TestDatabase
  readonly service: Service
  readonly small: HttpSinkClient
  readonly all: HttpSinkClient
  readonly #metricsPort: number
  readonly #stack: AsyncDisposableStack
  /** messages written: each row's first is its insert */
  written = 0

  private constructor(source: TestDatabase, service: Service, metricsPort: number, stack: AsyncDisposableStack) {
    this.source = source
    this.service = service
    this.small = stack.use(new HttpSinkClient({ origin: service.origin, sink: 'small', token: TOKEN }))
    this.all = stack.use(new HttpSinkClient({ origin: service.origin, sink: 'all', token: TOKEN }))
    this.#metricsPort = metricsPort
    this.#stack = stack
  }

  static async open(ackWaitMs = 30_000): Promise<Stage> {
    await using stack = new AsyncDisposableStack()
    const source = stack.use(await createDatabase('create table item (id int primary key, seq int, filler text)'))
    const state = stack.use(await createState())
    const metricsPort = await freePort()
    const small = { name: 'small', max_backlog_mb: 1, load_shedding_policy: 'discard_on_full', ack_wait_ms: ackWaitMs }
    const sinks = [small, { name: 'all', ack_wait_ms: ackWaitMs }]
    const env = { TAILRACE_METRICS_PORT: String(metricsPort) }
    const service = stack.use(await Service.prepare({ source: source.connection, stateUrl: state.url, sinks, env }))
    await service.startReady()
    const stage = new Stage(source, service, metricsPort, stack.move())
    await source.query(`insert into item select g, 0, repeat('x', 4000) from generate_series(1, ${ROWS}) g`)
    stage.written += ROWS
    return stage
  }

  async write(): Promise<void> {
    await this.source.query('update item set seq = seq + 1')
    this.written += ROWS
  }

  async check(sink: string, code: string): Promise<string | undefined> {
    const { body } = await this.service.get(`/api/sinks/${sink}`)
    const { health } = body as { health: { status: string; checks: Check[] } }
    const found = health.checks.find(({ error }) => error?.code === code)
    if (found) assert.deepEqual([found.status, health.status], ['notice', 'healthy'], 'it was asked for, so it degrades nothing')
    return found?.error?.message
  }

  /** Writes until messages of the small sink are dropped, and some more. */
  async overflow(): Promise<void> {
    await until('messages are dropped', async () => {
      await this.write()
      return /: [1-9]\d* messages were dropped since/.test((await this.check('small', 'MESSAGES_DROPPED')) ?? '')
    })
    for (let i = 0; i < 10; i++) await this.write()
  }

  /** The small sink takes messages again. */
  async hasEnded(): Promise<boolean> {
    return /^\d+ messages were dropped from .+ to .+/.test((await this.check('small', 'MESSAGES_DROPPED')) ?? '')
  }

  async dropped(sink = 'small'): Promise<number> {
    const text = await (await fetch(`http://127.0.0.1:${this.#metricsPort}/metrics`)).text()
    return Number(new RegExp(`^tailrace_messages_dropped_count\\{.*"${sink}"\\} (\\d+)$`, 'm').exec(text)?.[1])
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync()
  }
}

/** Receives and acks until `enough` holds of everything that came. */
async function drain(client: HttpSinkClient, came: Message[], enough: (came: readonly Message[]) => boolean): Promise<void> {
  const next = async () => {
    const got = await client.receive({ batchSize: 1_000, waitMs: WAIT_MS })
    assert.ok(got.length > 0, `nothing came in ${WAIT_MS} ms after ${came.length} messages`)
    await client.ack(got.map(({ ackId }) => ackId))
    add(came, got)
    return got
  }
  await gather('messages', next, () => enough(came))
}

/** A message that was with nobody may come again when a process was killed, and where a machine is slow. */
function add(came: Message[], got: readonly Message[]): void {
  const known = new Set(came.map(({ idempotencyKey }) => idempotencyKey))
  came.push(...got.filter(({ idempotencyKey }) => !known.has(idempotencyKey)))
}

/** Of every row its changes came in order, and each once. */
function assertInOrder(came: readonly Message[]): void {
  const last = new Map<string, number>()
  for (const { key, record } of came) {
    const seq = Number(record['seq'])
    assert.ok(seq > (last.get(key.join()) ?? -1), `row ${key.join()}: ${seq} came after ${last.get(key.join())}`)
    last.set(key.join(), seq)
  }
}

const seqsOf = (came: readonly Message[]) => came.map(({ record }) => Number(record['seq']))

test('a full sink loses new messages on record, others get theirs, and after its acks it takes again with nothing else missing', async () => {
  await using s = await Stage.open(120_000)
  await s.overflow()
  const ofAll: Message[] = []
  await drain(s.all, ofAll, (came) => came.length === s.written)
  assertInOrder(ofAll)
  assert.equal(await s.check('all', 'MESSAGES_DROPPED'), undefined)
  assert.equal(await s.dropped('all'), 0)
  // what isn't dropped is all in the log now: so many have to come, and no more
  const dropped = await s.dropped()
  const kept = s.written - dropped
  assert.ok(dropped > 0 && kept > 0)
  await until('what was dropped is on record', async () =>
    (await s.check('small', 'MESSAGES_DROPPED'))?.includes(`: ${dropped} messages were dropped since`),
  )
  const ofSmall: Message[] = []
  await drain(s.small, ofSmall, (came) => came.length === kept)
  assertInOrder(ofSmall)
  const highest = Math.max(...seqsOf(ofSmall))
  assert.ok(
    ofSmall.length <= (highest + 1) * ROWS && ofSmall.length > highest * ROWS,
    'the first ones came without a gap, new ones were dropped',
  )
  await until('it says that it has ended', async () => await s.hasEnded())
  await s.write()
  await s.write()
  await drain(s.small, ofSmall, (came) => came.length === kept + 2 * ROWS)
  assertInOrder(ofSmall)
  assert.equal(await s.dropped(), s.written - ofSmall.length)
})

test('a process killed while it drops and started again keeps what was kept, in order, and takes again after the acks', async () => {
  await using s = await Stage.open(AFTER_KILL_MS)
  await s.overflow()
  await s.service.kill()
  for (let i = 0; i < 10; i++) await s.write()
  await s.service.startReady()
  await s.overflow()
  const ofSmall: Message[] = []
  await until('it drops no more', async () => {
    if (await s.hasEnded()) return true
    const got = await s.small.receive({ batchSize: 1_000, waitMs: AFTER_KILL_MS })
    if (got.length > 0) await s.small.ack(got.map(({ ackId }) => ackId))
    add(ofSmall, got)
    return false
  })
  await s.write()
  const [row] = await s.source.query<{ seq: number }>('select seq from item limit 1')
  await drain(s.small, ofSmall, (came) => seqsOf(came).filter((seq) => seq === row?.seq).length === ROWS)
  assertInOrder(ofSmall)
  assert.ok(ofSmall.length < s.written, 'some are missing')
})
