/** A reader process: it reads what a system delivers, so that the system isn't charged for it, and tells its parent what
 *  it saw. Each side of the talk is one type below. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { build, type Histogram } from 'hdr-histogram-js'
import { wallClock, type DelayRecord, type Delays } from './system.ts'

type Request = Readonly<{ ask: 'delays' | 'reset' | 'stop' }>
type Reply =
  | Readonly<{ warm: number }>
  | Readonly<{ reached: number }>
  | Readonly<{ failed: string }>
  | Readonly<{ delays: Delays }>
  | Readonly<{ done: true }>

/** Starts a module as a reader; its task is the first message it gets. */
export class Reader implements AsyncDisposable {
  readonly pid: number
  readonly reached: Promise<number>
  /** when it had seen as many changes as it was told to warm up with; never, when it was told of none */
  readonly warm: Promise<number>
  readonly #child: ReturnType<typeof fork>
  #stopping = false

  constructor(module: string, task: unknown) {
    this.#child = fork(module, [], { serialization: 'advanced', stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    this.pid = this.#child.pid ?? 0
    const warm = Promise.withResolvers<number>()
    this.warm = warm.promise
    this.reached = new Promise((resolve, reject) => {
      this.#child.on('message', (reply: Reply) => {
        if ('warm' in reply) warm.resolve(reply.warm)
        if ('reached' in reply) resolve(reply.reached)
        if ('failed' in reply) reject(new Error(`${module}: ${reply.failed}`))
      })
      this.#child.on('exit', (code) => reject(new Error(`${module} ended with ${code} before all changes came`)))
    })
    this.reached.catch(() => {}) // it may be asked for later, or never
    this.#child.send(task as object)
  }

  async #ask(request: Request): Promise<Reply> {
    const { promise, resolve, reject } = Promise.withResolvers<Reply>()
    const answered = (reply: Reply): void => void (('delays' in reply || 'done' in reply) && resolve(reply))
    this.#child.on('message', answered)
    this.#child.once('exit', reject)
    this.#child.send(request)
    try {
      return await promise
    } finally {
      this.#child.off('message', answered)
      this.#child.off('exit', reject)
    }
  }

  readonly delays: DelayRecord = {
    read: async () => {
      const reply = await this.#ask({ ask: 'delays' })
      if (!('delays' in reply)) throw new Error('the reader has no delays')
      return reply.delays
    },
    reset: async () => void (await this.#ask({ ask: 'reset' })),
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#stopping || this.#child.exitCode !== null || this.#child.signalCode !== null) return
    this.#stopping = true
    const ended = once(this.#child, 'exit')
    this.#child.kill('SIGKILL') // it holds nothing worth a goodbye
    await ended
  }
}

/** The reader's own side. */
export class Recorder {
  readonly #target: number
  readonly #warmUp: number
  readonly #histogram: Histogram = build({
    lowestDiscernibleValue: 1,
    highestTrackableValue: 600_000_000,
    numberOfSignificantValueDigits: 3,
  })
  #count = 0

  /** @param target changes after which the parent is told. @param warmUp those after which it is told too */
  constructor(target: number, warmUp = 0) {
    this.#target = target
    this.#warmUp = warmUp
    process.on('message', (request: Request) => {
      if (request.ask === 'reset') {
        this.#histogram.reset()
        tell({ done: true })
      } else if (request.ask === 'delays') tell({ delays: this.#read() })
    })
    process.on('disconnect', () => process.exit())
  }

  get isReached(): boolean {
    return this.#count >= this.#target
  }

  /** @param changes that are acknowledged with this */
  add(changes: number): void {
    const before = this.#count
    this.#count += changes
    if (before < this.#warmUp && this.#count >= this.#warmUp) tell({ warm: wallClock() })
    if (before < this.#target && this.#count >= this.#target) tell({ reached: wallClock() })
  }

  /** @param writtenAt the row's timestamptz, as `2025-02-03T04:05:06.789012Z`; @param readAt by wallClock */
  delay(writtenAt: string, readAt: number): void {
    const writtenMs = Date.parse(`${writtenAt.slice(0, 19)}Z`) + Number(writtenAt.slice(20, 26)) / 1000
    this.#histogram.recordValue(Math.max(1, Math.round((readAt - writtenMs) * 1000)))
  }

  #read(): Delays {
    const at = (percentile: number) => Math.round(this.#histogram.getValueAtPercentile(percentile) / 10) / 100
    return {
      count: this.#histogram.totalCount,
      p50Ms: at(50),
      p90Ms: at(90),
      p99Ms: at(99),
      p999Ms: at(99.9),
      maxMs: Math.round(this.#histogram.maxValue / 10) / 100,
    }
  }
}

/** Says something to the parent. */
export const tell = (reply: Reply): void => void process.send?.(reply)

/** @returns the task the parent sent */
export async function receiveTask<T>(): Promise<T> {
  const [task] = (await once(process, 'message')) as [T]
  return task
}

/** Runs a reader's work; a failure goes to the parent in words. */
export function runReader(work: () => Promise<void>): void {
  work().catch((error: unknown) => {
    tell({ failed: error instanceof Error ? (error.stack ?? error.message) : String(error) })
  })
}
