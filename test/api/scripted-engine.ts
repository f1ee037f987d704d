/** A small engine for the HTTP layer to ask: pull sinks over a list in memory, with waiting, visibility by hand, and
 *  switches for what a real one does rarely (refuse an ack, throw, be absent). */
import { hash, randomUUID } from 'node:crypto'
import type { MessageEdit, MessagePage, MessageRecord } from '../../engine/dispatch/parked/message-records.ts'
import { EngineError } from '../../engine/errors.ts'
import type { HttpEndpoint } from '../../engine/state/destinations.ts'
import { listOf, type EndpointInput, type ResourceType, type SinkInput, type StoredOf } from '../../engine/state/resource-store.ts'
import type { ResourcePorts } from '../../api/http/resource-routes.ts'
import type { Account, Database, Sink } from '../../engine/state/resources.ts'
import type { EngineVerbs } from '../../actors/engine.ts'
import type { Readiness } from '../../actors/readiness.ts'
import type { RecentMessage } from '../../actors/recent-messages.ts'
import type { Verified } from '../../actors/sink/sink-verification.ts'
import type { TailAsked, TailPage } from '../../actors/sink/sink-tail.ts'
import type { MessageLook, ShownMessage } from '../../actors/shown-message.ts'
import type { Replayed } from '../../actors/sink/replays.ts'
import type { EditedMessages, EditOfMessages, MessageChoice, PulledSink, Receipt, ReceiveRequest } from '../../actors/sink/running-sink.ts'
import type { SourceOutcome } from '../../actors/source/source-actor.ts'
import type { ActorStatus, DatabaseSight, Health, StreamStatus } from '../../engine/status.ts'
import type { ReplayTarget } from '../../engine/dispatch/replay/replay-plan.ts'
import type { ResourceLookup } from '../../engine/state/resource-cache.ts'
import type { TokenLookup } from '../../engine/state/token-memory.ts'
import type { Rights } from '../../engine/state/tokens.ts'
import { SINK as PLAIN_SINK } from '../actors/plain-sink.ts'

type SinkChanges = Partial<SinkInput>

export const TOKEN = 'token-of-shop'
export const OTHER_TOKEN = 'token-of-another'
export const SHOP: Account = { id: '11111111-1111-4111-8111-111111111111', name: 'shop' }
export const OTHER: Account = { id: '22222222-2222-4222-8222-222222222222', name: 'other' }
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i

export type Scripted = { id: string; data: string }

export class ScriptedSink implements PulledSink {
  readonly ready: Scripted[] = []
  readonly inFlight = new Map<string, Scripted>()
  readonly acked: string[] = []
  readonly nacked: string[] = []
  readonly requests: ReceiveRequest[] = []
  givenBack = 0
  maxWaiting = 20
  fail: Error | undefined
  /** called after each change of what waits; tests wait on it */
  onWaiting: () => void = () => {}
  #waiters = new Set<() => void>()

  get waiting(): number {
    return this.#waiters.size
  }

  push(...messages: Scripted[]): void {
    this.ready.push(...messages)
    this.#wake()
  }

  async receive(request: ReceiveRequest): Promise<Receipt> {
    this.requests.push(request)
    if (this.fail) throw this.fail
    if (this.ready.length === 0 && request.waitMs > 0) await this.#wait(request)
    if (request.signal.aborted) throw request.signal.reason
    const taken = this.ready.splice(0, request.batchSize)
    for (const message of taken) this.inFlight.set(message.id, message)
    const items = taken.map(({ id, data }) =>
      request.shape === 'flat' ? `{"ack_id":"${id}",${data.slice(1)}` : `{"ack_id":"${id}","data":${data}}`,
    )
    const body = Buffer.from(`{"data":[${items.join(',')}]}`)
    return {
      body,
      count: taken.length,
      giveBack: () => {
        this.givenBack += taken.length
        for (const { id } of taken) this.inFlight.delete(id)
        this.push(...taken)
      },
      written: () => void body.fill(0), // used again at once, as memory of answers is
    }
  }

  async ack(ids: readonly string[]): Promise<void> {
    if (this.fail) throw this.fail
    for (const id of ids) if (this.inFlight.delete(id)) this.acked.push(id)
  }

  async nack(ids: readonly string[]): Promise<void> {
    if (this.fail) throw this.fail
    for (const id of ids) {
      const message = this.inFlight.get(id)
      if (!message) continue
      this.inFlight.delete(id)
      this.nacked.push(id)
      this.push(message)
    }
  }

  status: Health['status'] = 'healthy'

  health(): Health {
    const error = this.status === 'error' ? { error: { code: 'LOG_UNREACHABLE', message: 'no broker' } } : {}
    return { name: 'Consumer health', status: this.status, checks: [{ name: 'Sink configuration', status: this.status, ...error }] }
  }

  #wake(): void {
    for (const wake of this.#waiters) wake()
  }

  #wait({ waitMs, signal }: ReceiveRequest): Promise<void> {
    if (this.#waiters.size >= this.maxWaiting)
      throw new EngineError('TOO_MANY_WAITING', `the sink already holds ${this.maxWaiting} receives`)
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer)
        signal.removeEventListener('abort', end)
        this.#waiters.delete(end)
        this.onWaiting()
        resolve()
      }
      const timer = setTimeout(end, waitMs)
      signal.addEventListener('abort', end)
      this.#waiters.add(end)
      this.onWaiting()
    })
  }
}

export class ScriptedEngine implements EngineVerbs, ResourceLookup {
  readonly running = new Map<string, ScriptedSink>()
  readonly sinks = new Map<string, Sink>()
  readonly updates: { sinkId: string; changes: SinkChanges }[] = []
  readonly endpoints = new Map<string, HttpEndpoint>()
  /** what a test of the connection says, by id of the sink or endpoint */
  readonly troubles = new Map<string, string>()
  databases: readonly Database[] = []
  /** what sources have stopped at, by id of their database */
  readonly gaps = new Map<string, string>()
  statuses: ActorStatus[] = []
  streamStatuses: StreamStatus[] = []
  /** databases whose source was told to try again, and how it is then */
  readonly retried: string[] = []
  outcome: SourceOutcome = { state: 'streaming' }
  readiness: Readiness = { ready: true, waiting: [], disabled: 0 }

  /** Adds a sink; it runs unless it is told otherwise. */
  add(fields: Partial<Sink> & { id: string; name: string }, { runs = true } = {}): ScriptedSink {
    this.sinks.set(fields.id, { ...SINK, ...fields })
    const sink = new ScriptedSink()
    if (runs) this.running.set(fields.id, sink)
    return sink
  }

  sink(id: string): PulledSink | undefined {
    return this.running.get(id)
  }
  actors(): readonly ActorStatus[] {
    return this.statuses
  }
  streams(): readonly StreamStatus[] {
    return this.streamStatuses
  }
  ready(): Readiness {
    return this.readiness
  }
  async updateSink(sinkId: string, changes: SinkChanges): Promise<Sink> {
    this.updates.push({ sinkId, changes })
    const before = this.sinks.get(sinkId) as Sink
    const sink: Sink = { ...before, ...changes, partitions: changes.partitions ?? before.partitions }
    this.sinks.set(sinkId, sink)
    return sink
  }

  async reload(): Promise<void> {}

  async sinkHealth(ids: readonly string[]): Promise<Readonly<Record<string, Health>>> {
    return Object.fromEntries(
      ids.flatMap((id) => {
        const running = this.running.get(id)
        return running ? [[id, running.health()]] : []
      }),
    )
  }

  async databaseSights(): Promise<Readonly<Record<string, DatabaseSight>>> {
    return {}
  }

  async lookAtDatabase(): Promise<void> {}

  async waitingBackfills(): Promise<Readonly<Record<string, string>>> {
    return {}
  }

  async createSink(account: Account, input: SinkInput): Promise<Sink> {
    const { id: databaseId = '' } = this.find('database', account.id, input.database) ?? {}
    const { partitions = SINK.partitions } = input
    const sink: Sink = { ...SINK, ...input, partitions, id: randomUUID(), accountId: account.id, databaseId }
    this.sinks.set(sink.id, sink)
    return sink
  }
  async deleteSink(sinkId: string): Promise<void> {
    this.sinks.delete(sinkId)
    this.running.delete(sinkId)
  }
  /** by sink id */
  readonly records = new Map<string, readonly MessageRecord[]>()
  readonly edits: [sinkId: string, edit: MessageEdit, choice: MessageChoice][] = []
  async messages(sinkId: string): Promise<MessagePage> {
    return { messages: this.records.get(sinkId) ?? [] }
  }
  /** what `tail` gives, and what it was asked */
  tailed: TailPage = { messages: [], skipped: 0, dropped: 0, trimmed: 0, next: 'W10' }
  readonly tails: TailAsked[] = []
  async tail(_sinkId: string, asked: TailAsked): Promise<TailPage> {
    this.tails.push(asked)
    return this.tailed
  }
  async verify(): Promise<Verified> {
    const none = { compared: 0, dropped: 0, failed: 0, changing: 0, unknown: 0, differences: [], rows: null, documents: null }
    return { ...none, next: null, settled: true, limits: null }
  }
  /** what `recent` gives, whatever it is asked for */
  recents: readonly RecentMessage[] = []
  async recent(): Promise<readonly RecentMessage[]> {
    return this.recents
  }
  readonly deliveries = new Map<string, readonly MessageRecord[]>()
  async delivered(sinkId: string, { limit }: Readonly<{ limit: number }>): Promise<readonly MessageRecord[]> {
    return (this.deliveries.get(sinkId) ?? []).slice(0, limit)
  }
  async message(sinkId: string, { id, withFunctions }: MessageLook): Promise<ShownMessage | undefined> {
    const record = [...(this.records.get(sinkId) ?? []), ...(this.deliveries.get(sinkId) ?? [])].find((one) => one.id === id)
    const functions = withFunctions ? '{"dropped":false,"output":98765432109876543210,"logs":[]}' : null
    return record && { record, message: '{"record":{"id":12345678901234567890}}', functions }
  }
  async editMessages(sinkId: string, { edit, choice }: EditOfMessages): Promise<EditedMessages> {
    this.edits.push([sinkId, edit, choice])
    const known = typeof choice === 'string' ? [] : (this.records.get(sinkId) ?? []).filter(({ id }) => choice.includes(id))
    return { known: known.length, served: known.length, edited: known.length }
  }
  async testSink(sink: Sink): Promise<string | undefined> {
    return this.troubles.get(sink.id)
  }
  async createEndpoint(account: Account, input: EndpointInput): Promise<HttpEndpoint> {
    const endpoint = { ...input, id: randomUUID(), accountId: account.id }
    this.endpoints.set(endpoint.id, endpoint)
    return endpoint
  }
  async updateEndpoint(id: string, changes: Partial<EndpointInput>): Promise<HttpEndpoint> {
    const after = { ...(this.endpoints.get(id) as HttpEndpoint), ...changes }
    this.endpoints.set(id, after)
    return after
  }
  async deleteEndpoint(id: string): Promise<void> {
    const { name } = this.endpoints.get(id) as HttpEndpoint
    const users = [...this.sinks.values()].filter(({ destination }) => destination.type === 'webhook' && destination.http_endpoint === name)
    if (users.length > 0) throw new EngineError('RESOURCE_IN_USE', `the HTTP endpoint "${name}" is in use`)
    this.endpoints.delete(id)
  }
  async testEndpoint({ id }: HttpEndpoint): Promise<string | undefined> {
    return this.troubles.get(id)
  }

  /** what has to happen before an edit is answered */
  edited: () => Promise<void> = async () => {}
  readonly resourceEdits: ResourcePorts['edits'] = {
    create: (type, account, input) =>
      this.#answered(type === 'sink' ? this.createSink(account, input as SinkInput) : this.createEndpoint(account, input as EndpointInput)),
    update: (type, id, changes) =>
      this.#answered(
        type === 'sink' ? this.updateSink(id, changes as SinkChanges) : this.updateEndpoint(id, changes as Partial<EndpointInput>),
      ),
    delete: (type, id) => this.#answered(type === 'sink' ? this.deleteSink(id) : this.deleteEndpoint(id)),
  }
  async #answered(edit: Promise<unknown>): Promise<never> {
    const result = await edit
    await this.edited()
    return result as never // what it is depends on the type of the resource
  }

  /** A UUID-shaped text is an id, anything else a name. */
  find<T extends ResourceType>(type: T, accountId: string, idOrName: string): StoredOf<T> | undefined {
    return this.list(type, accountId).find((one) => (UUID.test(idOrName) ? one.id === idOrName.toLowerCase() : one.name === idOrName))
  }
  list<T extends ResourceType>(type: T, accountId: string): readonly StoredOf<T>[] {
    const lists = { databases: this.databases, sinks: [...this.sinks.values()], endpoints: [...this.endpoints.values()], functions: [] }
    return listOf(lists, type).filter((one) => one.accountId === accountId)
  }
  /** what the tokens of the accounts may do */
  rights: Rights = { scopes: ['admin'], sinks: [] }
  readonly tokens: TokenLookup = {
    find: (tokenHash) => {
      const account = tokenHash === hash('sha256', TOKEN) ? SHOP : tokenHash === hash('sha256', OTHER_TOKEN) ? OTHER : undefined
      return account && { id: account.id, name: 'main', account, expiresAt: undefined, ...this.rights }
    },
  }
  async retrySource(databaseId: string): Promise<SourceOutcome> {
    this.retried.push(databaseId)
    return this.outcome
  }
  readonly replays: { sinkId: string; target: ReplayTarget }[] = []
  /** what the next replay is answered, or fails with */
  replayed: Replayed | EngineError = { partitions: 1, messages: 0, from: undefined }
  async replay(sinkId: string, target: ReplayTarget): Promise<Replayed> {
    this.replays.push({ sinkId, target })
    if (this.replayed instanceof EngineError) throw this.replayed
    return this.replayed
  }
  async acceptGap(databaseId: string): Promise<{ accepted: string }> {
    const stoppedAt = this.gaps.get(databaseId)
    if (stoppedAt === undefined) throw new EngineError('NO_GAP', 'the source has not stopped because changes are missing')
    this.gaps.delete(databaseId)
    return { accepted: stoppedAt }
  }
}

export const DATABASE: Database = {
  id: '55555555-5555-4555-8555-555555555555',
  accountId: SHOP.id,
  name: 'shop.main',
  connection: { hostname: 'h', port: 1, database: 'd', username: 'u', password: 'p', ssl: false },
  poolSize: 1,
  annotations: {},
  slot: { id: '66666666-6666-4666-8666-666666666666', name: 's', publication: 'p', status: 'active' },
}

const SINK: Sink = {
  ...PLAIN_SINK,
  ...{ id: '', name: '', accountId: SHOP.id, databaseId: '33333333-3333-4333-8333-333333333333' },
  ...{ source: { include_tables: ['goods'] }, tables: [{ name: 'goods', group_column_names: ['id'] }], replay_window: '1h' },
}

export const GOODS_ID = '44444444-4444-4444-8444-44444444abcd'
export const message = (id: string, title = 'Lamp'): Scripted => ({
  id,
  data: JSON.stringify({ record: { id: 7, title }, changes: null, action: 'insert', metadata: { table_name: 'goods', commit_idx: 0 } }),
})

/** A message that waits to be tried again. */
export const RECORD: MessageRecord = {
  ...{ id: 'abc.1.0.5.2', state: 'backing off', table: 'public.goods', action: 'update', record_pks: ['7'] },
  ...{ commit_lsn: '26741272', commit_idx: 0, commit_timestamp: '2025-02-03T04:05:06.000Z', deliver_count: 2 },
  ...{ last_delivered_at: '2025-02-03T04:05:08.000Z', not_visible_until: '2025-02-03T04:05:10.000Z', error: 'status 500: no' },
  attempts: [{ at: '2025-02-03T04:05:08.000Z', counts: true, code: 'DESTINATION_REJECTED', status: 500, message: 'status 500: no' }],
}
