/**
 * Real PostgreSQL servers for tests. `createDatabase` gives a database of its own on a server that all test files share
 * (TEST_PG_URL, set by test/run.ts; without it one is started for this process); `startPostgres` gives a whole server to
 * tests that stop, kill or copy it. Everything ends with its scope, and with the process, however that ends.
 */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs'
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { Client } from 'pg'
import { embeddedBinaries, type Binaries } from '../../engine/postgres/binaries.ts'
import { PostgresServer } from '../../engine/postgres/server.ts'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { openStore } from '../../engine/state/store.ts'
import { serverFolder } from './server-folder.ts'
import { until } from '../waiting.ts'

type Row = Record<string, unknown>

/** For all files that run at once, however many the machine takes. */
const ROOM = { max_connections: 500, max_replication_slots: 200, max_wal_senders: 200 }

export interface TestDatabase extends AsyncDisposable {
  readonly name: string
  readonly url: string
  readonly connection: Connection
  query<R extends Row = Row>(sql: string, params?: readonly unknown[]): Promise<R[]>
  /** A session of its own, ended with the database at the latest. */
  connect(): Promise<Client>
  /** Ends all sessions that were made here, so that others can copy, rename or drop it. */
  leave(): Promise<void>
  /** Refuses new sessions, as a server does that is out of them, and ends what there are; who streams, and its lock, goes on. @returns lets them in again */
  refuseSessions(): Promise<() => Promise<void>>
  /**
   * Ends all sessions but the one of `query`; new ones may only read, as on a primary that was demoted behind its name.
   * @returns lets them write again, and ends those that may not
   */
  makeReadOnly(): Promise<() => Promise<void>>
}

export interface TestServer extends AsyncDisposable {
  /** of the database "postgres" */
  readonly url: string
  readonly port: number
  readonly folder: string
  connection(database: string): Connection
  start(): Promise<void>
  stop(mode?: 'fast' | 'immediate'): Promise<void>
  /** ends it as a crash does */
  kill(): Promise<void>
  /** Its files as they are while it is stopped, to put it back to: what a snapshot of its disk does. */
  snapshot(): Promise<Readonly<{ putBack(): Promise<void> }>>
  /** A streaming copy of it, which replays until it is promoted. Where the programs for a live one are missing it is stopped for a moment. */
  standby(settings?: Settings): Promise<TestServer>
  /** Makes a standby the primary. */
  promote(): Promise<void>
}

/** PostgreSQL installations of this machine, versions 14 to 18, oldest first. */
export function machinePostgres(): readonly Binaries[] {
  return globSync('/usr/lib/postgresql/{14,15,16,17,18}/bin/postgres')
    .sort()
    .map((postgres) => ({ postgres, initdb: join(dirname(postgres), 'initdb'), version: basename(dirname(dirname(postgres))) }))
}

type Settings = Readonly<Record<string, string | number>>

/**
 * @param options.standbyOf a server that is stopped: the new one is a copy of it that stays in recovery
 * @param options.isAnother its identifier is its own; that of others may be the same, for those that share a template
 */
export async function startPostgres(
  options: Readonly<{ settings?: Settings; binaries?: Binaries; standbyOf?: TestServer; isAnother?: boolean }> = {},
): Promise<TestServer> {
  const folder = await serverFolder('tailrace-pg-')
  const { standbyOf, isAnother = false } = options
  const template = options.binaries || standbyOf || isAnother ? undefined : process.env.TEST_PG_CLUSTER
  const former = standbyOf?.folder ?? (template && join(template, TEMPLATE))
  if (former) copied(spawnSync('cp', ['-a', former, join(folder, 'cluster')], { encoding: 'utf8' }))
  if (standbyOf) writeFileSync(join(folder, 'cluster', 'standby.signal'), '')
  const binaries = options.binaries ?? embeddedBinaries()
  const password = standbyOf?.connection('postgres').password ?? (template && readFileSync(join(template, 'password'), 'utf8'))
  const server = new PostgresServer({
    binaries,
    folder,
    settings: { ...ROOM, fsync: 'off', ...options.settings },
    ...(password && { password }),
  })
  return startedServer(server, binaries)
}

async function startedServer(server: PostgresServer, binaries: Binaries): Promise<TestServer> {
  const start = async () => {
    await server.start()
    endWithProcess(server)
  }
  await start()
  return {
    get url() {
      return urlOf(server.connection('postgres'))
    },
    get port() {
      return server.port
    },
    folder: server.cluster,
    connection: (database) => server.connection(database),
    start,
    stop: (mode) => server.stop(mode),
    kill: () => server.stop('immediate'),
    snapshot: async () => {
      const kept = await mkdtemp(join(server.folder, 'snapshot-'))
      const copy = (from: string, to: string) => cp(from, to, { recursive: true, preserveTimestamps: true })
      await copy(server.cluster, join(kept, 'cluster'))
      return {
        putBack: async () => {
          await rm(server.cluster, { recursive: true })
          await copy(join(kept, 'cluster'), server.cluster)
        },
      }
    },
    standby: async (settings) => startedServer(await copyOf(server, binaries, settings), binaries),
    promote: async () => {
      const client = await connect(urlOf(server.connection('postgres')))
      await client.query('select pg_promote(true)')
      await client.end()
    },
    [Symbol.asyncDispose]: async () => {
      await server.stop('immediate')
      await rm(server.folder, { recursive: true, force: true })
    },
  }
}

/** A server of a test must not outlive it, even when the test is killed: a watcher ends it then. */
function endWithProcess(server: PostgresServer): void {
  const script = `while kill -0 ${process.pid} 2>/dev/null; do kill -0 ${server.pid} 2>/dev/null || exit 0; sleep 5; done; kill -QUIT ${server.pid}; sleep 1; rm -rf "$1"`
  spawn('sh', ['-c', script, 'sh', server.folder], { detached: true, stdio: 'ignore' }).unref()
}

async function copyOf(primary: PostgresServer, binaries: Binaries, settings: Settings = {}): Promise<PostgresServer> {
  const folder = await serverFolder('tailrace-pg-')
  const cluster = join(folder, 'cluster')
  const { port, password } = primary.connection('postgres')
  const program = join(dirname(binaries.postgres), 'pg_basebackup')
  const options = ['-D', cluster, '-h', '127.0.0.1', '-p', String(port), '-U', 'postgres', '-R', '-X', 'stream', '-c', 'fast']
  if (existsSync(program)) copied(spawnSync(program, options, { encoding: 'utf8', env: { ...process.env, PGPASSWORD: password } }))
  else {
    await primary.stop('fast')
    copied(spawnSync('cp', ['-a', primary.cluster, cluster], { encoding: 'utf8' }))
    await primary.start()
    await writeFile(join(cluster, 'standby.signal'), '')
  }
  const from = `host=127.0.0.1 port=${port} user=postgres password=${password} dbname=postgres`
  const asked = { ...ROOM, fsync: 'off', hot_standby: 'on', primary_conninfo: from, ...settings }
  return new PostgresServer({ binaries, folder, settings: asked, password })
}

function copied({ status, stderr }: Readonly<{ status: number | null; stderr: string }>): void {
  if (status !== 0) throw new Error(`a copy of the server could not be made: ${stderr}`)
}

let shared: Promise<string> | undefined

const STATE_TEMPLATE = 'tailrace_test_state'

/** Beside the cluster of the shared server: what it was before its first start. */
const TEMPLATE = 'template'

/**
 * Starts the server that test files share, and makes it cheap to share: it has the template of `createState`; a login takes one round
 * of hashing instead of 4096, a millisecond of each client's CPU time; and servers of single tests are copies of what it was when it
 * was new, for to set one up takes 0.6 s of the CPU, and a copy a tenth of it.
 * @returns the server, and what to set for the processes of test files
 */
export async function startShared(): Promise<Readonly<{ server: TestServer; variables: Readonly<Record<string, string>> }>> {
  const binaries = embeddedBinaries()
  const made = new PostgresServer({ binaries, folder: await serverFolder('tailrace-pg-'), settings: { ...ROOM, fsync: 'off' } })
  copied(spawnSync('cp', ['-a', made.cluster, join(made.folder, TEMPLATE)], { encoding: 'utf8' }))
  const server = await startedServer(made, binaries)
  const { password } = server.connection('postgres')
  await once(server.url, `set scram_iterations = 1; alter role postgres password '${password}'`)
  await once(server.url, `create database ${STATE_TEMPLATE}`)
  await (await openStore(server.connection(STATE_TEMPLATE), 1, () => {}))[Symbol.asyncDispose]()
  return { server, variables: { TEST_PG_URL: server.url, TEST_PG_STATE: STATE_TEMPLATE, TEST_PG_CLUSTER: made.folder } }
}

/**
 * A state database in which nothing is stored yet, where tests share a server (TEST_PG_STATE, set by test/run.ts) with the migrations
 * applied: to apply them takes ten times the CPU time of a copy. Tests of a first start and of migrations use `createDatabase`.
 */
export const createState = (): Promise<TestDatabase> => createDatabase(undefined, { template: process.env.TEST_PG_STATE })

/**
 * Copies the files of the template, where the server is ours. PostgreSQL's own way goes through its buffers and its write-ahead log,
 * block by block: 7 MB that every walsender of the server reads and the next checkpoint writes, a third of what a database costs.
 */
const BY_FILES = 'strategy file_copy'

type DatabaseOptions = Readonly<{ server?: string; encoding?: string; template?: string | undefined }>

export async function createDatabase(ddl?: string, options: DatabaseOptions = {}): Promise<TestDatabase> {
  const serverUrl = options.server ?? process.env.TEST_PG_URL ?? (await (shared ??= startPostgres().then(({ url }) => url)))
  const name = `t_${process.pid}_${Math.random().toString(36).slice(2, 10)}`
  const encoding = options.encoding ? `encoding '${options.encoding}'` : ''
  const strategy = process.env.TEST_PG_STATE && !options.server ? BY_FILES : ''
  await once(serverUrl, `create database ${name} template ${options.template ?? 'template0'} ${encoding} ${strategy}`)
  const url = Object.assign(new URL(serverUrl), { pathname: `/${name}` }).href
  const client = await connect(url)
  const clients = [client]
  let former: Promise<unknown> = Promise.resolve() // a session takes one statement at a time, and parts of a test ask side by side
  const leave = async (): Promise<void> => {
    await Promise.all(clients.map((c) => c.end().catch(() => undefined)))
  }
  if (ddl) await client.query(ddl)
  const { hostname, port, username, password } = new URL(url)
  return {
    name,
    url,
    connection: {
      hostname,
      port: Number(port || 5432),
      database: name,
      username: decodeURIComponent(username),
      password: decodeURIComponent(password),
      ssl: false,
    },
    async query<R extends Row>(sql: string, params: readonly unknown[] = []): Promise<R[]> {
      const answer = former.then(() => client.query(sql, [...params]))
      former = answer.catch(() => undefined)
      const result: unknown = await answer
      const last = Array.isArray(result) ? (result.at(-1) as { rows: R[] }) : (result as { rows: R[] })
      return last.rows
    },
    async connect() {
      const another = await connect(url)
      clients.push(another)
      return another
    },
    leave,
    async refuseSessions() {
      await once(serverUrl, `alter database ${name} allow_connections false`)
      const others = `select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database()
        and pid <> pg_backend_pid() and backend_type = 'client backend' and application_name not like '% lock %'`
      while ((await client.query(others)).rows.length > 0); // one that had just been let in is found by another look
      return () => once(serverUrl, `alter database ${name} allow_connections true`)
    },
    async makeReadOnly() {
      const isReadOnly = async (setting: 'on' | 'off') => {
        await client.query(`set default_transaction_read_only = off; alter database ${name} set default_transaction_read_only = ${setting}`)
        await client.query(
          `select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
        )
      }
      await isReadOnly('on')
      return () => isReadOnly('off')
    },
    async [Symbol.asyncDispose]() {
      await leave()
      await dropDatabase(serverUrl, name).catch((error: unknown) => {
        if (!isGone(error)) throw error // a server that the test has stopped took its databases along
      })
    },
  }
}

async function dropDatabase(serverUrl: string, name: string): Promise<void> {
  const client = await connect(serverUrl)
  try {
    await until('no slot of the database is in use', async () => {
      await client.query('select pg_terminate_backend(active_pid) from pg_replication_slots where database = $1 and active', [name])
      try {
        await client.query('select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = $1', [name])
        return true
      } catch (error) {
        if ((error as { code?: string }).code !== OBJECT_IN_USE) throw error
        return false // the terminated session has not let go yet
      }
    })
    await client.query(`drop database if exists ${name} with (force)`)
  } finally {
    await client.end().catch(() => undefined)
  }
}
const OBJECT_IN_USE = '55006'
const isGone = (error: unknown) => ['ECONNREFUSED', 'ECONNRESET', '57P01', '57P03'].includes((error as { code?: string }).code ?? '')

async function once(url: string, sql: string): Promise<void> {
  const client = await connect(url)
  try {
    await client.query(sql)
  } finally {
    await client.end()
  }
}

/** Opens a session of a database, for a scope. */
export async function connectTo(server: TestServer, database: string): Promise<Client & AsyncDisposable> {
  const client = await connect(urlOf(server.connection(database)))
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

async function connect(url: string): Promise<Client> {
  const client = new Client({ connectionString: url })
  client.on('error', () => {}) // a test that ends the server or the session hears of it from its own calls
  await client.connect()
  return client
}

const urlOf = ({ hostname, port, username, password, database }: Connection) =>
  `postgresql://${encodeURIComponent(username)}:${encodeURIComponent(password)}@${hostname}:${port}/${database}`
