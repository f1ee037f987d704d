/** The engine as one of several processes on one state database and one log: with its registry, its notices and its
 *  watch of what is stored. */
import type { BackfillLimits } from '../../engine/backfill/backfill-limits.ts'
import { Engine } from '../../actors/engine.ts'
import { watchConfig } from '../../actors/config-watch.ts'
import type { Health } from '../../engine/status.ts'
import { BackfillEdits } from '../../actors/resources/backfill-edits.ts'
import { ResourceEdits } from '../../actors/resources/resource-edits.ts'
import { applyConfig } from '../../actors/config/config-apply.ts'
import { parseConfig } from '../../actors/config/config-document.ts'
import { createLogger } from '../../engine/logger.ts'
import { Metrics } from '../../engine/metrics.ts'
import { NodeRegistry } from '../../engine/state/node-registry.ts'
import { Egress } from '../../engine/net/egress.ts'
import { ResourceCache } from '../../engine/state/resource-cache.ts'
import { ResourceStore } from '../../engine/state/resource-store.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { Vault } from '../../engine/state/secrets.ts'
import { Telemetry } from '../../engine/telemetry/otlp.ts'
import type { TelemetrySettings } from '../../engine/telemetry/settings.ts'
import { TokenMemory } from '../../engine/state/token-memory.ts'
import { StateFeed } from '../../engine/state/state-feed.ts'
import { openStore, type Store } from '../../engine/state/store.ts'
import type { Log } from '../../engine/log/log.ts'
import { WatchedLog } from '../engine/wal/source-fixture.ts'
import { sharedLog } from './shared-log.ts'
import { FunctionPool } from '../../transforms/sandbox/pool.ts'
import { STORED_DESTINATIONS } from '../../sinks/destination-types.ts'
import type { TestDatabase } from '../services/postgres.ts'
import { until } from '../waiting.ts'

const KEY = Buffer.alloc(32, 3)
export const resources = new ResourceStore(new Vault(KEY), { destinations: STORED_DESTINATIONS })

export type NodeOptions = Readonly<{
  name: string
  state: Connection
  /** false: hears no notices, as if every one was lost */
  hears?: boolean
  /** another log than the one that nodes of the state database share here */
  openLog?: (query: Store['query']) => Promise<Log>
  lookEveryMs?: number
  backfillLimits?: Partial<BackfillLimits>
  /** where it sends metrics and traces */
  telemetry?: TelemetrySettings
}>

export interface EngineNode extends AsyncDisposable {
  readonly engine: Engine
  readonly edits: ResourceEdits
  readonly backfills: BackfillEdits
  readonly cache: ResourceCache
  readonly tokens: TokenMemory
  readonly registry: NodeRegistry
  readonly store: Store
  readonly metrics: Metrics
  readonly log: WatchedLog
  /** lines of the log */
  readonly lines: readonly Record<string, unknown>[]
  /** Settles when a line for which this holds has been logged. */
  logged(condition: (line: Record<string, unknown>) => boolean): Promise<void>
  /** How a sink is here; undefined: it does not run. */
  health(sinkName: string): Promise<Health | undefined>
  stop(): Promise<void>
}

export async function startNode({
  name,
  state,
  hears = true,
  openLog,
  lookEveryMs = 5_000,
  backfillLimits = {},
  telemetry: settings,
}: NodeOptions): Promise<EngineNode> {
  await using parts = new AsyncDisposableStack()
  const store = parts.use(await openStore(state, 5, () => undefined))
  const log = parts.use(openLog ? new WatchedLog(await openLog(store.query)) : await sharedLog(state.database))
  const lines: Record<string, unknown>[] = []
  const destination = { write: (line: string) => void lines.push(JSON.parse(line) as Record<string, unknown>) }
  const logger = createLogger({ level: 'debug', format: 'json', destination })
  const registry = new NodeRegistry({ query: store.query, name, onError: (err) => logger.warn({ err }, 'heartbeat') })
  const feed = parts.use(new StateFeed(state, (err) => logger.warn({ err }, 'notices')))
  const metrics = new Metrics({ version: '1', node: name, processMetrics: false })
  const telemetry = settings && parts.use(new Telemetry({ settings, metrics, logger, version: '1', instance: name }))
  const cache = new ResourceCache(await resources.load(store.query))
  const tokens = parts.use(new TokenMemory({ query: store.query, feed, onError: (err) => logger.warn({ err }, 'tokens') }))
  await tokens.load()
  tokens.start()
  const functions = new FunctionPool({ threads: 2, memoryMb: 512 })
  parts.defer(() => functions.stop())
  const egress = new Egress({ mode: 'private' })
  const engine = new Engine({
    store,
    resources,
    cache,
    log,
    metrics,
    logger,
    egress,
    nodes: registry,
    functions,
    tokens,
    tracing: telemetry?.tracing,
    backfillLimits,
  })
  const backfills = new BackfillEdits({ store, resources, takeIn: () => engine.reload() })
  const edits = new ResourceEdits({ store, resources, cache, takeIn: (stored) => engine.reload(stored) })
  parts.defer(() => engine.stop())
  await engine.start()
  await registry.join({ address: 'http://127.0.0.1:1', version: '1' })
  parts.defer(() => registry.leave())
  parts.use(
    watchConfig({
      feed,
      stored: () => resources.print(store.query),
      applied: () => engine.appliedPrint,
      reload: () => engine.reload(),
      onError: (err) => logger.warn({ err }, 'reload'),
      lookEveryMs,
    }),
  )
  if (hears) feed.start()
  parts.defer(() => telemetry?.endMetrics())
  const owned = parts.move()
  const stop = () => owned.disposeAsync()
  const logged = async (condition: (line: Record<string, unknown>) => boolean) => {
    await until(
      () => `a line of the log:\n${lines.map((line) => JSON.stringify(line)).join('\n')}`,
      () => lines.some(condition),
    )
  }
  const health = async (sinkName: string) => {
    const { id = '' } = cache.sinks.find(({ name }) => name === sinkName) ?? {}
    return (await engine.sinkHealth([id]))[id]
  }
  return {
    engine,
    edits,
    backfills,
    cache,
    tokens,
    registry,
    store,
    metrics,
    log,
    lines,
    logged,
    health,
    stop,
    [Symbol.asyncDispose]: stop,
  }
}

/** A database of a configuration file, with a slot and publication of its own. It is JSON, which is YAML too. */
export const databaseEntry = ({ name, connection: { hostname, port, database, username, password } }: TestDatabase, more: object = {}) =>
  JSON.stringify({
    ...{ name: 'shop', hostname, port, database, username, password, ssl: false },
    slot: { name: `s_${name}`, create_if_not_exists: true },
    publication: { name: `s_${name}`, create_if_not_exists: true },
    ...more,
  })

/** Stores the resources of a configuration file, as another program would. */
export async function applyYaml(state: Connection, text: string): Promise<void> {
  await using store = await openStore(state, 2, () => undefined)
  const pool = new FunctionPool({ threads: 1, memoryMb: 512 })
  try {
    const { signal } = new AbortController()
    await applyConfig(parseConfig(text, 'test.yaml', {}), { store, resources, signal, pool: pool.of('test') })
  } finally {
    await pool.stop()
  }
}
