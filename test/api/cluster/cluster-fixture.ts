/** Nodes of a cluster in one process: each a served API over a scripted engine of its own, with real HTTP between them and
 *  a real state database that has their registry and the terms of their partitions. */
import { createLogger } from '../../../engine/logger.ts'
import { HANDED_OVER } from '../../../engine/dispatch/generations.ts'
import { sinkTag } from '../../../engine/dispatch/ack-id.ts'
import { NodeRegistry } from '../../../engine/state/node-registry.ts'
import { StateFeed } from '../../../engine/state/state-feed.ts'
import { openStore, type Store } from '../../../engine/state/store.ts'
import { openCluster } from '../../../api/cluster/cluster.ts'
import type { EngineVerbs, LocalEngine } from '../../../actors/engine.ts'
import type { Holder, Replayed } from '../../../actors/sink/replays.ts'
import type { HeldSink } from '../../../actors/sink/running-sink.ts'
import type { ReplayTarget } from '../../../engine/dispatch/replay/replay-plan.ts'
import type { Authority } from '../../../api/cluster/peer-client.ts'
import type { Certificate } from '../../../api/http/certificate.ts'
import { startApi, type ApiServer } from '../../../api/server.ts'
import type { Limits } from '../../../api/limits.ts'
import type { Sink } from '../../../engine/state/resources.ts'
import { createState, type TestDatabase } from '../../services/postgres.ts'
import { GOODS_ID, message, ScriptedEngine, SHOP, TOKEN, type Scripted, type ScriptedSink } from '../scripted-engine.ts'
import { checkedFetch } from '../checked-fetch.ts'

const DATABASE_ID = '33333333-3333-4333-8333-333333333333'
export const VAULT_KEY = Buffer.alloc(32, 7)

/** An engine that counts how often it was told to read anew. */
export class ClusteredEngine extends ScriptedEngine implements LocalEngine {
  reloads = 0
  override async reload(): Promise<void> {
    this.reloads++
  }
  /** how often it was told to read the API tokens anew */
  tokenLoads = 0
  async loadTokens(): Promise<void> {
    this.tokenLoads++
  }
  /** what it was told for replays, in order */
  readonly held: string[] = []
  #peers: (sinkId: string) => readonly Holder[] = () => []
  among(peers: (sinkId: string) => readonly Holder[]): void {
    this.#peers = peers
  }
  override async replay(sinkId: string, target: ReplayTarget): Promise<Replayed> {
    const others = this.#peers(sinkId)
    const held = await Promise.all(others.map(({ hold }) => hold('a-replay')))
    try {
      this.held.push(`stopped ${held.map(({ partitions }) => partitions.map(({ partition }) => partition).join()).join()}`)
      return await super.replay(sinkId, target)
    } finally {
      await Promise.all(others.map(({ release }) => release('a-replay')))
    }
  }
  async holdSink(sinkId: string, by: string): Promise<HeldSink> {
    this.held.push(`hold ${sinkId} by ${by}`)
    return { generation: 1, partitions: [{ partition: 3, term: 1 }] }
  }
  async releaseSink(sinkId: string, by: string): Promise<void> {
    this.held.push(`release ${sinkId} by ${by}`)
  }
  /** of which sinks it was told that owners have changed; undefined: of all */
  readonly toldOwners: (string | undefined)[] = []
  ownersChanged(sinkId?: string): void {
    this.toldOwners.push(sinkId)
  }
}

export type ClusterNode = Readonly<{
  registry: NodeRegistry
  engine: ClusteredEngine
  /** of all nodes, as this one asks them */
  whole: EngineVerbs
  loadTokens: () => Promise<void>
  goods: ScriptedSink
  api: ApiServer
  log: string[]
  call: (path: string, options?: { body?: unknown; signal?: AbortSignal; method?: string }) => Promise<{ status: number; body: unknown }>
  receive: (parameters?: object, signal?: AbortSignal) => Promise<string[]>
  /** no goodbye: the server just ends */
  kill: () => Promise<void>
}>

export class ClusterFixture implements AsyncDisposable {
  readonly db: TestDatabase
  readonly store: Store
  readonly #parts: AsyncDisposableStack

  private constructor(db: TestDatabase, store: Store, parts: AsyncDisposableStack) {
    this.db = db
    this.store = store
    this.#parts = parts
  }

  static async create(): Promise<ClusterFixture> {
    await using parts = new AsyncDisposableStack()
    const db = parts.use(await createState())
    const store = parts.use(await openStore(db.connection, 6, () => undefined))
    return new ClusterFixture(db, store, parts.move())
  }

  /** @param partitions of the sink "goods" that it owns */
  async node(
    partitions: readonly number[],
    options: {
      vaultKey?: Buffer
      runs?: boolean
      fields?: Partial<Sink>
      address?: string
      limits?: Partial<Limits>
      certificate?: Certificate
      authority?: Authority
    } = {},
  ): Promise<ClusterNode> {
    const { vaultKey = VAULT_KEY, runs = true, fields = {}, limits = {}, certificate, authority } = options
    const log: string[] = []
    const logger = createLogger({ level: 'info', format: 'json', destination: { write: (line) => void log.push(line) } })
    const engine = new ClusteredEngine()
    const goods = engine.add({ id: GOODS_ID, name: 'goods', partitions: 8, ...fields }, { runs })
    const registry = new NodeRegistry({ query: this.store.query, name: `node-${partitions.join('') || 'x'}`, onError: () => undefined })
    const feed = new StateFeed(this.db.connection, () => undefined)
    const heard = new Promise<void>((resolve) => feed.watch(() => resolve()))
    feed.start()
    const findSink = (id: string) => engine.sinks.get(id)
    const cluster = openCluster({ engine, findSink, registry, feed, query: this.store.query, vaultKey, logger, authority })
    engine.edited = () => cluster.engine.reload()
    const api = await startApi({
      host: '127.0.0.1',
      port: 0,
      engine: cluster.engine,
      cluster: cluster.served,
      resources: engine,
      tokens: engine.tokens,
      edits: engine.resourceEdits,
      logger,
      identity: { version: '9.9.9', nodeId: registry.id, nodeName: registry.name },
      limits,
      ...(certificate && { certificate }),
    })
    await registry.join({ address: options.address ?? api.url, version: '9.9.9' })
    await heard
    for (const partition of partitions) await this.own(registry.id, partition)
    const kill = async () => {
      await api.stop(0)
    }
    this.#parts.defer(async () => {
      await registry.leave()
      await kill()
      await cluster[Symbol.asyncDispose]()
      await feed[Symbol.asyncDispose]()
    })
    const call: ClusterNode['call'] = async (path, { body, signal, method } = {}) => {
      const answer = await checkedFetch(`${api.url}${path}`, {
        method: method ?? (body === undefined ? 'GET' : 'POST'),
        headers: { authorization: `Bearer ${TOKEN}` },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        ...(signal && { signal }),
      })
      const text = await answer.text()
      return { status: answer.status, body: text === '' ? undefined : (JSON.parse(text) as unknown) }
    }
    const receive: ClusterNode['receive'] = async (parameters = {}, signal) => {
      const { status, body } = await call('/api/http_pull_consumers/goods/receive', { body: parameters, ...(signal && { signal }) })
      if (status !== 200) throw Object.assign(new Error(JSON.stringify(body)), { status, code: (body as { code: string }).code })
      return (body as { data: { ack_id: string }[] }).data.map(({ ack_id }) => ack_id)
    }
    return { registry, engine, whole: cluster.engine, loadTokens: cluster.loadTokens, goods, api, log, call, receive, kill }
  }

  /** Every node knows every other one. */
  async met(...nodes: readonly ClusterNode[]): Promise<void> {
    for (const { registry } of nodes) await registry.look()
  }

  /** Takes a partition over, as its owner does. */
  async own(nodeId: string, partition: number): Promise<void> {
    await this.store.query(
      `insert into tailrace.term as t (kind, key, term, holder) values ('partition', $1, 1, $2)
       on conflict (kind, key) do update set term = t.term + 1, holder = excluded.holder`,
      [`${GOODS_ID}.1/${partition}`, nodeId],
    )
  }

  /** A partition of generation 1 has ended; what was parked of it is of partitions of generation 2 now. */
  async handOver(
    partition: number,
    parked: readonly Readonly<{ offset: number; to: readonly [generation: number, partition: number]; owner: string }>[],
  ): Promise<void> {
    const account = `insert into tailrace.account (id, name) values ('${SHOP.id}', 'shop') on conflict do nothing`
    const database = `insert into tailrace.source_database (id, account_id, name, connection, password, slot_name, publication_name)
      values ('${DATABASE_ID}', '${SHOP.id}', 'shop', '{}', '', 's', 'p') on conflict do nothing`
    const sink = `insert into tailrace.sink (id, account_id, database_id, name, status, settings, destination)
      values ('${GOODS_ID}', '${SHOP.id}', '${DATABASE_ID}', 'goods', 'active', '{}', '{}') on conflict do nothing`
    for (const sql of [account, database, sink]) await this.store.query(sql)
    for (const { offset, to, owner } of parked) {
      await this.store.query(`insert into tailrace.term (kind, key, term, holder) values ('partition', $1, 1, $2)`, [
        `${GOODS_ID}.${to[0]}/${to[1]}`,
        owner,
      ])
      await this.store.query(
        `insert into tailrace.parked (sink_id, history, lsn, idx, part, generation, partition, record_offset, record_index, group_hash, record_key, group_key,
           body, action, flags, relation, commit_time, state, owner_generation, owner_partition)
         values ($1, 0, '0/1', $2::int, 1, 1, $3, $2::int, 0, 0, '', '', '', 1, 0, 0, now(), 'open', $4, $5)`,
        [GOODS_ID, offset, partition, ...to],
      )
    }
    await this.own(HANDED_OVER, partition)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#parts.disposeAsync()
  }
}

/** A message of a partition, with the ack id it has. */
export const inPartition = (partition: number, offset: number): Scripted =>
  message(`${sinkTag(GOODS_ID)}.1.${partition.toString(36)}.${offset.toString(36)}.0`)
