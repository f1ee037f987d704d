/**
 * The real service as a child process with a data folder of its own: started, killed, frozen and stopped by its pid
 * alone. Its log goes to a file, whose end belongs into every failure.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import type { Connection } from '../../engine/postgres/client-config.ts'
import { COMMAND } from '../services/bundled-command.ts'
import { CalmClock } from '../services/calm-clock.ts'
import { freePort } from '../services/free-port.ts'
import { until } from '../waiting.ts'
import { checkedFetch } from '../api/checked-fetch.ts'

/** A start that takes longer of what time the machine has to spare is itself a failure. */
const READY_WITHIN_MS = 60_000
const LOG_TAIL_LINES = 40

export const TOKEN = 'fault-test-token'

export type SinkOptions = Readonly<{ name: string; tables?: readonly string[] } & Readonly<Record<string, unknown>>>

export type ServiceOptions = Readonly<{
  /** owns all of it; absent: the one whose token is TOKEN */
  account?: string
  source: Connection
  /** further ones, as the file has them */
  databases?: readonly object[]
  /** URL of the state database; without one it is in the embedded PostgreSQL */
  stateUrl?: string
  sinks: readonly SinkOptions[]
  /** HTTP endpoints that sinks send to */
  endpoints?: readonly object[]
  functions?: readonly object[]
  slot?: string
  env?: Readonly<Record<string, string>>
}>

type Running = { readonly child: ChildProcess; readonly exited: Promise<Exit> }
export type Exit = Readonly<{ code: number | null; signal: NodeJS.Signals | null }>

export class Service implements AsyncDisposable {
  readonly folder: string
  readonly port: number
  #env: Readonly<Record<string, string>>
  #running: Running | undefined
  #peakRssAnonKb = 0
  #starts = 0

  private constructor(folder: string, port: number, env: Readonly<Record<string, string>>) {
    this.folder = folder
    this.port = port
    this.#env = env
  }

  /** Makes folder, configuration and port; starts nothing. */
  static async prepare(options: ServiceOptions): Promise<Service> {
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-faults-'))
    await mkdir(join(folder, 'data'))
    const config = join(folder, 'config.yaml')
    await writeFile(config, configFile(options))
    const port = await freePort()
    const env = {
      PATH: process.env['PATH'] ?? '',
      SERVER_PORT: String(port),
      TAILRACE_METRICS_PORT: '0',
      TAILRACE_LOG_FORMAT: 'json',
      TAILRACE_DATA: join(folder, 'data'),
      ...(options.stateUrl === undefined ? {} : { PG_URL: options.stateUrl }),
      CONFIG_FILE_PATH: config,
      ...options.env,
    }
    return new Service(folder, port, env)
  }

  get origin(): string {
    return `http://127.0.0.1:${this.port}`
  }

  get pid(): number {
    return this.#alive().child.pid!
  }

  get dataFolder(): string {
    return join(this.folder, 'data')
  }

  /** how often the process was started */
  get starts(): number {
    return this.#starts
  }

  /** From the next start on it goes by what its state database holds, without the file. */
  forgetConfigFile(): void {
    const { CONFIG_FILE_PATH: _, ...env } = this.#env
    this.#env = env
  }

  /** Variables that it gets from the next start on. */
  setVariables(variables: Readonly<Record<string, string>>): void {
    this.#env = { ...this.#env, ...variables }
  }

  /** Starts the process; `untilReady` waits for it. */
  start(): void {
    if (this.#running) throw new Error('the service runs already')
    const log = openSync(this.#logFile, 'a')
    // the channel tells it when this process is gone, however that ended: then it stops by itself
    const child = spawn(process.execPath, [COMMAND, 'start'], { cwd: this.folder, env: this.#env, stdio: ['ignore', log, log, 'ipc'] })
    child.channel?.unref()
    closeSync(log)
    const exited = once(child, 'exit').then(([code, signal]) => ({ code, signal }) as Exit)
    const running = { child, exited }
    this.#running = running
    this.#starts++
    void exited.then(() => {
      if (this.#running === running) this.#running = undefined
    })
  }

  /** @throws Error it ended, or was not streaming in time: with the end of its log */
  async untilReady(withinMs = READY_WITHIN_MS): Promise<void> {
    const { exited } = this.#alive()
    let ended: Exit | undefined
    void exited.then((exit) => (ended = exit))
    using clock = new CalmClock()
    let last = 'no answer'
    const isReady = async () => {
      if (ended) throw this.failure(`ended with ${ended.signal ?? ended.code} before it was ready`)
      try {
        const response = await fetch(`${this.origin}/health/ready`)
        last = await response.text()
        return response.ok
      } catch {
        return false // not listening yet
      }
    }
    await until(() => `ready: ${last}`, isReady, { withinMs, clock, service: this })
  }

  async startReady(): Promise<void> {
    this.start()
    await this.untilReady()
  }

  /** Ends the process as a power cut would; settles when it is gone. Nothing to do when it has ended by itself. */
  async kill(): Promise<void> {
    const running = this.#running
    if (!running) return
    running.child.kill('SIGKILL')
    await running.exited
  }

  /** @throws Error it did not end in time */
  async stop(signal: 'SIGTERM' | 'SIGINT' = 'SIGTERM', withinMs = 60_000): Promise<Exit> {
    const { child, exited } = this.#alive()
    child.kill(signal)
    let exit: Exit | undefined
    void exited.then((it) => (exit = it))
    return until(`an end after ${signal}`, () => exit, { withinMs, service: this })
  }

  freeze(): void {
    process.kill(this.pid, 'SIGSTOP')
  }

  thaw(): void {
    process.kill(this.pid, 'SIGCONT')
  }

  /** settles when the process has ended by itself or was ended */
  async exited(): Promise<Exit> {
    return this.#alive().exited
  }

  /** A second process on the same folder. @returns what it said and how it ended */
  async startSecond(): Promise<Exit & { output: string }> {
    const env = { ...this.#env, SERVER_PORT: '0' }
    const limit = { timeout: READY_WITHIN_MS, killSignal: 'SIGKILL' } as const
    const child = spawn(process.execPath, [COMMAND, 'start'], { cwd: this.folder, env, stdio: ['ignore', 'pipe', 'pipe'], ...limit })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text))
    const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null]
    return { code, signal, output }
  }

  /** Private memory of the process, in kB: mapped pages of files do not count. */
  async rssAnonKb(): Promise<number> {
    const status = await readFile(`/proc/${this.pid}/status`, 'utf8')
    const kb = Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1])
    if (!Number.isFinite(kb)) throw new Error('no RssAnon in /proc')
    this.#peakRssAnonKb = Math.max(this.#peakRssAnonKb, kb)
    return kb
  }

  /** the greatest value that `rssAnonKb` has read */
  get peakRssAnonKb(): number {
    return this.#peakRssAnonKb
  }

  /** GET with the token. @returns status and body; the body as text where it is no JSON */
  async get(path: string): Promise<{ status: number; body: unknown }> {
    return this.#request(path, {})
  }

  async patch(path: string, body: object): Promise<{ status: number; body: unknown }> {
    return this.#request(path, { method: 'PATCH', body: JSON.stringify(body) })
  }

  async delete(path: string): Promise<{ status: number; body: unknown }> {
    return this.#request(path, { method: 'DELETE' })
  }

  /** Any method, with a body. */
  async request(method: string, path: string, body: object): Promise<{ status: number; body: unknown }> {
    return this.#request(path, { method, body: JSON.stringify(body) })
  }

  async post(path: string, body: object, headers: Readonly<Record<string, string>> = {}): Promise<{ status: number; body: unknown }> {
    return this.#request(path, { method: 'POST', body: JSON.stringify(body), headers })
  }

  log(): string {
    try {
      return readFileSync(this.#logFile, 'utf8')
    } catch {
      return ''
    }
  }

  /** An error that ends with the last lines of the service's log. */
  failure(what: string): Error {
    const tail = this.log().trimEnd().split('\n').slice(-LOG_TAIL_LINES)
    return new Error(`the service: ${what}\nthe end of its log:\n${tail.map((line) => `  ${line.slice(0, 600)}`).join('\n')}`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
    await rm(this.folder, { recursive: true, force: true })
  }

  get #logFile(): string {
    return join(this.folder, 'service.log')
  }

  #alive(): Running {
    if (!this.#running) throw this.failure('is not running')
    return this.#running
  }

  async #request(
    path: string,
    init: RequestInit & { headers?: Readonly<Record<string, string>> },
  ): Promise<{ status: number; body: unknown }> {
    const headers = { ...init.headers, authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' }
    const response = await checkedFetch(`${this.origin}${path}`, { ...init, headers })
    const text = await response.text()
    try {
      return { status: response.status, body: JSON.parse(text) as unknown }
    } catch {
      return { status: response.status, body: text }
    }
  }
}

/** Slot names are unique in a server, and test files that run side by side share one. */
export const SLOT = `tailrace_faults_${process.pid}`

/** The configuration as a file. */
export const configFile = (options: ServiceOptions): string => stringify(configOf(options))

function configOf({ account, source, databases = [], sinks, endpoints = [], functions = [], slot = SLOT }: ServiceOptions): object {
  const { caCert: _, ...connection } = source
  return {
    account: { name: account ?? 'faults' },
    api_tokens: [{ name: 'test', token: account === undefined ? TOKEN : `${account}-${TOKEN}` }],
    databases: [
      {
        name: 'source',
        ...connection,
        slot: { name: slot, create_if_not_exists: true },
        publication: { name: `${slot}_pub`, create_if_not_exists: true },
      },
      ...databases,
    ],
    http_endpoints: endpoints,
    functions,
    sinks: sinks.map(({ tables, ...sink }) => ({
      database: 'source',
      source: tables ? { include_tables: tables } : {},
      destination: { type: 'sequin_stream' },
      ...sink,
    })),
  }
}
