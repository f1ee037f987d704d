/** Nodes of a cluster in one process: each a served API over a scripted engine of its own, with real HTTP between them and
 *  a real state database that has their registry and the terms of their partitions. */
import { createLogger } from '../../engine/logger.ts'
import { sinkTag } from '../../engine/dispatch/ack-id.ts'
import { NodeRegistry } from '../../engine/state/node-registry.ts'
import { StateFeed } from '../../engine/state/state-feed.ts'
import { openStore, type Store } from '../../engine/state/store.ts'
import { openCluster } from '../../api/cluster.ts'
import type { LocalEngine } from '../../api/engine-port.ts'
import { startApi, type ApiServer } from '../../api/server.ts'
import type { Sink } from '../../engine/state/resources.ts'
import { createDatabase, type TestDatabase } from '../services/postgres.ts'
import { GOODS_ID, message, ScriptedEngine, TOKEN, type Scripted, type ScriptedSink } from './scripted-engine.ts'

export const VAULT_KEY = Buffer.alloc(32, 7)

/** An engine that counts how often it was told to read anew. */
export class ClusteredEngine extends ScriptedEngine implements LocalEngine {
  reloads = 0
  async reload(): Promise<void> {
    this.reloads++
  }
}

export type ClusterNode = Readonly<{
  registry: NodeRegistry
  engine: ClusteredEngine
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
    const db = parts.use(await createDatabase())
    const store = parts.use(await openStore(db.connection, 6, () => undefined))
    return new ClusterFixture(db, store, parts.move())
  }

  /** @param partitions of the sink "goods" that it owns */
  async node(
    partitions: readonly number[],
    options: { vaultKey?: Buffer; runs?: boolean; fields?: Partial<Sink>; address?: string } = {},
  ): Promise<ClusterNode> {
    const { vaultKey = VAULT_KEY, runs = true, fields = {} } = options
    const log: string[] = []
    const logger = createLogger({ level: 'info', format: 'json', destination: { write: (line) => void log.push(line) } })
    const engine = new ClusteredEngine()
    const goods = engine.add({ id: GOODS_ID, name: 'goods', partitions: 8, ...fields }, { runs })
    const registry = new NodeRegistry({ query: this.store.query, name: `node-${partitions.join('') || 'x'}`, onError: () => undefined })
    const feed = new StateFeed(this.db.connection, () => undefined)
    const heard = new Promise<void>((resolve) => feed.watch(() => resolve()))
    feed.start()
    const findSink = (id: string) => engine.sinks.get(id)
    const cluster = openCluster({ engine, findSink, registry, feed, query: this.store.query, vaultKey, logger })
    const api = await startApi({
      host: '127.0.0.1',
      port: 0,
      engine: cluster.engine,
      cluster: cluster.served,
      resources: engine,
      logger,
      identity: { version: '9.9.9', nodeId: registry.id, nodeName: registry.name },
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
      const answer = await fetch(`${api.url}${path}`, {
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
    return { registry, engine, goods, api, log, call, receive, kill }
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

  [Symbol.asyncDispose](): Promise<void> {
    return this.#parts.disposeAsync()
  }
}

/** A message of a partition, with the ack id it has. */
export const inPartition = (partition: number, offset: number): Scripted =>
  message(`${sinkTag(GOODS_ID)}.1.${partition.toString(36)}.${offset.toString(36)}.0`)
