/** Tailrace as a user runs it: `tailrace start` with a configuration file, a pull sink, and a client that receives and
 *  acknowledges everything over HTTP. Each start has a new data folder and a new state database. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from 'pg'
import { stringify } from 'yaml'
import { Reader } from '../reader.ts'
import type { Running, System, Task } from '../system.ts'
import type { PullTask } from './pull-client.ts'

const CONNECTIONS = 4
const BATCH_SIZE = 1000
const WAIT_FOR_MS = 30_000
const TOKEN = 'bench-token-0123456789'
const STOP_MS = 20_000
/** characters of the service's log that a failure shows */
const LOG_TAIL = 2_000
const bin = join(import.meta.dirname, '..', '..', 'cli', 'tailrace.mjs')

export const tailrace: System = {
  name: 'Tailrace',
  description: `the durable log on disk, ${CONNECTIONS} HTTP connections, batch_size ${BATCH_SIZE}, every answer parsed and acknowledged`,
  start: async (task: Task): Promise<Running> => {
    await using opened = new AsyncDisposableStack()
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-bench-'))
    opened.defer(() => rm(folder, { recursive: true, force: true }))
    const state = `state_${task.slot}`
    await withDatabase(task, (client) => client.query(`create database ${state}`))
    opened.defer(() => withDatabase(task, (client) => client.query(`drop database ${state} with (force)`)))
    const config = join(folder, 'tailrace.yaml')
    await writeFile(config, configuration(task))

    const port = await freePort()
    const { user, password, host, port: postgresPort } = task.database
    const log = join(folder, 'log')
    const service = opened.use(
      await startService(log, {
        PG_URL: `postgresql://${encodeURIComponent(user)}:${encodeURIComponent(password)}@${host}:${postgresPort}/${state}`,
        CONFIG_FILE_PATH: config,
        SERVER_PORT: String(port),
        TAILRACE_METRICS_PORT: '0',
        TAILRACE_DATA: join(folder, 'data'),
        LOG_LEVEL: 'warn',
        ...(task.profileFolder !== undefined && { NODE_OPTIONS: `--cpu-prof --cpu-prof-dir=${task.profileFolder}` }),
      }),
    )
    const pull: PullTask = {
      origin: `http://127.0.0.1:${port}`,
      path: '/api/http_pull_consumers/bench',
      token: TOKEN,
      connections: CONNECTIONS,
      batchSize: BATCH_SIZE,
      waitForMs: WAIT_FOR_MS,
      changes: task.changes,
      recordDelays: task.recordDelays,
    }
    const reader = opened.use(new Reader(join(import.meta.dirname, 'pull-client.ts'), pull))
    const reached = Promise.race([reader.reached, service.failed]).catch(async (error: Error) => {
      throw new Error(`${error.message}\n${(await readFile(log, 'utf8').catch(() => '')).slice(-LOG_TAIL)}`)
    })
    reached.catch(() => {}) // it may be asked for later
    const resources = opened.move()
    return {
      processes: { service: () => [service.pid], client: () => [reader.pid] },
      reached,
      resetDelays: () => reader.resetDelays(),
      delays: () => reader.delays(),
      [Symbol.asyncDispose]: () => resources.disposeAsync(),
    }
  },
}

const configuration = ({ database, slot, publication, table }: Task): string =>
  stringify({
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
    sinks: [{ name: 'bench', database: 'bench', source: { include_tables: [table] }, destination: { type: 'sequin_stream' } }],
  })

type Service = AsyncDisposable & Readonly<{ pid: number; failed: Promise<never> }>

/** @param log file for what the service prints */
async function startService(log: string, settings: Readonly<Record<string, string>>): Promise<Service> {
  await using output = await open(log, 'w')
  const child = spawn(process.execPath, [bin, 'start'], { stdio: ['ignore', output.fd, output.fd], env: { ...process.env, ...settings } })
  let stopping = false
  const ended = once(child, 'exit')
  const failed = ended.then(([code, signal]): Promise<never> => {
    if (stopping) return new Promise(() => {})
    throw new Error(`the service ended with ${code ?? signal}`)
  })
  failed.catch(() => {}) // it may be asked for later, or never
  return {
    pid: child.pid ?? 0,
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

async function freePort(): Promise<number> {
  const server = createServer()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  return port
}
