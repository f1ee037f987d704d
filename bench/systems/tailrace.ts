/**
 * Tailrace as a user runs it: `tailrace start` with a configuration file, a pull sink, and a client that receives and
 * acknowledges everything over HTTP. Each start has new data folders and a new state database, and in Kafka names of its
 * own for topics and groups.
 */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdir, mkdtemp, open, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import { stringify } from 'yaml'
import type { BenchBroker } from '../broker.ts'
import { freePort } from '../free-port.ts'
import { childrenOf } from '../process-usage.ts'
import { Reader } from '../reader.ts'
import { wallClock, type Running, type System, type Task } from '../system.ts'
import { IDLE_TABLE } from '../workload.ts'
import type { PullTask } from './pull-client.ts'
import type { ReceiverTask } from './webhook-receiver.ts'

/** that stat counts a file in */
const BLOCK_BYTES = 512
const CONNECTIONS = 4
const BATCH_SIZE = 1000
const WAIT_FOR_MS = 30_000
const TOKEN = 'bench-token-0123456789'
const STOP_MS = 20_000
const SERVED_EVERY_MS = 200
/** Partitions may still move to processes that came up later. */
const SERVED_LOOKS = 5
/** characters of the service's log that a failure shows */
const LOG_TAIL = 2_000
/** folder of a process's data, beside its output */
const DATA = 'data'
const CHECKOUT = join(import.meta.dirname, '..', '..')

/** A transform as many are: picks, renames, computes a few fields. A filter that lets every tenth message pass. */
const FUNCTIONS = {
  transform: `export default function transform(action, record, changes, metadata) {
  return {
    id: record.id,
    name: record.title,
    cents: Math.round(Number(record.price) * 100),
    at: record.updated_at,
    attributes: record.attributes,
    key: action + ':' + record.id,
  }
}`,
  filter: `let n = 0
export default (action, record) => record.id > 0 && ++n % 10 === 0`,
}
/** A filter that lets no message pass: what is left is the way into the log. */
export const NOTHING_PASSES = 'export default () => false'
/** Each thread that runs the filter counts for itself. */
const UNCOUNTED = 50

export type Shape = Readonly<{
  /** keeps the log; absent: the embedded one */
  broker?: BenchBroker
  /** of the sink */
  partitions: number
  /** more than one need a broker */
  processes: number
  /** sinks beside it, of a table that nobody writes */
  idleSinks?: number
  /** further sinks like it: with a webhook they send as it does, otherwise nobody asks them */
  moreSinks?: number
  /** the sink sends to a receiver on this machine; absent: a client asks */
  webhook?: Readonly<{
    batchSize: number
    /** nothing is sent before `begin` */ isHeld?: boolean
    /** `warm` settles after so many */ warmUp?: number
  }>
  /** what every message goes through; `nothing`: a filter that lets none pass */
  through?: keyof typeof FUNCTIONS | 'nothing'
  /** share of the messages that are traced; their spans go to a collector on this machine, which reads nothing */
  traced?: number
  /** the sink is paused, and nothing bounds what waits for it */
  isPaused?: boolean
  /** folder of the sources that run; absent: this one */
  checkout?: string
}>

export type TailraceSystem = System<RunningTailrace>
export type RunningTailrace = Running &
  Readonly<{
    /** Calls the API of its first process, with its token. @returns the status */
    call(method: string, path: string, body?: object): Promise<number>
    /** The same. @returns what it answers. @throws Error: another status than 200 */
    ask(method: string, path: string, body?: object): Promise<unknown>
    /** Settles when all partitions of all sinks are served, and have been for a second. @param sinks if there are more than were started */
    served(signal: AbortSignal, sinks?: number): Promise<void>
    /** The task of a client that reads another of its pull sinks. */
    pulling(sink: string): PullTask
    /** bytes of its data folders on the disk: the embedded log, and little else */
    dataBytes(): Promise<number>
    /** begins the names of its topics in Kafka */
    topicPrefix: string
    /** when the first of its processes was started, by wallClock */
    spawnedAt: number
  }>

export const tailrace: TailraceSystem = tailraceOf('Tailrace', { partitions: 1, processes: 1 })

export function tailraceOf(name: string, shape: Shape): TailraceSystem {
  const log = shape.broker ? 'the durable log in Kafka' : 'the durable log on disk'
  const cluster = shape.processes > 1 ? `${shape.processes} processes, ` : ''
  const partitions = shape.partitions > 1 ? `${shape.partitions} partitions, ` : ''
  const delivery = shape.webhook
    ? `webhooks to a receiver on this machine, batch_size ${shape.webhook.batchSize}`
    : `${CONNECTIONS} HTTP connections, batch_size ${BATCH_SIZE}, every answer parsed and acknowledged`
  return {
    name,
    description: `${log}, ${cluster}${partitions}${delivery}`,
    start: (task) => start(task, shape),
  }
}

async function start(
  task: Task,
  { broker, partitions, processes, idleSinks = 0, moreSinks = 0, webhook, through, traced, isPaused = false, checkout = CHECKOUT }: Shape,
): Promise<RunningTailrace> {
  await using opened = new AsyncDisposableStack()
  const folder = await mkdtemp(join(tmpdir(), 'tailrace-bench-'))
  opened.defer(() => rm(folder, { recursive: true, force: true }))
  const state = `state_${task.slot}`
  await withDatabase(task, (client) => client.query(`create database ${state}`))
  opened.defer(() => withDatabase(task, (client) => client.query(`drop database ${state} with (force)`)))
  const config = join(folder, 'tailrace.yaml')
  const hook = webhook && { ...webhook, port: await freePort() }
  await writeFile(config, configuration(task, { partitions, idleSinks, moreSinks, hook, through, isPaused }))

  const { user, password, host, port: postgresPort } = task.database
  const topicPrefix = `bench-${randomBytes(4).toString('hex')}.`
  const kafka = broker && { KAFKA_BROKERS: broker.address, KAFKA_TOPIC_PREFIX: topicPrefix }
  const settings = {
    PG_URL: `postgresql://${encodeURIComponent(user)}:${encodeURIComponent(password)}@${host}:${postgresPort}/${state}`,
    CONFIG_FILE_PATH: config,
    VAULT_KEY: randomBytes(32).toString('base64'),
    TAILRACE_METRICS_PORT: '0',
    LOG_LEVEL: 'warn',
    ...(isPaused && { BACKFILL_MAX_PENDING_MESSAGES: String(UNBOUNDED_ROWS) }),
    ...kafka,
    ...(traced !== undefined && {
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: await collector(opened),
      OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
      OTEL_TRACES_SAMPLER_ARG: String(traced),
    }),
    ...(task.profileFolder !== undefined && { NODE_OPTIONS: `--cpu-prof --cpu-prof-dir=${task.profileFolder}` }),
  }
  const services: Service[] = []
  const spawnedAt = wallClock()
  const folders = Array.from({ length: processes }, (_, i) => join(folder, `node-${i + 1}`))
  for (const each of folders) services.push(opened.use(await startService(join(checkout, 'cli', 'tailrace.mjs'), each, settings)))
  const pull: PullTask = {
    origins: services.map(({ origin }) => origin),
    path: '/api/http_pull_consumers/bench',
    token: TOKEN,
    connections: CONNECTIONS,
    batchSize: BATCH_SIZE,
    waitForMs: WAIT_FOR_MS,
    changes: through === 'filter' ? Math.floor(task.changes / 10) - UNCOUNTED : task.changes,
    recordDelays: task.recordDelays,
  }
  const received = pull.changes * (1 + moreSinks)
  const receiver: ReceiverTask | undefined = hook && { port: hook.port, changes: received, warmUp: hook.warmUp ?? 0 }
  const [module, readerTask] = receiver ? ['webhook-receiver.ts', receiver] : ['pull-client.ts', pull]
  const reader = opened.use(new Reader(join(import.meta.dirname, module), readerTask))
  const reached = Promise.race([reader.reached, ...services.map(({ failed }) => failed)]).catch(async (error: Error) => {
    const said = await Promise.all(services.map(({ output }) => readFile(output, 'utf8').catch(() => '')))
    throw new Error([error.message, ...said.map((text) => text.slice(-LOG_TAIL))].join('\n'))
  })
  reached.catch(() => {}) // it may be asked for later
  const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
  const answered = async (method: string, path: string, body?: object): Promise<Readonly<{ status: number; text: string }>> => {
    const answer = await fetch(`${services[0]?.origin}${path}`, { method, headers, ...(body && { body: JSON.stringify(body) }) })
    return { status: answer.status, text: await answer.text() }
  }
  const call = async (method: string, path: string, body?: object): Promise<number> => (await answered(method, path, body)).status
  const ask = async (method: string, path: string, body?: object): Promise<unknown> => {
    const { status, text } = await answered(method, path, body)
    if (status !== 200) throw new Error(`${method} ${path} answered ${status}: ${text.slice(0, 300)}`)
    return JSON.parse(text)
  }
  const servedNow = async (): Promise<number> => {
    const answer = await fetch(`${services[0]?.origin}/info`, { headers }).catch(() => undefined)
    if (answer?.status !== 200) return 0 // it comes up
    const { nodes } = (await answer.json()) as { nodes: readonly Readonly<{ partitions: readonly unknown[] }>[] }
    return nodes.reduce((sum, node) => sum + node.partitions.length, 0)
  }
  const served = async (signal: AbortSignal, sinks = 1 + moreSinks + idleSinks): Promise<void> => {
    const all = sinks * partitions
    for (let looks = 0; looks < SERVED_LOOKS; await delay(SERVED_EVERY_MS, undefined, { signal }))
      looks = (await servedNow()) === all ? looks + 1 : 0
  }
  const resources = opened.move()
  return {
    processes: {
      service: () => services.map(({ pid }) => pid),
      ...(through && { sandbox: () => services.flatMap(({ pid }) => childrenOf(pid)) }),
      ...(broker && { broker: () => [broker.pid] }),
      client: () => [reader.pid],
    },
    reached,
    ...(webhook?.warmUp !== undefined && { warm: reader.warm }),
    ...(webhook?.isHeld && { begin: () => activate(call) }),
    delays: reader.delays,
    call,
    ask,
    served,
    pulling: (sink) => ({ ...pull, path: `/api/http_pull_consumers/${sink}`, changes: Infinity, recordDelays: false }),
    dataBytes: () => bytesOnDisk(folders.map((each) => join(each, DATA))),
    topicPrefix,
    spawnedAt,
    [Symbol.asyncDispose]: () => resources.disposeAsync(),
  }
}

/** Starts a collector that takes everything. @returns its address */
async function collector(parts: AsyncDisposableStack): Promise<string> {
  const server = createServer((request, response) => request.resume().on('end', () => response.end())).listen(0, '127.0.0.1')
  await once(server, 'listening')
  parts.defer(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/traces`
}

/** @param number from 1 on */
export const idleSink = (number: number): string => `idle-${number}`

/** Adds up the disk space that the files in folders take, without the holes that they may have. */
async function bytesOnDisk(folders: readonly string[]): Promise<number> {
  let bytes = 0
  for (const folder of folders) {
    for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
      if (entry.isFile()) bytes += (await stat(join(entry.parentPath, entry.name))).blocks * BLOCK_BYTES
    }
  }
  return bytes
}

/** A sink that was paused sends from now on. */
async function activate(call: RunningTailrace['call']): Promise<number> {
  const startedAt = wallClock()
  const status = await call('PATCH', '/api/sinks/bench', { status: 'active' })
  if (status !== 200) throw new Error(`the sink could not be activated: ${status}`)
  return startedAt
}

function configuration(
  { database, slot, publication, table }: Task,
  {
    partitions,
    idleSinks,
    moreSinks,
    hook,
    through,
    isPaused,
  }: Readonly<{
    partitions: number
    idleSinks: number
    moreSinks: number
    hook: Readonly<{ batchSize: number; isHeld?: boolean; port: number }> | undefined
    through: Shape['through']
    isPaused: boolean
  }>,
): string {
  const sink = { database: 'bench', partitions, destination: { type: 'sequin_stream' } }
  const sends = hook && {
    batch_size: hook.batchSize,
    ...(hook.isHeld && { status: 'paused' }),
    destination: { type: 'webhook', http_endpoint: 'receiver', batch: hook.batchSize > 1 },
  }
  const kind = through === 'nothing' ? 'filter' : through
  const working = {
    source: { include_tables: [table] },
    ...sink,
    ...sends,
    ...(isPaused && { status: 'paused', max_backlog_mb: UNBOUNDED_MB }),
    ...(kind && { [kind]: 'bench' }),
  }
  const idling = { source: { include_tables: [IDLE_TABLE] }, ...sink }
  return stringify({
    account: { name: 'bench' },
    api_tokens: [{ name: 'bench', token: TOKEN }],
    databases: [
      {
        name: 'bench',
        hostname: database.host,
        port: database.port,
        database: database.database,
        username: database.user,
        password: database.password,
        ssl: false,
        slot: { name: slot },
        publication: { name: publication },
      },
    ],
    ...(hook && { http_endpoints: [{ name: 'receiver', url: `http://127.0.0.1:${hook.port}` }] }),
    ...(through && { functions: [{ name: 'bench', type: kind, code: through === 'nothing' ? NOTHING_PASSES : FUNCTIONS[through] }] }),
    sinks: [
      { name: 'bench', ...working },
      ...Array.from({ length: moreSinks }, (_, i) => ({ name: `more-${i + 1}`, ...working })),
      ...Array.from({ length: idleSinks }, (_, i) => ({ name: idleSink(i + 1), ...idling })),
    ],
  })
}

const UNBOUNDED_MB = 1_000_000
const UNBOUNDED_ROWS = 1_000_000_000

type Service = AsyncDisposable &
  Readonly<{
    pid: number
    origin: string
    /** file with what it prints */
    output: string
    failed: Promise<never>
  }>

/** @param folder for its data and its output */
async function startService(bin: string, folder: string, settings: Readonly<Record<string, string>>): Promise<Service> {
  await mkdir(folder)
  const file = join(folder, 'output')
  const port = await freePort()
  await using output = await open(file, 'w')
  const child = spawn(process.execPath, [bin, 'start'], {
    stdio: ['ignore', output.fd, output.fd],
    env: { ...process.env, ...settings, SERVER_PORT: String(port), TAILRACE_DATA: join(folder, DATA) },
  })
  let stopping = false
  const ended = once(child, 'exit')
  const failed = ended.then(([code, signal]): Promise<never> => {
    if (stopping) return new Promise(() => {})
    throw new Error(`the service ended with ${code ?? signal}`)
  })
  failed.catch(() => {}) // it may be asked for later, or never
  return {
    pid: child.pid ?? 0,
    origin: `http://127.0.0.1:${port}`,
    output: file,
    failed,
    [Symbol.asyncDispose]: async () => {
      stopping = true
      if (child.exitCode !== null || child.signalCode !== null) return
      child.kill('SIGTERM')
      const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
      await ended
      clearTimeout(timer)
    },
  }
}

async function withDatabase(task: Task, work: (client: Client) => Promise<unknown>): Promise<void> {
  const client = new Client(task.database)
  await client.connect()
  try {
    await work(client)
  } finally {
    await client.end()
  }
}
