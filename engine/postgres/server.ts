/**
 * A PostgreSQL server that is ours to run: made, started, adopted and stopped by us, in a process group of its own, so
 * that Ctrl-C in the terminal reaches it only through us, after the engine has drained.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { Client } from 'pg'
import { EngineError, codeOf } from '../errors.ts'
import { launched, launchFor, launchServerFor, type Binaries } from './binaries.ts'
import { clientConfig, type Connection } from './client-config.ts'
import { disownPidFile, isAlive, leftoversOf, postmasterOf, serves, signal } from './postmaster.ts'
import { backOff } from '../back-off.ts'

type ServerOptions = Readonly<{
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
/** Without any sign of life; recovery after a crash answers that it is starting, and may take as long as it needs. */
const START_LIMIT_MS = 60_000
const ATTEMPTS = 3
/** What is tried to stop it, and how long each is given. */
const WAYS_TO_STOP = { fast: ['SIGINT', 20_000], immediate: ['SIGQUIT', 10_000], kill: ['SIGKILL', 5000] } as const
const LEFTOVERS_LIMIT_MS = 10_000
const POLL_MS = 25
const LOG_BYTES = 10 * 1024 * 1024
const STILL_STARTING = '57P03'
/** How often it is looked whether it still runs: of one that was adopted no event tells. */
const LOOK_EVERY_MS = 250
/** It is started again so often, with growing pauses, which adds up to half a minute; one that has run for this long has a clean record. */
const MAX_RESTARTS = 8
const FIRST_PAUSE_MS = 250
const MAX_PAUSE_MS = 10_000
const STABLE_MS = 60_000

type Keeping = Readonly<{
  /** it runs no more, and nobody has stopped it */
  ended: (restarts: number) => void
  restarted: () => void
  /** only tests say another than the product's */
  firstPauseMs?: number
}>

/** A PostgreSQL server on a folder of its own. */
export class PostgresServer {
  readonly folder: string
  readonly #binaries: Binaries
  readonly #settings: Readonly<Record<string, string | number>>
  readonly #password: string
  #pid: number | undefined
  #child: ChildProcess | undefined
  #port = 0
  #logFrom = 0
  #isRoots = false

  /** Makes the cluster when there is none yet; doesn't start it. @throws EngineError EMBEDDED_POSTGRES_FAILED */
  constructor({ binaries, folder, settings = {}, password }: ServerOptions) {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    this.folder = realpathSync(folder) // the server tells its folder by the path it was started with
    this.#binaries = binaries
    this.#settings = settings
    const passwordFile = join(this.folder, 'password')
    if (!existsSync(passwordFile)) writeFileSync(passwordFile, password ?? randomBytes(18).toString('base64url'), { mode: 0o600 })
    this.#password = readFileSync(passwordFile, 'utf8')
    if (!existsSync(this.cluster)) this.#init(passwordFile)
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
  /** The server that this process started reaches the files of root. */
  get isRoots(): boolean {
    return this.#isRoots
  }

  connection(database: string): Connection {
    return { hostname: '127.0.0.1', port: this.#port, database, username: 'postgres', password: this.#password, ssl: false }
  }

  /**
   * Starts the server, or takes over one that a killed process of ours left running on this folder.
   * @throws EngineError EMBEDDED_POSTGRES_FAILED: with the end of its log; nothing runs then
   */
  async start(): Promise<'started' | 'adopted'> {
    return this.#start(() => this.#freePort())
  }

  /**
   * Looks after it until aborted: whenever it ends by itself (the kernel is out of memory, somebody kills it) it is started
   * again, on its port, for connections are made to that.
   * @throws EngineError EMBEDDED_POSTGRES_FAILED: it does not stay up
   */
  async keepRunning(signal: AbortSignal, { ended, restarted, firstPauseMs = FIRST_PAUSE_MS }: Keeping): Promise<void> {
    const port = this.#port
    const wait = (ms: number) => pause(ms, undefined, { signal }).catch(() => undefined)
    let restarts = 0
    let upSince = performance.now()
    for (;;) {
      await wait(LOOK_EVERY_MS)
      if (signal.aborted) return
      if (this.#runs()) {
        if (performance.now() - upSince > STABLE_MS) restarts = 0
        continue
      }
      ended(restarts)
      let failure: unknown
      for (;;) {
        if (restarts === MAX_RESTARTS) throw failure ?? this.#failed(`it ended again and again, ${restarts + 1} times in all`)
        await wait(backOff({ firstMs: firstPauseMs, maxMs: MAX_PAUSE_MS }, ++restarts))
        if (signal.aborted) return
        try {
          await this.#start(async () => (await listensOn(port)) ?? Promise.reject(this.#failed(`its port ${port} is taken`)))
          break
        } catch (error) {
          failure = error
        }
      }
      upSince = performance.now()
      restarted()
    }
  }

  async #start(freePort: () => Promise<number>): Promise<'started' | 'adopted'> {
    if (await this.#adopt()) return 'adopted'
    for (let attempt = 1; ; attempt++) {
      this.#port = await freePort()
      this.#launchServer()
      const reason = await this.#untilAnswering()
      if (reason === undefined) break
      await this.stop('immediate')
      const mayHelp = (await listensOn(this.#port)) === undefined || (await this.#endLeftovers())
      if (!mayHelp || attempt === ATTEMPTS) throw this.#failed(reason)
    }
    writeFileSync(join(this.folder, 'port'), String(this.#port))
    return 'started'
  }

  /**
   * fast: sessions are ended and the state is written; immediate: as in a crash. What takes too long is made harder.
   * Settles when the server has ended. @throws EngineError EMBEDDED_POSTGRES_FAILED: it can't be ended
   */
  async stop(mode: 'fast' | 'immediate' = 'fast'): Promise<void> {
    const ways = mode === 'fast' ? (['fast', 'immediate', 'kill'] as const) : (['immediate', 'kill'] as const)
    for (const [name, limitMs] of ways.map((way) => WAYS_TO_STOP[way])) {
      if (this.#pid !== undefined && this.#runs()) signal(this.#pid, name)
      const deadline = performance.now() + limitMs
      while (this.#runs() && performance.now() < deadline) await pause(POLL_MS)
    }
    if (this.#runs()) throw this.#failed(`its process ${this.#pid} does not end`)
    process.removeListener('exit', this.#leave)
    this.#pid = undefined
    this.#child = undefined
  }

  #own(pid: number | undefined, child: ChildProcess | undefined): void {
    this.#pid = pid
    this.#child = child
    process.removeListener('exit', this.#leave)
    process.once('exit', this.#leave)
  }

  /** This process exits without having stopped it: nobody would. */
  readonly #leave = (): void => {
    if (this.#pid !== undefined && this.#runs()) signal(this.#pid, WAYS_TO_STOP.fast[0])
  }

  #runs(): boolean {
    if (this.#child) return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null
    return this.#pid !== undefined && isAlive(this.#pid)
  }

  /** Under another name until it is whole: what is killed half-way is no cluster. */
  #init(passwordFile: string): void {
    const unfinished = `${this.cluster}.new`
    rmSync(unfinished, { recursive: true, force: true })
    const options = ['--username=postgres', '--encoding=UTF8', '--locale=C', '--auth=scram-sha-256', `--pwfile=${passwordFile}`]
    if (this.#settings.fsync === 'off') options.push('--no-sync')
    const [command, args] = launched(launchFor(undefined), this.#binaries.initdb, ['-D', unfinished, ...options])
    const made = spawnSync(command, args, { encoding: 'utf8' })
    if (made.status === 0) return renameSync(unfinished, this.cluster)
    rmSync(unfinished, { recursive: true, force: true })
    const text = `${made.error?.message ?? ''} ${made.stderr ?? ''}`.trim()
    throw new EngineError('EMBEDDED_POSTGRES_FAILED', `the embedded PostgreSQL could not be set up: ${text}`, { folder: this.folder })
  }

  #launchServer(): void {
    const path = join(this.folder, 'postgres.log')
    const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0
    this.#logFrom = size > LOG_BYTES ? 0 : size
    const log = openSync(path, size > LOG_BYTES ? 'w' : 'a', 0o600)
    const settings = Object.entries({ ...SETTINGS, ...this.#settings, port: this.#port })
    const options = settings.flatMap(([name, value]) => ['-c', `${name}=${value}`])
    const launch = launchServerFor(this.#binaries, this.folder, this.cluster)
    this.#isRoots = launch.isRoots === true
    const [command, args] = launched(launch, this.#binaries.postgres, ['-D', this.cluster, ...options])
    const child = spawn(command, args, { stdio: ['ignore', log, log], detached: true })
    child.on('error', () => {}) // told as "has ended", with the log
    closeSync(log)
    child.unref()
    this.#own(child.pid, child)
  }

  /** @returns why it doesn't answer and won't */
  async #untilAnswering(): Promise<string | undefined> {
    let deadline = performance.now() + START_LIMIT_MS
    for (;;) {
      const answer = await this.#answer()
      if (answer === 'ours') return undefined
      if (answer === 'starting') deadline = performance.now() + START_LIMIT_MS
      if (!this.#runs()) return 'it ended at once'
      if (performance.now() > deadline) return `it does not answer after ${START_LIMIT_MS / 1000} s`
      await pause(POLL_MS)
    }
  }

  /** @returns whether a server already runs on the cluster: it is asked for its folder, for a process id alone proves nothing */
  async #adopt(): Promise<boolean> {
    let deadline = performance.now() + START_LIMIT_MS
    for (;;) {
      const left = postmasterOf(this.cluster)
      if (!left) return false
      if (!isAlive(left.pid)) {
        await this.#endLeftovers()
        return false
      }
      this.#port = left.port
      const answer = await this.#answer()
      if (answer === 'ours') {
        this.#own(left.pid, undefined)
        return true
      }
      if (!serves(left.pid, this.cluster)) {
        disownPidFile(this.cluster)
        return false
      }
      if (answer === 'starting') deadline = performance.now() + START_LIMIT_MS // or it is still stopping
      if (performance.now() > deadline) {
        this.#pid = left.pid
        await this.stop('immediate')
        return false
      }
      await pause(POLL_MS)
    }
  }

  /** Sessions of a killed server hold its memory until they look up from their work. @returns whether there were any */
  async #endLeftovers(): Promise<boolean> {
    const left = leftoversOf(this.cluster)
    for (const pid of left) signal(pid, 'SIGQUIT')
    const deadline = performance.now() + LEFTOVERS_LIMIT_MS
    while (left.some(isAlive) && performance.now() < deadline) await pause(POLL_MS)
    return left.length > 0
  }

  async #answer(): Promise<'ours' | 'starting' | 'no'> {
    if (!this.#port) return 'no'
    const client = new Client({
      ...clientConfig(this.connection('postgres'), 'tailrace start'),
      connectionTimeoutMillis: 2000,
      query_timeout: 2000,
    })
    client.on('error', () => {}) // it ends with the query below
    try {
      await client.connect()
      const { rows } = await client.query<{ folder: string }>(`select current_setting('data_directory') as folder`)
      return rows[0]?.folder === this.cluster ? 'ours' : 'no'
    } catch (error) {
      return codeOf(error) === STILL_STARTING ? 'starting' : 'no'
    } finally {
      void client.end().catch(() => undefined)
    }
  }

  /** The port it had last when that is free, so that connection strings stay true; else any. */
  async #freePort(): Promise<number> {
    const file = join(this.folder, 'port')
    const remembered = existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0
    for (const port of Number.isInteger(remembered) ? [remembered, 0] : [0]) {
      const free = await listensOn(port)
      if (free !== undefined) return free
    }
    throw this.#failed('no port is free')
  }

  #failed(reason: string): EngineError {
    const path = join(this.folder, 'postgres.log')
    const log = existsSync(path) ? readFileSync(path).subarray(this.#logFrom).toString('utf8') : ''
    const tail = log.trimEnd().split('\n').slice(-12).join('\n')
    return new EngineError('EMBEDDED_POSTGRES_FAILED', `the PostgreSQL in ${this.folder} did not start: ${reason}\n${tail}`, {
      folder: this.folder,
      version: this.#binaries.version,
    })
  }
}

function listensOn(port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(undefined))
    server.listen(port, '127.0.0.1', () => {
      const bound = server.address()
      server.close(() => resolve(typeof bound === 'object' ? bound?.port : undefined))
    })
  })
}
