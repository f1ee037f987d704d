/** `tailrace start` as others start it: by a program of theirs, on a state database of the test, until it is up. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { createState } from '../services/postgres.ts'
import { until } from '../waiting.ts'

export const COMMAND = join(dirname(dirname(import.meta.dirname)), 'cli', 'tailrace.mjs')

export type RunningCommand = Readonly<{
  /** what was spawned */
  outer: ChildProcess
  ended: Promise<[number | null, NodeJS.Signals | null]>
  /** process id of the service */
  inner: number
  /** nothing of it runs any more */
  gone: Promise<unknown>
}>

/** A command that runs longer has not noticed its end. */
const LIMIT_MS = 90_000

/** What it starts is killed with its scope. */
export class CommandStage implements AsyncDisposable {
  readonly #env: NodeJS.ProcessEnv
  readonly #folder: string
  readonly #stack: AsyncDisposableStack

  private constructor(folder: string, env: NodeJS.ProcessEnv, stack: AsyncDisposableStack) {
    this.#folder = folder
    this.#env = env
    this.#stack = stack
  }

  static async create(): Promise<CommandStage> {
    await using stack = new AsyncDisposableStack()
    const state = stack.use(await createState())
    const folder = await mkdtemp(join(tmpdir(), 'tailrace-command-'))
    stack.defer(() => rm(folder, { recursive: true, force: true }))
    const env = { ...process.env, PG_URL: state.url, TAILRACE_DATA: folder, SERVER_PORT: '0', TAILRACE_METRICS_PORT: '0' }
    for (const name of Object.keys(env)) if (name.startsWith('npm_')) delete (env as NodeJS.ProcessEnv)[name] // how the tests were started
    return new CommandStage(folder, env, stack.move())
  }

  async start(program: string, args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<RunningCommand> {
    const outer = spawn(program, args, { env: { ...this.#env, ...env }, stdio: ['ignore', 'pipe', 'inherit'] })
    const exited = once(outer, 'exit') as RunningCommand['ended']
    const lines = createInterface(outer.stdout)
    const closed = once(lines, 'close') // all its processes have the same standard output
    const [ended, gone] = [inTime('what was spawned ends', exited), inTime('all its processes end', closed)]
    for (const promise of [ended, gone]) promise.catch(() => undefined)
    const up = Promise.withResolvers<void>()
    lines.on('line', (line) => line.includes(' is up') && up.resolve())
    this.#stack.defer(async () => {
      outer.kill('SIGKILL')
      outer.stdout.destroy()
      await exited
    })
    await Promise.race([up.promise, gone.then(() => Promise.reject(new Error('it ended before it was up')))])
    const inner = Number(await readFile(join(this.#folder, 'lock.pid'), 'utf8'))
    this.#stack.defer(() => endAtOnce(inner))
    return { outer, ended, inner, gone }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#stack.disposeAsync()
  }
}

async function inTime<T>(what: string, end: Promise<T>): Promise<T> {
  let isOver = false
  end.then(
    () => (isOver = true),
    () => (isOver = true),
  )
  await until(what, () => isOver, { withinMs: LIMIT_MS })
  return end
}

function endAtOnce(pid: number): void {
  try {
    if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(COMMAND)) process.kill(pid, 'SIGKILL')
  } catch {} // it has ended, as it should
}
