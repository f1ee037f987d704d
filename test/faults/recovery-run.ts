/**
 * One life of a service that something happens to: rows are written, of which some are delivered, some wait for a retry, some were
 * given up, some were replayed and some are with a client. Two sinks take them, one that is asked and one that sends. What they got
 * is counted by row and by message, so that after the fault it can be said what is missing and what came again.
 */
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { AGAIN, LOST, type Again, type Cell, type Lost } from '../../docs/recovery-cells.ts'
import type { ErrorCode } from '../../engine/errors.ts'
import { parseLsn } from '../../engine/lsn.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { HttpReceiver, type Received, type Reply } from '../services/http-receiver.ts'
import { parseExact } from './json.ts'
import type { Message } from './oracle.ts'
import { Service, TOKEN } from './service.ts'
import { HttpSinkClient, messageOf, Passing, type Wire } from './sink-client.ts'
import { pass, until } from '../waiting.ts'

const COMES_WITHIN_MS = 60_000
const RETRY_AFTER_MS = 50
/** so that what a client holds comes again soon */
const ACK_WAIT_MS = 1_000
const BATCH = 100

export const DDL = 'create table row (id int primary key, filler text)'
/** What of each row is written when: before the copy, between it and the fault, after the fault, and after what mends it. */
export const ROWS = { delivered: [1, 40], open: [41, 60], between: [61, 80], after: [81, 100], later: [101, 120] } as const
const REPLAYED_FROM = 30
const GIVEN_UP = 2
/** what the receiver refuses until the end */
const isRefused = (id: number): boolean => id % 10 === 3

export type Told = Readonly<{ code: string; message: string }>

/** What one sink got. */
class Receipts {
  /** rows of which a message was finished, and those of which an update came */
  readonly finished = new Set<number>()
  readonly touched = new Set<number>()
  /** rows of which a message came although its end was answered, and nobody had asked for a replay */
  readonly again = new Set<number>()
  readonly #ended = new Map<string, Readonly<{ id: number; lsn: bigint }>>()

  came(messages: readonly Message[]): void {
    for (const message of messages) if (this.#ended.has(message.idempotencyKey)) this.again.add(idOf(message))
  }

  ended(messages: readonly Message[]): void {
    for (const message of messages) {
      const id = idOf(message)
      this.#ended.set(message.idempotencyKey, { id, lsn: message.lsn })
      this.finished.add(id)
      if (message.action === 'update') this.touched.add(id)
    }
  }

  /** Messages from there on may come again. */
  replayed(from: bigint): void {
    for (const [key, { lsn }] of this.#ended) if (lsn >= from) this.#ended.delete(key)
  }

  missing(rows: Iterable<number>): number[] {
    return [...rows].filter((id) => !this.finished.has(id))
  }
}
type Sink = 'pull' | 'hooks'
const SINKS = ['pull', 'hooks'] as const
const idOf = (message: Message): number => Number(message.record['id'])

export type LifeOptions = Readonly<{
  source: Connection
  /** of the source's database, also after its server was replaced */
  connect: () => Promise<Client>
  /** none: the embedded server has the state */
  stateUrl?: string | undefined
  slot: string
  env?: Readonly<Record<string, string>>
}>

export class Life implements AsyncDisposable {
  readonly service: Service
  readonly pull = new Receipts()
  readonly hooks = new Receipts()
  readonly #options: LifeOptions
  readonly #client: HttpSinkClient
  readonly #parts: AsyncDisposableStack
  readonly #written = new Set<number>()
  readonly #lsns = new Map<number, bigint>()
  readonly #givenUp = new Set<number>()
  readonly #undelivered: Record<Sink, ReadonlySet<number>> = { pull: new Set(), hooks: new Set() }
  #refuses = true
  #told = 0

  private constructor(options: LifeOptions, service: Service, receiver: HttpReceiver, parts: AsyncDisposableStack) {
    this.#options = options
    this.service = service
    this.#client = parts.use(new HttpSinkClient({ origin: service.origin, sink: 'pull', token: TOKEN }))
    this.#parts = parts
    receiver.handler = (request) => this.#take(request)
  }

  static async prepare(options: LifeOptions): Promise<Life> {
    await using parts = new AsyncDisposableStack()
    const receiver = parts.use(await HttpReceiver.start())
    const service = parts.use(
      await Service.prepare({
        ...{ source: options.source, stateUrl: options.stateUrl ?? '', slot: options.slot },
        sinks: [
          { name: 'pull', tables: ['public.row'], partitions: 1, ack_wait_ms: ACK_WAIT_MS },
          { name: 'hooks', tables: ['public.row'], partitions: 1, destination: { type: 'webhook', http_endpoint: 'hooks' } },
        ],
        endpoints: [{ name: 'hooks', url: `${receiver.url}/in` }],
        env: { ...options.env },
      }),
    )
    return new Life(options, service, receiver, parts.move())
  }

  // ── before ──────────────────────────────────────────────────────────────────────────────────────

  /** Until rows are delivered, parked, given up, replayed and open, in both sinks. */
  async live(): Promise<void> {
    await this.service.startReady()
    await this.write('delivered')
    await this.receive(40, 'ack')
    await this.#untilTaken()
    await this.#giveUp(GIVEN_UP)
    const lsn = this.#lsns.get(REPLAYED_FROM) as bigint
    for (const sink of SINKS) {
      this[sink].replayed(lsn)
      await until(
        `a replay of ${sink}`,
        async () => (await this.service.post(`/api/sinks/${sink}/replay`, { lsn: Number(lsn) })).status === 200,
        { service: this.service },
      )
    }
    await this.receive(40 - REPLAYED_FROM + 1, 'ack')
    await this.write('open')
    await this.receive(10, 'leave')
    await this.#untilTaken()
    await this.#untilConfirmed()
  }

  /** Goes on behind the copy: more is written and confirmed, of which some is delivered. */
  async goOn(): Promise<void> {
    await this.write('between')
    await this.receive(15, 'ack')
    await this.receive(5, 'leave')
    await this.#untilTaken()
    await this.#untilConfirmed()
  }

  async write(which: keyof typeof ROWS): Promise<void> {
    const [from, to] = ROWS[which]
    const client = await this.#options.connect()
    try {
      await client.query('set default_transaction_read_only = off')
      for (let id = from; id <= to; id++) {
        await client.query('insert into row values ($1, $2)', [id, String(id).repeat(300)])
        this.#written.add(id)
      }
    } finally {
      await client.end().catch(() => undefined)
    }
  }

  /** Receives so many messages. @param then whether they are acknowledged */
  async receive(count: number, then: 'ack' | 'leave'): Promise<void> {
    for (let left = count; left > 0;) left -= await this.#receive(left, then)
  }

  /** Now it happens: what was delivered until now is noted. */
  happens(): void {
    for (const sink of SINKS) this.#undelivered[sink] = new Set(this[sink].missing(this.#written))
  }

  /** A publication and a slot of the names that the configuration has, as somebody makes them in another server or database. */
  async publish(): Promise<void> {
    await this.sql(`create publication ${this.slot}_pub for all tables`)
    await this.sql(`select pg_create_logical_replication_slot('${this.slot}', 'pgoutput')`)
  }

  /** Rows of the source as another server or database has them, written without their being streamed. */
  async rewrite(): Promise<void> {
    const client = await this.#options.connect()
    for (const id of this.#written) await client.query('insert into row values ($1, $2)', [id, String(id).repeat(300)])
    await client.end()
  }

  get slot(): string {
    return this.#options.slot
  }

  // ── the data folder ─────────────────────────────────────────────────────────────────────────────

  get copyFolder(): string {
    return join(this.service.folder, 'copy')
  }

  async copyData(): Promise<void> {
    await copyFolder(this.service.dataFolder, this.copyFolder)
  }

  /** Puts another folder in the place of the data folder, which is kept beside it. */
  async replaceData(by?: string): Promise<void> {
    await rename(this.service.dataFolder, join(this.service.folder, 'former'))
    if (by !== undefined) await copyFolder(by, this.service.dataFolder)
  }

  async restoreData(): Promise<void> {
    await rm(this.service.dataFolder, { recursive: true, force: true })
    await rename(join(this.service.folder, 'former'), this.service.dataFolder)
  }

  // ── what the service says ───────────────────────────────────────────────────────────────────────

  /** The error that the service stops at, whether it ends or only a source does. */
  async told(): Promise<Told> {
    let ended = false
    void this.service.exited().then(
      () => (ended = true),
      () => (ended = true),
    )
    let told: Told | undefined
    await until(
      'the service says what it stops at',
      async () => {
        if (!ended) told = (await this.#waiting()).some(({ state }) => state === 'failed') ? this.#lastError() : undefined
        else if (!(told = lastWords(this.service.log().slice(this.#told)))) throw this.service.failure('it ended without a word')
        return told !== undefined
      },
      { service: this.service },
    )
    this.#told = this.service.log().length
    return told as Told
  }

  /** Sees the source wait with one of these codes, and not stop. */
  async waits(...codes: readonly ErrorCode[]): Promise<void> {
    await until(
      `the source waits with ${codes.join(' or ')}`,
      async () => {
        const [waiting] = await this.#waiting()
        assert.notEqual(waiting?.state, 'failed', waiting?.code ?? '')
        return codes.includes(waiting?.code as ErrorCode)
      },
      { service: this.service },
    )
  }

  /** Sees it stop at the error of the table. @returns what the error says */
  async asks({ code }: Cell): Promise<string> {
    const told = await this.told()
    assert.equal(told.code, code, this.service.failure(told.message).message)
    return told.message
  }

  /** As the remedies say. */
  async accept(): Promise<void> {
    await this.command('source', 'accept-gap', 'source')
    await this.service.untilReady()
  }

  /** A command as the remedies name it: npx tailrace … @returns what it prints, whether it succeeds or not */
  async command(...words: readonly string[]): Promise<string> {
    const access = ['--token', TOKEN, '--url', this.service.origin]
    const child = spawn(process.execPath, [COMMAND, ...words, ...access], { stdio: ['ignore', 'pipe', 'pipe'] })
    const [printed, complained] = await Promise.all([text(child.stdout), text(child.stderr)])
    return printed + complained
  }

  /** Runs the SQL that a message has. */
  async sql(statement: string): Promise<void> {
    const client = await this.#options.connect()
    await client.query(statement).finally(() => client.end())
  }

  // ── after ───────────────────────────────────────────────────────────────────────────────────────

  /** Lets everything come that still comes. @param mayLack rows that need not come */
  async settle(mayLack: Readonly<Record<Sink, ReadonlySet<number>>> = { pull: new Set(), hooks: new Set() }): Promise<void> {
    this.#refuses = false
    const lacking = (sink: Sink) => this.#missing(sink).filter((id) => !mayLack[sink].has(id))
    await this.#until(
      () => SINKS.every((sink) => lacking(sink).length === 0),
      () => `missing ${SINKS.map((sink) => `${sink}: ${lacking(sink).join(' ')}`).join(' · ')}`,
    )
  }

  /**
   * Lets everything come, and compares what is missing and what came again with what the table says. Then rows are touched,
   * and all of them must come. @returns what was lost and what came again
   */
  async judge({ memory, lost, again }: Cell): Promise<string> {
    await this.settle({ pull: this.#mayLack('pull', memory, lost), hooks: this.#mayLack('hooks', memory, lost) })
    const missing = SINKS.map((sink) => this.#missing(sink).length)
    await this.touch()
    const repeated = [...this.pull.again].filter((id) => !this.#mayRepeat(id, again))
    assert.deepEqual(repeated, [], `acknowledged, and came again (${AGAIN[again]})`)
    return `missing before the touch: ${missing.join(' and ')} (${LOST[lost]}); came again: ${this.pull.again.size} (${AGAIN[again]})`
  }

  /** As the remedies say: an update that changes nothing brings every row that there is. */
  async touch(): Promise<void> {
    const client = await this.#options.connect()
    const { rows } = await client.query<{ id: number }>('update row set id = id returning id')
    await client.end()
    const untouched = () => rows.filter(({ id }) => SINKS.some((sink) => !this[sink].touched.has(id))).map(({ id }) => id)
    await this.#until(
      () => untouched().length === 0,
      () => `touched, and not delivered: ${untouched().join(' ')}`,
    )
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts.disposeAsync()
  }

  // ── inside ──────────────────────────────────────────────────────────────────────────────────────

  async #waiting(): Promise<readonly { state: string; code: string | null }[]> {
    const { body } = await this.service.get('/health/ready').catch(() => ({ body: {} })) // it is starting
    return (body as { waiting?: { state: string; code: string | null }[] }).waiting ?? []
  }

  /** As it stands in the log: the health of a process names no server to strangers. */
  #lastError(): Told | undefined {
    const lines = this.service.log().slice(this.#told).trimEnd().split('\n')
    return lines
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as Told & { level: string })
      .findLast(({ level, code }) => level === 'error' && code !== undefined)
  }

  #missing(sink: Sink): number[] {
    return this[sink].missing(this.#written).filter((id) => sink === 'pull' || !this.#givenUp.has(id))
  }

  /** Rows that may be missing from a sink. */
  #mayLack(sink: Sink, memory: Cell['memory'], lost: Lost): ReadonlySet<number> {
    const undelivered = this.#undelivered[sink]
    const within = (which: keyof typeof ROWS, id: number) => id >= ROWS[which][0] && id <= ROWS[which][1]
    const parked = (id: number) => memory === 'log' && sink === 'hooks' && isRefused(id) // it is in the state database
    switch (lost) {
      case 'nothing':
        return new Set()
      case 'undelivered':
        return new Set([...undelivered].filter((id) => !parked(id)))
      case 'open':
        return undelivered
      case 'sinceCopy':
        return new Set([...undelivered].filter((id) => within('between', id) && !parked(id)))
      case 'parkedSinceCopy':
        return new Set([...undelivered].filter((id) => within('between', id) && sink === 'hooks' && isRefused(id)))
      case 'withoutSlot':
        return new Set([...this.#written].filter((id) => within('after', id)))
    }
  }

  #mayRepeat(id: number, again: Again): boolean {
    if (again === 'none') return false
    return id >= ROWS.open[0] && id <= ROWS.between[1]
  }

  async #until(condition: () => boolean, lacking: () => string): Promise<void> {
    const look = async () => {
      if (condition()) return true
      await this.service.post('/api/sinks/hooks/messages/redeliver', { state: 'failing' }).catch(() => undefined)
      await this.#receive(BATCH, 'ack', 100)
      return false
    }
    await until(() => `everything that comes; ${lacking()}`, look, { service: this.service })
  }

  /** @returns how many came, and were acknowledged if they were to be; none while the service is away or moves the sink */
  async #receive(count: number, then: 'ack' | 'leave', waitMs = COMES_WITHIN_MS): Promise<number> {
    try {
      const messages = await this.#client.receive({ batchSize: Math.min(count, BATCH), waitMs })
      for (const message of messages) this.#lsns.set(idOf(message), message.lsn)
      this.pull.came(messages)
      if (then === 'leave' || messages.length === 0) return messages.length
      await this.#client.ack(messages.map(({ ackId }) => ackId))
      this.pull.ended(messages)
      return messages.length
    } catch (error) {
      if (!(error instanceof Passing)) throw error
      await pass(RETRY_AFTER_MS, 'it tries again, as a client does')
      return 0 // what came without an answer to its ack comes again
    }
  }

  #take({ body }: Received): Reply {
    const { data } = parseExact(body.toString()) as { data: Wire[] }
    const messages = data.map((wire) => messageOf(wire))
    if (this.#refuses && messages.some((message) => isRefused(idOf(message)))) return { status: 500 }
    this.hooks.ended(messages)
    return {}
  }

  /** Everything written was sent, and what was refused is parked. */
  async #untilTaken(): Promise<void> {
    const due = [...this.#written].filter((id) => !isRefused(id))
    const refused = [...this.#written].filter((id) => isRefused(id) && !this.#givenUp.has(id)).length
    await until('everything was sent', async () => this.hooks.missing(due).length === 0 && (await this.#failing()).length >= refused, {
      service: this.service,
    })
  }

  async #failing(): Promise<readonly Readonly<{ id: string; record_pks: readonly string[] }>[]> {
    const { body } = await this.service.get('/api/sinks/hooks/messages?state=failing&limit=100')
    return (body as { data: { id: string; record_pks: string[] }[] }).data
  }

  /** Asks again while the partition moves, as the answer says: a process that a busy machine leaves without a turn loses it for a while. */
  async #giveUp(count: number): Promise<void> {
    const some = (await this.#failing()).slice(0, count)
    const ids = some.map(({ id }) => id)
    const isDone = async () => {
      const { status, body } = await this.service.post('/api/sinks/hooks/messages/discard', { ids })
      if (status === 503) assert.equal((body as Told).code, 'PARTITION_MOVING')
      else assert.equal(status, 200, JSON.stringify(body))
      return status === 200
    }
    await until(`${count} messages are given up`, isDone, { service: this.service })
    for (const { record_pks: keys } of some) this.#givenUp.add(Number(keys[0]))
    assert.equal(this.#givenUp.size, count)
  }

  /** Postgres may forget everything written so far. */
  async #untilConfirmed(): Promise<void> {
    const client = await this.#options.connect()
    try {
      const ask = (sql: string) => client.query<{ lsn: string | null }>(sql)
      const end = parseLsn((await ask('select pg_current_wal_lsn()::text as lsn')).rows[0]?.lsn ?? '')
      await until(
        'everything is confirmed',
        async () => {
          await client.query(`select pg_logical_emit_message(true, 'test', '')`)
          const { rows } = await ask(
            `select confirmed_flush_lsn::text as lsn from pg_replication_slots where slot_name = '${this.#options.slot}'`,
          )
          return parseLsn(rows[0]?.lsn ?? '0/0') >= end
        },
        { service: this.service },
      )
    } finally {
      await client.end().catch(() => undefined)
    }
  }
}

let slots = 0
/** Slots are unique in a server, which tests share. */
export const nextSlot = (): string => `recovery_${process.pid}_${++slots}`

export async function session({ hostname: host, port, username: user, password, database }: Connection): Promise<Client> {
  const client = new Client({ host, port, user, password, database })
  client.on('error', () => undefined) // its server is stopped
  await client.connect()
  return client
}

/** With its owners: the embedded PostgreSQL may run as another user. */
export async function copyFolder(from: string, to: string): Promise<void> {
  await promisify(execFile)('cp', ['-a', from, to])
}

/** What a process that ended has said last: a line for people, or one of its log. */
function lastWords(log: string): Told | undefined {
  const [, code, message] = /^([A-Z]+(?:_[A-Z]+)+):\s*([^]*)$/m.exec(log) ?? []
  if (code !== undefined) return { code, message: message ?? '' }
  const fatal = log.split('\n').findLast((line) => line.includes('"level":"fatal"'))
  const { err } = fatal === undefined ? {} : (JSON.parse(fatal) as { err?: Told })
  return err && { code: err.code, message: err.message }
}
