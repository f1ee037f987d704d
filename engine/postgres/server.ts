/**
 * A PostgreSQL server that is ours to run: made, started, adopted and stopped by us, in a process group of its own, so
 * that Ctrl-C in the terminal reaches it only through us, after the engine has drained.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chownSync, existsSync, mkdirSync, openSync, readFileSync, closeSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { Client } from 'pg'
import { EngineError } from '../errors.ts'
import type { Connection } from '../state/resources.ts'
import { launcher, type Binaries, type Launch } from './binaries.ts'

export type ServerOptions = Readonly<{
  binaries: Binaries
  /** holds the cluster, its log, its password and the port it had last */
  folder: string
  /** run-time settings beside ours */
  settings?: Readonly<Record<string, string | number>>
  /** of a cluster that was copied from another server; made once otherwise */
  password?: string
}>

const SETTINGS = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  wal_level: 'logical',
  max_replication_slots: 50,
  max_wal_senders: 50,
} as const
const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 20_000
const POLL_MS = 25
const LOG_BYTES = 10 * 1024 * 1024

export class PostgresServer {
  readonly folder: string
  readonly #binaries: Binaries
  readonly #settings: Readonly<Record<string, string | number>>
  readonly #launch: (program: 'initdb' | 'postgres') => Launch
  readonly #password: string
  #pid: number | undefined
  #child: ChildProcess | undefined
  #port = 0

  /** Makes the cluster when there is none yet; doesn't start it. */
  constructor({ binaries, folder, settings = {}, password }: ServerOptions) {
    this.folder = folder
    this.#binaries = binaries
    this.#settings = settings
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    this.#launch = launcher(binaries, folder)
    const passwordFile = join(folder, 'password')
    if (!existsSync(passwordFile)) writeFileSync(passwordFile, password ?? randomBytes(18).toString('base64url'), { mode: 0o600 })
    this.#password = readFileSync(passwordFile, 'utf8')
    if (!existsSync(join(this.cluster, 'PG_VERSION'))) this.#init(passwordFile)
  }

  get cluster(): string {
    return join(this.folder, 'cluster')
  }
  get port(): number {
    return this.#port
  }
  get pid(): number | undefined {
    return this.#pid
  }

  connection(database: string): Connection {
    return { hostname: '127.0.0.1', port: this.#port, database, username: 'postgres', password: this.#password, ssl: false }
  }

  /** Starts the server, or takes over one that a killed process of ours left running on this folder. */
  async start(): Promise<'started' | 'adopted'> {
    if (await this.#adopt()) return 'adopted'
    this.#port = await this.#freePort()
    const log = openSync(join(this.folder, 'postgres.log'), this.#logIsLarge() ? 'w' : 'a')
    const options = Object.entries({ ...SETTINGS, ...this.#settings, port: this.#port }).flatMap(([name, value]) => [
      '-c',
      `${name}=${value}`,
    ])
    const { command, before, uid, gid } = this.#launch('postgres')
    const child = spawn(command, [...before, '-D', this.cluster, ...options], {
      stdio: ['ignore', log, log],
      detached: true,
      uid,
      gid,
    })
    closeSync(log)
    child.unref()
    this.#child = child
    this.#pid = child.pid
    writeFileSync(join(this.folder, 'port'), String(this.#port))
    const gone = new Promise<'gone'>((resolve) => {
      child.once('error', () => resolve('gone'))
      child.once('exit', () => resolve('gone'))
    })
    const deadline = performance.now() + START_LIMIT_MS
    while (!(await this.#answers())) {
      if (performance.now() > deadline) throw this.#failed(`it does not answer after ${START_LIMIT_MS / 1000} s`)
      if ((await Promise.race([gone, pause(POLL_MS)])) === 'gone') throw this.#failed('it ended at once')
    }
    return 'started'
  }

  /** fast: sessions are ended and the state is written; immediate: as in a crash. Settles when the server has ended. */
  async stop(mode: 'fast' | 'immediate' = 'fast'): Promise<void> {
    if (this.#pid === undefined || !isAlive(this.#pid)) return
    this.#signal(mode === 'fast' ? 'SIGINT' : 'SIGQUIT')
    const deadline = performance.now() + STOP_LIMIT_MS
    while (this.#runs()) {
      if (performance.now() > deadline) this.#signal('SIGQUIT')
      await pause(POLL_MS)
    }
    this.#pid = undefined
    this.#child = undefined
  }

  #signal(signal: NodeJS.Signals): void {
    try {
      if (this.#pid !== undefined) process.kill(this.#pid, signal)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }

  #runs(): boolean {
    if (this.#child) return this.#child.exitCode === null && this.#child.signalCode === null
    return this.#pid !== undefined && isAlive(this.#pid)
  }

  #init(passwordFile: string): void {
    const { command, before, uid, gid } = this.#launch('initdb')
    if (uid !== undefined && gid !== undefined) for (const path of [this.folder, passwordFile]) chownSync(path, uid, gid)
    const options = [
      '--username=postgres',
      '--encoding=UTF8',
      '--locale=C',
      '--auth=scram-sha-256',
      `--pwfile=${passwordFile}`,
      '--no-sync',
    ]
    const made = spawnSync(command, [...before, '-D', this.cluster, ...options], {
      encoding: 'utf8',
      uid,
      gid,
    })
    if (made.status === 0) return
    rmSync(this.cluster, { recursive: true, force: true })
    const text = `${made.error?.message ?? ''} ${made.stderr ?? ''}`.trim()
    throw new EngineError('EMBEDDED_POSTGRES_FAILED', `the embedded PostgreSQL could not be set up: ${text}`, { folder: this.folder })
  }

  /** @returns whether a server of ours already runs on the cluster; it is asked for its folder, a process id proves nothing */
  async #adopt(): Promise<boolean> {
    const file = join(this.cluster, 'postmaster.pid')
    const deadline = performance.now() + START_LIMIT_MS
    while (existsSync(file)) {
      const [pid, , , port] = readFileSync(file, 'utf8').split('\n')
      const left = Number(pid)
      if (!Number.isInteger(left) || left <= 0 || !isAlive(left)) return false
      this.#port = Number(port)
      if (await this.#answers()) {
        this.#pid = left
        this.#child = undefined
        return true
      }
      if (!isPostgres(left)) return false // the number was given to another process since
      if (performance.now() > deadline) throw this.#failed(`the process ${left} holds ${this.cluster} and does not answer`)
      await pause(POLL_MS)
    }
    return false
  }

  async #answers(): Promise<boolean> {
    const { hostname: host, port, username: user, password } = this.connection('postgres')
    if (!port) return false
    const client = new Client({ host, port, user, password, database: 'postgres', connectionTimeoutMillis: 2000 })
    client.on('error', () => {}) // it ends with the query below
    try {
      await client.connect()
      const { rows } = await client.query<{ folder: string }>(`select current_setting('data_directory') as folder`)
      return rows[0]?.folder === this.cluster
    } catch {
      return false
    } finally {
      void client.end().catch(() => undefined)
    }
  }

  /** The port it had last when that is free, so that connection strings stay true; else any. */
  async #freePort(): Promise<number> {
    const file = join(this.folder, 'port')
    const remembered = existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0
    for (const port of [remembered, 0]) {
      const free = await listensOn(port)
      if (free !== undefined) return free
    }
    throw this.#failed('no port is free')
  }

  #logIsLarge(): boolean {
    const found = statSync(join(this.folder, 'postgres.log'), { throwIfNoEntry: false })
    return found !== undefined && found.size > LOG_BYTES
  }

  #failed(reason: string): EngineError {
    const log = join(this.folder, 'postgres.log')
    const tail = existsSync(log) ? readFileSync(log, 'utf8').trimEnd().split('\n').slice(-12).join('\n') : ''
    return new EngineError('EMBEDDED_POSTGRES_FAILED', `the PostgreSQL in ${this.folder} did not start: ${reason}\n${tail}`, {
      folder: this.folder,
      version: this.#binaries.version,
    })
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** By its name where the system tells it; where it doesn't, a living process has to be taken for the server. */
function isPostgres(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/comm`, 'utf8').trim().startsWith('postgres')
  } catch {
    return !existsSync('/proc/self')
  }
}

function listensOn(port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(undefined))
    server.listen(port, '127.0.0.1', () => {
      const { port: bound } = server.address() as AddressInfo
      server.close(() => resolve(bound))
    })
  })
}
