/**
 * `tailrace start`: brings the parts up in the order they need each other, says where things are, and takes them down in
 * the opposite order at SIGINT, SIGTERM or SIGHUP:
 *
 *   settings, configuration file ▸ data folder ▸ embedded Postgres (unless PG_URL) ▸ state ▸ configuration applied ▸ log ▸ sinks ▸ sources ▸ API, metrics
 */
import { readFileSync } from 'node:fs'
import { availableParallelism, constants, hostname } from 'node:os'
import { flushCompileCache } from 'node:module'
import { dirname, join, resolve } from 'node:path'
import { MB } from '../engine/amounts.ts'
import { watchConfig } from '../actors/config-watch.ts'
import { Engine } from '../actors/engine.ts'
import { openCluster } from '../api/cluster/cluster.ts'
import { applyConfig } from '../actors/config/config-apply.ts'
import { ConfigEdits } from '../actors/config/config-edits.ts'
import { readDocument, type ConfigDocument } from '../actors/config/config-document.ts'
import { refusal } from '../actors/config/config-reader.ts'
import { functionProblems } from '../actors/config/built-functions.ts'
import { BackfillEdits } from '../actors/resources/backfill-edits.ts'
import { DatabaseEdits } from '../actors/resources/database-edits.ts'
import { IssuerUsers } from '../actors/resources/issuer-users.ts'
import { ResourceEdits } from '../actors/resources/resource-edits.ts'
import { TokenEdits } from '../actors/resources/token-edits.ts'
import { Certificate, openAuthority } from '../api/http/certificate.ts'
import { startMetricsServer } from '../api/metrics-server.ts'
import { startApi } from '../api/server.ts'
import { Issuer } from '../api/oidc/issuer.ts'
import { Tickets } from '../api/oidc/sign-in-ticket.ts'
import { makeTestUrl } from '../api/sinks/test-endpoint.ts'
import { openDataFolder } from '../engine/data-folder.ts'
import { EngineError, errorText } from '../engine/errors.ts'
import { refuseForeignLog } from '../engine/log/own-topics.ts'
import { createLogger, type Logger } from '../engine/logger.ts'
import { Metrics } from '../engine/metrics.ts'
import { Egress } from '../engine/net/egress.ts'
import { embeddedBinaries } from '../engine/postgres/binaries.ts'
import { guardDatabases } from '../engine/postgres/guarded-socket.ts'
import { PostgresServer } from '../engine/postgres/server.ts'
import { actAs, auditEntries, record } from '../engine/state/audit.ts'
import { AuditPruning } from '../engine/state/audit-pruning.ts'
import { NodeRegistry } from '../engine/state/node-registry.ts'
import { ResourceCache } from '../engine/state/resource-cache.ts'
import { ResourceStore, type Resources } from '../engine/state/resource-store.ts'
import { folderKey } from '../engine/state/secrets.ts'
import { UserEdits } from '../actors/resources/user-edits.ts'
import { vaultOf } from './vault.ts'
import { StateFeed } from '../engine/state/state-feed.ts'
import { TokenMemory } from '../engine/state/token-memory.ts'
import { openStore } from '../engine/state/store.ts'
import { closedAccounts } from '../engine/state/users.ts'
import type { Telemetry, TelemetryOptions } from '../engine/telemetry/otlp.ts'
import { UnstoredDatabases } from '../engine/wal/connection/unstored-databases.ts'
import { FunctionPool } from '../transforms/sandbox/pool.ts'
import { ensureDatabase, ensureDemo } from './demo-set-up.ts'
import { functionText, tellOutside } from './bundle.ts'
import { setCollectorFlags } from './collector-flags.ts'
import { nodeAddress } from './node-address.ts'
import { openLog } from './open-log.ts'
import { configVariables, readSettings, type Settings } from './settings.ts'
import { version } from './version.ts'
import { STORED_DESTINATIONS } from '../sinks/destination-types.ts'

/** Threads that run functions where the setting says nothing: with three, one function may have two and leaves one to the others. */
const MIN_THREADS = 3
const MAX_THREADS = 8
/** Memory of the process that only builds functions, to say what is wrong with them. */
const CHECKING_MB = 256
/**
 * A new sink that doesn't say how many partitions it has gets so many, by where the log is: in Kafka there may be several processes to
 * share them.
 */
const PARTITIONS = { folder: 1, kafka: 4 } as const
const STATE_DATABASE = 'tailrace'
/** In a cluster others wait for what this process hands over: whoever is slow to take an answer asks one of them. */
const HAND_OVER_GRACE_MS = 1_000

/** Runs the service until a signal ends it. */
export async function start(): Promise<void> {
  setCollectorFlags()
  const settings = readSettings()
  const document = settings.config && (await readConfig(settings.config))
  const stopping = new AbortController()
  const stopped = untilSignal().then((signal) => {
    stopping.abort()
    return signal
  })
  const logger = createLogger(settings.log)
  process.on('uncaughtException', (err) => {
    const code = 'code' in err && typeof err.code === 'string' ? err.code : 'INTERNAL'
    logger.fatal({ err, code }, 'a failure that nobody expected ends the service')
    process.exit(1)
  })
  for (const name of settings.ignored) logger.info({ variable: name }, 'this variable has no effect here')
  for (const name of settings.unknown) logger.warn({ variable: name }, 'this variable is not known; is it misspelt?')
  try {
    await serve({ settings, document, logger, stopped, stopping: stopping.signal })
  } catch (error) {
    if (!stopping.signal.aborted || !(error instanceof EngineError) || error.code !== 'STOPPING') throw error
    logger.info({ signal: await stopped }, 'stopped before it was up')
  }
}

type Serving = Readonly<{
  settings: Settings
  document: ConfigDocument | undefined
  logger: Logger
  stopped: Promise<NodeJS.Signals>
  stopping: AbortSignal
}>

async function serve({ settings, document, logger, stopped, stopping }: Serving): Promise<void> {
  await using parts = new AsyncDisposableStack()
  const { tls, hasMetricsTls, peerCaFile, limits, corsOrigins, trustedProxies } = settings.edge
  const certificate = tls && parts.use(new Certificate(tls, logger)) // first: a mistake in them is told at once
  const authority = peerCaFile === undefined ? undefined : parts.use(openAuthority(peerCaFile, logger))
  const folder = parts.use(openDataFolder(settings.dataFolder))
  const embedded = settings.state ? undefined : await startEmbedded(folder.path, logger, parts)
  const server = embedded?.server
  const state = settings.state ?? (server && { connection: server.connection(STATE_DATABASE), poolSize: 10 })
  if (!state) throw new Error('neither a state database nor an embedded PostgreSQL is configured')
  if (server) await ensureDatabase(server.connection('postgres'), STATE_DATABASE)
  guardDatabases({ egress: new Egress({ ...settings.databaseEgress, setting: 'EGRESS_DATABASES' }), own: server?.connection('postgres') })
  const store = parts.use(
    await openStore(state.connection, state.poolSize, (err) => logger.warn({ err }, 'an idle session of the state database ended')),
  )
  const vault = vaultOf(settings, folder.path)
  const unstored = parts.use(
    new UnstoredDatabases({
      ...{ store, vault },
      dropped: ({ kind, name }) => logger.warn(`the ${kind} "${name}" is dropped: it was made for a database that was never stored`),
      onError: (err, part) => {
        const what = part
          ? `the ${part.kind} "${part.name}" of a database that was never stored`
          : 'what databases left that were never stored'
        logger.warn({ err }, `${what} could not be dropped; it will be tried again`)
      },
    }),
  )
  const resources = new ResourceStore(vault, {
    destinations: STORED_DESTINATIONS,
    partitions: settings.kafka ? PARTITIONS.kafka : PARTITIONS.folder,
  })
  const { threads = Math.min(MAX_THREADS, Math.max(MIN_THREADS, availableParallelism())), memoryMb } = settings.functions
  const functions = new FunctionPool({
    threads,
    memoryMb,
    unconfined: (lacks) =>
      logger.info({ lacks }, 'this system lets functions run in processes with less than all bounds: docs/functions.md'),
  })
  parts.defer(() => functions.stop())
  await store.transaction((query) => resources.encryptLogins(query))
  if (document) {
    const file = { kind: 'file', name: document.file } as const
    const { notices } = await actAs(file, () =>
      applyConfig(document, { store, resources, signal: stopping, pool: functions.of(document.account), unstored }),
    )
    for (const notice of notices) logger.warn(notice)
  }
  const access = !document && server ? await ensureDemo({ server, store, resources, folder: folder.path }) : undefined

  const log = parts.use(await openLog({ kafka: settings.kafka, folder: folder.path, store, logger }))
  await refuseForeignLog(log, store.query)
  const nodes = new NodeRegistry({
    query: store.query,
    name: `${hostname()}/${process.pid}`,
    onError: (err) => logger.warn({ err }, 'this node could not renew its row in the state database'),
  })
  const feed = parts.use(
    new StateFeed(state.connection, (err) => logger.warn({ err }, 'notices of the state database are not heard at the moment')),
  )
  const egress = new Egress(settings.egress)
  const metrics = new Metrics({ version: version(), node: nodes.name })
  const telemetry =
    settings.telemetry &&
    parts.use(await openTelemetry({ settings: settings.telemetry, metrics, logger, version: version(), instance: nodes.name }))
  const cache = new ResourceCache(await resources.load(store.query))
  const tokens = parts.use(
    new TokenMemory({
      query: store.query,
      feed,
      onError: (err) => logger.warn({ err }, 'the API tokens could not be read; it will be tried again'),
    }),
  )
  await tokens.load()
  const engine = new Engine({
    store,
    resources,
    cache,
    log,
    metrics,
    logger,
    egress,
    nodes,
    functions,
    tokens,
    tracing: telemetry?.tracing,
    source: { maxMessageBytes: settings.maxMessageMb * MB },
    backfillLimits: settings.backfills,
  })
  parts.defer(() => engine.stop())
  await engine.start()

  const cluster =
    settings.kafka && settings.vaultKey
      ? parts.use(
          openCluster({
            engine,
            feed,
            logger,
            registry: nodes,
            query: store.query,
            vaultKey: settings.vaultKey,
            otherVaultKey: settings.otherVaultKey,
            authority,
            findSink: (id) => cache.sink(id),
          }),
        )
      : undefined
  const serving = cluster?.engine ?? engine
  const takeIn = (stored?: Resources) => serving.reload(stored)
  const loadTokens = cluster?.loadTokens ?? (() => tokens.load())
  const takeInAll = async () => {
    await loadTokens() // first: it waits for no source
    await takeIn()
  }
  const { host, port } = settings.server
  if (access && !isLoopback(host))
    logger.warn(
      { host },
      'the demo can be reached from other machines: whoever has its token reads and writes its database. Set SERVER_HOST to 127.0.0.1, or begin with a configuration of your own',
    )
  const edits = new ResourceEdits({ store, resources, cache, takeIn })
  const vaultKey = settings.vaultKey ?? folderKey(folder.path)
  const users = new UserEdits({ store, resources, vaultKey })
  const [needsSetup, closed] = await Promise.all([users.needsSetup(), closedAccounts(store.query)])
  if (closed.length > 0) logger.warn({ accounts: closed }, waysIn({ needsSetup, hasIssuer: settings.oidc !== undefined }))
  else if (needsSetup) logger.info('no admin has been set up yet: the first one needs the code that "npx tailrace user setup-code" prints')
  for (const { name, slot } of cache.databases)
    if (slot.status === 'disabled') logger.warn({ database: name, slot: slot.name }, SLOT_DISABLED)
  const oidc = settings.oidc && {
    issuer: new Issuer(settings.oidc.issuer),
    users: new IssuerUsers({ store, resources, policy: settings.oidc.policy }),
    tickets: new Tickets(vaultKey),
    publicUrl: settings.oidc.issuer.publicUrl,
  }
  const api = await startApi({
    host,
    port,
    engine: serving,
    limits,
    corsOrigins,
    trustedProxies,
    ...(certificate && { certificate }),
    ...(cluster && { cluster: cluster.served }),
    resources: cache,
    tokens,
    tokenEdits: new TokenEdits({ store, memory: tokens, takeIn: loadTokens }),
    users,
    hasPasswords: settings.hasPasswords,
    ...(oidc && { oidc }),
    audit: {
      entries: (accountId, filter) => auditEntries(store.query, accountId, filter),
      note: (change) => record(store.query, [change]),
    },
    edits,
    databases: new DatabaseEdits({ edits, logger, unstored }),
    backfills: new BackfillEdits({ store, resources, takeIn }),
    functions: { resources: cache, pool: functions },
    config: new ConfigEdits({ store, resources, pool: functions, signal: stopping, takeIn: takeInAll, unstored, logger }),
    ...(settings.hasTestEndpoints && { makeTestUrl: () => makeTestUrl(egress) }),
    logger,
    metrics,
    identity: { version: version(), nodeId: nodes.id, nodeName: nodes.name },
  })
  parts.defer(() => api.stop(cluster ? HAND_OVER_GRACE_MS : undefined))
  parts.defer(() => nodes.leave()) // before all else: nobody asks a node that is stopping
  await nodes.join({ address: nodeAddress(settings.nodeAddress, api.url), version: version() })
  parts.use(
    watchConfig({
      feed,
      stored: () => resources.print(store.query),
      applied: () => engine.appliedPrint,
      reload: () => engine.reload(),
      onError: (err) => logger.warn({ err }, 'what is stored could not be taken in; it will be tried again'),
    }),
  )
  tokens.start()
  if (settings.auditDays > 0) {
    const onError = (err: unknown) => logger.warn({ err }, 'old entries of the audit log could not be deleted; it will be tried again')
    parts.use(new AuditPruning({ query: store.query, days: settings.auditDays, onError })).start()
  }
  unstored.start()
  feed.start()
  const metricsServer = await startMetricsServer({
    ...settings.metrics,
    metrics,
    logger,
    certificate: hasMetricsTls ? certificate : undefined,
  })
  if (metricsServer) parts.use(metricsServer)
  if (telemetry) parts.defer(() => telemetry.endMetrics()) // before all else: what ends takes its metrics with it
  logger.info({ url: api.url, data: folder.path }, `Tailrace ${version()} is up`)
  flushCompileCache() // now, for a process that is killed writes none
  if (access) await access.announce(api.url)

  logger.info({ signal: await Promise.race([stopped, ...(embedded ? [embedded.failed] : [])]) }, 'stopping')
}

/** The packages of OpenTelemetry are loaded where there is a collector alone: a start without one takes no longer for them. */
async function openTelemetry(options: TelemetryOptions): Promise<Telemetry> {
  const { Telemetry } = await import('../engine/telemetry/otlp.ts')
  return new Telemetry(options)
}

const isLoopback = (host: string): boolean => host === 'localhost' || host === '::1' || host.startsWith('127.')

const SLOT_DISABLED =
  'nothing is read from this database: its slot is disabled, for which its server keeps the write-ahead log meanwhile. To read it, say "status: active" in its slot in the configuration file (without a status it stays as it is), or by PATCH /api/postgres_databases/NAME (docs/databases.md)'

/** Says how accounts are opened that have neither an API token nor a user. */
const waysIn = ({ needsSetup, hasIssuer }: Readonly<{ needsSetup: boolean; hasIssuer: boolean }>): string =>
  [
    'these accounts have neither an API token that is valid nor a user, so every request to them is refused. Put api_tokens or users into the configuration file and start again',
    ...(needsSetup ? ['make the first admin: POST /api/session/setup, with the code that "npx tailrace user setup-code" prints'] : []),
    ...(hasIssuer ? ['let somebody sign in at the OIDC issuer to whom the settings give a role'] : []),
  ].join('; or ') + ' (docs/security.md)'

/** @property failed rejects when it has ended and does not start again */
type Embedded = Readonly<{ server: PostgresServer; failed: Promise<never> }>

async function startEmbedded(folder: string, logger: Logger, parts: AsyncDisposableStack): Promise<Embedded> {
  const server = new PostgresServer({ binaries: embeddedBinaries(), folder: join(folder, 'postgres') })
  const how = await server.start()
  parts.defer(() => server.stop())
  const about = () => ({ port: server.port, pid: server.pid ?? 0 })
  logger.info(about(), `embedded PostgreSQL ${how}`)
  if (server.isRoots)
    logger.warn(
      { folder: server.folder },
      'the embedded PostgreSQL reaches every file of root: it has no user of its own, who could not come to its folder or to its programs. Let others pass through the folders above both (chmod o+x), or run Tailrace as another user',
    )
  const stopping = new AbortController()
  const kept = server.keepRunning(stopping.signal, {
    ended: (restarts) => logger.error({ ...about(), restarts }, 'the embedded PostgreSQL has ended by itself, and is started again'),
    restarted: () => logger.warn(about(), 'the embedded PostgreSQL runs again'),
  })
  kept.catch(() => undefined) // who serves hears of it
  parts.defer(async () => {
    stopping.abort()
    await kept.catch(() => undefined)
  })
  return { server, failed: kept.then(() => new Promise<never>(() => undefined)) }
}

/** Looked at before anything is started, so that a mistake is told at once; then those of its functions are told with it. */
async function readConfig(config: NonNullable<Settings['config']>): Promise<ConfigDocument> {
  const file = 'yaml' in config ? 'CONFIG_FILE_YAML' : config.path
  const { document, functions, problems } = 'yaml' in config ? readDocument(config.yaml, { file, env: configVariables() }) : readFile(file)
  if (document) return document
  const pool = new FunctionPool({ threads: 1, memoryMb: CHECKING_MB })
  try {
    throw refusal([...problems, ...(await functionProblems(functions, file, pool.of('')))])
  } finally {
    await pool.stop()
  }
}

function readFile(path: string): ReturnType<typeof readDocument> {
  try {
    const read = (file: string) => functionText(resolve(dirname(path), file), tellOutside)
    return readDocument(readFileSync(path, 'utf8'), { file: path, env: configVariables(), read })
  } catch (cause) {
    if (cause instanceof EngineError) throw cause
    throw new EngineError('CONFIG_INVALID', `${path}: ${errorText(cause)}`, { file: path }, { cause })
  }
}

/** One Ctrl-C may arrive more than once: from the terminal, and passed on by npm and by the first step of the command. */
const ONE_PRESS_MS = 500

/** A later signal ends the process at once: whoever sends it no longer wants to wait. */
function untilSignal(): Promise<NodeJS.Signals> {
  const { promise, resolve } = Promise.withResolvers<NodeJS.Signals>()
  let first: number | undefined
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      first ??= performance.now()
      resolve(signal)
      if (performance.now() - first > ONE_PRESS_MS) process.exit(128 + constants.signals[signal])
    })
  }
  return promise
}
